"""The plots of the warm-fanout bench: requests to the store, latencies, producers beside the archive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bench.plots import LOOKS, PEER_LOOK, _nines, _plain, _pyplot, _save  # pyright: ignore[reportPrivateUsage]

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from bench.archive_load import Beside
    from bench.warm_arm import Result


def draw(results: Mapping[str, Sequence[Result]], besides: Sequence[Beside], directory: Path) -> list[Path]:
    """Write a PNG for each of which anything was measured; their paths."""
    found: list[Path] = []
    if results:
        found.append(_requests(results, directory / "warm-requests.png"))
    if any(one.hit_ms for runs in results.values() for one in runs):
        found.append(_latencies(results, directory / "warm-latency.png"))
    if besides:
        found.append(_beside(besides, directory / "warm-producers.png"))
    return found


def _requests(results: Mapping[str, Sequence[Result]], path: Path) -> Path:
    plt = _pyplot()
    names = list(results)[::-1]
    figure, (gets, hits) = plt.subplots(1, 2, figsize=(11, 0.5 * len(names) + 1.3), layout="constrained", sharey=True)
    for axes, field, title, factor in (
        (gets, "gets_per_mib", "GET requests per MiB produced", 1),
        (hits, "hits", "blocks that did not come from the store, %", 100),
    ):
        values = [[factor * getattr(one, field) for one in results[name]] for name in names]
        middles = [sorted(each)[len(each) // 2] for each in values]
        colours = [PEER_LOOK[0] if "unread" in name else LOOKS[0][0] for name in names]
        axes.barh(names, middles, color=colours)
        for row, each in enumerate(values):
            axes.plot(each, [row] * len(each), "k.", markersize=4)
        axes.set_xlabel(title)
    return _save(plt, figure, path)


def _latencies(results: Mapping[str, Sequence[Result]], path: Path) -> Path:
    """Hits of the warm cache by percentile, with the goal of 3 ms."""
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for name, runs in results.items():
        values = sorted(value for one in runs for value in one.hit_ms)
        if values:
            steps = [(i + 0.5) / len(values) for i in range(len(values))]
            axes.plot([_nines(100 * step) for step in steps], values, label=name, linewidth=1.6)
    axes.scatter([_nines(99)], [3], marker="v", color="#111111", zorder=5, label="goal: p99 3 ms")
    axes.set(yscale="log", ylabel="read of a block, ms (log)", xlabel="share of the hits that were faster")
    axes.set_title("Hits of the warm cache")
    _percentiles(plt, axes)
    return _save(plt, figure, path)


def _beside(besides: Sequence[Beside], path: Path) -> Path:
    plt = _pyplot()
    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for tiered, look, label in (
        (False, PEER_LOOK, "local topic"),
        (True, LOOKS[0], "tiered topic, archived meanwhile"),
    ):
        for number, one in enumerate(each for each in besides if each.tiered is tiered):
            steps = [(_nines(percent), value) for percent, value in one.ladder if 25 <= percent < 100]
            named: dict[str, Any] = {} if number else {"label": label}
            axes.plot(*zip(*steps, strict=True), color=look[0], linestyle=look[1], linewidth=1.5, **named)
    axes.set(yscale="log", ylabel="latency, ms (log)", xlabel="share of the requests that were faster")
    axes.set_title("10 240 produce requests of 1 KB a second, 128 partitions")
    _percentiles(plt, axes)
    return _save(plt, figure, path)


def _percentiles(plt: Any, axes: Any) -> None:
    axes.set_xticks([_nines(p) for p in (50, 90, 99, 99.9)], ["50 %", "90 %", "99 %", "99.9 %"])
    axes.set_xlim(0, 3.2)
    axes.yaxis.set_major_formatter(plt.FuncFormatter(_plain))
    low, high = axes.get_ylim()
    if math.isfinite(low) and low > 0:
        axes.set_ylim(low, high)
    axes.legend(loc="upper left")
