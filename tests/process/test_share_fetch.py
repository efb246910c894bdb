"""Members of a share group take and acknowledge records of a real broker, by raw requests."""

import confluent_kafka as ck
import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType
from share_member import ACCEPT, PARTITIONS, RELEASE, Member

from millstream.testing.process import Broker
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest, DeleteShareOffsetsTopic
from millstream.wire.messages.share_acknowledge import ShareAcknowledgeRequest
from millstream.wire.messages.share_fetch import ShareFetchRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from raw_line import Line
from waits import until

pytestmark = pytest.mark.process


LOCK_MS = 600_000
"""No lock ends while a test of a busy machine holds it."""


def produce(broker, first, count):
    producer = ck.Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(first, first + count):
        producer.produce("t", str(number), partition=number % PARTITIONS)
    assert producer.flush(60) == 0


def drained(member, count, kind=ACCEPT):
    """Take and acknowledge until so many records have come."""
    start = len(member.got)
    while len(member.got) - start < count:
        taken = member.fetch()
        if taken and kind is not None:
            assert member.say(taken, kind) == {0}
    return sorted(int(value) for value in member.got[start:])


@pytest.fixture(scope="module", params=[1, 2], ids=["one-shard", "two-shards"])
def broker(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("share")
    locks = {"group.share.max.record.lock.duration.ms": LOCK_MS, "group.share.record.lock.duration.ms": LOCK_MS}
    with Broker(None, locks, directory, shards=request.param) as started:
        with Line(started.bootstrap) as line:
            line.ask(CreateTopicsRequest([CreatableTopic("t", PARTITIONS, 1)], 60_000))
        yield started


@pytest.fixture
def member(broker):
    """Makes members, whose connections are closed after the test."""
    made = []

    def make(name, group):
        made.append(Member(broker, name * 22, group))
        return made[-1]

    yield make
    for one in made:
        one.line.sock.close()


def started(member, group):
    """The first member of a group that starts at the end of each log."""
    first = member("a", group).start_at_end().join()
    assert first.fetch(wait_ms=10) == []
    return first


def test_records_are_taken_once_by_competing_members_and_released_ones_again(broker, member):
    first = started(member, "compete")
    second = member("b", "compete")
    assert second.fetch(wait_ms=10) == []
    produce(broker, 0, 100)
    taken = first.fetch(most=10, share_acquire_mode=1)
    while not taken:
        taken = first.fetch(most=10, share_acquire_mode=1)
    assert sum(last - begin + 1 for _, begin, last, _ in taken) <= 10
    held = len(first.got)
    rest = drained(second, 100 - held)
    assert not set(rest) & {int(value) for value in first.got}
    assert first.say(taken, RELEASE) == {0}
    again = second.fetch(wait_ms=20_000)
    while sum(last - begin + 1 for _, begin, last, _ in again) < held:
        again += second.fetch(wait_ms=20_000)
    assert {count for _, _, _, count in again} == {2}
    assert second.say(again, ACCEPT) == {0}
    assert sorted({int(value) for value in second.got}) == list(range(100))


def test_the_end_of_a_connection_releases_and_wakes(broker, member):
    first = started(member, "leave")
    second = member("b", "leave")
    assert second.fetch(wait_ms=10) == []
    produce(broker, 0, 20)
    drained(first, 20, None)
    first.line.sock.close()
    assert drained(second, 20) == list(range(20))


def test_what_was_acknowledged_is_not_delivered_after_a_kill(broker, member):
    one = started(member, "kill")
    produce(broker, 0, 40)
    drained(one, 40)
    produce(broker, 40, 8)
    drained(one, 8, None)
    broker.kill()
    broker.start()
    later = member("c", "kill").join()
    assert drained(later, 8) == list(range(40, 48))
    assert later.fetch(wait_ms=10) == []


def test_sessions_are_checked(member):
    one = member("d", "check").join()

    def refused(request):
        return one.line.ask(request, 2).error_code

    assert refused(ShareFetchRequest("check", "", 0)) == 42
    assert refused(ShareFetchRequest("check", "x" * 37, 0)) == 42
    assert refused(ShareFetchRequest("check", "x", 7)) == 122
    assert refused(ShareAcknowledgeRequest("check", "x", 0)) == 123
    assert one.fetch(wait_ms=1) == []
    assert refused(ShareFetchRequest("check", one.name, 5)) == 123
    assert refused(ShareFetchRequest("check", one.name, 1, 5, is_renew_ack=True)) == 42
    assert one.fetch(wait_ms=1) == []
    beyond = [(0, 1_000_000, 1_000_000, 1)]
    until(lambda: one.say(beyond, ACCEPT) == {42}, "what is beyond the window is not refused")
    assert one.say([], ACCEPT, epoch=-1) == set()
    assert refused(ShareFetchRequest("check", one.name, 3)) == 122


def test_a_session_is_served_over_any_connection_and_ends_with_its_first(broker, member):
    one = started(member, "roam")
    first, others = one.line, [Line(broker.bootstrap) for _ in range(4)]
    for number, one.line in enumerate(others):
        produce(broker, 4 * number, 4)
        assert drained(one, 4) == list(range(4 * number, 4 * number + 4))
    first.sock.close()

    def ended():
        answer = one.line.ask(ShareFetchRequest("roam", one.name, one.epoch), 2).error_code
        one.epoch += answer == 0
        return answer == 122

    until(ended, "the session lives on")
    for line in others[:-1]:
        line.sock.close()


def set_up(broker, group, **properties):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(f"share.{name.replace('_', '.')}", value, incremental_operation=AlterConfigOpType.SET)
        for name, value in properties.items()
    ]
    resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result()


