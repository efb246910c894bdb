"""The Spark job: flights in, delays by week and airline out.

A streaming query over the topic ``flights`` (every record that is there, then it stops: trigger AvailableNow), a
window of seven days, a join with the airlines, which are a topic, too. Each micro-batch replaces the Parquet table
and sends the rows to the topic ``delays-by-week``: at least once, as a batch that is repeated is sent again.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broker import DemoFailed
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name that every Spark program gives them
from pyspark.sql.streaming.query import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from millstream import spark as ms
from millstream.errors import MillstreamError

FLIGHT = "carrier string, origin string, dest string, tailnum string, dep_delay double, time_hour string"
AIRLINE = "carrier string, name string"


@dataclass(frozen=True)
class Results:
    """What came out."""

    table: list[dict[str, object]]
    records: int
    value_bytes: int
    seconds: float
    scan_seconds: float
    segment_rows: int
    tail_rows: int
    sent: int
    parquet: Path


def run_pipeline(bootstrap: str, data: Path, flights: int, console: Console) -> Results:
    """Run the query over so many flights to its end. What Spark's machinery has to say goes to ``spark.log``."""
    console.print("[bold]3.[/bold] running a PySpark streaming job over the topic (delays by week and airline)")
    with errors_into(data / "spark.log"):
        with console.status("   starting Spark"):
            spark = start_spark(data)
        try:
            return run_query(spark, bootstrap, data, flights, console)
        finally:
            spark.stop()


@contextmanager
def errors_into(log: Path) -> Iterator[None]:
    """Let this process and those that it starts write their standard error to a file."""
    kept = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def start_spark(data: Path) -> SparkSession:
    try:
        spark = ms.session(
            "flights",
            cores=2,
            conf={
                "spark.log.level": "ERROR",
                "spark.ui.enabled": "false",
                "spark.ui.showConsoleProgress": "false",
                "spark.sql.shuffle.partitions": "2",
                "spark.driver.memory": "1g",
                "spark.local.dir": str(data / "spark"),
                "spark.sql.warehouse.dir": str(data / "spark"),
            },
        )
    except MillstreamError as error:
        raise DemoFailed(f"Spark cannot start: {error.message}") from error
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def run_query(spark: SparkSession, bootstrap: str, data: Path, total: int, console: Console) -> Results:
    parquet, stats = data / "delays.parquet", data / "read-stats"
    stats.mkdir()
    source = {"kafka.bootstrap.servers": bootstrap, "startingOffsets": "earliest"}
    airlines = (
        spark.read.format("millstream")
        .options(**source, subscribe="airlines")
        .load()
        .select(F.from_json(F.col("value").cast("string"), AIRLINE).alias("a"))
        .select("a.*")
        .cache()
    )
    flights = (
        spark.readStream.format("millstream")
        .options(**source, subscribe="flights")
        .option("maxOffsetsPerTrigger", 120_000)
        .option("stats.dir", str(stats))
        .load()
        .select(F.from_json(F.col("value").cast("string"), FLIGHT).alias("f"))
        .select("f.*")
        .withColumn("at", F.to_timestamp("time_hour"))
    )
    sent = 0

    def store(batch: DataFrame, number: int) -> None:
        nonlocal sent
        _ = number
        named = batch.join(F.broadcast(airlines), "carrier").cache()
        named.write.mode("overwrite").parquet(str(parquet))
        rows = named.select(
            F.concat_ws("/", "carrier", F.date_format("week", "yyyy-MM-dd")).cast("binary").alias("key"),
            F.to_json(F.struct("week", "carrier", "name", "flights", "departed", "mean_delay"))
            .cast("binary")
            .alias("value"),
        )
        rows.write.format("millstream").mode("append").options(
            **{"kafka.bootstrap.servers": bootstrap, "topic": "delays-by-week", "delivery": "at-least-once"}
        ).save()
        sent += named.count()
        named.unpersist()

    begun = time.monotonic()
    query = (
        by_week(flights)
        .writeStream.outputMode("complete")
        .foreachBatch(store)
        .option("checkpointLocation", str(data / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    watch(query, total, console)
    seconds = time.monotonic() - begun
    read = ms.read_stats(str(stats))
    table = spark.read.parquet(str(parquet)).orderBy("week", "carrier")
    return Results(
        table=[row.asDict() for row in table.collect()],
        records=read.segment_rows + read.tail_rows,
        value_bytes=read.segment_bytes + read.tail_bytes,
        seconds=seconds,
        scan_seconds=scan(spark, source),
        segment_rows=read.segment_rows,
        tail_rows=read.tail_rows,
        sent=sent,
        parquet=parquet,
    )


def by_week(flights: DataFrame) -> DataFrame:
    """Flights and their mean delay, by week and airline."""
    return (
        flights.groupBy(F.window("at", "7 days").alias("week"), "carrier")
        .agg(
            F.count("*").alias("flights"),
            F.count("dep_delay").alias("departed"),
            F.avg("dep_delay").alias("mean_delay"),
        )
        .select(F.col("week.start").alias("week"), "carrier", "flights", "departed", "mean_delay")
    )


def scan(spark: SparkSession, source: dict[str, str]) -> float:
    """How long a batch query takes, now that everything is warm, that reads every flight and does nothing with it."""
    begun = time.monotonic()
    everything = spark.read.format("millstream").options(**source, subscribe="flights").load()
    everything.write.format("noop").mode("overwrite").save()
    return time.monotonic() - begun


def watch(query: StreamingQuery, total: int, console: Console) -> None:
    """Show how far the query is until it ends."""
    with Progress(
        TextColumn("   {task.description:<10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    ) as progress:
        task = progress.add_task("flights", total=total)
        while not query.awaitTermination(1):
            progress.update(task, completed=rows_read(query))
        progress.update(task, completed=rows_read(query))


def rows_read(query: StreamingQuery) -> int:
    return sum(batch["numInputRows"] for batch in query.recentProgress)
