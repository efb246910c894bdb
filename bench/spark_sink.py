"""Spark writes a topic: exactly once and at least once, in turns, from the same topic by the same query.

    python -m bench.spark_sink      (started by :func:`measure`, see ``child``)

A local Spark with two cores copies a topic of 100-byte values to another one, in micro-batches of an eighth of it. Both
guarantees alternate in one session, each time into a new topic with a new checkpoint. What counts is the time from one
micro-batch to the next (``triggerExecution``), the first of each query left out, because Spark starts processes in it.
The sinks are the same against Apache Kafka. The number of records that a read_committed reader gets is checked.
"""

import json
import os
import statistics
import sys
import tempfile
from typing import Any

from bench import raw
from bench.child import Child, instructions
from bench.rows import Alone, Figures, Plan, Say
from bench.subjects import Subject

ALONE = Alone(one_of_ours=True)
TIMEOUT_S = 900.0
BATCHES = 8
GUARANTEES = ("exactly-once", "at-least-once")


def measure(subject: Subject, plan: Plan, say: Say) -> Figures:
    """Rates of both guarantees, and how much slower exactly-once is."""
    targets = [f"copied-{number}" for number in range(2 * plan.spark_runs)]
    with raw.Caller(subject.bootstrap) as caller:
        caller.create_topics({"scan-100": 4, **dict.fromkeys(targets, 4)}, {})
    what = {"bootstrap": subject.bootstrap, "bytes": plan.spark_bytes // 8, "targets": targets}
    with Child("bench.spark_sink", what) as spark:
        say("filling, and copying in turns")
        return spark.result(TIMEOUT_S)


def copy(spark: Any, bootstrap: str, target: str, delivery: str, rows: int) -> float:
    """Copy the topic; returns seconds a micro-batch, the middle one of those that count."""
    reads = {"kafka.bootstrap.servers": bootstrap, "subscribe": "scan-100", "startingOffsets": "earliest"}
    writes = {"kafka.bootstrap.servers": bootstrap, "topic": target, "delivery": delivery}
    stream = spark.readStream.format("millstream").options(**reads, maxOffsetsPerTrigger=str(rows // BATCHES)).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            stream.select("key", "value")
            .writeStream.format("millstream")
            .options(**writes, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        times = [one.durationMs["triggerExecution"] / 1000 for one in query.recentProgress if one.numInputRows]
    table = spark.read.format("millstream").options(**{**reads, "subscribe": target}).load()
    found = table.count()
    if found != rows:
        sys.exit(f"{delivery}: {found} rows arrived, and {rows} were there")
    return statistics.median(times[1:])


def main() -> int:
    given = instructions()
    answers = os.dup(1)  # Spark's virtual machine writes to standard output as it likes
    os.dup2(2, 1)
    from rich.console import Console

    from bench import spark_scan
    from millstream import spark as ms

    console = Console(file=open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - as long as the process
    conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "2g"}
    spark = ms.session("sink", cores=spark_scan.CORES, conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    seconds: dict[str, list[float]] = {delivery: [] for delivery in GUARANTEES}
    try:
        filled = spark_scan.fill(given["bootstrap"], spark_scan.LOADS[0], given["bytes"] / 1e9, console)
        for number, target in enumerate(given["targets"]):
            # a, b, b, a, a, b …: neither is always the one that comes second
            delivery = GUARANTEES[(number + 1) // 2 % 2]
            seconds[delivery].append(copy(spark, given["bootstrap"], target, delivery, filled.rows))
    finally:
        spark.stop()
    once, least = (statistics.median(seconds[delivery]) for delivery in GUARANTEES)
    batch = filled.rows / BATCHES
    figures = {
        "mrows_once": batch / once / 1e6,
        "mrows_least": batch / least / 1e6,
        "slower_percent": 100 * (once / least - 1),
        "batch_once_ms": 1000 * once,
    }
    os.write(answers, (json.dumps(figures) + "\n").encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
