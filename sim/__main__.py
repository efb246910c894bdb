"""Run simulated clusters: ``python -m sim --hours 1`` or ``--seed 17``."""

from __future__ import annotations

import argparse
import itertools
import sys

from rich.console import Console
from rich.progress import Progress, track
from rich.table import Table

from sim.brokers.report import run as run_brokers
from sim.raft.campaign import Finding, Report, run_seed
from sim.raft.planted import PLANTED, hunt


def main(arguments: list[str] | None = None) -> int:
    """Run, print the report; 1 if a seed has broken an invariant."""
    parser = argparse.ArgumentParser(prog="python -m sim", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="simulated hours to run (default: 1)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed to begin with (default: 0)")
    parser.add_argument("--seed", type=int, help="run this seed alone and show the events before a finding")
    parser.add_argument(
        "--brokers", action="store_true", help="run brokers with the production log and shell, instead of cores alone"
    )
    parser.add_argument("--planted", action="store_true", help="plant each known bug and show how fast it is found")
    options = parser.parse_args(arguments)
    if options.brokers:
        return run_brokers(options.seed, options.first_seed, options.hours, planted=options.planted)
    if options.planted:
        return _planted(Console()) | run_brokers(None, 0, 0, planted=True)
    console = Console(soft_wrap=True)
    report = Report()
    if options.seed is not None:
        finding = run_seed(options.seed, report)
        if finding is not None:
            _show(console, finding, events=len(finding.events))
    else:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("simulated hours", total=options.hours)
            for seed in itertools.count(options.first_seed):
                if report.hours >= options.hours:
                    break
                finding = run_seed(seed, report)
                if finding is not None:
                    _show(console, finding, events=20)
                progress.update(task, completed=report.hours)
    _summary(console, report)
    return 1 if report.findings else 0


def _planted(console: Console) -> int:
    """Hunt every planted bug; 1 if one was not found within its budget."""
    table = Table("planted bug", "found by", "seeds", "events", "budget")
    missed = 0
    for bug in track(PLANTED, "hunting", console=console, transient=True):
        result = hunt(bug)
        missed += result.finding is None
        found = "NOT FOUND" if result.finding is None else result.finding.what.split(":", 1)[0]
        table.add_row(bug.name, found, str(result.seeds), f"{result.events:,}", f"{bug.budget_events:,}")
    console.print(table)
    return 1 if missed else 0


def _show(console: Console, finding: Finding, events: int) -> None:
    console.print(f"seed {finding.seed}: {finding.what}", markup=False)
    console.print(f"knobs: {finding.knobs}", markup=False)
    for event in finding.events[-events:]:
        console.print(event, markup=False)
    console.print(finding.trace, markup=False)


def _summary(console: Console, report: Report) -> None:
    rate = report.hours * 3600 / report.cpu_s if report.cpu_s else 0
    console.print(
        f"{report.seeds} seeds, {report.hours:.2f} simulated hours ({rate:.0f} a CPU-hour), {report.events} events, "
        f"{report.operations} operations ({report.acknowledged} acknowledged), {len(report.findings)} findings"
    )
    for title, counts in (("faults", report.faults), ("rare events", report.rare)):
        listed = ", ".join(f"{what} {count}" for what, count in counts.most_common())
        console.print(f"{title}: {listed}", markup=False)


if __name__ == "__main__":
    sys.exit(main())
