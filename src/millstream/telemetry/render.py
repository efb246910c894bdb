"""Renders slabs as Prometheus text (version 0.0.4), and the metrics' reference table as Markdown.

Rendering runs in the supervisor and only reads shared memory, so no shard takes part. Counts by topic and group
are an argument. Per-shard metrics are summed over
the processes of a shard (reactor, writer, worker), other metrics over all processes. A histogram without observations
is left out, to keep the page short. A counter is present from the start: one that appeared with its first event would
hide that event from ``increase``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from millstream.telemetry.metrics import BUCKETS
from millstream.telemetry.node import process_samples
from millstream.telemetry.table import API, ASKED, BY_NAME, LOG_DAMAGE, METRICS, NAMED, Kind, Label, Metric, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.iobuf import Arena
    from millstream.telemetry.metrics import StatsSlab

_UNITS: Final = {Unit.COUNT: "", Unit.BYTES: "bytes", Unit.MICROSECONDS: "seconds", Unit.MILLIONTHS: "fraction"}
_OPEN_LABELS: Final = {
    "process": "`supervisor`, and `shard-N`, `writer-N`, `worker-N`, `cleaner-N` of each shard",
    "topic, partition, offset, file": "of the damage; offset -1 where it is unknown, or the whole log",
    "topic": "its name; the first `metrics.topics.max` by name",
    "group, topic": "a group and a topic that it committed to; the first `metrics.groups.max` pairs by name",
    "version": "as `millstream --version` says it",
}
"""Values of the labels of ``ASKED`` and ``NAMED`` metrics, which depend on the node."""

_Sums = dict[int, list[int]]  # shard (−1: all together) → cells


Named = dict[str, dict[tuple[str, ...], int]]
"""Name of a metric of `table.NAMED` → values of its labels → value."""


def render(
    slabs: Sequence[StatsSlab],
    arenas: Sequence[Arena] = (),
    node: Mapping[str, Mapping[str, float]] | None = None,
    named: Named | None = None,
) -> bytes:
    """The page of ``/metrics``. ``node`` comes from ``node_samples``, ``named`` from the shards."""
    lines: list[str] = []
    derived = _memory(arenas) | _requests(slabs)
    for metric in METRICS:
        values: list[tuple[str, _Sums]] = []
        for value in metric.label.values if metric.label is not None else ("",):
            sums = derived.get((metric.name, value))
            if sums is None:
                sums = {} if metric.name.startswith("memory_") else _sum(metric, value, slabs)
            if sums:
                values.append((value, sums))
        if not values:
            continue
        _heading(lines, metric)
        for value, sums in values:
            for shard, cells in sorted(sums.items()):
                _sample(lines, metric, value, shard, cells)
    asked = {**process_samples(slabs), **(node or {})}
    for metric in ASKED:
        if metric.name in asked:
            _heading(lines, metric)
            for value, number in asked[metric.name].items():
                labels = [f'{metric.label.name}="{value}"'] if metric.label is not None else []
                lines.append(f"{metric.exposed_name}{_braces(labels)} {number:.15g}")
    _named(lines, named or {})
    _damage(lines, slabs)
    return ("\n".join(lines) + "\n").encode()


def _named(lines: list[str], named: Named) -> None:
    for metric in NAMED:
        samples = named.get(metric.name)
        if not samples:
            continue
        _heading(lines, metric)
        names = metric.label.name.split(", ") if metric.label is not None else []
        for values, number in samples.items():
            labels = [f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True)]
            lines.append(f"{metric.exposed_name}{_braces(labels)} {number}")


def _damage(lines: list[str], slabs: Sequence[StatsSlab]) -> None:
    """Append one line per known damage; none if there is no damage."""
    places = [place for slab in slabs for place in slab.damage.read()]
    if places:
        _heading(lines, LOG_DAMAGE)
    for place in places:
        labels = [f'{name}="{_escaped(str(value))}"' for name, value in msgspec.structs.asdict(place).items()]
        lines.append(f"{LOG_DAMAGE.exposed_name}{_braces(labels)} 1")


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _heading(lines: list[str], metric: Metric) -> None:
    lines.append(f"# HELP {metric.exposed_name} {metric.doc}")
    lines.append(f"# TYPE {metric.exposed_name} {metric.kind.value}")


def _sum(metric: Metric, value: str, slabs: Sequence[StatsSlab]) -> _Sums:
    width = BUCKETS + 1 if metric.kind is Kind.HISTOGRAM else 1
    sums: _Sums = {}
    for slab in slabs:
        first = slab.cell(metric, value)
        cells = slab.cells[first : first + width].tolist()
        shard = slab.shard if metric.per_shard else -1
        if metric.per_shard and shard < 0 and not any(cells):
            continue  # the supervisor does no work of a shard
        known = sums.get(shard)
        sums[shard] = cells if known is None else [a + b for a, b in zip(known, cells, strict=True)]
    if metric.kind is Kind.HISTOGRAM:
        return {shard: cells for shard, cells in sums.items() if any(cells)}
    return sums


def _requests(slabs: Sequence[StatsSlab]) -> dict[tuple[str, str], _Sums]:
    """Requests that each shard answered, and the sum of their latencies."""
    latency = BY_NAME["kafka_request_latency"]
    counts: _Sums = {}
    times: _Sums = {}
    for slab in slabs:
        if slab.shard < 0:
            continue
        count, time_us = counts.setdefault(slab.shard, [0]), times.setdefault(slab.shard, [0])
        for api in API.values:
            first = slab.cell(latency, api)
            count[0] += sum(slab.cells[first : first + BUCKETS])
            time_us[0] += slab.cells[first + BUCKETS]
    return {("kafka_requests", ""): counts, ("kafka_request_time", ""): times}


def _memory(arenas: Sequence[Arena]) -> dict[tuple[str, str], _Sums]:
    """The memory gauges, from the counters of the arenas."""
    found: dict[tuple[str, str], _Sums] = {}

    def put(name: str, shard: int, value: int, label: str = "") -> None:
        found.setdefault((name, label), {})[shard] = [value]

    for arena in arenas:
        usage = arena.usage()
        shard = usage.owner_shard
        put("memory_capacity_bytes", shard, usage.capacity_bytes)
        put("memory_in_use_bytes", shard, usage.in_use_bytes)
        put("memory_slab_bytes", shard, usage.slab_bytes)
        put("memory_fragments", shard, usage.live_fragments)
        for memory_class, (reserved, limit) in zip(
            ("receive", "cache", "fetch", "ring"),
            zip(usage.reserved_bytes, usage.limit_bytes, strict=True),
            strict=True,
        ):
            put("memory_reserved_bytes", shard, reserved, memory_class)
            put("memory_limit_bytes", shard, limit, memory_class)
    return found


def _sample(lines: list[str], metric: Metric, value: str, shard: int, cells: list[int]) -> None:
    labels: list[str] = []
    if shard >= 0:
        labels.append(f'shard="{shard}"')
    if metric.label is not None:
        labels.append(f'{metric.label.name}="{value}"')
    name = metric.exposed_name
    seconds = metric.unit is Unit.MICROSECONDS
    if metric.kind is not Kind.HISTOGRAM:
        number = _seconds(cells[0]) if seconds or metric.unit is Unit.MILLIONTHS else str(cells[0])
        lines.append(f"{name}{_braces(labels)} {number}")
        return
    first, last = metric.exponents
    below = sum(cells[:first])
    for exponent in range(first, last + 1):
        below += cells[exponent]
        bound = _seconds(1 << exponent) if seconds else str((1 << exponent) - 1)
        lines.append(f"{name}_bucket{_braces(labels, bound)} {below}")
    count = sum(cells[:BUCKETS])
    lines.append(f"{name}_bucket{_braces(labels, '+Inf')} {count}")
    lines.append(f"{name}_sum{_braces(labels)} {_seconds(cells[BUCKETS]) if seconds else cells[BUCKETS]}")
    lines.append(f"{name}_count{_braces(labels)} {count}")


def _braces(labels: list[str], bound: str = "") -> str:
    every = [*labels, f'le="{bound}"'] if bound else labels
    return "{" + ",".join(every) + "}" if every else ""


def _seconds(microseconds: int) -> str:
    return f"{microseconds / 1e6:.6f}".rstrip("0").rstrip(".") or "0"


def reference() -> str:
    """Markdown tables of all metrics and all labels, for the documentation."""
    rows = ["| Metric | Kind | Unit | Labels | Meaning |", "|---|---|---|---|---|"]
    bearers: dict[Label, list[str]] = {}
    for metric in (*METRICS, *ASKED, *NAMED, LOG_DAMAGE):
        names = ["shard"] if metric.per_shard else []
        if metric.label is not None:
            names.append(metric.label.name)
            bearers.setdefault(metric.label, []).append(metric.exposed_name)
        rows.append(
            f"| `{metric.exposed_name}` | {metric.kind.value} | {_UNITS[metric.unit]} | {', '.join(names)}"
            f" | {metric.doc} |"
        )
    rows += ["", "| Label | Of | Values |", "|---|---|---|", "| shard | | number of the shard, from 0 |"]
    for label, names in bearers.items():
        values = ", ".join(f"`{value}`" for value in label.values) or _OPEN_LABELS[label.name]
        of = ", ".join(f"`{name}`" for name in names)
        rows.append(f"| {label.name} | {of} | {values} |")
    return "\n".join(rows) + "\n"
