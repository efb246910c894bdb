"""What limits members of share groups: sessions of a broker, and quotas of bytes."""

import time

import confluent_kafka as ck
import pytest
from share_member import ACCEPT, PARTITIONS, Member

from millstream.cli.exposition import read_exposition
from millstream.testing.process import Broker
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlterEntryData, OpData
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.describe_client_quotas import EntityData
from millstream.wire.messages.share_fetch import ShareFetchRequest
from raw_line import Line
from waits import until

pytestmark = pytest.mark.process

SESSIONS = 3
LOCK_MS = 15_000
"""Longer than a busy machine takes for what is said of a record while it is locked."""

MUTE_MS = LOCK_MS // 3
LIMIT_REACHED = 133


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    settings = {
        "group.share.max.size": str(SESSIONS),
        "group.share.max.share.sessions": str(SESSIONS),
        "group.share.min.record.lock.duration.ms": "1000",
        "group.share.record.lock.duration.ms": str(LOCK_MS),
    }
    with Broker(None, settings, tmp_path_factory.mktemp("limits"), shards=2) as started:
        with Line(started.bootstrap) as line:
            line.ask(CreateTopicsRequest([CreatableTopic("t", PARTITIONS, 1)], 60_000))
        yield started


def metric(broker, name, **labels):
    return read_exposition(f"{broker.http}/metrics", 30).value(f"millstream_share_{name}", **labels)


@pytest.fixture(autouse=True)
def no_session_is_left(broker):
    """Seats are free again shortly after a connection was closed."""
    yield
    until(lambda: metric(broker, "sessions") == 0, "a session is left")


def test_a_broker_takes_as_many_sessions_as_set_on_all_shards_together(broker):
    lines = [Line(broker.bootstrap) for _ in range(SESSIONS)]
    for name, one in zip("abc", lines, strict=True):
        assert one.ask(ShareFetchRequest("full", name * 22, 0, 1), 2).error_code == 0
    with Line(broker.bootstrap) as line:
        late = ShareFetchRequest("full", "d" * 22, 0, 300)
        began = time.monotonic()
        assert line.ask(late, 2).error_code == LIMIT_REACHED
        assert time.monotonic() - began >= 0.295
        lines[1].sock.close()
        until(lambda: line.ask(late, 2).error_code == 0, "the seat of a closed connection is not free")
        assert lines[0].ask(ShareFetchRequest("full", "e" * 22, 0, 1), 2).error_code == LIMIT_REACHED
    for one in lines:
        one.sock.close()


def set_rate(line, rate):
    """Of all clients that call themselves as a ``Line`` does."""
    entry = AlterEntryData([EntityData("client-id", "test")], [OpData("consumer_byte_rate", rate or 0.0, rate is None)])
    assert line.ask(AlterClientQuotasRequest([entry], False)).entries[0].error_code == 0


def test_a_member_over_its_quota_acquires_nothing_and_is_muted_for_a_part_of_its_lock(broker):
    first = Member(broker, "a" * 22, "quota").start_at_end().join()
    second = Member(broker, "b" * 22, "quota").join()
    assert first.fetch(wait_ms=1) == second.fetch(wait_ms=1) == []
    with Line(broker.bootstrap) as line:
        acquired = metric(broker, "acquired_records_total")
        accepted = metric(broker, "acknowledged_records_total", kind="accept")
        writes = metric(broker, "state_writes_total")
        set_rate(line, 1_000.0)
        producer = ck.Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("t", bytes(200_000), partition=0)
        assert producer.flush(60) == 0
        begun, taken = 0.0, []
        while not taken:
            begun = time.monotonic()  # before it is told: nobody knows when its answer is seen
            taken = first.fetch()
        assert taken == [(0, 0, 0, 1)] and first.throttle_ms == MUTE_MS
        until(lambda: second.fetch(wait_ms=1) == [] and second.throttle_ms, "the other shard does not hear of it")
        assert first.say(taken, ACCEPT) == {0}  # soon, while it holds its lock
        assert time.monotonic() - begun >= MUTE_MS / 1_000
        producer.produce("t", bytes(200_000), partition=0)
        assert producer.flush(60) == 0
        assert second.fetch(wait_ms=60_000) == [] and second.throttle_ms == MUTE_MS
        set_rate(line, None)
        until(lambda: (0, 1, 1, 1) in second.fetch(), "the second record does not come")
        assert metric(broker, "acquired_records_total") == acquired + 2
        assert metric(broker, "acknowledged_records_total", kind="accept") == accepted + 1
        assert metric(broker, "state_writes_total") > writes
        assert metric(broker, "sessions") == 2
        assert metric(broker, "partitions") >= PARTITIONS
    for one in (first, second):
        one.line.sock.close()


def test_a_fetch_of_no_bytes_waits_and_gets_nothing(broker):
    member = Member(broker, "n" * 22, "nothing").start_at_end().join()
    assert member.fetch(wait_ms=1) == []
    producer = ck.Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("t", "one", partition=1)
    assert producer.flush(60) == 0
    began = time.monotonic()
    assert member.fetch(wait_ms=300, most_bytes=0) == []
    assert time.monotonic() - began >= 0.295
    assert [index for index, *_ in until(member.fetch, "the record does not come")] == [1]
    member.line.sock.close()
