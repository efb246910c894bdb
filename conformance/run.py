"""``make conformance``: run suites, print one table, keep it as JSON, and fail if a test that must pass does not.

    python -m conformance.run [--suite S,…] [--only TEST,…] [--fast] [--jobs N] [--second-try] [--update]
                              [--brokers 3] [--peer kafka] [--write-docs]

Exit code 1: a test on a suite's list failed, was skipped or is gone, or our broker logged an ERROR. Exit code 2: a
suite could not be fetched or built; the line says what is missing. ``--update`` adds what passed to the lists. ``--peer
kafka`` runs the same against a real Apache Kafka and records how it did. ``--brokers 3`` runs the same tests, held to
the same lists, against three brokers of ours with three replicas of every topic. ``--fast`` takes the part of each
suite that every change can afford; what that needs is fetched and built, too. ``--second-try`` runs listed tests that
failed once more, alone: some of these suites allow a second for what a busy machine needs two for. The table says which
passed only then. Output of every test is kept under ``.cache/conformance/<suite>``.
"""

import argparse
import fnmatch
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from bench.peers.kafka import KAFKA_VERSION, PeerUnavailable
from bench.peers.kcat import KcatUnavailable
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from conformance import brokers, lists, report
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome, Verdict
from conformance.suite import Context, Suite
from conformance.suites import ALL
from conformance.tools import SuiteUnavailable

OUTPUT = Path(".cache/conformance")


@dataclass
class Ran:
    """One suite's run: what it came to, or why it could not be run."""

    suite: str
    version: str = ""
    unavailable: str = ""
    seconds: float = 0.0
    outcomes: list[Outcome] = field(default_factory=list[Outcome])
    complaints: list[str] = field(default_factory=list[str])
    second_try: tuple[str, ...] = ()
    """Tests that failed first and passed when they were run once more."""
    verdict: Verdict = field(default_factory=lambda: Verdict((), ()))

    def count(self, state: str) -> int:
        return sum(outcome.state == state for outcome in self.outcomes)


def choose(suite: Suite, only: Sequence[str], fast: bool, count: int = 1) -> tuple[list[str], list[Outcome]]:
    """Tests to run against ``count`` brokers, and outcomes of those that are left out for a reason."""
    patterns = lists.left_out(suite.name, count)
    chosen: list[str] = []
    out: list[Outcome] = []
    for name in suite.names():
        if only and not any(fnmatch.fnmatchcase(name, pattern) for pattern in only):
            continue
        if fast and not suite.is_fast(name):
            continue
        reason = "" if only else lists.reason_left_out(name, patterns)
        if reason:
            out.append(Outcome(name, SKIPPED, reason=reason))
        else:
            chosen.append(name)
    return chosen, out


def run_suite(suite: Suite, given: argparse.Namespace, progress: Progress) -> Ran:
    """Prepares and runs one suite."""
    task = progress.add_task(f"{suite.name} · fetching and building", total=None)
    ran = Ran(suite.name)
    began = time.monotonic()
    try:
        ran.version = suite.prepare()
        chosen, ran.outcomes = choose(suite, given.only, given.fast, given.brokers)
        progress.update(task, total=len(chosen), description=suite.name)
        logs = (OUTPUT / f"{suite.name}{_which(given)}").resolve()
        if not given.only:
            shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as scratch:

            def say(text: str) -> None:
                progress.update(task, description=f"{suite.name} · {text}")

            context = Context(
                given.peer, set(chosen), logs, Path(scratch), say, given.jobs, given.patience, given.brokers
            )
            for outcome in suite.run(context) if chosen else ():
                ran.outcomes.append(outcome)
                progress.advance(task)
                show_outcome(progress.console, suite, outcome, given)
            ran.complaints = context.complaints
            failed = {one.name for one in ran.outcomes if one.state == FAILED}.intersection(lists.must_pass(suite.name))
            if given.second_try and failed:
                say("second try")
                anew = Path(scratch, "second-try")  # the first try has left its files
                anew.mkdir()
                logs = logs / "second-try"
                logs.mkdir(exist_ok=True)
                again = replace(context, chosen=failed, logs=logs, scratch=anew, complaints=ran.complaints)
                passed = {one.name: one for one in suite.run(again) if one.state == PASSED}
                ran.outcomes = [passed.get(one.name, one) for one in ran.outcomes]
                ran.second_try = tuple(sorted(passed))
        asked = chosen if given.only or given.fast else None
        patterns = lists.left_out(suite.name, given.brokers)
        must = [name for name in lists.must_pass(suite.name) if not lists.reason_left_out(name, patterns)]
        ran.verdict = lists.judge(ran.outcomes, must, asked)
    except (SuiteUnavailable, PeerUnavailable, KcatUnavailable) as error:
        ran.unavailable = str(error)
    ran.seconds = time.monotonic() - began
    progress.update(task, description=suite.name, visible=False)
    return ran


