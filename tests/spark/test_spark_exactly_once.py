"""The sink on a real broker: a batch that is repeated after its commit, or after a part of it, adds nothing.

The steps of the protocol are tested without Spark in ``tests/process/test_exactly_once_writes.py``, kills in
``test_spark_kills.py``.
"""

import os
import sys
from pathlib import Path

import pytest
from pyspark import cloudpickle

from millstream.spark.sink import OnceStreamWriter
from millstream.spark.source import MillstreamDataSource

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not have this directory on their path


class Failing(OnceStreamWriter):
    """Fails once, after its first commit has landed."""

    place: str

    def commit(self, messages, batchId):  # noqa: N803 (Spark's)
        super().commit(messages, batchId)
        if not os.path.exists(self.place):
            Path(self.place).touch()
            raise OSError("seeded")


class FailingSource(MillstreamDataSource):
    """The sink, whose commit fails once."""

    @classmethod
    def name(cls):
        return "failing"

    def streamWriter(self, schema, overwrite):  # noqa: N802 (Spark's)
        options = dict(self.options)
        place = options.pop("place")
        writer = MillstreamDataSource(options).streamWriter(schema, overwrite)
        writer.__class__, writer.place = Failing, place
        return writer


def copy(spark, source, target, place, *, form="millstream", columns=("key", "value"), more=(), **options):
    """Copy what there is from one topic to the other; returns the query when it has ended."""
    given = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name, **dict(more)}
    stream = spark.readStream.format("millstream").options(**source.options(startingOffsets="earliest", **options))
    query = (
        stream.load()
        .selectExpr(*columns)
        .writeStream.format(form)
        .options(**given)
        .option("checkpointLocation", f"{place}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(600)
    return query


def values(spark, topic):
    rows = spark.read.format("millstream").options(**topic.options()).load().select("value").collect()
    return sorted(row.value for row in rows)


def test_a_commit_that_raises_after_it_has_landed_adds_nothing_when_it_is_repeated(spark, topic, tmp_path):
    spark.dataSource.register(FailingSource)
    source, target = topic(2).produce(500), topic(2)
    more = {"place": f"{tmp_path}/failed"}
    with pytest.raises(Exception, match="seeded"):
        copy(spark, source, target, tmp_path, form="failing", more=more)
    source.produce(100)
    copy(spark, source, target, tmp_path, form="failing", more=more, maxOffsetsPerTrigger="200")
    assert values(spark, target) == sorted(source.sent)


@pytest.mark.slow
def test_speculation_is_refused(spark, topic):
    target = topic(1)
    names = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name}
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS value").write.format("millstream").options(**names)
    spark.sparkContext.setLocalProperty("spark.speculation", "true")  # where Spark puts its settings
    try:
        with pytest.raises(Exception, match=r"spark\.speculation runs two attempts.*set it to false"):
            rows.mode("append").save()
    finally:
        spark.sparkContext.setLocalProperty("spark.speculation", None)
    assert values(spark, target) == []


@pytest.mark.slow
def test_a_batch_write_with_an_id_is_done_once(spark, topic):
    target = topic(2)
    rows = spark.range(1000).selectExpr("CAST(id AS STRING) AS value")
    names = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name, "write.id": f"w-{target.name}"}
    for _ in range(2):
        rows.write.format("millstream").options(**names).mode("append").save()
    assert len(values(spark, target)) == 1000
    names["write.number"] = "1"
    for _ in range(2):
        rows.repartition(3).write.format("millstream").options(**names).mode("append").save()
    assert len(values(spark, target)) == 2000
