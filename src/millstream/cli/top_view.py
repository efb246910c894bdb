"""The activity of a broker between two readings of its metrics, and its view in lines of 40 to 80 columns."""

from __future__ import annotations

import math
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from millstream.cli.exposition import quantile

if TYPE_CHECKING:
    from millstream.cli.exposition import Exposition

WIDTH = 80
WIDTH_MIN = 40
"""Columns of the view. A narrower terminal cuts lines off."""

_STARTED = "millstream_start_time_seconds"
_APIS = 12
_API_WIDTH = 26


class ShardActivity(msgspec.Struct, frozen=True):
    """One shard between two readings. Rates are per second, times in seconds; None stands for no observation."""

    shard: int
    cores: float
    """Of its reactor and its helpers together."""

    requests: float
    received_bytes: float
    sent_bytes: float
    latency: float | None
    """Mean, from a request's last byte to its answer."""

    sync_p99: float | None
    stalls: float
    """Callbacks over 500 µs, a second."""

    hops: float
    """Messages from sibling shards, a second."""

    memory_bytes: float
    memory_limit_bytes: float
    connections: int


class ApiActivity(msgspec.Struct, frozen=True):
    """One Kafka API between two readings."""

    api: str
    requests: float
    p50: float | None
    p99: float | None


class Activity(msgspec.Struct, frozen=True):
    """The broker between two readings."""

    seconds: float
    shards: tuple[ShardActivity, ...]
    apis: tuple[ApiActivity, ...]
    records: float
    """Produced, a second."""

    partitions: int
    size_bytes: float
    groups: int
    fetch_waiters: int
    wal_used_bytes: float
    free_bytes: float
    """On the disk of the data directory."""

    faults: int
    """Logs that are not served."""

    read_only: bool
    """The disk is full, producers are refused."""


def activity(before: Exposition, now: Exposition) -> Activity | None:
    """The activity between two readings; None if the broker was restarted between them."""
    seconds = now.read_at - before.read_at
    shards = [int(shard) for shard in now.values_of("shard", "millstream_net_connections")]
    if seconds <= 0 or now.value(_STARTED) != before.value(_STARTED):
        return None

    def rate(name: str, **labels: str) -> float:
        return max(0.0, now.value(name, **labels) - before.value(name, **labels)) / seconds

    def total(name: str) -> int:
        return int(now.value(name))

    return Activity(
        seconds=seconds,
        shards=tuple(_shard(before, now, shard, seconds) for shard in sorted(shards)),
        apis=_apis(before, now, seconds),
        records=rate("millstream_kafka_produce_records_total"),
        partitions=total("millstream_log_partitions"),
        size_bytes=now.value("millstream_log_size_bytes"),
        groups=total("millstream_group_count"),
        fetch_waiters=total("millstream_kafka_fetch_waiters"),
        wal_used_bytes=now.value("millstream_wal_used_bytes"),
        free_bytes=now.value("millstream_storage_free_bytes"),
        faults=total("millstream_log_faulty"),
        read_only=now.value("millstream_storage_read_only") > 0,
    )


def _shard(before: Exposition, now: Exposition, number: int, seconds: float) -> ShardActivity:
    shard = str(number)

    def grown(name: str) -> float:
        return max(0.0, now.value(name, shard=shard) - before.value(name, shard=shard))

    requests = grown("millstream_kafka_requests_total")
    busy = grown("millstream_kafka_request_time_seconds_total")
    processes = [name for name in now.values_of("process") if name.rpartition("-")[2] == shard]
    cpu = "millstream_process_cpu_seconds_total"
    sync = "millstream_wal_sync_latency_seconds"
    return ShardActivity(
        shard=number,
        cores=sum(max(0.0, now.value(cpu, process=one) - before.value(cpu, process=one)) for one in processes)
        / seconds,
        requests=requests / seconds,
        received_bytes=grown("millstream_net_received_bytes_total") / seconds,
        sent_bytes=grown("millstream_net_sent_bytes_total") / seconds,
        latency=busy / requests if requests else None,
        sync_p99=quantile(before.histogram(sync, shard=shard), now.histogram(sync, shard=shard), 0.99),
        stalls=grown("millstream_reactor_stalls_total") / seconds,
        hops=grown("millstream_ring_hops_total") / seconds,
        memory_bytes=now.value("millstream_memory_in_use_bytes", shard=shard),
        memory_limit_bytes=now.value("millstream_memory_capacity_bytes", shard=shard),
        connections=int(now.value("millstream_net_connections", shard=shard)),
    )