def show_outcome(console: Console, suite: Suite, outcome: Outcome, given: argparse.Namespace) -> None:
    """A line for a test that did not pass, or for each when asked."""
    if outcome.state == PASSED and not given.verbose:
        return
    colour = {PASSED: "green", FAILED: "red", SKIPPED: "yellow"}[outcome.state]
    peer = "" if given.peer else lists.peer_state(given.recorded, suite.name, outcome.name)
    beside = f" [Apache Kafka: {peer}]" if peer and outcome.state == FAILED else ""
    text = f"[{colour}]{outcome.state}[/] {escape(f'{outcome.name} {outcome.seconds:.1f} s {outcome.reason}{beside}')}"
    console.print(text, highlight=False)


def show(console: Console, runs: Sequence[Ran], given: argparse.Namespace) -> None:
    """The table, and below it the failures that need a person."""
    table = Table(title=brokers.name(given.peer, given.brokers), title_justify="left")
    for title in ("suite", "version", "passed", "failed", "skipped", "must pass", "minutes", "verdict"):
        table.add_column(title, justify="left" if title in ("suite", "version", "verdict") else "right")
    for ran in runs:
        listed = len(lists.must_pass(ran.suite))
        counts = [str(ran.count(state)) for state in (PASSED, FAILED, SKIPPED)]
        table.add_row(ran.suite, ran.version, *counts, str(listed), f"{ran.seconds / 60:.1f}", word(ran, given))
    console.print(table)
    for ran in runs:
        if ran.unavailable:
            console.print(f"{ran.suite}: {escape(ran.unavailable)}", highlight=False)
        reasons = Counter(outcome.reason or "says no reason" for outcome in ran.outcomes if outcome.state == SKIPPED)
        for reason, count in reasons.most_common():
            console.print(f"{ran.suite}: {count} skipped: {escape(reason)}", highlight=False)
        if not given.peer:
            for name in ran.verdict.broken:
                console.print(f"[red]{ran.suite}: {escape(name)} must pass and did not[/]", highlight=False)
            if ran.second_try:
                names = ", ".join(ran.second_try)
                console.print(f"{ran.suite}: passed at the second try: {escape(names)}", highlight=False)
            for complaint in ran.complaints:
                console.print(f"[red]{ran.suite}: our broker said[/] {escape(complaint)}", highlight=False)
            if ran.verdict.new and not given.update:
                console.print(
                    f"{ran.suite}: {len(ran.verdict.new)} more passed and could be held to it (--update): "
                    + escape(", ".join(ran.verdict.new)),
                    highlight=False,
                )


def word(ran: Ran, given: argparse.Namespace) -> str:
    """The verdict in a word."""
    if ran.unavailable:
        return "[yellow]not run[/]"
    if given.peer:
        return "recorded"
    if ran.verdict.broken:
        return f"[red]{len(ran.verdict.broken)} broken[/]"
    return f"[red]{len(ran.complaints)} errors logged[/]" if ran.complaints else "[green]good[/]"


def _which(given: argparse.Namespace) -> str:
    """What tells the output of a run from that of a run against one broker of ours."""
    return "-kafka" if given.peer else f"-{given.brokers}-brokers" if given.brokers > 1 else ""


def _kept_at(given: argparse.Namespace) -> Path:
    return OUTPUT / ("kafka.json" if given.peer else f"last{_which(given)}.json")


