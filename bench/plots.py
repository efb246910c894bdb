"""The plots of ``docs/performance.md``, drawn from what was measured: latency by percentile, cost, the long run.

Every plot is a PNG for a white page, made to be read in print: a hue and a dash or hatch for each subject, units on
each axis, budgets as black marks. What was not measured is left out; a plot without anything in it is not written.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.rows import LADDER
from bench.scenarios import ALL

LOOKS = (("#1b4f8a", "-", ""), ("#7fb2e5", "--", ""), ("#5aa469", ":", ""))
CALLBACKS = "callbacks.png"
PEER_LOOK = ("#d9772b", "-.", "////")
BUDGET = "#111111"
LATENCIES = (
    ("rfc", "Produce on a schedule, acknowledged"),
    ("rfc-busy", "The same with everything else going on"),
    ("rfc-realtime", "The same, all at real-time priority"),
    ("rfc-busy-realtime", "Everything else going on, all at real-time priority"),
    ("tail-1", "Sent to received, one consumer group"),
    ("tail-10", "Sent to received, ten consumer groups"),
)
BUDGETED = {key: ((99.0, 1.5), (99.9, 5.0)) for key, _ in LATENCIES if key.startswith("rfc")}
COSTS = (
    ("small-16x8", "16 connections × 8"),
    ("small-1x64", "1 connection × 64"),
    ("small-64x1", "64 connections × 1"),
    ("small-1000x1", "1 000 connections × 1"),
    ("wide-10000", "10 000 partitions"),
)
FLOWS = (
    ("bulk", "produce,\n128 KB batches"),
    ("fetch-1m", "fetch 1 MiB,\n128 KB batches"),
    ("fetch-128k", "fetch 128 KiB,\n128 KB batches"),
    ("fetch-1m-small", "fetch 1 MiB,\n1 KB batches"),
    ("fetch-128k-small", "fetch 128 KiB,\n1 KB batches"),
)


def _pyplot() -> Any:
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {
            "font.size": 10,
            "axes.titlesize": 11,
            "axes.titleweight": "bold",
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": "#dddddd",
            "grid.linewidth": 0.8,
            "axes.axisbelow": True,
            "legend.frameon": False,
            "hatch.linewidth": 0.6,
        }
    )
    return plt


def _plain(value: float, _: int) -> str:
    """A number on an axis, without powers of ten."""
    return f"{value:g}"


def _look(subjects: Sequence[str], name: str, peer: str) -> tuple[str, Any, str]:
    return PEER_LOOK if name == peer else LOOKS[min([s for s in subjects if s != peer].index(name), len(LOOKS) - 1)]


def _save(plt: Any, figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, facecolor="white")
    plt.close(figure)
    return path


def _nines(percent: float) -> float:
    """Where a percentile stands: 50 % at 0.3, 90 % at 1, 99 % at 2, and so on."""
    return -math.log10(1 - percent / 100)


def latency(results: report.Results, subjects: Sequence[str], peer: str, path: Path) -> Path | None:
    """Percentiles of the scheduled loads, a panel each."""
    panels = [
        (key, title) for key, title in LATENCIES if _steps(results, key, subjects[0]) or _steps(results, key, peer)
    ]
    if not panels:
        return None
    plt = _pyplot()
    rows = (len(panels) + 1) // 2
    figure, grid = plt.subplots(
        rows, min(2, len(panels)), figsize=(10.5, 3.6 * rows + 0.7), layout="constrained", sharey=True, squeeze=False
    )
    shown: dict[str, Any] = {}
    for axes, (key, title) in zip(grid.flat, panels, strict=False):
        for name in subjects:
            steps = _steps(results, key, name)
            if steps:
                colour, dash, _ = _look(subjects, name, peer)
                (shown[name],) = axes.plot(
                    *zip(*steps, strict=True), color=colour, linestyle=dash, linewidth=2, label=name
                )
        for percent, limit in BUDGETED.get(key, ()):
            shown["budget (one shard)"] = axes.scatter(_nines(percent), limit, marker="v", color=BUDGET, zorder=5, s=45)
        axes.set(title=title, yscale="log", xlim=(_nines(25), 4.05))
        axes.set_xticks([_nines(p) for p in (50, 90, 99, 99.9, 99.99)], ["50 %", "90 %", "99 %", "99.9 %", "99.99 %"])
        axes.yaxis.set_major_formatter(plt.FuncFormatter(_plain))
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[:, 0]:
        axes.set_ylabel("latency, ms (log)")
    for axes in grid[-1]:
        axes.set_xlabel("share of the requests or records that were faster")
    figure.suptitle("10 240 requests of 1 KB a second, 128 partitions, open loop", x=0.01, ha="left", fontsize=13)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown))
    return _save(plt, figure, path)


def _steps(results: report.Results, key: str, name: str) -> list[tuple[float, float]]:
    """Points of a percentile curve, the slowest request left out: it is one number of chance."""
    rounds = results.get(key, {}).get(name, [])
    found = [(percent, report.median(rounds, f"q{percent:g}")) for percent in LADDER if 25 <= percent < 100]
    return [(_nines(percent), value) for percent, value in found if value]


def cost(results: report.Results, subjects: Sequence[str], peer: str, path: Path) -> Path | None:
    """Broker CPU a request, and bytes a broker-CPU-second, with budgets."""
    figures = {(s.key, figure.name): figure.budget for s in ALL for figure in s.figures}
    small = [(key, title) for key, title in COSTS if results.get(key)]
    large = [(key, title) for key, title in FLOWS if results.get(key)]
    if not small and not large:
        return None
    plt = _pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.5, 5.2), layout="constrained")
    shown: dict[str, Any] = {}
    for axes, rows, name, title, unit in (
        (left, small, "cpu_us", "Small produce: less is better", "broker CPU a request of 1 KB, µs"),
        (right, large, "gb_per_cpu_s", "Bulk produce and fetch: more is better", "GB a broker-CPU-second"),
    ):
        height = 0.8 / len(subjects)
        largest = _largest(results, subjects, rows, name, peer)
        for row, (key, _) in enumerate(rows):
            budget = figures.get((key, name))
            for place, subject in enumerate(subjects):
                value = report.median(results[key].get(subject, []), name)
                if value is None:
                    continue
                colour, _, hatch = _look(subjects, subject, peer)
                at = row + (place - (len(subjects) - 1) / 2) * height
                shown[subject] = axes.barh(
                    at, min(value, largest), height * 0.92, color=colour, hatch=hatch, edgecolor="white", linewidth=0.5
                )
                text, beside = f"{value:.1f}" + (" →" if value > largest else ""), min(value, largest)
                if budget is not None and beside <= budget < beside + 0.1 * largest:
                    beside = budget  # not under its mark
                axes.text(beside + 0.015 * largest, at, text, va="center", fontsize=9)
            if budget is not None:
                shown["budget (one shard)"] = axes.plot(
                    [budget, budget], [row - 0.46, row + 0.46], color=BUDGET, linewidth=2.2, solid_capstyle="butt"
                )[0]
        axes.set(title=title, xlabel=unit, ylim=(len(rows) - 0.4, -0.6), xlim=(0, 1.13 * largest))
        axes.set_yticks(range(len(rows)), [title for _, title in rows])
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
    figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown))
    return _save(plt, figure, path)


def _largest(
    results: report.Results, subjects: Sequence[str], rows: Sequence[tuple[str, str]], name: str, peer: str
) -> float:
    """How far an axis goes: to the largest bar, but to no more than five times our largest (a bar may be cut)."""
    values: dict[bool, list[float]] = {True: [0.0], False: [0.0]}
    for key, _ in rows:
        for subject in subjects:
            values[subject == peer].append(report.median(results[key].get(subject, []), name) or 0.0)
    ours, theirs = max(values[False]), max(values[True])
    return max(ours, min(theirs, 5 * ours if ours else theirs)) or 1.0


def callbacks(results: report.Results, subjects: Sequence[str], path: Path) -> Path | None:
    """How many of the shards' callbacks took longer than so many ms, under the scheduled loads."""
    lines = [
        (title, name, _longer(results[key][name]))
        for key, title in LATENCIES[:2]
        for name in subjects
        if _longer(results.get(key, {}).get(name, []))
    ]
    if not lines:
        return None
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(10.5, 4.4), layout="constrained")
    for title, name, points in lines:
        colour = LOOKS[min(list(subjects).index(name), len(LOOKS) - 1)][0]
        busy = title != LATENCIES[0][1]
        label = f"{name}{', everything else going on' if busy else ''}"
        axes.plot(
            *zip(*points, strict=True), color=colour, linestyle="--" if busy else "-", marker="o", ms=4, label=label
        )
    axes.scatter(2.0, 0.1, marker="v", color=BUDGET, zorder=5, s=45, label="budget")
    axes.set(title="Callbacks of the shard, 10 240 requests a second", xscale="log", yscale="log")
    axes.set(xlabel="duration, ms (log; buckets of powers of two)", ylabel="share that took longer, % (log)")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(plt.FuncFormatter(_plain))
    figure.legend(loc="outside lower center", ncols=3)
    return _save(plt, figure, path)


