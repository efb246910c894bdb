"""The two straight lines of ARCHITECTURE.md, checked against a live broker."""

import re
from pathlib import Path

import pytest
from bench import raw
from confluent_kafka import Producer

from millstream.testing.trace import TRACE_FILE_VARIABLE
from millstream.wire.frames import request_frame
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

pytestmark = pytest.mark.process

MAP = Path(__file__).parents[2] / "ARCHITECTURE.md"


def documented(heading):
    """(number, function) of the table under a heading of the map."""
    text = MAP.read_text()
    section = text[text.index(heading) :].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (\d) \| `([\w.]+)`", section, re.MULTILINE)
    return [(int(number), name) for number, name in rows]


def traced(path, kind):
    """Stops of the first request of this kind, in the order in which each was passed first.

    The broker's own appends and reads pass the lower stops before that; a request begins where its socket was read.
    """
    passed = [line.split() for line in path.read_text().splitlines()]
    stops = [(int(number), name) for what, number, name in passed if what == kind]
    handled = next(place for place, (number, _) in enumerate(stops) if number == 3)
    begun = max(place for place in range(handled) if stops[place][0] == 1)
    return list(dict.fromkeys(stops[begun:]))


@pytest.fixture
def traced_broker(broker_factory, tmp_path):
    trace = tmp_path / "trace"
    broker = broker_factory(
        topics={"path": 1},
        shards=1,
        settings={"internal.shard.hook": "millstream.testing.trace:install"},
        env={TRACE_FILE_VARIABLE: str(trace)},
    )
    return broker, trace


def test_a_produce_passes_the_documented_stops_in_order(traced_broker):
    broker, trace = traced_broker
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("path", b"value")
    assert producer.flush(60) == 0
    assert traced(trace, "Produce") == documented("## A produce, start to end")


def test_a_fetch_passes_the_documented_stops_in_order(traced_broker):
    broker, trace = traced_broker
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("path", b"value")
    assert producer.flush(60) == 0
    asked = FetchTopic(topic="path", partitions=[FetchPartition(partition=0, partition_max_bytes=1 << 20)])
    request = FetchRequest(max_wait_ms=5000, min_bytes=1, max_bytes=1 << 20, session_epoch=0, topics=[asked])
    with raw.Caller(broker.bootstrap) as caller:
        assert b"value" in bytes(caller.call(bytes(request_frame(request, 12, 7, "walker"))))
    assert traced(trace, "Fetch") == documented("## A fetch, start to end")


def test_the_map_has_eight_stops_on_each_path():
    for heading in ("## A produce, start to end", "## A fetch, start to end"):
        assert [number for number, _ in documented(heading)] == list(range(1, 9))
