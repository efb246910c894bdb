"""Outcomes from a JUnit report, which pytest writes; `follow` shows what runs meanwhile."""

import subprocess
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from conformance import tools
from conformance.lists import FAILED, PASSED, SKIPPED, Outcome


def outcomes(report: Path) -> list[Outcome]:
    """Each test case of a report; a test that failed while it was set up or taken down has failed."""
    if not report.exists():
        return []
    found: dict[str, Outcome] = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        place = case.get("classname", "").split(".")
        first = next((i for i, part in enumerate(place) if part.startswith("test_")), 0)
        name = "::".join([*place[first:], case.get("name", "")])
        state, reason = PASSED, ""
        for child in case:
            if child.tag in ("failure", "error"):
                state, reason = FAILED, " ".join((child.get("message") or child.text or "").split())[:300]
            elif child.tag == "skipped" and state == PASSED:
                state, reason = SKIPPED, (child.get("message") or "")[:300]
        if name not in found or found[name].state != FAILED:
            found[name] = Outcome(name, state, float(case.get("time", "0")), reason)
    return list(found.values())


def follow(
    command: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    log: Path,
    timeout_s: float,
    on_line: Callable[[str], None],
) -> None:
    """Runs pytest, hands over its lines as they come and keeps them in ``log``; ends it when its time is over."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    timer = threading.Timer(timeout_s, tools.end_group, [process])
    timer.start()
    try:
        assert process.stdout is not None
        with open(log, "w", encoding="utf-8") as kept:
            for line in process.stdout:
                kept.write(line)
                on_line(line)
    finally:
        timer.cancel()
        tools.end_group(process)
