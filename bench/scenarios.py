"""The loads of ``make bench``: every row of the table, its figures, and the budget of each.

``LOADS`` run on brokers that stay up and take turns; ``ALONE`` on brokers of their own. What is measured stands in
``plain``, ``lock_step``, ``cold``, ``busy``, ``wide``, ``hop``, ``events``, ``transactions``, ``spark_beside``,
``spark_sink`` and ``spark_tables``.
"""

import functools

from bench import busy, cold, events, hop, lock_step, plain, spark_beside, spark_sink, spark_tables, transactions, wide
from bench.rows import FULL, QUICK, Alone, Figure, Figures, Plan, Scenario

__all__ = ["ALL", "ALONE", "FULL", "HEADLINES", "LOADS", "QUICK", "Alone", "Figure", "Figures", "Plan", "Scenario"]


def _cost(budget: float | None) -> tuple[Figure, ...]:
    return (
        Figure("cpu_us", "broker CPU, µs a request", True, 1, budget),
        Figure("per_s", "requests a second", False, 0),
        Figure("p50_ms", "p50, ms", True, 2),
        Figure("p99_ms", "p99, ms", True, 2),
    )


def _flow(budget: float | None) -> tuple[Figure, ...]:
    return (
        Figure("gb_per_cpu_s", "GB a broker-CPU-second", False, 2, budget),
        Figure("mb_per_s", "MB a second", False, 0),
        Figure("p99_ms", "p99, ms", True, 2),
    )


_STALLS = (
    Figure("callback_p999_ms", "callbacks of the shard, p99.9, ms (at most)", True, 2, 2.0),
    Figure("callback_max_ms", "longest callback, ms (at most)", True, 1),
)
_DISK = (
    Figure("tick_p99_ms", "a write to the log and its sync, p99, ms (at most)", True, 2),
    Figure("write_max_ms", "longest write to the log, ms (at most)", True, 1),
    Figure("sync_max_ms", "longest sync of the log, ms (at most)", True, 1),
)
_MACHINE = (
    Figure("stolen_ms_per_s", "withheld by the host, ms of cores a second", True, 1),
    Figure("late_sends", "sent late by the generator", True, 0),
)


def _scheduled(cores: float | None) -> tuple[Figure, ...]:
    return (
        Figure("p50_ms", "p50, ms", True, 2),
        Figure("p99_ms", "p99, ms", True, 2, 1.5),
        Figure("p999_ms", "p99.9, ms", True, 2, 5.0),
        Figure("cores", "broker cores in use", True, 2, cores),
        Figure("cpu_us", "broker CPU, µs a request", True, 1),
        *_STALLS,
        *_DISK,
    )


_BARE = (
    Figure("bare_p99_ms", "a bare loop in its place: p99, ms", True, 2),
    Figure("bare_p999_ms", "a bare loop in its place: p99.9, ms", True, 2),
    Figure("bare_cpu_us", "a bare loop in its place: CPU, µs a request", True, 1),
)

_HAPPENED = (
    Figure("segments_rolled", "segments rolled", True, 0),
    Figure("segments_deleted", "segments deleted", True, 0),
    Figure("checkpoints", "checkpoints", True, 0),
    Figure("collections", "garbage collections", True, 0),
    Figure("collection_max_ms", "longest collection, ms (at most)", True, 2),
)

_TAIL = (
    Figure("delivered_us", "broker CPU, µs a record delivered to a group", True, 1),
    Figure("cores", "broker cores in use", True, 2),
    Figure("end_p50_ms", "sent to received, p50, ms", True, 2),
    Figure("end_p99_ms", "sent to received, p99, ms", True, 2),
    Figure("end_p999_ms", "sent to received, p99.9, ms", True, 2),
    Figure("p99_ms", "produce, p99, ms", True, 2),
    Figure("fetches_per_s", "fetches a second", False, 0),
    *_MACHINE,
)

_TRANSACTIONS = (
    Figure("per_s", "transactions a second", False, 0),
    Figure("cpu_us", "broker CPU, µs a transaction", True, 0),
    Figure("p50_ms", "p50, ms", True, 2),
    Figure("p99_ms", "p99, ms", True, 2),
)

_small = functools.partial(plain.produce, records=1)
_MIB = 1 << 20

