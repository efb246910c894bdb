"""The command line of all scenarios: ``python -m sim SCENARIO``.

It plays the histories of many seeds, or of one with the brokers' log lines, or hunts the planted bugs. The exit code is
1 if something was found, or a planted bug was not.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

from sim.engine.histories import Counts, quiet

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from sim.engine.histories import Finding
    from sim.engine.planting import Hunt, PlantedBug

_EVENTS_SHOWN = 40


class Scenario(NamedTuple):
    """One kind of histories, as the command line knows it."""

    about: str
    play: Callable[[int, Counts], Finding | None]
    bugs: Sequence[PlantedBug] = ()
    hunt: Callable[[PlantedBug], Hunt] | None = None
    hours: float = 0.0
    """Simulated hours that are played unless something else is given; 0: by the number of histories."""
    reaches: tuple[str, ...] = ()
    """Events that a run of an hour has to reach, or it does not test what it claims."""
    logs: bool = True
    """Whether the brokers' log lines are shown when one seed is played."""
    options: Callable[[argparse.ArgumentParser], None] | None = None
    """Adds options of the scenario's own."""
    chosen: Callable[[Any], Scenario | int] | None = None
    """The scenario that those options ask for, or the exit code of what they had done."""


def main(name: str, scenario: Scenario, arguments: Sequence[str]) -> int:
    """The command of one scenario."""
    parser = argparse.ArgumentParser(prog=f"python -m sim {name}", description=scenario.about)
    length = parser.add_mutually_exclusive_group()
    usual = f"{scenario.hours:g} hours" if scenario.hours else "100 histories"
    length.add_argument("--hours", type=float, help=f"simulated hours to play (default: {usual})")
    length.add_argument("--histories", type=int, help="histories to play")
    length.add_argument("--minutes", type=float, help="play fresh seeds for so long")
    parser.add_argument("--first-seed", type=int, help="seed to start with (default: 0)")
    parser.add_argument("--seed", type=int, help="play this seed alone, and show all of it")
    if scenario.hunt is not None:
        parser.add_argument("--planted", action="store_true", help="plant each known bug and show how fast it is found")
    if scenario.options is not None:
        scenario.options(parser)
    given = parser.parse_args(arguments)
    if scenario.chosen is not None:
        chosen = scenario.chosen(given)
        if isinstance(chosen, int):
            return chosen
        scenario = chosen
    if getattr(given, "planted", False):
        with quiet():
            return _hunt(scenario)
    counts = Counts()
    with nullcontext() if given.seed is not None and scenario.logs else quiet():
        _play(scenario, given, counts)
    _summary(scenario, counts)
    return 1 if counts.findings else 0


def _play(scenario: Scenario, given: argparse.Namespace, counts: Counts) -> None:
    """Play seeds up to the bound that was given, and tell each finding at once."""
    if given.seed is not None:
        finding = scenario.play(given.seed, counts)
        tell(f"trace hash {counts.trace & (1 << 64) - 1:016x}")
        if finding is not None:
            _show(finding, len(finding.events))
        return
    first = given.first_seed
    if first is None:
        first = int.from_bytes(os.urandom(4), "big") if given.minutes else 0
    end_s = time.monotonic() + (given.minutes or 0) * 60
    hours = given.hours or (scenario.hours if given.histories is None and given.minutes is None else 0)
    for number in itertools.count():
        if given.minutes:
            done = number > 0 and time.monotonic() >= end_s
        elif hours:
            done = counts.hours >= hours
        else:
            done = number >= (100 if given.histories is None else given.histories)
        if done:
            break
        finding = scenario.play(first + number, counts)
        if finding is not None:
            _show(finding, _EVENTS_SHOWN)
    tell(f"seeds {first} to {first + counts.histories - 1}")


def _hunt(scenario: Scenario) -> int:
    """Hunt every planted bug."""
    assert scenario.hunt is not None
    missed = 0
    for bug in scenario.bugs:
        found = scenario.hunt(bug)
        missed += found.finding is None
        by = "NOT FOUND" if found.finding is None else found.finding.what.partition(":")[0][:30]
        tell(f"{bug.name:62} {by:30} {found.histories:>4} histories, {found.spent:,} of {bug.budget:,}")
    return 1 if missed else 0


def _show(finding: Finding, events: int) -> None:
    tell(f"seed {finding.seed}: {finding.what}")
    if finding.setting is not None:
        tell(f"setting: {finding.setting}")
    for event in finding.events[-events:] if events else ():
        tell(event)
    tell(finding.trace)


def _summary(scenario: Scenario, counts: Counts) -> None:
    rate = counts.hours * 3600 / counts.cpu_s if counts.cpu_s else 0
    tell(
        f"{counts.histories} histories, {counts.hours:.2f} simulated hours ({rate:.0f} a CPU-hour), "
        f"{counts.cpu_s:.0f} s of CPU, {counts.steps} steps, {counts.operations} client operations, "
        f"{sum(counts.faults.values())} faults, {len(counts.findings)} findings"
    )
    for title, found in (("faults", counts.faults), ("events", counts.seen)):
        if found:
            tell(f"{title}: {listed(found)}")
    never = [what for what in scenario.reaches if not counts.seen[what]]
    if never and counts.histories > 1:
        tell(f"never reached: {', '.join(never)}")


def listed(counts: Counter[str]) -> str:
    """Counts in words, the highest first."""
    return ", ".join(f"{what} {count}" for what, count in counts.most_common())


def tell(line: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