def _apis(before: Exposition, now: Exposition, seconds: float) -> tuple[ApiActivity, ...]:
    name = "millstream_kafka_request_latency_seconds"
    found: list[ApiActivity] = []
    for api in now.values_of("api"):
        count = now.value(f"{name}_count", api=api) - before.value(f"{name}_count", api=api)
        if count > 0:
            earlier, later = before.histogram(name, api=api), now.histogram(name, api=api)
            found.append(
                ApiActivity(api, count / seconds, quantile(earlier, later, 0.5), quantile(earlier, later, 0.99))
            )
    return tuple(sorted(found, key=lambda one: -one.requests))


def as_document(seen: Activity) -> dict[str, Any]:
    """For JSON; a quantile above the largest bucket is null."""
    document: dict[str, Any] = msgspec.to_builtins(seen)
    for one in (*document["shards"], *document["apis"]):
        for key, value in one.items():
            if value == math.inf:
                one[key] = None
    return document


def as_lines(seen: Activity, title: str, height: int | None = None, width: int = WIDTH) -> list[str]:
    """The view, each line at most ``width`` columns (40 to `WIDTH`), and no more than ``height`` lines.

    Problems are shown on top. A low terminal gets no bars and fewer APIs, a narrow one fewer columns.
    """
    span = f"last {seen.seconds:.1f} s"
    width = max(WIDTH_MIN, min(WIDTH, width))
    head = f"millstream  {title}"
    lines = [f"{head[: width - len(span) - 2]:<{width - len(span)}}{span}", *_wrapped(_trouble(seen), width), ""]
    footer = ["", *_wrapped(_summary(seen), width)]
    room = math.inf if height is None else height - len(lines) - len(footer)
    shards = _shards(seen.shards, room, width)
    apis = ["", *_apis_table(seen.apis, width)]
    bars = ["", *_bars(seen.shards, width)]
    room -= len(shards)
    if room < len(apis):
        apis = apis[: int(room)] if room >= len(apis[:3]) else []
    if room - len(apis) < len(bars):
        bars = []
    return [line.rstrip() for line in (*lines, *shards, *bars, *apis, *footer)]


def _wrapped(lines: list[str], width: int) -> list[str]:
    return [part for line in lines for part in textwrap.wrap(line, width, break_on_hyphens=False)]


def _apis_table(apis: tuple[ApiActivity, ...], width: int) -> list[str]:
    """The busiest APIs. A narrow terminal sees no medians."""
    medians = width >= _API_WIDTH + 30
    name_width = min(_API_WIDTH, width - 20)

    def line(name: str, *cells: str) -> str:
        shown = cells if medians else (cells[0], cells[-1])
        return f"{name[:name_width]:<{name_width}}" + "".join(f" {cell:>9}" for cell in shown)

    if not apis:
        return [line("API", "REQ/S", "P50 ≤", "P99 ≤"), "no requests"]
    rows = [line(one.api, _count(one.requests), _time(one.p50), _time(one.p99)) for one in apis[:_APIS]]
    return [line("API", "REQ/S", "P50 ≤", "P99 ≤"), *rows]


def _bars(shards: tuple[ShardActivity, ...], width: int) -> list[str]:
    bar_width = min(40, width - 27)
    return [f"{'SHARD':>5} {'MEMORY':>9} {'OF':>9}"] + [
        f"{one.shard:>5} {_size(one.memory_bytes):>9} {_size(one.memory_limit_bytes):>9}"
        f"  {_bar(one.memory_bytes, one.memory_limit_bytes, bar_width)}"
        for one in shards
    ]