LOADS: tuple[Scenario, ...] = (
    Scenario(
        "small-16x8",
        "produce 1 KB, 16 connections × 8 in flight, 16 partitions",
        _cost(14),
        functools.partial(_small, connections=16, depth=8, partitions=16),
    ),
    Scenario(
        "small-1x64",
        "produce 1 KB, 1 connection × 64 in flight, 1 partition",
        _cost(14),
        functools.partial(_small, connections=1, depth=64, partitions=1),
    ),
    Scenario(
        "small-64x1",
        "produce 1 KB, 64 connections × 1 in flight, 16 partitions",
        _cost(22),
        functools.partial(_small, connections=64, depth=1, partitions=16),
    ),
    Scenario(
        "small-1000x1",
        "produce 1 KB, 1 000 connections × 1 in flight, 128 partitions",
        _cost(None),
        functools.partial(_small, connections=1000, depth=1, partitions=128),
    ),
    Scenario(
        "bulk",
        "produce batches of 128 × 1 KB, 4 connections × 4, 4 partitions",
        _flow(1.2),
        functools.partial(plain.produce, connections=4, depth=4, records=128, partitions=4),
    ),
    Scenario(
        "fetch-1m",
        "fetch 1 MiB a request, 128 KB batches",
        _flow(3.2),
        functools.partial(plain.fetch, max_bytes=_MIB, records=128),
        rounds=2,
    ),
    Scenario(
        "fetch-128k",
        "fetch 128 KiB a request, 128 KB batches",
        _flow(2.0),
        functools.partial(plain.fetch, max_bytes=_MIB // 8, records=128),
        rounds=2,
    ),
    Scenario(
        "fetch-1m-small",
        "fetch 1 MiB a request, 1 KB batches",
        _flow(None),
        functools.partial(plain.fetch, max_bytes=_MIB, records=1),
        rounds=2,
    ),
    Scenario(
        "fetch-128k-small",
        "fetch 128 KiB a request, 1 KB batches",
        _flow(None),
        functools.partial(plain.fetch, max_bytes=_MIB // 8, records=1),
        rounds=2,
    ),
    *(
        Scenario(
            f"transactions-{records}",
            f"transactions one after the other, {records} × 1 KB each, 4 partitions",
            _TRANSACTIONS,
            functools.partial(transactions.commit, records=records),
        )
        for records in (1, 10, 100)
    ),
    Scenario(
        "rfc",
        "produce 1 KB on a schedule, 10 240 a second, 128 partitions, 16 connections",
        (*_scheduled(0.6), *_BARE, *_MACHINE),
        plain.rfc,
        rounds=2,
    ),
    Scenario(
        "tail-1",
        "the same schedule, one consumer group at the tail",
        _TAIL,
        functools.partial(plain.tail, groups=1),
        rounds=1,
    ),
    Scenario(
        "tail-10",
        "the same schedule, ten consumer groups at the tail",
        _TAIL,
        functools.partial(plain.tail, groups=10),
        rounds=1,
    ),
    Scenario(
        "tail-10-step",
        "ten consumer groups in lock step, one record to each of 128 partitions a round",
        (
            Figure("answered_us", "broker CPU, µs a partition answered", True, 1),
            Figure("rounds_per_s", "rounds a second", False, 1),
        ),
        lock_step.measure,
    ),
)

ALONE: tuple[Scenario, ...] = (
    Scenario(
        "tls-16x8",
        "TLS 1.3 and a login: produce 1 KB, 16 connections × 8 in flight, 16 partitions",
        _cost(None),
        functools.partial(_small, connections=16, depth=8, partitions=16),
        alone=plain.SECURE,
    ),
    Scenario(
        "tls-bulk",
        "TLS 1.3 and a login: produce batches of 128 × 1 KB, 4 connections × 4, 4 partitions",
        _flow(None),
        functools.partial(plain.produce, connections=4, depth=4, records=128, partitions=4),
        alone=plain.SECURE,
    ),
    Scenario(
        "tls-fetch-1m",
        "TLS 1.3 and a login: fetch 1 MiB a request, 128 KB batches",
        _flow(None),
        functools.partial(plain.fetch, max_bytes=_MIB, records=128),
        alone=plain.SECURE,
    ),
    Scenario(
        "fetch-cold",
        "fetch closed segments from the page cache",
        tuple(
            Figure(f"{shape}_{state}", f"{size} a request, {batch} batches, {said}, GB a CPU-second", False, 2)
            for state, said in (
                ("started", "broker just started"),
                ("warm", "broker warm"),
                ("both", "broker warm, both ends"),
            )
            for shape, size, batch in (
                ("small_1m", "1 MiB", "1 KB"),
                ("bulk_1m", "1 MiB", "128 KB"),
                ("small_128k", "128 KiB", "1 KB"),
                ("bulk_128k", "128 KiB", "128 KB"),
            )
        ),
        cold.measure,
        alone=cold.ALONE,
    ),
    Scenario(
        "catch-up",
        "the same schedule, old data read as fast as possible beside it",
        (
            Figure("cores", "broker cores in use", True, 2),
            Figure("read_mb_per_s", "old data, MB a second", False, 0),
            Figure("read_p99_ms", "fetch of 1 MiB, p99, ms", True, 2),
            Figure("p50_ms", "produce, p50, ms", True, 2),
            Figure("p99_ms", "produce, p99, ms", True, 2),
            Figure("from_files_percent", "old data read from files, %", True, 0),
            *_MACHINE,
        ),
        busy.catch_up,
        rounds=1,
        alone=busy.ALONE,
    ),
    Scenario(
        "rfc-busy",
        "the same schedule with segment rolls, retention, checkpoints, and 40 MB/s of old data read",
        (*_scheduled(None), *_HAPPENED, *_MACHINE),
        busy.everything,
        rounds=1,
        alone=busy.ALONE,
    ),
    Scenario(
        "rfc-realtime",
        "the same schedule at real-time priority, generator too (ours: shards.realtime=true, wal.pacing.us=100)",
        (*_scheduled(None), *_BARE, *_MACHINE),
        plain.rfc,
        rounds=2,
        alone=plain.REALTIME,
        realtime=True,
    ),
    Scenario(
        "rfc-busy-realtime",
        "the same, with segment rolls, retention, checkpoints, and 40 MB/s of old data read",
        (*_scheduled(None), *_HAPPENED, *_MACHINE),
        busy.everything,
        rounds=1,
        alone=busy.REALTIME,
        realtime=True,
    ),
    Scenario(
        "start",
        "start on an empty directory",
        (Figure("first_ack_s", "s to the first ack", True, 2, 0.6), Figure("cpu_s", "CPU-s until then", True, 2)),
        wide.start_empty,
        rounds=2,
        alone=wide.EMPTY,
    ),
    Scenario(
        "idle-1000",
        "1 000 partitions",
        (
            Figure("idle_core_percent", "idle, % of a core", True, 2, 0.5),
            Figure("idle_pss_mb", "idle, MB (PSS)", True, 0, 150),
            Figure("first_ack_clean_s", "s to the first ack after a clean stop", True, 2, 2.0),
            Figure("first_ack_killed_s", "s to the first ack after kill -9", True, 2, 2.0),
        ),
        wide.thousand_partitions,
        rounds=1,
        alone=wide.THOUSAND,
    ),
    Scenario(
        "wide-10000",
        "10 000 partitions in 16 topics",
        (
            Figure("cpu_us", "produce 1 KB to all of them, broker CPU, µs a request", True, 1),
            Figure("p99_ms", "produce, p99, ms", True, 2),
            Figure("create_s", "creating them, s until all can be read", True, 2),
            Figure("create_cpu_s", "creating them, CPU-s", True, 2),
            Figure("metadata_cpu_ms", "metadata of all, broker CPU, ms", True, 1),
            Figure("metadata_ms", "metadata of all, ms", True, 1),
            Figure("idle_core_percent", "idle, % of a core", True, 2),
            Figure("idle_pss_mb", "idle, MB (PSS)", True, 0),
        ),
        wide.ten_thousand_partitions,
        rounds=1,
        alone=wide.TEN_THOUSAND,
    ),
    Scenario(
        "hop",
        "core hop (a broker with two shards)",
        (
            Figure("hop_us", "a request that hops costs more, µs CPU", True, 1, 6.0),
            Figure("home_us", "broker CPU, µs a request at home", True, 1),
            Figure("hopped_us", "broker CPU, µs a request that hops", True, 1),
            Figure("ring_64_us", "bare round trip, 64 in flight, µs CPU", True, 1, 6.0),
            Figure("ring_lent_us", "the same with a payload lent, µs CPU", True, 1),
        ),
        hop.measure,
        rounds=1,
        alone=hop.ALONE,
    ),
    Scenario(
        "events",
        "events through our Python client: 128 B metadata, 1 KiB data, batches of 256, one partition, synced",
        (
            Figure("produced_per_s", "produced, events a second", False, 0, 45_000),
            Figure("produced_client_us", "produced, client CPU, µs an event", True, 1),
            Figure("produced_broker_us", "produced, broker CPU, µs an event", True, 1),
            Figure("bare_per_s", "a bare loop in its place, events a second", False, 0),
            Figure("consumed_per_s", "consumed with data, events a second", False, 0, 150_000),
            Figure("consumed_client_us", "consumed with data, client CPU, µs an event", True, 1),
            Figure("consumed_broker_us", "consumed with data, broker CPU, µs an event", True, 1),
            Figure("metadata_per_s", "metadata only, batches of 1 024, produced a second", False, 0, 200_000),
            Figure("metadata_client_us", "metadata only, produced, client CPU, µs an event", True, 1),
            Figure("metadata_consumed_per_s", "metadata only, consumed a second", False, 0),
            Figure("ack_p50_ms", "one event at a time, p50 to the acknowledgement, ms", True, 2, 2.0),
            Figure("ack_p99_ms", "one event at a time, p99 to the acknowledgement, ms", True, 2),
        ),
        events.measure,
        rounds=2,
        alone=events.ALONE,
    ),
    Scenario(
        "events-selective",
        "1 % of a data set of events, a tenth of every tenth, from a broker with 256 MiB of memory",
        (
            Figure("read_ratio", "bytes read a byte selected", True, 2, 1.2),
            Figure("selected_mb", "selected, MB", False, 1),
            Figure("read_mb", "read from files, MB", True, 1),
        ),
        events.measure_selective,
        rounds=1,
        alone=events.LITTLE_MEMORY,
    ),
    Scenario(
        "spark",
        "Spark scan, local[2]; the peer's with Spark's own Kafka connector",
        (
            Figure("mrows_100", "100 B values, M rows a second", False, 2, 3.6),
            Figure("mrows_first_100", "100 B values, M rows a second, first run in a new session", False, 2),
            Figure("gb_1000", "1 KB values, GB a second", False, 2, 1.4),
            Figure("spark_cpu_100", "100 B values, Spark's CPU-s a GB", True, 2),
            Figure("spark_cpu_1000", "1 KB values, Spark's CPU-s a GB", True, 2),
            Figure("broker_cpu_1000", "1 KB values, broker's CPU-s a GB", True, 2),
        ),
        spark_beside.measure,
        rounds=1,
        alone=spark_beside.ALONE,
    ),
    Scenario(
        "spark-sink",
        "Spark copies a topic, local[2]; the same sink for both brokers",
        (
            Figure("mrows_once", "exactly once, M rows a second", False, 3),
            Figure("mrows_least", "at least once, M rows a second", False, 3),
            Figure("slower_percent", "exactly once is slower by, %", True, 1, 15.0),
            Figure("batch_once_ms", "exactly once, ms a micro-batch", True, 0),
        ),
        spark_sink.measure,
        rounds=1,
        alone=spark_sink.ALONE,
    ),
    Scenario(
        "spark-tables",
        "Spark, 1 KB values, local[2]; the peer's with Spark's own Kafka connector",
        (
            Figure("backfill_cpu", "topic to Parquet (ours fused), CPU-s a GB", True, 2),
            Figure("backfill_start_cpu", "topic to Parquet (ours fused), CPU-s a query", True, 2),
            Figure("backfill_gb", "topic to Parquet (ours fused), GB a second", False, 2),
            Figure("classic_cpu", "topic to Parquet with a query, CPU-s a GB", True, 2),
            Figure("classic_start_cpu", "topic to Parquet with a query, CPU-s a query", True, 2),
            Figure("classic_gb", "topic to Parquet with a query, GB a second", False, 2),
            Figure("fused_gain", "CPU a GB with a query ÷ CPU a GB fused", False, 2, 4.0),
            Figure("range_ms", "a time range of 1 %, ms", True, 0),
            Figure("range_gain", "time of the whole topic ÷ time of the range", False, 1),
            Figure("latency_p50_ms", "record to foreachBatch, trigger of 1 s, p50, ms", True, 0),
            Figure("latency_p99_ms", "record to foreachBatch, trigger of 1 s, p99, ms", True, 0),
        ),
        spark_tables.measure,
        rounds=1,
        alone=spark_tables.ALONE,
    ),
)

ALL = (*LOADS, *ALONE)

HEADLINES: dict[str, tuple[str, ...]] = {
    "small-16x8": ("cpu_us",),
    "small-1x64": ("cpu_us",),
    "small-64x1": ("cpu_us",),
    "small-1000x1": ("cpu_us",),
    "bulk": ("gb_per_cpu_s",),
    "fetch-1m": ("gb_per_cpu_s",),
    "fetch-128k": ("gb_per_cpu_s",),
    "tls-16x8": ("cpu_us",),
    "tls-bulk": ("gb_per_cpu_s",),
    "tls-fetch-1m": ("gb_per_cpu_s",),
    "transactions-10": ("per_s",),
    "rfc": ("p50_ms", "p99_ms", "p999_ms", "cores"),
    "tail-1": ("end_p99_ms",),
    "tail-10": ("delivered_us",),
    "start": ("first_ack_s",),
    "idle-1000": ("idle_pss_mb", "first_ack_killed_s"),
    "wide-10000": ("create_s",),
    "hop": ("hop_us",),
    "events": ("produced_per_s", "consumed_per_s", "metadata_per_s", "ack_p50_ms"),
    "events-selective": ("read_ratio",),
    "spark": ("mrows_100", "gb_1000"),
    "spark-sink": ("mrows_once", "slower_percent"),
    "spark-tables": ("backfill_cpu", "fused_gain", "range_ms", "latency_p50_ms"),
}
"""Figures of ``docs/performance.md`` by scenario; every figure is in ``docs/notes/figures.md``."""
