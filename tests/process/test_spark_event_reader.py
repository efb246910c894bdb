"""The reader of event topics that Spark gets, without Spark: events from chunks on disk and from the leader, each once;
conditions on metadata before data are read.
"""

import json
import urllib.request
import uuid

import pytest

from waits import until

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, In, IsNotNull, LessThan, Not, StringStartsWith

from millstream.errors import Rejected
from millstream.events import EventsClient
from millstream.spark import event_data
from millstream.spark.source import MillstreamDataSource
from millstream.spark.stats import read_stats

pytestmark = pytest.mark.process

SCHEMA = "frame bigint not null, kind string"
EVENTS = 700


def data(number):
    return b"%d:" % number + b"x" * (number % 50)


@pytest.fixture(scope="module")
def frames(broker):
    """A topic of two partitions whose chunks hold 100 events; the metadata of event 7 do not fit the schema."""
    name = f"frames-{uuid.uuid4().hex[:8]}"
    with EventsClient(broker.bootstrap) as client:
        config = {"events.partition": json.dumps({"max_events_per_chunk": 100})}
        client.create_topic(name, partitions_count=2, configs=config)
        with client.open_topic(name).producer(batch_size=20) as producer:
            for number in range(EVENTS):
                kind = "dark" if number % 10 == 0 else "light"
                metadata = {"frame": "seven"} if number == 7 else {"frame": number, "kind": kind}
                producer.push(metadata, data(number))

    def sealed():
        with urllib.request.urlopen(f"{broker.http}/v1/topics/{name}/segments", timeout=60) as answer:
            return sum(len(partition["chunks"]) for partition in json.load(answer)["partitions"])

    until(lambda: sealed() >= 4, lambda: f"{sealed()} chunks are sealed")
    return {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": name, "events": "true"}


def read(options, filters=(), left=()):
    """Rows and what was read of a batch query, as Spark would get them."""
    source = MillstreamDataSource(options)
    reader = source.reader(source.schema())
    if filters:
        assert reader.pushFilters(list(filters)) == list(left)
    return [row for partition in reader.partitions() for batch in reader.read(partition) for row in batch.to_pylist()]


def test_events_come_from_chunks_and_from_the_leader_each_once(frames, tmp_path):
    rows = read({**frames, "value.schema": SCHEMA, "stats.dir": str(tmp_path)})
    assert {(row["_partition"], row["_offset"]) for row in rows} == {(p, o) for p in (0, 1) for o in range(EVENTS // 2)}
    assert sorted(row["frame"] for row in rows if row["_error"] is None) == [n for n in range(EVENTS) if n != 7]
    (bad,) = [row for row in rows if row["_error"] is not None]
    assert (json.loads(bad["_value"]), bad["frame"], bad["_size"]) == ({"frame": "seven"}, None, len(data(7)))
    found = read_stats(tmp_path)
    assert (found.rows, found.segment_rows >= 400, found.tail_rows > 0) == (EVENTS, True, True)


@pytest.mark.parametrize("path", ["auto", "broker"])
def test_data_are_read_where_they_are_asked_for(frames, path):
    rows = read({**frames, "value.schema": SCHEMA, "events.data": "read", "read.path": path})
    assert {row["frame"]: row["_data"] for row in rows if row["frame"] is not None} == {
        number: data(number) for number in range(EVENTS) if number != 7
    }


def test_conditions_on_metadata_come_before_data(frames, tmp_path):
    options = {**frames, "value.schema": SCHEMA, "events.data": "read", "filter.pushdown": "true"}
    hard = Not(EqualTo(("kind",), "x"))
    terms = [EqualTo(("kind",), "dark"), GreaterThanOrEqual(("frame",), 100), LessThan(("frame",), 200)]
    rows = read({**options, "stats.dir": str(tmp_path / "few")}, [*terms, IsNotNull(("kind",)), hard], [hard])
    assert {row["frame"]: row["_data"] for row in rows} == {n: data(n) for n in range(100, 200, 10)}
    rows = read(options, [StringStartsWith(("kind",), "da"), In(("frame",), (10, 11, 20))])
    assert sorted(row["frame"] for row in rows) == [10, 20]
    read({**options, "stats.dir": str(tmp_path / "all")})
    few, everything = (read_stats(tmp_path / name).segment_bytes for name in ("few", "all"))
    assert everything - few > sum(len(data(n)) for n in range(EVENTS)) / 4


def test_data_are_fetched_later_by_their_descriptors(frames):
    import pandas as pd

    rows = read({**frames, "value.schema": SCHEMA})
    dark = [row for row in rows if row["kind"] == "dark"]
    fetch = event_data(frames["kafka.bootstrap.servers"], frames["subscribe"]).func
    columns = [pd.Series([row[name] for row in dark]) for name in ("_partition", "_offset", "_descriptor")]
    found = dict(zip([row["frame"] for row in dark], fetch(*columns), strict=True))
    assert found == {number: data(number) for number in range(0, EVENTS, 10)}


def test_fields_are_inferred_and_a_field_of_two_types_is_json_text(frames, broker):
    found = sorted(row["frame"] for row in read(frames))
    assert found == sorted(json.dumps("seven" if number == 7 else number) for number in range(EVENTS))
    with EventsClient(broker.bootstrap) as client:
        name = f"plain-{uuid.uuid4().hex[:8]}"
        client.create_topic(name)
        with client.open_topic(name).producer() as producer:
            producer.push({"run": 1, "tags": ["a"]}, b"")
    schema = MillstreamDataSource({**frames, "subscribe": name}).schema()
    assert schema.simpleString().startswith("struct<run:bigint,tags:array<string>,_topic:string,_partition:int,_offset")


def test_options_that_contradict_each_other_are_refused(frames):
    with pytest.raises(Rejected, match=r"events\.data is for event topics"):
        MillstreamDataSource({**frames, "events": "false", "events.data": "read"}).schema()
    with pytest.raises(Rejected, match=r"options events and value\.format exclude each other"):
        MillstreamDataSource({**frames, "value.format": "string"}).schema()
