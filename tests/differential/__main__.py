"""The command behind ``make differential``; ``--help`` says what it can do."""

import argparse
import contextlib
import sys
from collections import Counter
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from differential import brokers, recording
from differential.compare import Difference, Verdict, differences, judge, known_differences, short
from differential.play import WORKERS, Played, play_all
from differential.table import Input, all_inputs

SHOWN = 60


def main() -> int:
    options = arguments()
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    inputs = all_inputs(options.case)
    if options.version is not None:
        inputs = [one for one in inputs if one.version == options.version]
    if options.list:
        for one in sorted({(at.case.title, at.case.versions) for at in inputs}):
            console.print(f"{one[0]}  v{one[1][0]}-{one[1][-1]}")
        return 0
    if not inputs:
        console.print(f"no case has {options.case!r} in its name")
        return 2
    whole = not options.case and options.version is None
    try:
        with contextlib.ExitStack() as stack:
            kafka, ours = start(options, stack)
            played = progress(console, inputs, [kafka, ours], options)
    except brokers.unavailable() as error:
        console.print(str(error), style="red", markup=False)
        return 2
    return report(console, played, whole, options)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make differential ARGS=…", description=__doc__)
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases with this in their title")
    parser.add_argument("--version", type=int, help="only this version of the API")
    parser.add_argument("--list", action="store_true", help="list the cases and end")
    parser.add_argument("--save", action="store_true", help="keep what Kafka answered in recorded/")
    parser.add_argument("--show", action="store_true", help="print both conversations of what differs")
    parser.add_argument("--brief", action="store_true", help=f"print only the first {SHOWN} differences")
    parser.add_argument("--texts", action="store_true", help="compare the wording of messages too")
    parser.add_argument("--kafka", metavar="HOST:PORT", help="a Kafka that runs already")
    parser.add_argument("--ours", metavar="HOST:PORT", help="a Millstream that runs already")
    parser.add_argument("--workers", type=int, default=WORKERS)
    return parser.parse_args()


def start(options: argparse.Namespace, stack: contextlib.ExitStack) -> tuple[brokers.Peer, brokers.Peer]:
    """Kafka and ours, started unless they run already."""
    kafka = brokers.peer("kafka", options.kafka) if options.kafka else stack.enter_context(brokers.kafka())
    ours = brokers.peer("millstream", options.ours) if options.ours else stack.enter_context(brokers.millstream())
    return brokers.ready(kafka), brokers.ready(ours)


def progress(
    console: Console, inputs: list[Input], peers: list[brokers.Peer], options: argparse.Namespace
) -> dict[Input, list[Played]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("inputs", total=len(inputs))
        return play_all(inputs, peers, lambda _: bar.advance(task), texts=options.texts, workers=options.workers)


def report(console: Console, played: dict[Input, list[Played]], whole: bool, options: argparse.Namespace) -> int:
    """Prints the table and what is wrong; the exit code."""
    found = [one for at, (kafka, ours) in played.items() for one in differences(at, kafka.seen, ours.seen)]
    ran = {at.case for at in played}
    verdict = judge(found, known_differences(), ran if whole else ())
    console.print(table(played, verdict))
    broken = [f"{at.id}: {fault}" for at, both in played.items() for one in both for fault in one.checks]
    broken += [f"{at.id}: {text}" for at, (kafka, _) in played.items() for text in failures(kafka.seen)]
    can_save = not broken and not options.texts
    show_new(console, played, verdict.new, options)
    for entry in verdict.stale:
        console.print(f"no longer differs, take it out: {entry.case} | {entry.where}", style="red", markup=False)
    drift: list[Difference] = []
    if options.save and can_save:
        recording.save({at: kafka.seen for at, (kafka, _) in played.items()}, whole=whole)
        console.print(f"kept the answers to {len(played)} inputs in {recording.FOLDER.name}/")
    elif not options.texts:
        recorded = recording.load()
        drift = [
            one
            for at, (kafka, _) in played.items()
            if at.id in recorded
            for one in differences(at, recorded[at.id], kafka.seen)
        ]
        if whole:
            broken += [
                f"{at.id}: is not recorded yet, --save keeps the answer" for at in played if at.id not in recorded
            ]
            broken += [
                f"{name} is recorded and no case any more" for name in recorded.keys() - {at.id for at in played}
            ]
        if drift:
            console.print("Kafka did not answer as recorded; --save keeps the new answers", style="red")
        for one in drift[:SHOWN]:
            text = f"{one.input.id} | {one.path} | recorded: {short(one.kafka)} | Kafka now: {short(one.ours)}"
            console.print(text, style="red", markup=False, soft_wrap=True)
    for text in broken[:SHOWN]:
        console.print(text, style="red", markup=False, soft_wrap=True)
    return 1 if verdict.new or verdict.stale or broken or drift else 0


def failures(seen: Any) -> list[str]:
    return [text for label, text in seen.items() if label.endswith(" failed")]


def show_new(
    console: Console, played: dict[Input, list[Played]], new: list[Difference], options: argparse.Namespace
) -> None:
    """What differs, once for all versions in which it does; what follows from a closed connection is left out."""
    groups: dict[tuple[str, str, str, str], list[Input]] = {}
    first: set[Input] = set()
    for one in new:
        if one.path.endswith(" connection") and one.input in first:
            continue
        first.add(one.input)
        groups.setdefault((one.input.case.title, one.path, str(one.kafka), str(one.ours)), []).append(one.input)
    for (title, path, kafka, ours), inputs in list(groups.items())[: SHOWN * (1 if options.brief else 100)]:
        versions = ",".join(str(at.version) for at in inputs)
        text = f"new: {title} v{versions} | {path} | Kafka: {short(kafka)} | ours: {short(ours)}"
        console.print(text, markup=False, soft_wrap=True)
        if options.show:
            for name, side in zip(("kafka", "ours"), played[inputs[0]], strict=True):
                for label, seen in side.seen.items():
                    console.print(f"    {name} {label}: {seen}", markup=False, soft_wrap=True)
    if new:
        console.print(f"{len(groups)} new differences in {len(first)} inputs")


def table(played: dict[Input, list[Played]], verdict: Verdict) -> Table:
    """APIs × (cases, inputs, same, known, new)."""
    new = {one.input for one in verdict.new}
    known = {one.input for one, _ in verdict.known} - new
    out = Table(title="Millstream beside Apache Kafka, input by input")
    for name in ("API", "versions", "cases", "inputs", "same", "known differences", "new differences"):
        out.add_column(name, justify="left" if name == "API" else "right")
    total: Counter[str] = Counter()
    for api in sorted({at.case.api for at in played}):
        mine = [at for at in played if at.case.api == api]
        versions = sorted({at.version for at in mine})
        row = Counter(
            cases=len({at.case for at in mine}),
            inputs=len(mine),
            known=len(known & set(mine)),
            new=len(new & set(mine)),
        )
        total += row
        out.add_row(api, f"{versions[0]}–{versions[-1]}", *counts(row))
    out.add_section()
    out.add_row("all", "", *counts(total))
    return out


def counts(row: Counter[str]) -> list[str]:
    same = row["inputs"] - row["known"] - row["new"]
    return [str(number) for number in (row["cases"], row["inputs"], same, row["known"], row["new"])]


if __name__ == "__main__":
    sys.exit(main())
