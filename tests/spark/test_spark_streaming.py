"""Streams on a real broker: no record lost and none twice over restarts, kills and limits.

``make test`` has the first test; what is marked slow is run by ``make test-spark`` and by every CI run.
"""

import collections
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from spark_support import BRIEF, SMALL_SEGMENTS

from millstream import spark as ms
from waits import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.timeout(900)]


def start(spark, topic, place, *, trigger, **options):
    names = topic.options(startingOffsets="earliest", **options)
    stream = spark.readStream.format("millstream").options(**names).load()
    writer = stream.selectExpr("partition", "offset", "value").writeStream.format("parquet")
    return (
        writer.option("checkpointLocation", f"{place}/checkpoint")
        .option("path", f"{place}/table")
        .trigger(**trigger)
        .start()
    )


def table(spark, place):
    return spark.read.parquet(f"{place}/table").collect()


def test_a_stream_reads_files_and_the_tail_and_goes_on_from_its_checkpoint(spark, topic, tmp_path):
    written = topic(2, segment_bytes=SMALL_SEGMENTS).produce(4000, value_bytes=1500)
    options = {"stats.dir": f"{tmp_path}/stats"}
    start(spark, written, tmp_path, trigger={"availableNow": True}, **options).awaitTermination(600)
    stats = ms.read_stats(f"{tmp_path}/stats")
    assert (stats.rows, stats.segment_rows > 0, stats.tail_rows > 0) == (4000, True, True)
    written.produce(1000, value_bytes=1500)
    start(spark, written, tmp_path, trigger={"availableNow": True}).awaitTermination(600)
    assert sorted(row.value for row in table(spark, tmp_path)) == sorted(written.sent)


@pytest.mark.slow
def test_available_now_keeps_to_the_limit_per_trigger(spark, topic, tmp_path):
    written = topic(2).produce(1000)
    query = start(spark, written, tmp_path, trigger={"availableNow": True}, maxOffsetsPerTrigger="300")
    query.awaitTermination(600)
    sizes = [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]
    assert sum(sizes) == 1000
    assert len(sizes) == 4
    assert max(sizes) <= 302
    assert sorted(row.value for row in table(spark, tmp_path)) == sorted(written.sent)


@pytest.mark.slow
def test_a_running_stream_sees_what_is_written_while_it_runs(spark, topic, tmp_path):
    written = topic(2).produce(100)
    query = start(spark, written, tmp_path, trigger={"processingTime": "0 seconds"})
    try:
        query.processAllAvailable()
        written.produce(150)
        query.processAllAvailable()
    finally:
        query.stop()
    assert sorted(row.value for row in table(spark, tmp_path)) == sorted(written.sent)
    last = json.loads(query.lastProgress.json)["sources"][0]
    (entry,) = last["endOffset"]["topics"].values()
    assert entry["n"] == written.name


@pytest.mark.slow
def test_a_topic_is_copied_to_a_topic(spark, topic, tmp_path):
    source, target = topic(2).produce(500), topic(1)
    stream = spark.readStream.format("millstream").options(**source.options(startingOffsets="earliest")).load()
    names = {"kafka.bootstrap.servers": target.bootstrap, "topic": target.name, "delivery": "at-least-once"}
    query = (
        stream.select("key", "value")
        .writeStream.format("millstream")
        .options(**names)
        .option("checkpointLocation", f"{tmp_path}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(600)
    copied = spark.read.format("millstream").options(**target.options()).load().collect()
    assert sorted(row.value for row in copied) == sorted(source.sent)


DRIVER = """
    import sys
    from millstream import spark as ms

    bootstrap, topic, place, brief = sys.argv[1:]
    conf = {"spark.ui.enabled": "false", "spark.driver.memory": "512m", "spark.driver.extraJavaOptions": brief}
    spark = ms.session("killed", cores=2, conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    names = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    stream = spark.readStream.format("millstream").options(maxOffsetsPerTrigger="200", **names).load()
    writer = stream.selectExpr("partition", "offset", "value").writeStream.format("parquet")
    writer = writer.option("checkpointLocation", place + "/checkpoint").option("path", place + "/table")
    writer.trigger(processingTime="0 seconds").start().awaitTermination()
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_loses_nothing_and_repeats_nothing(spark, topic, tmp_path):
    written = topic(2, segment_bytes=SMALL_SEGMENTS).produce(3000, value_bytes=1500)
    command = [sys.executable, "-c", textwrap.dedent(DRIVER), written.bootstrap, written.name, str(tmp_path), BRIEF]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL) as driver:
        log = tmp_path / "table" / "_spark_metadata"
        try:
            until(
                lambda: driver.poll() is not None or (log.is_dir() and len(list(log.iterdir())) >= 4),
                "the driver does not write",
                every_s=0.01,
            )
            assert driver.poll() is None, "the driver ended by itself"
        finally:
            os.killpg(driver.pid, signal.SIGKILL)
    commits = len(list((tmp_path / "checkpoint" / "commits").glob("[0-9]*")))
    assert 0 < commits < 15, "killed in the middle"
    start(spark, written, tmp_path, trigger={"availableNow": True}).awaitTermination(600)
    rows = table(spark, tmp_path)
    assert max(collections.Counter((row.partition, row.offset) for row in rows).values()) == 1
    assert sorted(row.value for row in rows) == sorted(written.sent)
