"""What the last runs came to, as a table for ``docs/conformance.md``: ours and the peer's, suite by suite.

Only whole runs count: a run of chosen tests says nothing of its suite and leaves the last whole one in its place.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conformance import lists
from conformance.lists import FAILED, PASSED, SKIPPED

DOCUMENT = Path("docs/conformance.md")
BEGIN, END = "<!-- results: written by make conformance ARGS=--write-docs -->", "<!-- end of results -->"

Runs = Mapping[str, Mapping[str, Any]]


def table(runs: Runs, recorded: Mapping[str, Mapping[str, object]], order: Sequence[str], peer: str) -> str:
    """Markdown: a row a suite, then every failure and every reason for which tests are not run."""
    lines = [
        f"| suite | version | passed | failed | not run | must pass | on {peer}: passed | failed | date |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    failures: list[str] = []
    for suite in order:
        ran = runs.get(suite)
        if ran is None or ran["unavailable"]:
            continue
        states = {outcome["name"]: outcome for outcome in ran["outcomes"]}
        counts = [_count(states.values(), state) for state in (PASSED, FAILED, SKIPPED)]
        theirs = _peer_counts(recorded, suite)
        cells = [suite, ran["version"], *counts, len(lists.must_pass(suite)), *theirs, ran["date"]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
        for outcome in states.values():
            if outcome["state"] == FAILED:
                state = lists.peer_state(recorded, suite, outcome["name"]) or "not asked"
                failures.append(f"- {suite} `{outcome['name']}`: {_plain(outcome['reason'])} ({peer}: {state})")
    return "\n".join([*lines, "", *_titled("Failures:", failures), *_titled("Not run:", _not_run(runs, order))])


def _count(outcomes: Any, state: str) -> int:
    return sum(outcome["state"] == state for outcome in outcomes)


def _peer_counts(recorded: Mapping[str, Mapping[str, object]], suite: str) -> tuple[str, str]:
    tests = recorded.get(suite, {}).get("tests", {})
    assert isinstance(tests, dict)
    states = [str(state).split(":", 1)[0] for state in tests.values()]
    return (str(states.count(PASSED)), str(states.count(FAILED))) if states else ("–", "–")


def _not_run(runs: Runs, order: Sequence[str]) -> list[str]:
    reasons: dict[tuple[str, str], int] = {}
    for suite in order:
        for outcome in runs.get(suite, {}).get("outcomes", ()):
            if outcome["state"] == SKIPPED:
                key = (suite, _plain(outcome["reason"]))
                reasons[key] = reasons.get(key, 0) + 1
    return [f"- {suite}: {count} × {reason}" for (suite, reason), count in reasons.items()]


def _plain(reason: str) -> str:
    return reason.replace("|", "/").replace("<", "‹").replace(">", "›").replace("`", "'")[:160]


def _titled(title: str, lines: Sequence[str]) -> list[str]:
    return [title, "", *lines, ""] if lines else []


def write_document(text: str, path: Path = DOCUMENT) -> None:
    """Puts the table between its marks."""
    document = path.read_text(encoding="utf-8")
    head, rest = document.split(BEGIN, 1)
    tail = rest.split(END, 1)[1]
    path.write_text(f"{head}{BEGIN}\n\n{text.strip()}\n\n{END}{tail}", encoding="utf-8")


def kept(path: Path) -> Runs:
    """The results of earlier runs."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
