"""One arm of the warm-fanout bench: a producer and groups that follow it at their lags, on a broker of their own.

Every record has a number, from which its place follows; a group that reads anything else in a place ends the bench.
What is measured lies between two moments, when every group has come: counters of the broker, how long each hit of the
warm cache took (`bench.warm_hooks`), and how long a producer waited for one record of each batch. Before the load ends,
the same blocks are read from the cache's file without the broker, for comparison.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import random
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from crc32c import crc32c

from bench import processes, raw
from bench.meter import percentile
from bench.raw import UnexpectedAnswer
from bench.warm_hooks import CACHE_BYTES
from millstream.cli.exposition import Exposition, read_exposition
from millstream.testing.process import Broker
from millstream.tiers.hot_tier.slots import SLOT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PARTITIONS = 8
RATE = 8192
RECORD_BYTES = 1024
LAGS_S = (15, 25, 35)
"""Each further group needs 80 MiB of cache."""

SETTLE_S = LAGS_S[-1] + 5
RUN = 16
"""Records one after the other for one partition."""

TOPIC = "fanout"
CONFIG = {
    "storage.mode": "tiered",
    "internal.segment.bytes": str(1 << 20),
    "retention.ms": "-1",
    "retention.local.target.ms": "0",
    "segment.upload.max.ms": "2000",
}
SETTINGS: dict[str, object] = {
    "log.retention.check.interval.ms": 500,
    "checkpoint.ms": 1000,
    "internal.shard.hook": "bench.warm_hooks:install",
    "cache.max.size.bytes": CACHE_BYTES,
    "cache.min.free.percent": 0,
}
BARE_READS = 400
_MIB = 1 << 20


class Arm(NamedTuple):
    """One way to run it."""

    name: str
    groups: int
    settings: dict[str, object]
    repeats: bool = False
    """Whether ``--repeats`` counts for it."""


class Result(NamedTuple):
    """What one arm came to, over the time that was measured. Times are in ms, 0 without any."""

    gets_per_mib: float
    """GET requests to the store per MiB produced."""

    hits: float
    """Share of the blocks that did not come from the store."""

    hit_p50_ms: float
    hit_p99_ms: float
    bare_p50_ms: float
    bare_p99_ms: float
    produce_p50_ms: float
    produce_p99_ms: float
    cpu_s_per_gib: float
    """Broker CPU per GiB produced."""

    produced_mib_s: float
    """What the producer sent; less than the rate of `RATE` on a machine that is too slow for it."""

    late_s: float
    """How far a group fell behind its lag; more than a second or two says that the machine is too slow for the load."""

    read_mib_s: float
    """What the groups got from the archive."""

    filled_per_mib: float
    """MiB written to the cache per MiB produced."""

    memory_mib: float
    hit_ms: list[float]
    """A sample of the hits, sorted, for the plot."""


def place(number: int) -> tuple[int, int]:
    """Partition and offset of a record."""
    run, within = divmod(number, RUN)
    return run % PARTITIONS, run // PARTITIONS * RUN + within


def _value(number: int) -> bytes:
    return number.to_bytes(8, "big") + bytes(range(248)) + bytes(range(256)) * (RECORD_BYTES // 256 - 1)


def _produce(bootstrap: str, end_s: float, answers: Any) -> None:
    options = {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 5,
        "batch.size": RUN * 1200,
    }
    producer, waits = Producer(options), list[tuple[float, float]]()
    tail, sent, begun_s = _value(0)[8:], 0, time.time()

    def delivered(error: object, sent_s: float) -> None:
        if error is not None:
            raise UnexpectedAnswer(f"a record was not taken: {error}")
        now_s = time.time()
        waits.append((now_s, 1000 * (now_s - sent_s)))

    while (now_s := time.time()) < end_s:
        while sent < (now_s - begun_s) * RATE:
            heard = None
            if sent % RUN == 0:
                heard = _with(delivered, time.time())
            partition, _ = place(sent)
            try:
                producer.produce(TOPIC, sent.to_bytes(8, "big") + tail, partition=partition, on_delivery=heard)
            except BufferError:
                break  # the broker is far behind; the rest follows
            sent += 1
        producer.poll(0.005)
    if producer.flush(120):
        raise UnexpectedAnswer("records were not taken in time")
    answers.send(waits)


def _with(delivered: Callable[[object, float], None], sent_s: float) -> Any:
    def heard(error: object, _message: object) -> None:
        delivered(error, sent_s)

    return heard


def _consume(bootstrap: str, lag_s: float, measured_s: tuple[float, float], end_s: float, answers: Any) -> None:
    """Read each partition in pieces of a MiB, the next one when the last record of the piece before is ``lag_s`` old.

    A stock client has one queue for all partitions: with a reader who waits within it, some of them starve.
    """
    requests = [raw.fetch(TOPIC, one, _MIB, max_wait_ms=100) for one in range(PARTITIONS)]
    offsets, due_s, late_s = [0] * PARTITIONS, [0.0] * PARTITIONS, 0.0
    with raw.Caller(bootstrap) as caller:
        while (now_s := time.time()) < end_s:
            partition = min(range(PARTITIONS), key=due_s.__getitem__)
            if due_s[partition] > now_s:
                time.sleep(min(due_s[partition], end_s) - now_s)
                continue
            if measured_s[0] <= now_s <= measured_s[1]:
                late_s = max(late_s, now_s - due_s[partition])
            request, at = requests[partition]
            struct.pack_into(">q", request, at, offsets[partition])
            frame = memoryview(caller.call(request))
            answer = raw.FetchAnswer(frame, TOPIC)
            newest_ms = 0
            for batch in _batches(frame[answer.records_start : answer.records_end]):
                offsets[partition], newest_ms = _checked(batch, partition, offsets[partition])
            due_s[partition] = newest_ms / 1000 + lag_s if newest_ms else time.time() + 0.1
    if not all(offsets):
        raise UnexpectedAnswer(f"a group {lag_s} s behind read nothing of some partitions")
    answers.send(late_s)


def _batches(data: memoryview) -> Iterator[memoryview]:
    """The whole batches of an answer; a piece of one may be at its end."""
    while len(data) >= 12 and len(data) >= (size := 12 + struct.unpack_from(">i", data, 8)[0]):
        yield data[:size]
        data = data[size:]


def _checked(batch: memoryview, partition: int, expected: int) -> tuple[int, int]:
    """Offset behind a batch, and its largest timestamp. Raises UnexpectedAnswer if it is not what was sent."""
    base = struct.unpack_from(">q", batch)[0]
    count, (newest_ms,) = struct.unpack_from(">i", batch, 23)[0] + 1, struct.unpack_from(">q", batch, 35)
    run, within = divmod(base, RUN)
    number = (run * PARTITIONS + partition) * RUN + within
    whole = struct.unpack_from(">I", batch, 17)[0] == crc32c(batch[21:])
    if not whole or not base <= expected < base + count or number.to_bytes(8, "big") not in bytes(batch[61:100]):
        raise UnexpectedAnswer(f"partition {partition}: another batch at {base} instead of {expected}")
    return base + count, newest_ms


def metrics(broker: Broker) -> Exposition:
    """What the broker counts."""
    return read_exposition(f"{broker.http}/metrics", 10)


def bare_reads(path: str, direct: bool, count: int = BARE_READS) -> list[float]:
    """How long ``count`` reads of slots of the cache's file take, in ms, sorted."""
    flags = os.O_RDONLY | (os.O_DIRECT if direct else 0)
    descriptor, buffer = os.open(path, flags), mmap.mmap(-1, SLOT_BYTES)
    try:
        slots = os.fstat(descriptor).st_size // SLOT_BYTES
        took: list[float] = []
        for _ in range(count if slots else 0):
            position = random.randrange(slots) * SLOT_BYTES
            begun = time.perf_counter()
            os.preadv(descriptor, [buffer], position)
            took.append(1000 * (time.perf_counter() - begun))
        return sorted(took)
    finally:
        os.close(descriptor)