def test_what_was_aborted_is_not_delivered_to_who_reads_what_is_committed(broker, member):
    set_up(broker, "committed", isolation_level="read_committed")
    first = started(member, "committed")
    producer = ck.Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "share"})
    producer.init_transactions()
    for number, commits in enumerate((False, True, False, True)):
        producer.begin_transaction()
        producer.produce("t", str(number), partition=0)
        producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)()
    producer.begin_transaction()
    producer.produce("t", "4", partition=0)
    producer.flush()
    values = set()

    def fetched():
        taken = first.fetch(wait_ms=100)
        values.update(first.got)
        first.got.clear()
        return taken and first.say(taken, ACCEPT) == {0} and {b"1", b"3"} <= values

    until(fetched, "the committed records do not come")
    assert not values & {b"0", b"2", b"4"}
    producer.abort_transaction()


def test_a_group_whose_offsets_were_deleted_starts_again(broker, member):
    set_up(broker, "again", auto_offset_reset="earliest")
    produce(broker, 0, 4)
    first = member("e", "again").join()
    while taken := first.fetch(wait_ms=1_000):
        assert first.say(taken, ACCEPT) == {0}
    assert first.say([], ACCEPT, epoch=-1) == set()
    leave = ShareGroupHeartbeatRequest("again", first.name, -1)
    assert first.line.ask(leave).error_code == 0
    gone = DeleteShareGroupOffsetsRequest("again", [DeleteShareOffsetsTopic("t")])
    until(lambda: first.line.ask(gone).responses[0].error_code == 0, "the offsets are not deleted")
    later = member("f", "again").join()
    taken = until(later.fetch, "nothing is delivered again")
    assert {count for _, _, _, count in taken} == {1}


def test_a_stock_consumer_takes_all_from_the_earliest_record(broker):
    set_up(broker, "stock", auto_offset_reset="earliest", record_lock_duration_ms="15000")
    produce(broker, 1000, 40)
    consumer = ck.ShareConsumer({"bootstrap.servers": broker.bootstrap, "group.id": "stock"})
    consumer.subscribe(["t"])
    got = set()

    def all_there():
        got.update(int(message.value()) for message in consumer.poll(1.0))
        return set(range(1000, 1040)) <= got

    until(all_there, "the consumer has not got all records")
    consumer.close()
