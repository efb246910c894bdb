"""Histories of brokers with the production code, as the command line runs them: progress, findings, sums."""

from __future__ import annotations

import itertools
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from millstream.telemetry.log import log as operator_log
from sim.brokers.history import Counts, play
from sim.brokers.planted import PLANTED, hunt
from sim.brokers.settings import draw_for_campaign

if TYPE_CHECKING:
    from collections.abc import Generator

    from sim.brokers.history import Finding


def run(seed: int | None, first_seed: int, hours: float, *, planted: bool) -> int:
    """Play one seed with the brokers' log lines, or seeds for ``hours`` simulated hours; 1 if something was found, or a
    planted bug was not.
    """
    console = Console(soft_wrap=True)
    counts = Counts()
    if seed is not None:
        play(seed, counts, draw_for_campaign(seed))
    else:
        with quiet():
            if planted:
                return _planted(console)
            with Progress(console=console, transient=True) as progress:
                task = progress.add_task("simulated hours", total=hours)
                for each in itertools.count(first_seed):
                    if counts.hours >= hours:
                        break
                    finding = play(each, counts, draw_for_campaign(each))
                    if finding is not None:
                        _show(console, finding)
                    progress.update(task, completed=counts.hours)
                    progress.refresh()
    if seed is not None:
        console.print(f"trace hash {counts.trace & (1 << 64) - 1:016x}")
        for finding in counts.findings:
            _show(console, finding)
    _summary(console, counts)
    return 1 if counts.findings else 0


def _planted(console: Console) -> int:
    table = Table("planted bug", "found by", "histories", "budget")
    missed = 0
    for bug in track(PLANTED, "hunting", console=console, transient=True):
        result = hunt(bug)
        missed += result.finding is None
        found = "NOT FOUND" if result.finding is None else result.finding.what.split(":", 1)[0]
        table.add_row(bug.name, found, str(result.counts.histories), str(bug.histories))
    console.print(table)
    return 1 if missed else 0


RARE = (
    "acknowledgement by one disk",
    "commit fenced",
    "commit of a member",
    "committed offset",
    "controller's snapshot received",
    "damage made up for",
    "election",
    "feature level risen after an upgrade",
    "group: NOT_COORDINATOR",
    "install",
    "log start",
    "partition with a new owner",
    "producer: NOT_LEADER_OR_FOLLOWER",
    "producer: request without an answer",
    "read barrier",
    "read from a segment",
    "reader behind the log start",
    "older release refuses the cluster",
    "replica begun anew",
    "return to the older release",
    "set of groups at rest",
    "topic deleted",
    "topic made",
    "transaction aborted",
    "transaction committed",
    "truncation of several records",
)
"""What a run of an hour has to reach, or it does not test what it claims."""


def _summary(console: Console, counts: Counts) -> None:
    rate = counts.hours * 3600 / counts.cpu_s if counts.cpu_s else 0
    a_second = counts.operations / counts.hours / 3600 if counts.hours else 0
    a_minute = sum(counts.faults.values()) / counts.hours / 60 if counts.hours else 0
    console.print(
        f"{counts.histories} histories, {counts.hours:.2f} simulated hours ({rate:.0f} a CPU-hour), "
        f"{counts.steps} steps, {counts.operations} client operations ({a_second:.0f} a second), "
        f"{counts.seen['acknowledgement']} acknowledged, "
        f"{sum(counts.faults.values())} faults ({a_minute:.0f} a minute), {len(counts.findings)} findings"
    )
    for title, found in (("faults", counts.faults), ("events", counts.seen)):
        console.print(f"{title}: " + ", ".join(f"{what} {count}" for what, count in found.most_common()), markup=False)
    never = [what for what in RARE if not counts.seen[what]]
    if never and counts.histories > 1:
        console.print(f"never reached: {', '.join(never)}", markup=False)


def _show(console: Console, finding: Finding) -> None:
    console.print(f"seed {finding.seed}: {finding.what}", markup=False)
    console.print(f"setting: {finding.setting}", markup=False)
    console.print(finding.trace, markup=False)


@contextmanager
def quiet() -> Generator[None]:
    """Without the brokers' log lines: a history has hundreds."""
    process = operator_log._process  # pyright: ignore[reportPrivateUsage]
    before = process.fd
    sink = os.open(os.devnull, os.O_WRONLY)
    process.fd = sink
    try:
        yield
    finally:
        process.fd = before
        os.close(sink)
