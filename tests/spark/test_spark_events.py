"""Event topics in Spark: metadata as columns, from chunks and from the leader; data where they are asked for."""

import json
import urllib.request
import uuid

import pytest

from millstream import spark as ms
from millstream.events import EventsClient
from waits import until

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

SCHEMA = "frame bigint not null, kind string"


class Frames:
    """An event topic whose chunks hold 100 events; each event's data begin with its number."""

    def __init__(self, broker, client):
        self.bootstrap, self.http, self.name = broker.bootstrap, broker.http, f"frames-{uuid.uuid4().hex[:8]}"
        self.sent = 0
        self._client = client
        description = {"max_events_per_chunk": 100}
        client.create_topic(self.name, partitions_count=2, configs={"events.partition": json.dumps(description)})

    def push(self, count):
        with self._client.open_topic(self.name).producer(batch_size=20) as producer:
            for number in range(self.sent, self.sent + count):
                metadata = {"frame": number, "kind": "dark" if number % 10 == 0 else "light"}
                if number == 7:
                    metadata = {"frame": "seven"}
                producer.push(metadata, self.data(number))
        self.sent += count

    def data(self, number):
        return b"%d:" % number + b"x" * (number % 50)

    def wait_for_chunks(self, count):
        def sealed():
            with urllib.request.urlopen(f"{self.http}/v1/topics/{self.name}/segments", timeout=60) as answer:
                found = sum(len(partition["chunks"]) for partition in json.load(answer)["partitions"])
            return found >= count

        until(sealed, f"{count} chunks are not sealed")

    def load(self, spark, **options):
        named = {"kafka.bootstrap.servers": self.bootstrap, "subscribe": self.name, "events": "true", **options}
        return spark.read.format("millstream").options(**named).load()


@pytest.fixture
def frames(broker):
    with EventsClient(broker.bootstrap) as client:
        yield Frames(broker, client)


def test_metadata_are_columns_and_only_wanted_data_are_fetched(spark, frames, tmp_path):
    frames.push(700)
    frames.wait_for_chunks(4)
    stats = tmp_path / "stats"
    table = frames.load(spark, **{"value.schema": SCHEMA, "stats.dir": str(stats)})
    rows = table.collect()
    assert sorted(row.frame for row in rows if row._error is None) == [n for n in range(700) if n != 7]
    (bad,) = [row for row in rows if row._error is not None]
    assert (json.loads(bad._value), bad.frame, bad._size) == ({"frame": "seven"}, None, len(frames.data(7)))
    assert {(row._partition, row._offset) for row in rows} == {(p, o) for p in (0, 1) for o in range(350)}
    found = ms.read_stats(stats)
    assert (found.rows, found.segment_rows >= 400, found.tail_rows > 0) == (700, True, True)
    fetch = ms.event_data(frames.bootstrap, frames.name)
    dark = table.where("kind = 'dark'").select("frame", fetch("_partition", "_offset", "_descriptor").alias("data"))
    assert {row.frame: bytes(row.data) for row in dark.collect()} == {n: frames.data(n) for n in range(0, 700, 10)}


def test_a_filter_on_metadata_is_applied_before_data_are_read(spark, frames, tmp_path):
    frames.push(400)
    frames.wait_for_chunks(2)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        read = {"events.data": "read", "filter.pushdown": "true", "value.schema": SCHEMA}
        sizes = {}
        for name, where in (("few", "kind = 'dark' AND frame >= 100 AND frame < 200"), ("all", "_offset >= 0")):
            stats = tmp_path / name
            rows = frames.load(spark, **read, **{"stats.dir": str(stats)}).where(where).collect()
            assert {row.frame: bytes(row._data) for row in rows if row.frame is not None} == {
                n: frames.data(n) for n in (range(100, 200, 10) if name == "few" else (n for n in range(400) if n != 7))
            }
            sizes[name] = ms.read_stats(stats).segment_bytes
        data_bytes = sum(len(frames.data(n)) for n in range(400))
        assert sizes["all"] - sizes["few"] > data_bytes / 4
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def test_a_stream_of_events_goes_on_from_its_checkpoint(spark, frames, tmp_path):
    def follow():
        options = {"kafka.bootstrap.servers": frames.bootstrap, "subscribe": frames.name, "events": "true"}
        stream = spark.readStream.format("millstream").options(
            **options, startingOffsets="earliest", **{"value.schema": SCHEMA}
        )
        writer = stream.load().writeStream.format("parquet").option("path", f"{tmp_path}/rows")
        writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(
            availableNow=True
        ).start().awaitTermination(600)
        return sorted(row._offset for row in spark.read.parquet(f"{tmp_path}/rows").collect())

    frames.push(100)
    assert follow() == sorted([*range(50)] * 2)
    frames.push(60)
    assert follow() == sorted([*range(80)] * 2)
