"""The report of a bench run: a table with ratios and budgets, JSON with every round, and sections of two pages.

A ratio says how many times better Millstream is than the peer: peer ÷ ours where less is better, ours ÷ peer elsewhere.
A budget is judged on the first subject (one shard). A figure is the median of its rounds; the JSON has all rounds.
"""

import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peers.kafka import KAFKA_VERSION, java
from bench.rows import Figure, Figures, Scenario

Results = dict[str, dict[str, list[Figures]]]
"""scenario key → subject name → figures of each round"""

BEGIN, END = "<!-- figures: written by make bench -->", "<!-- end of figures -->"


def machine() -> dict[str, str]:
    """The machine and the versions that the figures belong to."""
    model = "unknown processor"
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), model)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    try:
        words = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    except RuntimeError:
        words = []
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "java": words[0] if words else "none",
        "kafka": KAFKA_VERSION,
        "commit": commit.strip() or "unknown",
    }


def median(rounds: Sequence[Figures], name: str) -> float | None:
    """Median of a figure over its rounds, None if it was not measured."""
    values = [figures[name] for figures in rounds if name in figures]
    return statistics.median(values) if values else None


def _shown(value: float | None, digits: int) -> str:
    return "–" if value is None else f"{value:,.{digits}f}"


def verdict(figure: Figure, value: float | None) -> str:
    """``met``, ``missed`` or nothing."""
    if figure.budget is None or value is None:
        return ""
    good = value <= figure.budget if figure.less_is_better else value >= figure.budget
    return "met" if good else "missed"


def _budget(figure: Figure) -> str:
    return "" if figure.budget is None else f"{'≤' if figure.less_is_better else '≥'} {figure.budget:g}"


def rows(
    scenarios: Sequence[Scenario],
    results: Results,
    subjects: Sequence[str],
    peer: str,
    only: Mapping[str, Sequence[str]] | None = None,
) -> list[list[str]]:
    """Cells of the table: load, figure, one column a subject, ratio, budget, verdict.

    ``only`` limits the table to some figures (names by scenario key).
    """
    out: list[list[str]] = []
    for scenario in scenarios:
        measured = results.get(scenario.key, {})
        if not measured:
            continue
        shown_figures = [f for f in scenario.figures if only is None or f.name in only.get(scenario.key, ())]
        for number, figure in enumerate(shown_figures):
            values = {name: median(measured.get(name, []), figure.name) for name in subjects}
            ours = values[subjects[0]] if subjects[0] != peer else None
            theirs = values.get(peer)
            ratio = "–"
            if ours and theirs:
                ratio = f"{theirs / ours if figure.less_is_better else ours / theirs:.1f} ×"
            shown = [_shown(values[name], figure.digits) for name in subjects]
            title = scenario.title if number == 0 else ""
            out.append([title, figure.title, *shown, ratio, _budget(figure), verdict(figure, ours)])
    return out


def show(console: Console, table_rows: list[list[str]], subjects: Sequence[str]) -> None:
    """Prints the table."""
    table = Table(title="Broker CPU is that of all its processes; ours syncs before each ack, the peer does not")
    for name in ("load", "figure"):
        table.add_column(name, overflow="fold")
    for name in (*subjects, "ratio", "budget", ""):
        table.add_column(name, justify="right", no_wrap=name not in subjects)
    for cells in table_rows:
        style = {"met": "green", "missed": "bold red"}.get(cells[-1], "")
        table.add_row(*cells[:-1], f"[{style}]{cells[-1]}[/]" if style else "", end_section=False)
    console.print(table)


def markdown(
    table_rows: list[list[str]],
    subjects: Sequence[str],
    about: dict[str, str],
    command: str,
    plots: Sequence[tuple[str, str]] = (),
) -> str:
    """The generated section of a page; plots are (what the plot shows, path from the page)."""
    measured = (
        f"Measured {about['date']} at commit `{about['commit']}`: {about['processor']}, Linux {about['kernel']}, "
        f"Python {about['python']}, Apache Kafka {about['kafka']} on {about['java']}. Of the machine itself: "
        f"{about['hiccups']}."
    )
    lines = [
        measured,
        "",
        f"    {command}",
        "",
        "| load | figure | " + " | ".join(subjects) + " | ratio | budget | |",
        "|---|---|" + "---:|" * (len(subjects) + 2) + "---|",
    ]
    lines += ["| " + " | ".join(cells) + " |" for cells in table_rows]
    for shows, path in plots:
        lines += ["", f"![{shows}]({path})"]
    return "\n".join(lines) + "\n"


def write_document(path: Path, section: str, begin: str = BEGIN, end: str = END) -> None:
    """Replaces what stands between the two marks of the page; the text around them stays.

    Raises `ValueError` if a mark is missing.
    """
    text = path.read_text(encoding="utf-8")
    head, _, rest = text.partition(begin)
    _, mark, tail = rest.partition(end)
    if not mark:
        raise ValueError(f"{path} has no place for figures: it needs the lines {begin} and {end}")
    path.write_text(f"{head}{begin}\n\n{section}\n{end}{tail}", encoding="utf-8")


def write_json(path: Path, results: Results, about: dict[str, str], command: str) -> None:
    """Writes every round of every figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, Any] = {"about": about, "command": command, "results": results}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
