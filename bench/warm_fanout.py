"""What a warm cache is worth to groups that read the same archived data, and what the archive costs producers.

    make bench-tiers [ARGS="--seconds 240 --repeats 3"]

One broker with one shard and little memory, a tiered topic whose local copies go at once, a store that answers like a
cloud's (`bench.slow_store`), 8 MiB a second, and groups that follow 15, 25 and 35 seconds behind (`bench.warm_arm`).
Each arm is measured for some seconds after the last group has come. Each further group needs 80 MiB of cache; most
arms have 112 MiB, which is too little for the third group, and in two arms there is room for all. Then producers are
measured beside the archive and without it, and the archive and the reading of history by themselves
(`bench.archive_load`).
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bench import archive_load, report, warm_arm, warm_plots
from bench.raw import UnexpectedAnswer
from bench.warm_arm import Arm
from millstream.core.eviction import POLICIES
from millstream.testing import fetch_traces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.archive_load import Beside, History
    from bench.warm_arm import Result

ROOMY: dict[str, object] = {"cache.max.size.bytes": 280 << 20}
NVME: dict[str, object] = {"cache.type": "nvme"}
ONE, OFF = "one group, no cache", "no cache"
ALL_FIT = "nvme, interval, room for all"
ARMS = (
    Arm(ONE, 1, {}),
    Arm(OFF, 3, {}, repeats=True),
    Arm("unread only, 60 s", 3, {"internal.shard.hook": "bench.warm_hooks:unread_only"}),
    Arm("memory, interval", 3, {"cache.type": "memory"}),
    Arm("nvme, lru", 3, NVME | {"cache.eviction.policy": "lru"}, repeats=True),
    Arm("nvme, interval", 3, NVME, repeats=True),
    Arm(ALL_FIT, 3, NVME | ROOMY),
    Arm("nvme, filled at upload too", 3, NVME | ROOMY | {"cache.fill": "both"}),
)
TRACE = Arm("trace", 3, {"internal.shard.hook": "bench.trace_reads:install"})
SLOTS = (40, 80, 120, 160, 240)
"""Sizes of the cache in which a recorded trace is replayed, in blocks."""

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- tiers: written by make bench-tiers -->", "<!-- end of tiers -->"
HIT_GOAL_MS = 3.0
GETS_GOAL = 1.1
PRODUCE_GOAL = 1.05


_Figures = TypeVar("_Figures")
_failed: list[str] = []
"""Parts that were begun and have no figure."""


def median(runs: Sequence[Result], field: str) -> float:
    """The middle run's figure; the better one of two in the middle is not taken."""
    values = sorted(getattr(one, field) for one in runs)
    return values[len(values) // 2]


def table(results: Mapping[str, Sequence[Result]]) -> list[str]:
    """The arms, as lines of Markdown: medians of their runs."""
    columns = (
        ("GETs per MiB", "gets_per_mib", "{:.2f}", 1),
        ("not from the store", "hits", "{:.0f} %", 100),
        ("hit p50, ms", "hit_p50_ms", "{:.2f}", 1),
        ("hit p99, ms", "hit_p99_ms", "{:.2f}", 1),
        ("bare preadv p99, ms", "bare_p99_ms", "{:.2f}", 1),
        ("produce p99, ms", "produce_p99_ms", "{:.1f}", 1),
        ("CPU s per GiB", "cpu_s_per_gib", "{:.1f}", 1),
        ("produced, MiB/s", "produced_mib_s", "{:.1f}", 1),
        ("a group late by, s", "late_s", "{:.1f}", 1),
        ("read, MiB/s", "read_mib_s", "{:.1f}", 1),
        ("cache writes per MiB", "filled_per_mib", "{:.2f}", 1),
        ("memory, MiB", "memory_mib", "{:.0f}", 1),
    )
    lines = [
        "| Arm | runs | " + " | ".join(title for title, *_ in columns) + " |",
        "|---|---:|" + "---:|" * len(columns),
    ]
    for name, runs in results.items():
        cells = [
            shape.format(factor * value) if (value := median(runs, field)) else "–"
            for _, field, shape, factor in columns
        ]
        lines.append(f"| {name} | {len(runs)} | " + " | ".join(cells) + " |")
    return lines


def beside_table(besides: Sequence[Beside]) -> list[str]:
    """Producers beside the archive and without it, run by run."""
    lines = [
        "| Scheduled load on a | p50, ms | p99, ms | p99.9, ms | archived, MiB/s | CPU, µs a request | sent late |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {'tiered' if one.tiered else 'local'} topic | {one.p50_ms:.2f} | {one.p99_ms:.2f} | {one.p999_ms:.2f} | "
        f"{one.archived_mib_s:.1f} | {one.cpu_us:.1f} | {one.late_sends} |"
        for one in besides
    ]
    return lines


def verdicts(results: Mapping[str, Sequence[Result]], besides: Sequence[Beside], history: History | None) -> list[str]:
    """Each goal with what was measured; goals of what was not run are left out."""
    lines: list[str] = []

    def say(what: str, value: float, goal: float, unit: str = "") -> None:
        lines.append(f"- {what}: {value:.2f}{unit}, goal ≤ {goal:g}{unit}: {'met' if value <= goal else 'missed'}")

    nvme = {name: runs for name, runs in results.items() if name.startswith("nvme")}
    for name, runs in nvme.items():
        if not median(runs, "hit_p99_ms"):
            lines.append(f"- p99 of a hit, {name}: nothing was read from the cache")
            continue
        say(f"p99 of a hit, {name} (bare preadv: {median(runs, 'bare_p99_ms'):.2f} ms)",
            median(runs, "hit_p99_ms"), HIT_GOAL_MS, " ms")  # fmt: skip
    if ONE in results:
        one = median(results[ONE], "gets_per_mib")
        for name in (OFF, *nvme):
            if name in results:
                ratio = median(results[name], "gets_per_mib") / one
                if name == ALL_FIT or "upload" in name:
                    say(f"GETs of three groups to those of one, {name}", ratio, GETS_GOAL)
                else:
                    lines.append(f"- GETs of three groups to those of one, {name}: {ratio:.2f}")
    if OFF in results:
        without = median(results[OFF], "produce_p99_ms")
        for name, runs in nvme.items():
            say(f"produce p99 to that without a cache, {name}", median(runs, "produce_p99_ms") / without, PRODUCE_GOAL)
    if besides:
        tiered, local = (sorted(each.p99_ms for each in besides if each.tiered is kind) for kind in (True, False))
        ratio = tiered[len(tiered) // 2] / local[len(local) // 2]
        say("produce p99 with the archiver on, to that with it off", ratio, PRODUCE_GOAL)
    if history is not None:
        lines.append(f"- archive of a local topic that becomes tiered: {history.archive_mib_s:.0f} MiB/s")
        lines.append(
            f"- catch-up from the store while producing: {history.catch_up_mib_s:.0f} MiB/s, p99 of a fetch "
            f"{history.fetch_p99_ms:.0f} ms; produce p99 {history.produce_p99_ms:.1f} ms, and "
            f"{history.alone_p99_ms:.1f} ms without it"
        )
    return lines


def replay(path: Path) -> list[str]:
    """Hit rates of every policy, and of the offline optimum, on a recorded trace."""
    reads = fetch_traces.recorded(path.read_text(encoding="ascii").splitlines())
    lines = [
        "| Blocks in the cache | " + " | ".join(POLICIES) + " | optimum |",
        "|---:|" + "---:|" * (len(POLICIES) + 1),
    ]
    for slots in SLOTS:
        rates = [fetch_traces.hit_rate(name, reads, slots) for name in POLICIES]
        rates.append(fetch_traces.optimal_rate(reads, slots))
        lines.append(f"| {slots} | " + " | ".join(f"{rate:.1%}" for rate in rates) + " |")
    return lines


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.warm_fanout", description="What a warm cache is worth, and what the archive costs."
    )
    parser.add_argument("--seconds", type=float, default=20, help="time that each arm is measured (20)")
    parser.add_argument("--repeats", type=int, default=1, help="runs of no cache, lru and interval, in turn (1)")
    parser.add_argument("--arms", default="", help="only arms whose name has this text; 'none' for none")
    parser.add_argument("--io", choices=("direct", "buffered", "auto"), default="direct", help="cache.io (direct)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of producers with and without the archive (2)")
    parser.add_argument("--no-history", action="store_true", help="leave out archiving and catch-up")
    parser.add_argument("--trace", action="store_true", help="record what would reach a cache, and replay every policy")
    parser.add_argument("--write-docs", action="store_true", help="also into docs/performance.md and docs/images")
    parser.add_argument("--out", type=Path, default=Path("build/bench-tiers"), help="directory of results and plots")
    return parser.parse_args()


def _run_arms(options: argparse.Namespace) -> dict[str, list[Result]]:
    results: dict[str, list[Result]] = {}
    for number in range(max(1, options.repeats)):
        for arm in ARMS:
            if options.arms in arm.name and (arm.repeats or not number):
                _say(f"{arm.name}, run {number + 1}")
                found = _attempt(lambda: warm_arm.run(arm, options.seconds, options.io), arm.name)  # noqa: B023
                if found is not None:
                    results.setdefault(arm.name, []).append(found)
    return results


def _attempt(measure: Callable[[], _Figures], what: str) -> _Figures | None:
    """What it measures. A part without a figure is told, and does not end the others."""
    try:
        return measure()
    except UnexpectedAnswer as error:
        _say(f"{what} has no figure: {error}")
        _failed.append(what)
        return None


def _say(text: str) -> None:
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def main() -> None:
    """Run the arms and the rest, print the tables, and write results and plots."""
    options = _options()
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.trace:
        trace = out / "trace.txt"
        trace.unlink(missing_ok=True)
        os.environ["MILLSTREAM_TRACE"] = str(trace.absolute())
        warm_arm.run(TRACE, options.seconds, options.io)
        sys.stdout.write("\n".join(replay(trace)) + "\n")
        return
    results = _run_arms(options)
    besides: list[Beside] = []
    if options.rounds:
        _say("producers with and without the archive")
        besides = _attempt(lambda: archive_load.beside(options.seconds, options.rounds), "producers") or []
    history = None
    if not options.no_history:
        _say("archive and catch-up")
        history = _attempt(lambda: archive_load.history(options.seconds), "archive and catch-up")
    machine = ", ".join(f"{name} {value}" for name, value in report.machine().items())
    parts = [
        table(results) if results else [],
        beside_table(besides) if besides else [],
        verdicts(results, besides, history),
    ]
    command = f"    python -m bench.warm_fanout {' '.join(sys.argv[1:])}"
    text = "\n\n".join([f"Measured: {machine}.", command, *("\n".join(part) for part in parts if part)]) + "\n"
    (out / "summary.md").write_text(text, encoding="utf-8")
    document = {
        "arms": {name: [one._asdict() for one in runs] for name, runs in results.items()},
        "beside": [one._asdict() for one in besides],
        "history": None if history is None else history._asdict(),
    }
    (out / "results.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    paths = warm_plots.draw(results, besides, DOCS / "images" if options.write_docs else out)
    if options.write_docs:
        images = "".join(f"\n![{path.stem}](images/{path.name})\n" for path in paths)
        report.write_document(DOCS / "performance.md", text + images, BEGIN, END)
    sys.stdout.write(text)
    if _failed:
        sys.stdout.write(f"\nWithout a figure: {', '.join(_failed)}\n")
    _say(f"written: {', '.join(str(path) for path in (out / 'summary.md', out / 'results.json', *paths))}")


if __name__ == "__main__":
    main()
    sys.exit(bool(_failed))