def _trouble(seen: Activity) -> list[str]:
    lines: list[str] = []
    if seen.faults:
        logs = _plural(seen.faults, "partition is", "partitions are")
        lines.append(f"DAMAGED: {logs} not served; 'millstream log verify' says what is wrong")
    if seen.read_only:
        lines.append("DISK FULL: producers are refused until there is space")
    return lines


def _summary(seen: Activity) -> list[str]:
    waiting = _plural(seen.fetch_waiters, "fetch", "fetches")
    logs = f"{_plural(seen.partitions, 'partition')} with {_size(seen.size_bytes)}"
    disk = f"{_size(seen.wal_used_bytes)} in the write-ahead log · {_size(seen.free_bytes)} of disk free"
    return [
        f"{_count(seen.records)} records/s produced · {logs} · {_plural(seen.groups, 'group')}",
        f"{waiting} waiting · {disk}",
    ]


class _Column(NamedTuple):
    """A column of the table of shards. Where not all columns fit, those of the lowest ranks are shown."""

    heading: str
    width: int
    rank: int


_COLUMNS = (
    _Column("SHARD", 5, 0),
    _Column("CPU", 5, 1),
    _Column("CONN", 5, 6),
    _Column("REQ/S", 7, 2),
    _Column("IN/S", 7, 4),
    _Column("OUT/S", 7, 5),
    _Column("LATENCY", 7, 7),
    _Column("SYNC P99", 8, 8),
    _Column("STALL/S", 7, 9),
    _Column("HOPS/S", 7, 10),
    _Column("MEM", 4, 3),
)


def _cells(one: ShardActivity) -> dict[str, str]:
    """The figures of a shard, by heading."""
    memory = one.memory_bytes / one.memory_limit_bytes if one.memory_limit_bytes else 0.0
    return {
        "SHARD": str(one.shard),
        "CPU": f"{one.cores:.0%}",
        "CONN": str(one.connections),
        "REQ/S": _count(one.requests),
        "IN/S": _size(one.received_bytes),
        "OUT/S": _size(one.sent_bytes),
        "LATENCY": _time(one.latency),
        "SYNC P99": _time(one.sync_p99),
        "STALL/S": _count(one.stalls),
        "HOPS/S": _count(one.hops),
        "MEM": f"{memory:.0%}",
    }


def _columns(width: int) -> list[_Column]:
    """The columns that fit, in their order."""
    shown: list[_Column] = []
    for column in sorted(_COLUMNS, key=lambda one: one.rank):
        if sum(one.width + 1 for one in shown) + column.width > width:
            break
        shown.append(column)
    return sorted(shown, key=_COLUMNS.index)


def _shards(shards: tuple[ShardActivity, ...], room: float, width: int) -> list[str]:
    """A line for each, or for the busiest of them."""
    columns = _columns(width)

    def line(one: ShardActivity) -> str:
        cells = _cells(one)
        return " ".join(f"{cells[column.heading]:>{column.width}}" for column in columns)

    headings = " ".join(f"{column.heading:>{column.width}}" for column in columns)
    most = max(1, int(min(room, 1_000)) - 1)
    if len(shards) <= most:
        return [headings, *map(line, shards)]
    busiest = sorted(sorted(shards, key=lambda one: -one.cores)[: most - 1], key=lambda one: one.shard)
    return [headings, *map(line, busiest), f"and {len(shards) - len(busiest)} less busy ones"]


def _count(value: float) -> str:
    if value >= 999_999.5:
        return f"{value / 1e6:,.1f}M"
    return f"{value:,.0f}" if value >= 9.95 or value == round(value) else f"{value:.1f}"


def _plural(count: int, one: str, many: str = "") -> str:
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def _size(value: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if value >= 9.95 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds == math.inf:
        return "> 16 s"
    if seconds < 999.5e-6:
        return f"{seconds * 1e6:.0f} µs"
    if seconds < 99.95e-3:
        return f"{seconds * 1e3:.1f} ms"
    return f"{seconds * 1e3:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"


def _bar(part: float, whole: float, width: int) -> str:
    filled = round(width * min(1.0, part / whole)) if whole else 0
    full, empty = "█░" if (sys.stdout.encoding or "").lower().startswith("utf") else "#."
    return full * filled + empty * (width - filled)
