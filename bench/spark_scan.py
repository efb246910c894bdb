"""How fast Spark reads a topic: rows and bytes a second into a sink that does nothing, beside the budgets.

    python -m bench.spark_scan [--gigabytes N] [--runs N] [--conf KEY=VALUE] [--strict]

A broker of its own is filled with batches of 128 KiB through its Kafka port (every one synced), with values of 100
bytes and of 1 KB, in four partitions. A local Spark with two cores then reads every column of every row, several times
on a warm JVM; the best run counts, and the middle one stands beside it. CPU is that of the JVM and of the Python
workers. The same is read once more through the broker's Kafka port alone. ``--conf`` tries a setting of Spark.

*Hand-over* is what Spark takes from a Python source that has nothing to do: one ready batch of the same shape, given
again and again. It is the ceiling for any Python source on this machine at this minute, and shows how busy it is.

What was read is verified: number of rows, sum of offsets, and the sum of the CRC-32 of every value, which Spark
computes over the rows it got, against what was sent. Exit code 0 says that this held; ``--strict`` also fails on a
missed budget.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from millstream import spark as ms
from millstream.client import Cluster
from millstream.spark.schema import spark_schema
from millstream.testing.process import Broker
from millstream.wire.records import HEADER, build_batch

PARTITIONS = 4
BATCH_BYTES = 128 << 10
CORES = 2


@dataclass(frozen=True)
class Load:
    """One size of value, and what is promised for it."""

    name: str
    value_bytes: int
    budget_rows: float | None = None
    budget_bytes: float | None = None


LOADS = (Load("100 B", 100, budget_rows=3.6e6), Load("1 KB", 1000, budget_bytes=1.4e9))


@dataclass(frozen=True)
class Filled:
    """A topic and what is in it."""

    topic: str
    rows: int
    value_bytes: int
    offset_sum: int
    crc_sum: int


@dataclass(frozen=True)
class Run:
    """One read of a whole topic."""

    seconds: float
    jvm_cpu_s: float
    python_cpu_s: float


def fill(bootstrap: str, load: Load, gigabytes: float, console: Console) -> Filled:
    """Produce the same batch, whose records all differ, again and again."""
    topic = f"scan-{load.value_bytes}"
    count = BATCH_BYTES // (load.value_bytes + 20)
    filler = os.urandom(load.value_bytes)
    values = [(b"%08d" % i + filler)[: load.value_bytes] for i in range(count)]
    now_ms = time.time_ns() // 1_000_000  # retention goes by it
    batch = build_batch([(b"key-%04d" % (i % 9973), value, (), now_ms + i) for i, value in enumerate(values)])
    assert HEADER.unpack_from(batch)[12] == count
    rounds = max(1, round(gigabytes * 1e9 / (count * load.value_bytes * PARTITIONS)))
    with Cluster(bootstrap) as cluster, bar(console) as progress:
        task = progress.add_task(f"filling {load.name}", total=rounds)
        targets = {(topic, partition): [batch] for partition in range(PARTITIONS)}
        for _ in range(rounds):
            outcomes = cluster.produce_all(targets)
            assert all(isinstance(outcome, int) for outcome in outcomes.values()), outcomes
            progress.advance(task)
    each = rounds * count
    return Filled(
        topic,
        PARTITIONS * each,
        PARTITIONS * each * load.value_bytes,
        PARTITIONS * each * (each - 1) // 2,
        PARTITIONS * rounds * sum(map(zlib.crc32, values)),
    )


def bar(console: Console) -> Progress:
    return Progress(TextColumn("{task.description:<24}"), BarColumn(), TimeElapsedColumn(), console=console)


def read(spark: Any, broker: Broker, filled: Filled, stats: Path, **options: str) -> Any:
    names = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": filled.topic, "stats.dir": str(stats), **options}
    return spark.read.format("millstream").options(**names).load()


class HandOver(DataSource):
    """Gives one ready batch again and again."""

    @classmethod
    def name(cls) -> str:
        return "hand_over"

    def schema(self) -> Any:
        return spark_schema(include_headers=False)

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002 (Spark's)
        return HandOverReader(int(self.options["rows"]), int(self.options["bytes"]))


class HandOverReader(DataSourceReader):
    def __init__(self, rows: int, value_bytes: int) -> None:
        self.rows = rows
        self.value_bytes = value_bytes

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(4 * CORES)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # noqa: ARG002 (Spark's)
        import pyarrow as pa

        from millstream.spark.columns import arrow_schema
        from millstream.spark.wanted import COLUMN_NAMES, ROW_LIMIT, Column

        count = min(ROW_LIMIT, 1_500_000 // self.value_bytes)
        columns = [[b"key-0001"], [bytes(self.value_bytes)], ["topic"], [0], [0], [0], [0]]
        schema = arrow_schema([Column(name) for name in COLUMN_NAMES[:7]])
        batch = pa.RecordBatch.from_arrays(
            [pa.array(column * count, field.type) for column, field in zip(columns, schema, strict=True)], schema=schema
        )
        for _ in range(self.rows // (4 * CORES * count)):
            yield batch


def hand_over(spark: Any, load: Load, filled: Filled) -> float:
    """Bytes a second of values that Spark takes from a source without work."""
    options = {"rows": str(filled.rows), "bytes": str(load.value_bytes)}
    table = spark.read.format("hand_over").options(**options).load()
    return filled.value_bytes / min(measure(table).seconds for _ in range(3))


def verify(table: Any, filled: Filled) -> None:
    """Exit if Spark did not get what was sent."""
    found = table.selectExpr("count(*) AS n", "sum(offset) AS o", "sum(crc32(value)) AS c").collect()[0]
    if (found.n, found.o, found.c) != (filled.rows, filled.offset_sum, filled.crc_sum):
        sys.exit(f"{filled.topic}: read {found.n} rows, offsets {found.o}, checksum {found.c}; sent {filled}")


def measure(table: Any) -> Run:
    before, begun = cpu_seconds(), time.monotonic()
    table.write.format("noop").mode("overwrite").save()
    seconds, after = time.monotonic() - begun, cpu_seconds()
    return Run(seconds, after["java"] - before["java"], after["python"] - before["python"])


def cpu_seconds() -> dict[str, float]:
    """CPU of the JVM and of the Python processes below it."""
    found = {"java": 0.0, "python": 0.0}
    for child in psutil.Process().children():
        if child.name() != "java":
            continue
        for process in (child, *child.children(recursive=True)):
            try:
                times, name = process.cpu_times(), "java" if process == child else "python"
            except psutil.NoSuchProcess:
                continue
            found[name] += times.user + times.system
    return found


def scan(spark: Any, broker: Broker, load: Load, filled: Filled, runs: int, console: Console) -> list[str]:
    """Measure one load; a row of the table."""
    with tempfile.TemporaryDirectory() as scratch:
        table = read(spark, broker, filled, Path(scratch, "direct"))
        verify(table, filled)
        with bar(console) as progress:
            task = progress.add_task(f"reading {load.name}", total=runs)
            found: list[Run] = []
            for _ in range(runs):
                found.append(measure(table))
                progress.advance(task)
        shares = ms.read_stats(Path(scratch, "direct"))
        through_broker = read(spark, broker, filled, Path(scratch, "broker"), **{"read.path": "broker"})
        verify(through_broker, filled)
        slow = min(measure(through_broker).seconds for _ in range(2))
        ceiling = hand_over(spark, load, filled)
    best = min(found, key=lambda run: run.seconds)
    middle = statistics.median(run.seconds for run in found)
    rate, size = filled.rows / best.seconds, filled.value_bytes / best.seconds
    budget = (
        f"{load.budget_rows / 1e6:.1f} M rows/s" if load.budget_rows else f"{(load.budget_bytes or 0) / 1e9:.1f} GB/s"
    )
    met = rate >= (load.budget_rows or 0) and size >= (load.budget_bytes or 0)
    gigabytes = filled.value_bytes / 1e9
    return [
        load.name,
        f"{rate / 1e6:.2f}",
        f"{size / 1e9:.2f}",
        f"{filled.value_bytes / middle / 1e9:.2f}",
        f"{best.jvm_cpu_s / gigabytes:.2f} + {best.python_cpu_s / gigabytes:.2f}",
        f"{100 * shares.segment_rows / shares.rows:.0f} %",
        f"{filled.value_bytes / slow / 1e9:.2f}",
        f"{ceiling / 1e9:.2f}",
        f"{budget} {'met' if met else 'MISSED'}",
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--gigabytes", type=float, default=3.0, help="bytes of values in each topic (default 3)")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument(
        "--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark; may repeat"
    )
    parser.add_argument("--strict", action="store_true", help="fail when a budget is missed")
    arguments = parser.parse_args()
    console = Console()
    table = Table(title=f"Spark scan, local[{CORES}], {PARTITIONS} partitions, noop sink")
    for title in (
        "value",
        "M rows/s",
        "GB/s",
        "GB/s (median)",
        "CPU s/GB JVM + Python",
        "from files",
        "GB/s broker only",
        "budget",
    ):
        table.add_column(title, justify="right")
    topics = {f"scan-{load.value_bytes}": PARTITIONS for load in LOADS}
    with Broker(topics, memory=None, settings={"log.segment.bytes": 128 << 20}) as broker:
        filled = [fill(broker.bootstrap, load, arguments.gigabytes, console) for load in LOADS]
        conf = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.memory": "4g"}
        conf |= dict(setting.split("=", 1) for setting in arguments.conf)
        spark = ms.session("scan", cores=CORES, conf=conf)
        spark.sparkContext.setLogLevel("OFF")
        spark.dataSource.register(HandOver)
        try:
            for load, topic in zip(LOADS, filled, strict=True):
                table.add_row(*scan(spark, broker, load, topic, arguments.runs, console))
        finally:
            spark.stop()
    console.print(table)
    missed = any("MISSED" in cell for column in table.columns for cell in map(str, column.cells))
    return int(arguments.strict and missed)


if __name__ == "__main__":
    sys.exit(main())
