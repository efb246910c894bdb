"""What is held against a run: the tests that must pass, those that are not run and why, and how the peer did.

Decides only, and reads and writes the small text files beside this one; `judge` is the whole verdict. A list of tests
that must pass never shrinks here: `grow` adds names and keeps every one that was there. A line of such a file is a
name; of a left-out file, a name or a shell pattern, two spaces, the reason. ``#`` begins a comment.
"""

import fnmatch
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"


@dataclass(frozen=True)
class Outcome:
    """How one test ended. ``reason`` says why it failed or did not run."""

    name: str
    state: str
    seconds: float = 0.0
    reason: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a run means: ``broken`` tests had to pass and did not, ``new`` ones passed and could be held to it."""

    broken: tuple[str, ...]
    new: tuple[str, ...]

    @property
    def good(self) -> bool:
        return not self.broken


def judge(outcomes: Sequence[Outcome], must_pass: Collection[str], asked: Collection[str] | None = None) -> Verdict:
    """A test that must pass and that was skipped or did not appear is broken too, unless only others were ``asked``
    for.
    """
    passed = {outcome.name for outcome in outcomes if outcome.state == PASSED}
    wanted = set(must_pass) if asked is None else set(must_pass) & set(asked)
    return Verdict(tuple(sorted(wanted - passed)), tuple(sorted(passed - set(must_pass))))


def _lines(path: Path) -> list[str]:
    if not path.exists():
        return []
    lines = (line.split("#", 1)[0].rstrip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def must_pass(suite: str, folder: Path = HERE) -> list[str]:
    return _lines(folder / f"{suite}.txt")


def grow(suite: str, names: Collection[str], folder: Path = HERE) -> int:
    """Adds ``names`` to the list of a suite; returns how many were new."""
    path = folder / f"{suite}.txt"
    before = must_pass(suite, folder)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    comments = [line for line in text.splitlines() if line.startswith("#")]
    comments = comments or [f"# Tests of {suite} that must pass. Only grows: make conformance ARGS=--update adds."]
    after = sorted({*before, *names})
    path.write_text("\n".join([*comments, *after]) + "\n", encoding="utf-8")
    return len(after) - len(before)


def left_out(suite: str, brokers: int = 1, folder: Path = HERE) -> list[tuple[str, str]]:
    """(pattern, reason) of the tests that are not run; against several brokers some more are not."""
    lines = _lines(folder / f"{suite}.left-out.txt")
    if brokers > 1:
        lines += _lines(folder / f"{suite}.{brokers}-brokers.left-out.txt")
    pairs = (line.split(None, 1) for line in lines)
    return [(pair[0], pair[1].strip()) for pair in pairs]


def aborted(suite: str, folder: Path = HERE) -> dict[str, str]:
    """Tests that abort themselves → why. Two spaces stand between name and reason; a name may hold single ones."""
    pairs = (line.split("  ", 1) for line in _lines(folder / f"{suite}.aborted.txt"))
    return {pair[0]: pair[1].strip() for pair in pairs}


def reason_left_out(name: str, patterns: Sequence[tuple[str, str]]) -> str:
    """Why a test is not run; empty if it is."""
    return next((reason for pattern, reason in patterns if fnmatch.fnmatchcase(name, pattern)), "")


def peer_results(version: str, folder: Path = HERE) -> dict[str, dict[str, object]]:
    """Suite → what was recorded of the peer: ``version`` and ``date`` of the run, and ``tests`` by state."""
    path = folder / f"kafka-{version}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def record_peer(
    version: str, suite: str, suite_version: str, date: str, outcomes: Sequence[Outcome], folder: Path = HERE
) -> None:
    """Puts a run of the peer into its file; tests that were not run this time keep what they had."""
    recorded = peer_results(version, folder)
    tests: dict[str, str] = dict(recorded.get(suite, {}).get("tests", {}))  # type: ignore[call-overload]
    for outcome in outcomes:
        tests[outcome.name] = f"{outcome.state}: {outcome.reason}" if outcome.reason else outcome.state
    recorded[suite] = {"version": suite_version, "date": date, "tests": dict(sorted(tests.items()))}
    text = json.dumps(dict(sorted(recorded.items())), indent=1, ensure_ascii=False)
    (folder / f"kafka-{version}.json").write_text(text + "\n", encoding="utf-8")


def peer_state(recorded: Mapping[str, Mapping[str, object]], suite: str, test: str) -> str:
    """How the peer did in a test: a state, or nothing if it was not asked."""
    tests = recorded.get(suite, {}).get("tests", {})
    assert isinstance(tests, dict)
    return str(tests.get(test, "")).split(":", 1)[0]
