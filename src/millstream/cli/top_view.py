"""From two readings of a broker's metrics to what it did in between, and that as lines of at most 80 columns."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.cli.exposition import quantile

if TYPE_CHECKING:
    from millstream.cli.exposition import Exposition

WIDTH = 80

_STARTED = "millstream_start_time_seconds"
_APIS = 12


class ShardActivity(msgspec.Struct, frozen=True):
    """One shard between two looks. Rates are per second, times in seconds; None: nothing to tell it from."""

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
    """One Kafka API between two looks."""

    api: str
    requests: float
    p50: float | None
    p99: float | None


class Activity(msgspec.Struct, frozen=True):
    """The broker between two looks."""

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
    """What happened in between; None if the broker was started anew."""
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


def as_lines(seen: Activity, title: str, height: int | None = None) -> list[str]:
    """The view, each line at most `WIDTH` columns, and no more than `height` of them.

    What needs a person stands on top; bars and the rarer APIs are left out first.
    """
    span = f"last {seen.seconds:.1f} s"
    head = f"millstream  {title}"
    lines = [f"{head[: WIDTH - len(span) - 2]:<{WIDTH - len(span)}}{span}", *_trouble(seen), ""]
    footer = ["", *_summary(seen)]
    room = math.inf if height is None else height - len(lines) - len(footer)
    shards = _shards(seen.shards, room)
    apis = ["", f"{'API':<26} {'REQ/S':>9} {'P50 ≤':>9} {'P99 ≤':>9}"]
    apis += [
        f"{one.api:<26} {_count(one.requests):>9} {_time(one.p50):>9} {_time(one.p99):>9}" for one in seen.apis[:_APIS]
    ]
    if not seen.apis:
        apis.append("no requests")
    bars = ["", f"{'SHARD':>5} {'MEMORY':>9} {'OF':>9}"]
    bars += [
        f"{one.shard:>5} {_size(one.memory_bytes):>9} {_size(one.memory_limit_bytes):>9}"
        f"  {_bar(one.memory_bytes, one.memory_limit_bytes)}"
        for one in seen.shards
    ]
    room -= len(shards)
    if room < len(apis):
        apis = apis[: int(room)] if room >= len(apis[:3]) else []
    if room - len(apis) < len(bars):
        bars = []
    return [line.rstrip() for line in (*lines, *shards, *bars, *apis, *footer)]


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


def _shards(shards: tuple[ShardActivity, ...], room: float) -> list[str]:
    """A line for each, or for the busiest of them."""
    columns = f"{'SHARD':>5} {'CPU':>5} {'CONN':>5} {'REQ/S':>7} {'IN/S':>7} {'OUT/S':>7} {'LATENCY':>7}"
    columns += f" {'SYNC P99':>8} {'STALL/S':>7} {'HOPS/S':>7} {'MEM':>4}"
    most = max(1, int(min(room, 1_000)) - 1)
    if len(shards) <= most:
        return [columns, *map(_shard_line, shards)]
    busiest = sorted(sorted(shards, key=lambda one: -one.cores)[: most - 1], key=lambda one: one.shard)
    return [columns, *map(_shard_line, busiest), f"and {len(shards) - len(busiest)} less busy ones"]


def _shard_line(one: ShardActivity) -> str:
    traffic = f"{_count(one.requests):>7} {_size(one.received_bytes):>7} {_size(one.sent_bytes):>7}"
    waits = f"{_time(one.latency):>7} {_time(one.sync_p99):>8} {_count(one.stalls):>7} {_count(one.hops):>7}"
    memory = one.memory_bytes / one.memory_limit_bytes if one.memory_limit_bytes else 0.0
    return f"{one.shard:>5} {one.cores:>5.0%} {one.connections:>5} {traffic} {waits} {memory:>4.0%}"


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


def _bar(part: float, whole: float, width: int = 40) -> str:
    filled = round(width * min(1.0, part / whole)) if whole else 0
    return "█" * filled + "░" * (width - filled)