def _hits(path: Path, begun_s: float, ended_s: float) -> list[float]:
    """Sorted, in ms."""
    if not path.exists():
        return []
    rows = [line.split() for line in path.read_text(encoding="ascii").splitlines()]
    return sorted(float(row[1]) / 1000 for row in rows if len(row) == 2 and begun_s <= float(row[0]) <= ended_s)


def run(arm: Arm, seconds: float, io: str = "direct", settle_s: float = SETTLE_S) -> Result:
    """One arm, on a broker of its own. Raises UnexpectedAnswer if anything that was read or written is wrong."""
    with tempfile.TemporaryDirectory(prefix="warm-fanout-") as directory:
        cache, hits = f"{directory}/cache", Path(directory, "hits")
        settings = SETTINGS | {"cache.path": cache, "cache.io": io} | arm.settings
        with Broker(settings=settings, shards=1, memory="64MiB", env={"MILLSTREAM_HITS": str(hits)}) as broker:
            return _measure(broker, arm, seconds, settle_s, io, (cache, hits))


def _measure(broker: Broker, arm: Arm, seconds: float, settle_s: float, io: str, paths: tuple[str, Path]) -> Result:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=CONFIG)])[TOPIC].result(20)
    start_s = time.time() + settle_s
    measured_s, end_s = (start_s, start_s + seconds), start_s + seconds + 5
    works: list[tuple[Any, tuple[Any, ...]]] = [(_produce, (broker.bootstrap, end_s))]
    works += [(_consume, (broker.bootstrap, lag_s, measured_s, end_s)) for lag_s in LAGS_S[: arm.groups]]
    heard: list[Any] = []
    jobs: list[Any] = []
    with contextlib.ExitStack() as ending:
        for work, arguments in works:
            hears, tells = multiprocessing.Pipe(duplex=False)
            job = multiprocessing.Process(target=work, args=(*arguments, tells))
            job.start()
            ending.callback(job.kill)
            tells.close()  # so that a client that fails is noticed
            heard.append(hears)
            jobs.append(job)
        time.sleep(settle_s)
        begun_s, before, cpu_s = time.time(), metrics(broker), processes.cpu_seconds(broker.pid)
        time.sleep(seconds)
        ended_s, after = time.time(), metrics(broker)
        cpu_s = processes.cpu_seconds(broker.pid) - cpu_s
        memory_mib = processes.pss_bytes(broker.pid) / _MIB
        bare: list[float] = []
        if arm.settings.get("cache.type") == "nvme":
            bare = bare_reads(f"{paths[0]}/shard-0", direct=io == "direct")
        try:
            waits, *late_s = [hears.recv() for hears in heard]
        except EOFError:
            raise UnexpectedAnswer(f"{arm.name}: a client failed") from None
        for job in jobs:
            job.join(60)

    def grown(name: str, **labels: str) -> float:
        return after.value(f"millstream_{name}", **labels) - before.value(f"millstream_{name}", **labels)

    blocks = {one: grown("archive_blocks_total", source=one) for one in ("memory", "hot_tier", "store")}
    took_s = ended_s - begun_s
    produce_ms = sorted(wait_ms for at_s, wait_ms in waits if begun_s <= at_s <= ended_s)
    produced_mib = len(produce_ms) * RUN * RECORD_BYTES / _MIB
    if not produced_mib:
        raise UnexpectedAnswer(f"{arm.name}: nothing was produced in {took_s:.0f} s")
    hit_ms = _hits(paths[1], begun_s, ended_s)
    return Result(
        gets_per_mib=grown("object_request_latency_seconds_count", operation="get") / produced_mib,
        hits=1 - blocks["store"] / max(1, sum(blocks.values())),
        hit_p50_ms=percentile(hit_ms, 50),
        hit_p99_ms=percentile(hit_ms, 99),
        bare_p50_ms=percentile(bare, 50),
        bare_p99_ms=percentile(bare, 99),
        produce_p50_ms=percentile(produce_ms, 50),
        produce_p99_ms=percentile(produce_ms, 99),
        cpu_s_per_gib=cpu_s / produced_mib * 1024,
        produced_mib_s=produced_mib / took_s,
        late_s=max(late_s),
        read_mib_s=grown("read_bytes_total", source="archive") / took_s / _MIB,
        filled_per_mib=grown("hot_tier_fills_total") * SLOT_BYTES / _MIB / produced_mib,
        memory_mib=memory_mib,
        hit_ms=hit_ms[:: max(1, len(hit_ms) // 1000)],
    )
