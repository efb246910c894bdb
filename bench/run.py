"""``make bench``: every load to Millstream and to a real Apache Kafka, in turn, and the table that compares them.

    python -m bench.run [--quick] [--only KEY,…] [--no-peer] [--shards 1,2] [--write-docs]

Most loads run on subjects that are all up, idle but for the one under load; what an earlier load left in the page cache
is written first, so that nobody pays for what somebody else did not sync. Within a scenario they take turns, round
after round, so that what else the machine does hits them alike. The peer is warmed up first. Start-up, many partitions,
the busy loads, the core hop and Spark use brokers of their own, one at a time. Bounded: under thirty minutes, with
``--quick`` some ten. Exit code 0 says that everything was measured and verified; a missed budget is shown, and fails
the run only with ``--strict``.
"""

import argparse
import contextlib
import dataclasses
import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from bench import hiccups, plain, plots, processes, report, scenarios
from bench.rows import Alone, Figures, Plan, Say, Scenario
from bench.subjects import PEER, Subject, subject
from millstream.shard.process import may_become_realtime

Names = dict[str, int | None]
"""Subjects: name → number of shards, None for the peer."""

OUTPUT = Path(".cache/bench")
DOCUMENT = Path("docs/performance.md")
ALL_FIGURES = Path("docs/notes/figures.md")
IMAGES = DOCUMENT.parent / "images"


@dataclass(frozen=True)
class Runner:
    """What every step needs: where figures go, how progress is shown."""

    plan: Plan
    progress: Progress
    task: TaskID
    results: report.Results

    def step(self, scenario: Scenario, broker: Subject) -> None:
        """One round of one scenario on one subject."""
        label = f"{scenario.key} · {broker.name}"

        def say(text: str) -> None:
            self.progress.update(self.task, description=f"{label} · {text}")

        say("writing back what the last load left")
        os.sync()
        say("…")
        figures = self._measured(scenario, broker, say)
        self.results.setdefault(scenario.key, {}).setdefault(broker.name, []).append(figures)
        first = scenario.figures[0]
        self.progress.console.print(
            f"{scenario.key:18} {broker.name:22} {figures[first.name]:10,.2f} {first.title}", highlight=False
        )
        for line in broker.complaints():
            self.progress.console.print(line, highlight=False, markup=False)
        self.progress.advance(self.task)

    def _measured(self, scenario: Scenario, broker: Subject, say: Say) -> Figures:
        if not scenario.realtime:
            return scenario.measure(broker, self.plan, say)
        if broker.is_peer:
            processes.make_realtime(broker.pid)
        with processes.realtime():
            return scenario.measure(broker, self.plan, say)


def rounds_of(scenario: Scenario, plan: Plan) -> int:
    return min(plan.rounds, scenario.rounds or plan.rounds)


def warm_up(runner: Runner, brokers: Sequence[Subject]) -> None:
    """A cold virtual machine is slow for its first twenty seconds; ours needs none, and gets a moment all the same."""
    short = dataclasses.replace(scenarios.QUICK, warm_s=0.0, measured_s=1.0, bulk_bytes=128 << 20, fetch_bytes=32 << 20)
    for broker in brokers:
        until = time.monotonic() + (runner.plan.peer_warm_up_s if broker.is_peer else 1.0)
        while time.monotonic() < until:
            runner.progress.update(runner.task, description=f"warming up {broker.name}")
            plain.produce(broker, short, lambda _: None, connections=16, depth=8, records=1, partitions=16)
            plain.produce(broker, short, lambda _: None, connections=4, depth=4, records=128, partitions=4)
            plain.fetch(broker, short, lambda _: None, max_bytes=1 << 17, records=128)
        broker.filled.clear()


def side_by_side(runner: Runner, chosen: Sequence[Scenario], names: Names) -> None:
    """Loads on long-running brokers, taking turns."""
    with contextlib.ExitStack() as stack:
        brokers = [stack.enter_context(subject(name, shards)) for name, shards in names.items()]
        warm_up(runner, brokers)
        for scenario in chosen:
            for number in range(rounds_of(scenario, runner.plan)):
                for broker in _turned(brokers, number):
                    runner.step(scenario, broker)


def _turned(brokers: list[Subject], number: int) -> Iterator[Subject]:
    """Every other round begins at the other end."""
    return iter(brokers) if number % 2 == 0 else reversed(brokers)


def one_at_a_time(runner: Runner, alone: Alone, chosen: Sequence[Scenario], names: Names) -> None:
    """Scenarios on a broker of their own; those that ask for the same one share it."""
    for number in range(max(rounds_of(scenario, runner.plan) for scenario in chosen)):
        for name, shards in names_for(alone, names).items():
            own = alone.shards if alone.shards is not None and shards is not None else shards
            settings = alone.peer if shards is None else alone.ours
            with subject(name, own, start=alone.start, settings=settings, secure=alone.secure) as broker:
                if alone.warm:
                    warm_up(runner, [broker])
                for scenario in chosen:
                    if number < rounds_of(scenario, runner.plan):
                        runner.step(scenario, broker)


