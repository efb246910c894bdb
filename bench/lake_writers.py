"""Makes tables of topics, for ``lake_beside``: by declared pipelines, or by Spark's own connector and writers.

    python -m bench.lake_writers      (started by ``lake_beside``, see ``child``)

It starts a session of two cores, and makes a table for each line that it reads.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.child import instructions

SCHEMA = "id bigint, part string, amount double, note string"
PLACES = ("partition AS _partition", "offset AS _offset", "timestamp AS _timestamp")
BATCHES = 10
"""Batches in which a table with keys is filled."""
EXTENSIONS = (
    "io.delta.sql.DeltaSparkSessionExtension",
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
}
Job = dict[str, Any]
"""What is made: ``format``, ``mode``, ``topic`` with its number of ``rows``, and ``place``, a directory of its own."""


def ours(given: Job) -> Callable[[Job], None]:
    """Pipelines without a query."""
    from millstream import spark as ms
    from millstream.pipeline import Pipeline, Sink, Source, run
    from millstream.pipeline.model import Create

    ms.session("lake", cores=2, conf=SETTINGS).sparkContext.setLogLevel("OFF")

    def write(job: Job) -> None:
        partitioned = job["mode"] == "partitioned"
        more: Job = {"create": Create(partition=["part"])} if partitioned else {"mode": "upsert", "key": "id"}
        sink = Sink(delta="t", **more) if job["format"] == "delta" else Sink(iceberg="ns.t", **more)
        limit = None if partitioned else max(1, job["rows"] // BATCHES)
        source = Source(topic=job["topic"], format="json", schema=SCHEMA, max_records=limit)
        run(Pipeline(pipeline="p", brokers=given["bootstrap"], source=source, sinks=[sink]), job["place"], once=True)

    return write


def peer(given: Job) -> Callable[[Job], None]:
    """Spark's Kafka connector, ``from_json``, and the writers of Delta and Iceberg."""
    from pyspark.sql import SparkSession

    settings = SETTINGS | {
        "spark.jars": ",".join(given["jars"]),
        "spark.sql.extensions": ",".join(EXTENSIONS),
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": f"{given['place']}/warehouse",
    }
    builder: Any = SparkSession.builder
    spark = builder.master("local[2]").config(map=settings).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def read(reader: Any, job: Job, **more: str) -> Any:
        options = {"kafka.bootstrap.servers": given["bootstrap"], "subscribe": job["topic"], **more}
        frame = reader.format("kafka").options(startingOffsets="earliest", **options).load()
        frame = frame.selectExpr(f"from_json(CAST(value AS string), '{SCHEMA}') AS row", *PLACES)
        return frame.select("row.*", "_partition", "_offset", "_timestamp")

    def write(job: Job) -> None:
        is_delta = job["format"] == "delta"
        name = f"delta.`{job['place']}/t`" if is_delta else f"lake.{Path(job['place']).name}.t"
        if job["mode"] == "partitioned":
            frame = read(spark.read, job)
            if is_delta:
                frame.write.format("delta").partitionBy("part").save(f"{job['place']}/t")
            else:
                frame.writeTo(name).partitionedBy(frame["part"]).create()
            return
        columns = f"{SCHEMA}, _partition int, _offset bigint, _timestamp timestamp"
        spark.sql(f"CREATE TABLE {name} ({columns}) USING {job['format']}")
        stream = read(spark.readStream, job, maxOffsetsPerTrigger=str(max(1, job["rows"] // BATCHES))).writeStream
        stream = stream.foreachBatch(merge_into(name))
        stream = stream.option("checkpointLocation", f"{job['place']}/checkpoint")
        stream.trigger(availableNow=True).start().awaitTermination()

    return write


def merge_into(name: str) -> Callable[[Any, int], None]:
    """What brings the latest record of each key of a batch into a table."""

    def merge(changes: Any, _: int) -> None:
        changes.createOrReplaceTempView("changes")
        latest = "SELECT *, row_number() OVER (PARTITION BY id ORDER BY _offset DESC) AS n FROM changes"
        changes.sparkSession.sql(
            f"MERGE INTO {name} AS t USING (SELECT * EXCEPT (n) FROM ({latest}) WHERE n = 1) AS s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    return merge


def main() -> None:
    given = instructions()
    answers = os.dup(1)  # Spark's virtual machine writes to standard output as it likes
    os.dup2(2, 1)
    write = (peer if given["peer"] else ours)(given)
    os.write(answers, b'"ready"\n')
    for line in sys.stdin:
        write(json.loads(line))
        os.write(answers, b'"done"\n')


if __name__ == "__main__":
    main()