def _longer(rounds: Sequence[Mapping[str, float]]) -> list[tuple[float, float]]:
    """(ms, per cent of all callbacks that took longer), of all rounds together."""
    sums: dict[float, float] = {}
    for figures in rounds:
        for name, value in figures.items():
            if name.startswith("callbacks_le_"):
                bound = float(name.removeprefix("callbacks_le_"))
                sums[bound] = sums.get(bound, 0.0) + value
    total = sums.get(math.inf, 0.0)
    shares = [(bound, 100 * (total - count) / total) for bound, count in sorted(sums.items()) if total]
    return [(bound, share) for bound, share in shares if share > 0 and bound < math.inf]


def bench(results: report.Results, subjects: Sequence[str], peer: str, folder: Path) -> list[tuple[str, Path]]:
    """Draws what can be drawn; what each shows, and its file."""
    made = (
        ("Broker CPU of small produce, bulk produce and fetch", cost(results, subjects, peer, folder / "cost.png")),
        ("Latency of the scheduled loads by percentile", latency(results, subjects, peer, folder / "latency.png")),
        ("Durations of the shard's callbacks", callbacks(results, subjects, folder / CALLBACKS)),
    )
    return [(shows, path) for shows, path in made if path is not None]


def _delays(axes: Any, at: Sequence[float], samples: Sequence[Mapping[str, Any]]) -> None:
    """The panel of a long run's latencies."""
    for name, colour, dash, label in (
        ("produce_p50_ms", LOOKS[1][0], "-", "produce p50"),
        ("produce_p99_ms", LOOKS[0][0], "-", "produce p99"),
        ("produce_p999_ms", LOOKS[0][0], ":", "produce p99.9"),
        ("end_p99_ms", PEER_LOOK[0], "--", "sent to received p99"),
    ):
        axes.plot(at, [s[name] or math.nan for s in samples], color=colour, linestyle=dash, linewidth=1.4, label=label)
    axes.set(title="Latency from the intended send time", ylabel="ms (log)", yscale="log")