def names_for(alone: Alone | None, names: Names) -> Names:
    """The subjects of a scenario."""
    if alone is None:
        return names
    ours = [(name, shards) for name, shards in names.items() if shards is not None]
    peers = [(name, shards) for name, shards in names.items() if shards is None]
    return dict(ours[: 1 if alone.one_of_ours else None] + peers[: None if alone.peer_too else 0])


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.run", description="Measure every load beside a real Apache Kafka."
    )
    parser.add_argument("--quick", action="store_true", help="shorter runs, one round (some ten minutes)")
    parser.add_argument("--only", metavar="KEY,…", help="of " + ", ".join(s.key for s in scenarios.ALL))
    parser.add_argument("--no-peer", action="store_true", help="without Apache Kafka")
    parser.add_argument("--no-ours", action="store_true", help="Apache Kafka alone")
    parser.add_argument("--shards", help="shard counts, the first has the budgets (default 1,2; quick: 1)")
    parser.add_argument(
        "--write-docs", action="store_true", help=f"put tables and plots into {DOCUMENT} and {ALL_FIGURES}"
    )
    parser.add_argument("--strict", action="store_true", help="exit code 1 if a budget is missed")
    given = parser.parse_args(arguments)
    given.shards = given.shards or ("1" if given.quick else "1,2")
    known = {s.key for s in scenarios.ALL}
    given.only = set(given.only.split(",")) if given.only else known
    if given.only - known:
        parser.error(f"unknown: {', '.join(sorted(given.only - known))}; there are {', '.join(sorted(known))}")
    return given


def _subjects(given: argparse.Namespace) -> Names:
    names: Names = {}
    if not given.no_ours:
        counts = [int(count) for count in given.shards.split(",")]
        names |= {f"millstream, {count} shard{'s' if count > 1 else ''}": count for count in counts}
    if not given.no_peer:
        names[PEER] = None
    return names


def measure(given: argparse.Namespace, names: Names, console: Console, results: report.Results) -> None:
    """Runs everything that was asked for, and puts each round into ``results`` when it has ended."""
    plan = scenarios.QUICK if given.quick else scenarios.FULL
    chosen = [s for s in scenarios.ALL if s.key in given.only]
    if not may_become_realtime():
        for scenario in (s for s in chosen if s.realtime):
            console.print(f"{scenario.key} is left out: real-time priority needs root, CAP_SYS_NICE or ulimit -r 1")
        chosen = [s for s in chosen if not s.realtime]
    total = sum(rounds_of(s, plan) * len(names_for(s.alone, names)) for s in chosen)
    done = TextColumn("{task.completed}/{task.total}")
    columns = (done, BarColumn(20), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console) as progress:
        runner = Runner(plan, progress, progress.add_task("starting brokers", total=total), results)
        for _, group in itertools.groupby(chosen, key=lambda scenario: id(scenario.alone)):
            together = list(group)
            if together[0].alone is None:
                side_by_side(runner, together, names)
            else:
                one_at_a_time(runner, together[0].alone, together, names)


def _leave(number: int, frame: object) -> None:
    """SIGTERM leaves through the exits of every block, so that no broker is left behind."""
    _ = frame
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of ``make bench``; returns the exit code."""
    signal.signal(signal.SIGTERM, _leave)
    given = parse(arguments)
    names = _subjects(given)
    console = Console() if sys.stdout.isatty() else Console(width=140)
    command = " ".join(["python -m bench.run", *(sys.argv[1:] if arguments is None else arguments)])
    about = report.machine()
    with console.status("listening to the machine"):
        about["hiccups"] = str(hiccups.measure(5.0 if given.quick else 20.0))
    results: report.Results = {}
    try:
        measure(given, names, console, results)
    except BaseException:
        report.write_json(OUTPUT / "last.json", results, about, command)
        console.print(f"written: {OUTPUT / 'last.json'}, with what was measured before")
        raise
    table = report.rows(scenarios.ALL, results, list(names), PEER)
    report.show(console, table, list(names))
    report.write_json(OUTPUT / "last.json", results, about, command)
    drawn = plots.bench(results, list(names), PEER, IMAGES if given.write_docs else OUTPUT)
    section = report.markdown(table, list(names), about, command, [(shows, path.name) for shows, path in drawn])
    (OUTPUT / "last.md").write_text(section, encoding="utf-8")
    written = [OUTPUT / "last.json", OUTPUT / "last.md", *(path for _, path in drawn)]
    if given.write_docs:
        write_pages(results, table, names, about, command, drawn)
        written += [DOCUMENT, ALL_FIGURES]
    console.print(f"written: {', '.join(map(str, written))}")
    missed = [cells for cells in table if cells[-1] == "missed"]
    return 1 if given.strict and missed else 0


def write_pages(
    results: report.Results,
    table: list[list[str]],
    names: Sequence[str],
    about: dict[str, str],
    command: str,
    drawn: Sequence[tuple[str, Path]],
) -> None:
    """Writes the most important figures and two plots into one page, every figure and the third plot into the other."""
    headlines = [names[0], *(name for name in names if name == PEER and name != names[0])]
    short = report.rows(scenarios.ALL, results, headlines, PEER, scenarios.HEADLINES)
    plots_of_page = [(shows, f"images/{path.name}") for shows, path in drawn if path.name != plots.CALLBACKS]
    others = [(shows, f"../images/{path.name}") for shows, path in drawn if path.name == plots.CALLBACKS]
    report.write_document(DOCUMENT, report.markdown(short, headlines, about, command, plots_of_page))
    report.write_document(ALL_FIGURES, report.markdown(table, list(names), about, command, others))


if __name__ == "__main__":
    sys.exit(main())
