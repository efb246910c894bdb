"""What the archive costs producers, how fast it is, and how fast history is read from the store.

`beside` compares the scheduled load (`bench.schedule.RFC`) on a tiered topic, whose segments are closed, uploaded and
dropped all the time, with the same load on a local topic. The two take turns.

`history` fills a local topic and then makes it tiered: from that moment to the last committed upload is the archive's
speed. Then the log cache and the local copies are gone, and all of it is read from the store while the scheduled load
goes on: the catch-up. Everything is read back and checked at the end.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from bench import fetch_load, load, plain, raw, schedule, verify
from bench.raw import UnexpectedAnswer
from bench.rows import LADDER
from bench.schedule import RFC
from bench.warm_arm import metrics
from millstream.testing.process import Broker

if TYPE_CHECKING:
    from bench.meter import Outcome

SEGMENT_BYTES = 1 << 19
"""Each partition closes one every six seconds."""

LARGE_SEGMENT_BYTES = 16 << 20
HISTORY_BYTES = 384 << 20
HISTORY_PARTITIONS = 4
PATIENCE_S = 240
TIERED = {"storage.mode": "tiered", "retention.ms": "-1", "retention.local.target.ms": "0"}
SETTINGS: dict[str, object] = {
    "log.retention.check.interval.ms": 500,
    "checkpoint.ms": 1000,
    "internal.shard.hook": "bench.slow_store:install",
}
_MIB = 1 << 20


class Beside(NamedTuple):
    """The scheduled load, on a topic of one kind. Times are in ms from the moment a request was due."""

    tiered: bool
    p50_ms: float
    p99_ms: float
    p999_ms: float
    archived_mib_s: float
    cpu_us: float
    late_sends: int
    ladder: list[tuple[float, float]]


class History(NamedTuple):
    """Archiving and reading a topic that was filled before."""

    archive_mib_s: float
    catch_up_mib_s: float
    fetch_p99_ms: float
    alone_p99_ms: float
    """p99 of produce requests before the catch-up begins, in ms."""

    produce_p99_ms: float
    """p99 of produce requests during the catch-up, in ms."""


def _on_schedule(broker: Broker, topic: str, seconds: float) -> tuple[Outcome, verify.Produced]:
    acknowledged = load.fresh(RFC.partitions)
    outcome = schedule.produce_open(
        broker.bootstrap,
        broker.pid,
        topic,
        plain.content(1),
        RFC,
        warm_s=4.0,
        measured_s=seconds,
        acknowledged=acknowledged,
    )
    return outcome, verify.Produced(topic, acknowledged, 1, frozenset(load.checksums(plain.content(1))))


def beside(seconds: float, rounds: int) -> list[Beside]:
    """Rounds of the scheduled load, a tiered and a local topic in turn, each on a broker of its own."""
    found: list[Beside] = []
    for _, tiered in itertools.product(range(rounds), (False, True)):
        config = {"internal.segment.bytes": str(SEGMENT_BYTES), **(TIERED if tiered else {})}
        with Broker(settings=SETTINGS, shards=1, memory=None) as broker:
            with raw.Caller(broker.bootstrap) as caller:
                caller.create_topics({"load": RFC.partitions}, config)
            begun_s = time.monotonic()
            outcome, produced = _on_schedule(broker, "load", seconds)
            archived = metrics(broker).value("millstream_archive_uploaded_bytes_total")
            took_s = time.monotonic() - begun_s
            if tiered != bool(archived):
                raise UnexpectedAnswer(f"{archived:,.0f} bytes of a topic with tiered={tiered} were archived")
            verify.read_back(broker.bootstrap, produced)
        p50, p99, p999 = (outcome.percentile_us(percent) / 1000 for percent in (50, 99, 99.9))
        ladder = [(percent, outcome.percentile_us(percent) / 1000) for percent in LADDER]
        speed = archived / took_s / _MIB
        found.append(Beside(tiered, p50, p99, p999, speed, outcome.cpu_us, outcome.late_sends, ladder))
    return found


def _make_tiered(broker: Broker, topic: str) -> None:
    command = [sys.executable, "-m", "millstream.cli", "topic", "alter", topic, "--bootstrap", broker.bootstrap]
    for name, value in TIERED.items():
        command += ["--config", f"{name}={value}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnexpectedAnswer(f"{topic} does not become tiered: {done.stderr}")


def history(seconds: float) -> History:
    """Raises UnexpectedAnswer if the archive takes longer than `PATIENCE_S`, or anything that is read is wrong."""
    content = plain.content(128)
    with Broker(settings=SETTINGS, shards=1, memory="256MiB") as broker:
        with raw.Caller(broker.bootstrap) as caller:
            caller.create_topics({"history": HISTORY_PARTITIONS}, {"internal.segment.bytes": str(LARGE_SEGMENT_BYTES)})
            caller.create_topics({"load": RFC.partitions}, {})
        _, produced = load.produce_closed(
            broker.bootstrap,
            broker.pid,
            "history",
            content,
            connections=4,
            depth=4,
            partitions=HISTORY_PARTITIONS,
            records_a_batch=128,
            warm_s=0.0,
            measured_s=PATIENCE_S,
            limit_bytes=HISTORY_BYTES,
        )
        archive_mib_s = _archive_all(broker)
        broker.stop()
        broker.start()  # nothing of it is in memory any more
        alone, first = _on_schedule(broker, "load", seconds)
        with raw.Caller(broker.bootstrap) as caller:
            caller.create_topics({"load-2": RFC.partitions}, {})
        before = metrics(broker).value("millstream_read_bytes_total", source="archive")
        with fetch_load.beside(
            broker.bootstrap, broker.pid, produced, batch_bytes=len(content[0]), seconds=seconds + 3.0
        ) as reader:
            loaded, second = _on_schedule(broker, "load-2", seconds)
            read = reader.result(PATIENCE_S)
        archived = metrics(broker).value("millstream_read_bytes_total", source="archive") - before
        if archived < 0.5 * read["bytes"]:
            raise UnexpectedAnswer(f"of {read['bytes']:,} bytes read, only {archived:,.0f} came from the archive")
        for one in (produced, first, second):
            verify.read_back(broker.bootstrap, one)
    return History(
        archive_mib_s,
        read["bytes"] / read["seconds"] / _MIB,
        read["p99_ms"],
        alone.percentile_us(99) / 1000,
        loaded.percentile_us(99) / 1000,
    )


def _archive_all(broker: Broker) -> float:
    """Archive every closed segment; MiB a second from the first byte to the last, which the store has by then."""
    _make_tiered(broker, "history")
    begun_s = time.monotonic()
    size = last = 0.0
    changed_s = begun_s
    while size < 0.8 * HISTORY_BYTES or time.monotonic() < changed_s + 5:
        if time.monotonic() > begun_s + PATIENCE_S:
            raise UnexpectedAnswer(f"only {size:,.0f} bytes are archived after {PATIENCE_S} s")
        time.sleep(0.1)
        size = metrics(broker).value("millstream_archive_uploaded_bytes_total")
        if size != last:
            last, changed_s = size, time.monotonic()
    return size / (changed_s - begun_s) / _MIB