def keep(runs: Sequence[Ran], given: argparse.Namespace) -> Path:
    """Writes everything as JSON; suites that were not run whole this time keep their last entry."""
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = _kept_at(given)
    known = dict(report.kept(path))
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    for ran in runs:
        if (given.only or given.fast or ran.unavailable) and ran.suite in known:
            continue
        about = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "commit": commit.strip(), "only": given.only}
        known[ran.suite] = {**about, "broker": brokers.name(given.peer, given.brokers), **asdict(ran)}
    path.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
    return path


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m conformance.run", description="Run other people's test suites.")
    parser.add_argument("--suite", metavar="SUITE,…", help="of " + ", ".join(suite.name for suite in ALL))
    parser.add_argument("--only", metavar="TEST,…", default="", help="names or patterns; runs left-out tests too")
    parser.add_argument("--fast", action="store_true", help="the part that every change can afford (some minutes)")
    parser.add_argument("--jobs", type=int, default=2, help="tests at a time, where a suite allows it (default 2)")
    parser.add_argument("--patience", type=float, default=1.0, metavar="FACTOR", help="multiply every time limit")
    parser.add_argument("--brokers", type=int, choices=[1, 3], default=1, help="of ours, as one cluster (default 1)")
    parser.add_argument("--second-try", action="store_true", help="run listed tests that failed once more, alone")
    parser.add_argument("--update", action="store_true", help="add what passed to the lists of what must pass")
    parser.add_argument("--peer", choices=["kafka"], help="run against a real Apache Kafka and record how it did")
    parser.add_argument(
        "--write-docs", action="store_true", help=f"put the table into {report.DOCUMENT} and docs/compatibility.md"
    )
    parser.add_argument("--verbose", action="store_true", help="a line for passed tests, too")
    given = parser.parse_args(arguments)
    if given.brokers > 1 and (given.peer or given.update or given.write_docs):
        parser.error(
            "--brokers 3 is held to the lists of one broker: it goes with neither --peer, --update nor --write-docs"
        )
    known = {suite.name: suite for suite in ALL}
    asked = given.suite.split(",") if given.suite else list(known)
    if set(asked) - set(known):
        parser.error(f"unknown suite: {', '.join(sorted(set(asked) - set(known)))}; there are {', '.join(known)}")
    given.suites = [known[name] for name in asked if not given.fast or known[name].fast]
    given.only = [name for name in given.only.split(",") if name]
    given.recorded = lists.peer_results(KAFKA_VERSION)
    return given


def _leave(number: int, frame: object) -> None:
    """SIGTERM leaves through the exits of every block, so that no broker is left behind."""
    _ = frame
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry of ``make conformance``; returns the exit code."""
    signal.signal(signal.SIGTERM, _leave)
    given = parse(arguments)
    console = Console() if sys.stdout.isatty() else Console(width=160)
    columns = (TextColumn("{task.completed}/{task.total}"), BarColumn(20), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
        runs = [run_suite(suite, given, progress) for suite in given.suites]
    show(console, runs, given)
    for ran in runs:
        if given.peer and not ran.unavailable:
            date = time.strftime("%Y-%m-%d", time.gmtime())
            lists.record_peer(KAFKA_VERSION, ran.suite, ran.version, date, ran.outcomes)
        elif given.update and ran.verdict.new:
            console.print(f"{ran.suite}: {lists.grow(ran.suite, ran.verdict.new)} added to what must pass")
    console.print(f"written: {keep(runs, given)}; output of each test: {OUTPUT}/<suite>/", highlight=False)
    if given.write_docs:
        names = [suite.name for suite in ALL]
        report.write_document(
            report.table(
                report.kept(OUTPUT / "last.json"), lists.peer_results(KAFKA_VERSION), names, brokers.name("kafka")
            )
        )
        for command in (["-m", "tools.compatibility.record", "--clients"], ["tools/docs.py"]):
            subprocess.run([sys.executable, *command], check=True)
        console.print(f"written: {report.DOCUMENT} and docs/compatibility.md")
    if not given.peer and any(not ran.verdict.good or ran.complaints for ran in runs):
        return 1
    return 2 if any(ran.unavailable for ran in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
