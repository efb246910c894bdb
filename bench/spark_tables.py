"""Spark reads a little of a topic, makes a table of all of it, and follows it: the loads of pipelines beside the scan.

    python -m bench.spark_tables      (started by :func:`measure`, see ``child``)

- *Time range*: the records of one hundredth of the topic's time, by ``startingTimestamp`` and ``endingTimestamp``, into
  a sink that does nothing. Their number is checked.
- *Backfill*: the whole topic into Parquet files. On Millstream by a declared pipeline without a query (fused: a worker
  makes files of segments) and by the same pipeline with one (classic: rows pass through the virtual machine). On Kafka
  by Spark's connector and Spark's own Parquet writer, which makes no promise about repeated batches. CPU is that of
  the driver, the virtual machine and the workers. A query costs CPU whatever it reads (processes, plans, checkpoints),
  which is told apart: a topic of one batch a partition is written in the same way, and what that took is no part of
  the CPU of a gigabyte. The rows in the files are counted.
- *Latency*: a stream with a trigger every second gets 1,000 records a second. A record's latency lasts from its
  timestamp, which the producer sets, until the driver has it in ``foreachBatch``.

The topic has values of 1 KB, and its timestamps rise by a day in all. What runs first in a session is slower, so the
time range and the backfill run several times, and the best run counts.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c

from bench import processes, raw
from bench.child import Child, instructions
from bench.rows import Alone, Figures, Plan, Say
from bench.spark_beside import OURS, connector
from bench.subjects import Subject

ALONE = Alone(one_of_ours=True)
TIMEOUT_S = 1200.0
TOPIC, SMALL, FOLLOWED = "table-1000", "table-small", "followed"
PARTITIONS = 4
VALUE_BYTES = 1000
DAY_MS = 86_400_000
HUNDREDTH = 100
PER_SECOND = 1000


def measure(subject: Subject, plan: Plan, say: Say) -> Figures:
    """Seconds of the time range, CPU of the backfills, latency of the stream."""
    jars = [str(path) for path in connector()] if subject.is_peer else []
    with raw.Caller(subject.bootstrap) as caller:
        caller.create_topics(dict.fromkeys((TOPIC, SMALL, FOLLOWED), PARTITIONS), {} if subject.is_peer else OURS)
    what = {
        "bootstrap": subject.bootstrap,
        "jars": jars,
        "bytes": plan.spark_bytes // 2,
        "runs": plan.spark_runs,
        "seconds": plan.rfc_s + 5,
    }
    with Child("bench.spark_tables", what) as spark:
        say("filling, a time range, backfills, a stream")
        return spark.result(TIMEOUT_S)


def fill(bootstrap: str, size: int) -> tuple[int, int, int]:
    """Produce batches whose timestamps rise; returns the number of rows, the first timestamp, and ms a batch. The small
    topic gets one batch a partition.
    """
    from millstream.client import Cluster
    from millstream.wire.records import build_batch

    count = (128 << 10) // (VALUE_BYTES + 20)
    rounds = max(HUNDREDTH, size // (count * VALUE_BYTES * PARTITIONS) // HUNDREDTH * HUNDREDTH)
    step = DAY_MS // rounds
    first = time.time_ns() // 1_000_000 - DAY_MS
    filler = os.urandom(VALUE_BYTES)
    values = [(b"%08d" % index + filler)[:VALUE_BYTES] for index in range(count)]
    batch = bytearray(build_batch([(b"key-%04d" % index, value, (), first) for index, value in enumerate(values)]))
    with Cluster(bootstrap) as cluster:
        for number in range(-1, rounds):
            stamp = (first + number * step).to_bytes(8, "big")
            batch[27:43] = stamp + stamp  # base and maximum timestamp; the checksum covers what follows byte 21
            batch[17:21] = crc32c.crc32c(bytes(batch[21:])).to_bytes(4, "big")
            given = bytes(batch)
            topic = TOPIC if number >= 0 else SMALL
            outcomes = cluster.produce_all({(topic, partition): [given] for partition in range(PARTITIONS)})
            if not all(isinstance(outcome, int) for outcome in outcomes.values()):
                sys.exit(f"the broker refused a batch: {outcomes}")
    return PARTITIONS * rounds * count, first, step


def best(runs: int, action: Callable[[int], None]) -> tuple[float, float]:
    """Seconds of the shortest run, and CPU-seconds of the one that used the least CPU."""
    found: list[tuple[float, float]] = []
    with processes.Watched(os.getpid()) as cpu:
        for number in range(runs):
            before, begun = cpu.seconds(), time.monotonic()
            action(number)
            found.append((time.monotonic() - begun, cpu.seconds() - before))
    return min(seconds for seconds, _ in found), min(used for _, used in found)


def expect(what: str, found: int, wanted: int) -> None:
    """Exit without figures if the number of rows is wrong."""
    if found != wanted:
        sys.exit(f"{what}: {found} rows, and {wanted} were there")


def reading(given: dict[str, Any], topic: str = TOPIC) -> tuple[str, dict[str, str]]:
    """Name of the data source and its options."""
    options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": topic}
    return "kafka" if given["jars"] else "millstream", options


def time_range(spark: Any, given: dict[str, Any], rows: int, first: int, step: int) -> Figures:
    """Read the 41st hundredth of the topic's time, and all of it for comparison."""
    name, options = reading(given)
    begin = first + rows_of_time(step, 40)
    bounds = {"startingTimestamp": str(begin), "endingTimestamp": str(begin + rows_of_time(step, 1))}
    part = spark.read.format(name).options(**options, **bounds).load()
    whole = spark.read.format(name).options(**options, startingOffsets="earliest").load()
    expect("time range", part.count(), rows // HUNDREDTH)
    expect("whole topic", whole.count(), rows)
    range_s, _ = best(given["runs"], lambda _: part.write.format("noop").mode("overwrite").save())
    whole_s, _ = best(given["runs"], lambda _: whole.write.format("noop").mode("overwrite").save())
    return {"range_ms": 1000 * range_s, "whole_ms": 1000 * whole_s, "range_gain": whole_s / range_s}


def rows_of_time(step: int, hundredths: int) -> int:
    """So many hundredths of the topic's time in ms; a whole number of batches."""
    return DAY_MS // step // HUNDREDTH * hundredths * step


def backfills(spark: Any, given: dict[str, Any], rows: int, place: Path) -> Figures:
    """The topic as Parquet files, in each way that the subject has."""
    if given["jars"]:
        return backfill("backfill", given, rows, place, by_spark(spark, given))
    fused = backfill("backfill", given, rows, place, by_pipeline(given, None))
    classic = backfill("classic", given, rows, place, by_pipeline(given, "SELECT * FROM source"))
    return {**fused, **classic, "fused_gain": classic["classic_cpu"] / fused["backfill_cpu"]}


def backfill(name: str, given: dict[str, Any], rows: int, place: Path, write: Callable[[str, Path], None]) -> Figures:
    """CPU-seconds and rate of a gigabyte, and CPU-seconds of a query that has next to nothing to do."""
    from pyarrow import dataset

    _, start_cpu = best(given["runs"], lambda number: write(SMALL, place / f"{name}-small-{number}"))
    seconds, cpu = best(given["runs"], lambda number: write(TOPIC, place / f"{name}-{number}"))
    for number in range(given["runs"]):
        target = dataset.dataset(str(place / f"{name}-{number}"), partitioning="hive", format="parquet")
        expect(name, target.count_rows(), rows)
    gigabytes = rows * VALUE_BYTES / 1e9
    return {
        f"{name}_cpu": (cpu - start_cpu) / gigabytes,
        f"{name}_start_cpu": start_cpu,
        f"{name}_gb": gigabytes / seconds,
    }


def by_spark(spark: Any, given: dict[str, Any]) -> Callable[[str, Path], None]:
    """Spark's connector and Spark's Parquet writer."""

    def write(topic: str, target: Path) -> None:
        name, options = reading(given, topic)
        table = spark.read.format(name).options(**options, startingOffsets="earliest").load()
        table.select("key", "value", "topic", "partition", "offset", "timestamp").write.parquet(str(target))

    return write


def by_pipeline(given: dict[str, Any], query: str | None) -> Callable[[str, Path], None]:
    """A declared pipeline, with a query or without."""
    from millstream.pipeline import Pipeline, Sink, Source, run
    from millstream.pipeline.model import Transform

    def write(topic: str, target: Path) -> None:
        pipeline = Pipeline(
            pipeline=target.name,
            brokers=given["bootstrap"],
            source=Source(topic=topic),
            transform=Transform(sql=query) if query else None,
            sinks=[Sink(parquet=str(target))],
            state=f"{target}.state",
        )
        run(pipeline, str(target.parent), once=True)

    return write


def latency(spark: Any, given: dict[str, Any], place: Path) -> Figures:
    """Timestamp to driver, in ms; what came in the first quarter of the time is left out."""
    from confluent_kafka import Producer

    name, options = reading(given)
    arrived, found = [0], list[float]()
    sent = int(given["seconds"] * PER_SECOND)

    def take(frame: Any, _: int) -> None:
        stamps = [row.at for row in frame.selectExpr("unix_millis(timestamp) AS at").collect()]
        now = time.time() * 1000
        arrived[0] += len(stamps)
        if arrived[0] > sent // 4:
            found.extend(now - stamp for stamp in stamps)

    stream = spark.readStream.format(name).options(**{**options, "subscribe": FOLLOWED, "startingOffsets": "earliest"})
    query = (
        stream.load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(place / "followed"))
        .trigger(processingTime="1 second")
        .start()
    )
    producer = Producer({"bootstrap.servers": given["bootstrap"], "linger.ms": 5, "acks": "all"})
    begun = time.monotonic()
    for number in range(sent):
        time.sleep(max(0.0, begun + number / PER_SECOND - time.monotonic()))
        producer.produce(FOLLOWED, b"x" * 100, timestamp=time.time_ns() // 1_000_000)
        producer.poll(0)
    if producer.flush(60):
        sys.exit("the producer could not send everything")
    query.processAllAvailable()
    query.stop()
    expect("stream", arrived[0], sent)
    cuts = statistics.quantiles(found, n=100)
    return {"latency_p50_ms": cuts[49], "latency_p99_ms": cuts[98]}


def main() -> int:
    given = instructions()
    answers = os.dup(1)  # Spark's virtual machine writes to standard output as it likes
    os.dup2(2, 1)
    from millstream import spark as ms

    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
    if given["jars"]:
        conf["spark.jars"] = ",".join(given["jars"])
    spark = ms.session("tables", cores=2, conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    try:
        with tempfile.TemporaryDirectory(prefix="bench-tables-") as scratch:
            rows, first, step = fill(given["bootstrap"], given["bytes"])
            figures = time_range(spark, given, rows, first, step)
            figures |= backfills(spark, given, rows, Path(scratch))
            figures |= latency(spark, given, Path(scratch))
    finally:
        spark.stop()
    os.write(answers, (json.dumps(figures) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