def soak(run: Mapping[str, Any], path: Path) -> Path:
    """A long run over time: memory, descriptors and fragments, CPU, latencies, longest callbacks."""
    plt = _pyplot()
    samples: list[dict[str, Any]] = run["samples"]
    hours = samples[-1]["at"] > 2 * 3600 * 0.75
    unit = 3600.0 if hours else 60.0
    at = [sample["at"] / unit for sample in samples]
    blue, orange = LOOKS[0][0], PEER_LOOK[0]
    figure, panels = plt.subplots(5, 1, figsize=(10.5, 11.5), layout="constrained", sharex=True)
    memory, files, cores, delay, stall = panels

    memory.plot(at, [s["pss_bytes"] / 1e6 for s in samples], color=blue, label="all processes (PSS)")
    touched = [s["arena_touched_bytes"] / 1e6 for s in samples]
    memory.plot(at, touched, color=orange, linestyle="--", label="arena touched")
    memory.set(title="Memory", ylabel="MB")

    (one,) = files.plot(at, [s["open_files"] for s in samples], color=blue, label="file descriptors")
    beside = files.twinx()
    beside.grid(visible=False)
    beside.spines["right"].set_visible(True)
    fragments = [s["fragments"] for s in samples]
    (two,) = beside.plot(at, fragments, color=orange, linestyle="--", label="fragments (right)")
    files.set(title="Descriptors and fragments", ylabel="descriptors")
    beside.set(ylabel="fragments", ylim=(0, 1.3 * max(1, *fragments)))

    for name, label, colour, dash in (
        ("cpu_s", "used by the broker, all processes", blue, "-"),
        ("stolen_s", "withheld by the host", orange, "--"),
    ):
        rate = [
            (later[name] - earlier[name]) / (later["at"] - earlier["at"])
            for earlier, later in itertools.pairwise(samples)
        ]
        cores.plot(at[1:], rate, color=colour, linestyle=dash, label=label)
    cores.set(title="CPU", ylabel="cores")

    _delays(delay, at, samples)

    longest = [s["callbacks"].get("callback_max_ms", math.nan) for s in samples]
    tail = [s["callbacks"].get("callback_p999_ms", math.nan) for s in samples]
    stall.plot(at, longest, color=blue, linewidth=1.2, drawstyle="steps-mid", label="longest (at most)")
    stall.plot(at, tail, color=orange, linestyle="--", drawstyle="steps-mid", label="p99.9 (at most)")
    stall.axhline(50, color=BUDGET, linewidth=1.5, label="limit: 50 ms")
    stall.set(title="Callbacks of the shard", ylabel="ms (log)", yscale="log")
    stall.set_xlabel("hours" if hours else "minutes")

    for axes in (memory, files, cores):
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    for axes in (delay, stall):
        low, high = axes.get_ylim()
        axes.set_ylim(low, high * (high / low) ** 0.25)
        axes.yaxis.set_major_formatter(plt.FuncFormatter(_plain))
    for axes in panels:
        axes.axvspan(0, run["warm_s"] / unit, color="#f1f1f1", zorder=0)
        axes.set_xlim(0, at[-1])
    files.legend(handles=[one, two], loc="upper right", ncols=2)
    for axes in (memory, cores, delay, stall):
        axes.legend(loc="upper right", ncols=4)
    outcome = run["outcome"]
    about = "The scheduled load, cut short"
    if outcome:
        about = f"{outcome['rate']:,.0f} requests of 1 KB a second, {outcome['groups']:.0f} consumer groups at the tail"
    figure.suptitle(
        f"{about} (grey: warm-up)",
        x=0.01,
        ha="left",
        fontsize=13,
    )
    return _save(plt, figure, path)
