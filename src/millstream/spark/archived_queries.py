"""What a session loads, run once by ``class_archive`` in a session of its own so that its Java classes are stored."""

import tempfile
from collections.abc import Iterator
from typing import Any

from millstream.spark.spark_session import session


def _unchanged(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def run_queries() -> None:
    """What a session loads: a stream with batches in Python, a join, JSON, a file format."""
    spark = session("classes", conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"})
    spark.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory() as place:
        numbers = spark.range(10)

        def write(frame: Any, number: int) -> None:
            kept = frame.mapInArrow(_unchanged, frame.schema)
            kept.selectExpr("to_json(struct(value)) AS value").write.parquet(f"{place}/{number}")
            frame.join(numbers, frame.value == numbers.id, "left").count()

        stream = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
        writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", f"{place}/checkpoint")
        query = writer.trigger(processingTime="0 seconds").start()
        while len(query.recentProgress) < 2:
            if query.awaitTermination(1):
                raise RuntimeError("the stream ended by itself")
        query.stop()
    spark.stop()


if __name__ == "__main__":
    run_queries()
