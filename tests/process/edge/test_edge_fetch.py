"""What a client sees of Fetch.

Raw requests to one real broker with two shards; every topic has a partition on each, so half of what is asked here
hops. ``pytest tests/process/edge --peer kafka`` asks a real Apache Kafka the same: a test that fails there is wrong,
unless its first line says how we differ.
"""

import time

import pytest
from edge_client import MIB, NO_ID, batch, is_peer, metric, offsets, parts, stored

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, ReplicaState

FOR_EVER_MS = 600_000
"""A fetch that waits this long has no answer before its connection gives up: the answer shows that it did not wait."""

pytestmark = pytest.mark.process


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12])
def test_fetch_by_name_in_every_version(client, version):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(3))
        part = client.fetch_one(topic, partition, 0, version)
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 3)
        assert part.log_start_offset == (0 if version >= 5 else -1)
        assert offsets(part) == [0, 1, 2]


@pytest.mark.parametrize("version", [13, 16, 17])
def test_fetch_by_topic_id(client, version):
    topic, topic_id = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(3))
    unknown = b"\7" * 16
    answer = parts(client.fetch({(topic_id, 0): 0, (topic_id, 1): 0, (topic_id, 7): 0, (unknown, 0): 0}, version))
    assert offsets(answer[topic_id, 0]) == offsets(answer[topic_id, 1]) == [0, 1, 2]
    assert answer[topic_id, 7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer[unknown, 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_fetch_in_the_middle_of_a_batch_gives_the_whole_batch(client):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(5))
        client.produce(topic, partition, batch(5))
        assert offsets(client.fetch_one(topic, partition, 3)) == list(range(10))
        assert offsets(client.fetch_one(topic, partition, 7)) == list(range(5, 10))


def test_offsets_outside_the_log_are_refused_at_once(client):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(2))
        for offset in (3, -1, 1 << 62):
            part = client.fetch_one(topic, partition, offset, max_wait_ms=60_000)
            assert (part.error_code, part.records or b"") == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
            assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (-1, -1, -1)
        part = client.fetch_one(topic, partition, 2)
        assert (part.error_code, part.high_watermark, part.records or b"") == (0, 2, b"")


def test_a_partition_that_is_not_there_does_not_end_the_wait_of_the_others(client, other):
    topic, _ = client.create()
    client.send_fetch({(topic, 0): 0, (topic, 2): 0, ("no-such-topic", 0): 0}, max_wait_ms=FOR_EVER_MS)
    other.produce(topic, 0, batch(1))
    answer = parts(client.receive_fetch())
    assert offsets(answer[topic, 0]) == [0]
    assert answer[topic, 2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer["no-such-topic", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [11, 18])
def test_a_fetch_of_nothing_that_is_there_is_refused_at_once(client, version):
    topic, topic_id = client.create()
    asked = {(topic_id, 2): 0, (b"\7" * 16, 0): 0} if version >= 13 else {(topic, 2): 0, ("no-such-topic", 0): 0}
    told = {part.error_code for part in parts(client.fetch(asked, version, max_wait_ms=FOR_EVER_MS)).values()}
    missing = ErrorCode.UNKNOWN_TOPIC_ID if version >= 13 else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, missing}


def test_the_first_batch_goes_whatever_its_size(client):
    topic, _ = client.create()
    for partition in (0, 1):
        for _ in range(2):
            client.produce(topic, partition, batch(1, bytes(100_000)))
        part = client.fetch_one(topic, partition, 0, partition_max_bytes=1000, max_bytes=1000)
        assert offsets(part)[:1] == [0] and len(part.records) < 200_000
    answer = parts(client.fetch({(topic, 0): (0, 1000), (topic, 1): (0, 1000)}, max_bytes=1000))
    sizes = [len(answer[topic, partition].records or b"") for partition in (0, 1)]
    assert min(sizes) < 1100 < 100_000 <= max(sizes), sizes


@pytest.mark.parametrize("version", [7, 11, 12, 13, 17])
def test_with_and_without_a_session_the_same_is_read(client, version):
    """The two go different ways where everything that is asked for is on the shard of the connection."""
    topic, topic_id = client.create(4)
    for partition in range(4):
        for size in (10, 60_000, 100_000, 10):
            client.produce(topic, partition, batch(3, bytes(size)))
    name = topic_id if version >= 13 else topic
    for numbers in ((0,), (1,), (2, 0), (3, 1), (0, 1, 2, 3)):
        for offset in (0, 4, 11, 12):
            for limit, most in ((MIB, 50 * MIB), (190_000, 50 * MIB), (MIB, 400_000), (100, 100)):
                asked = {(name, number): (offset if number == numbers[0] else 0, limit) for number in numbers}
                answers = [client.fetch(asked, version, session=(0, epoch), max_bytes=most) for epoch in (-1, 0)]
                without, within = (
                    {key: (one.error_code, one.high_watermark, one.log_start_offset, offsets(one)) for key, one in told}
                    for told in (parts(answer).items() for answer in answers)
                )
                assert without == within, (numbers, offset, limit, most)
                assert answers[0].session_id == 0


def test_no_partition_starves_beside_one_that_fills_every_answer(client):
    """Each is served in its turn, on whichever shard it lives: with a session, and when the client turns the order."""
    topic, _ = client.create()
    for partition in (0, 1):
        for _ in range(6):
            client.produce(topic, partition, batch(1, bytes(700_000)))
    limit = 1_000_000

    first = client.fetch({(topic, 0): (0, limit), (topic, 1): (0, limit)}, session=(0, 0), max_bytes=limit)
    position = {(topic, 0): 0, (topic, 1): 0}
    answer = first
    for epoch in range(1, 5):
        moved = {}
        for key, part in parts(answer).items():
            if got := offsets(part):
                position[key] = got[-1] + 1
                moved[key] = (position[key], limit)
        answer = client.fetch(moved, session=(first.session_id, epoch), max_bytes=limit)
        assert answer.error_code == 0
    assert min(position.values()) >= 1, position

    position = {(topic, 0): 0, (topic, 1): 0}
    for _ in range(4):
        answer = client.fetch({key: (at, limit) for key, at in position.items()}, max_bytes=limit)
        for key, part in parts(answer).items():
            if got := offsets(part):
                at = position.pop(key)
                position[key] = max(at, got[-1] + 1)  # behind the others, as clients do
    assert min(position.values()) >= 1, position


def test_limits_of_zero_still_give_the_first_batch(client):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(2))
        assert offsets(client.fetch_one(topic, partition, 0, max_bytes=0)) == [0, 1]
        assert offsets(client.fetch_one(topic, partition, 0, partition_max_bytes=0)) == [0, 1]


def test_what_grows_wakes_a_reader_that_wants_more_with_and_without_a_session(client, other):
    topic, _ = client.create()
    for partition in (0, 1):
        for session in ((0, -1), (0, 0)):
            start = client.end(topic, partition)
            asked = {(topic, partition): start}
            if session == (0, 0):
                opened = client.fetch(asked, session=session)
                session, asked = (opened.session_id, 1), {}
            client.send_fetch(asked, session=session, max_wait_ms=FOR_EVER_MS, min_bytes=5000)
            for _ in range(6):
                other.produce(topic, partition, batch(1, bytes(1000)))
            answer = parts(client.receive_fetch())
            assert offsets(answer[topic, partition])[:5] == list(range(start, start + 5))


@pytest.mark.parametrize("version", [4, 11, 13])
def test_a_waiting_fetch_is_woken_by_data_on_any_shard(client, other, version):
    topic, topic_id = client.create()
    name = topic_id if version >= 13 else topic
    for partition in (0, 1):
        ends = {(name, i): other.end(topic, i) for i in (0, 1)}
        client.send_fetch(ends, version, max_wait_ms=FOR_EVER_MS)
        other.produce(topic, partition, batch(1))
        answer = parts(client.receive_fetch())
        assert offsets(answer[name, partition]) == [ends[name, partition]]


def test_min_bytes_are_gathered_from_both_shards(client, other):
    topic, _ = client.create()
    client.send_fetch({(topic, 0): 0, (topic, 1): 0}, max_wait_ms=FOR_EVER_MS, min_bytes=2500)
    for partition in (0, 1):
        other.produce(topic, partition, batch(1, bytes(1000)))
    assert client.connection._due
    other.produce(topic, 0, batch(1, bytes(1000)))
    answer = parts(client.receive_fetch())
    assert offsets(answer[topic, 0]) == [0, 1]
    assert offsets(answer[topic, 1]) == [0]


def test_a_fetch_ends_with_what_there_is_when_its_time_is_up(client):
    topic, _ = client.create()
    client.produce(topic, 1, batch(1))
    began = time.monotonic()
    answer = parts(client.fetch({(topic, 0): 0, (topic, 1): 0}, max_wait_ms=300, min_bytes=10_000))
    assert time.monotonic() - began > 0.25
    assert offsets(answer[topic, 0]) == []
    assert offsets(answer[topic, 1]) == [0]


def test_a_fetch_of_nothing_is_answered_at_once(client):
    answer = client.fetch({}, max_wait_ms=FOR_EVER_MS)
    assert (answer.error_code, answer.session_id, list(answer.responses)) == (0, 0, [])
    topic, _ = client.create()
    session = client.fetch({(topic, 0): 0}, session=(0, 0)).session_id
    closed = client.fetch({}, session=(session, -1), max_wait_ms=FOR_EVER_MS)  # how consumers close their session
    assert (closed.error_code, closed.session_id) == (0, 0)
    gone = client.fetch({}, session=(session, 1))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", [7, 11, 13])
def test_a_session_sends_only_what_changed(client, other, version):
    topic, topic_id = client.create()
    name = topic_id if version >= 13 else topic
    keys = [(name, 0), (name, 1)]
    first = client.fetch(dict.fromkeys(keys, 0), version, session=(0, 0))
    assert first.session_id > 0 and sorted(parts(first)) == sorted(keys)
    quiet = client.fetch({}, version, session=(first.session_id, 1))
    assert (quiet.error_code, quiet.session_id, list(quiet.responses)) == (0, first.session_id, [])
    epoch = 2
    for partition in (0, 1):
        client.send_fetch({}, version, session=(first.session_id, epoch), max_wait_ms=FOR_EVER_MS)
        other.produce(topic, partition, batch(1))
        answer = parts(client.receive_fetch())
        assert list(answer) == [(name, partition)] and offsets(answer[name, partition]) == [0]
        answer = client.fetch({(name, partition): 1}, version, session=(first.session_id, epoch + 1))
        assert answer.error_code == 0
        epoch += 2
    wrong = client.fetch({}, version, session=(first.session_id, 1))
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_forgotten_partitions_are_not_answered_any_more(client, other):
    topic, _ = client.create()
    session = client.fetch({(topic, 0): 0, (topic, 1): 0}, session=(0, 0)).session_id
    client.fetch({}, session=(session, 1), forget=[(topic, 0)])
    other.produce(topic, 0, batch(1))
    other.produce(topic, 1, batch(1))
    answer = parts(client.fetch({}, session=(session, 2), max_wait_ms=5000))
    assert list(answer) == [(topic, 1)]
    back = parts(client.fetch({(topic, 0): 0, (topic, 1): 1}, session=(session, 3)))
    assert offsets(back[topic, 0]) == [0]


def test_a_thousand_partitions_in_one_fetch(client, other):
    topic, topic_id = client.create(1000)
    asked = {(topic_id, i): 0 for i in range(1000)}
    for partition in (0, 1, 500, 999):
        other.produce(topic, partition, batch(1))
    answer = client.fetch(asked, 13, session=(0, 0))
    got = parts(answer)
    assert len(got) == 1000
    assert sorted(key[1] for key, part in got.items() if offsets(part)) == [0, 1, 500, 999]
    moved = {(topic_id, i): 1 for i in (0, 1, 500, 999)}
    assert client.fetch(moved, 13, session=(answer.session_id, 1)).error_code == 0
    moved = {}
    for epoch, partition in enumerate((7, 8, 700, 701), start=2):
        client.send_fetch(moved, 13, session=(answer.session_id, epoch), max_wait_ms=FOR_EVER_MS)
        other.produce(topic, partition, batch(1))
        assert list(parts(client.receive_fetch())) == [(topic_id, partition)]
        moved = {(topic_id, partition): 1}


def test_what_was_evicted_from_memory_is_read_from_disk_unchanged(broker, client, connect, request):
    topic, _ = client.create(retention_ms=-1)  # the timestamps are of 1970
    filler, _ = client.create()
    sent = {p: [batch(3, bytes([p, i]) * 5000, timestamp=1000 + i) for i in range(40)] for p in (0, 1)}
    for partition, batches in sent.items():
        for one in batches:
            assert client.error(topic, partition, one) == "NONE"
    big = batch(1, bytes(1_000_000))
    for number in range(0 if is_peer(request.config) else 120):
        assert client.error(filler, number % 2, big) == "NONE"
    for restarted in (False, True):
        if restarted:
            broker.kill()
            broker.restart()
            client = connect()
            client.until_served(topic, 0, 1)
        misses = [0.0] if is_peer(request.config) else metric(broker, "millstream_cache_misses_total")
        for partition, batches in sent.items():
            got = stored(client, topic, partition, 120)
            assert [one[16:] for one in got] == [one[16:] for one in batches]  # but for base offset and leader epoch
            assert client.offset(topic, partition, 1017)[1:3] == (1017, 47)
            assert offsets(client.fetch_one(topic, partition, 61, partition_max_bytes=100)) == [60, 61, 62]
        assert is_peer(request.config) or sum(metric(broker, "millstream_cache_misses_total")) > sum(misses)


def test_a_waiting_reader_is_told_that_its_topic_was_deleted(client, other):
    for version, error in ((11, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)):
        topic, topic_id = client.create()
        name = topic_id if version >= 13 else topic
        client.send_fetch({(name, 0): 0, (name, 1): 0}, version, max_wait_ms=FOR_EVER_MS)
        deleted = other.connection.call(DeleteTopicsRequest([], [topic], 10_000), DeleteTopicsResponse, 5)
        assert deleted.responses[0].error_code == 0
        answer = parts(client.receive_fetch())
        told = {part.error_code for part in answer.values()}
        assert told & {error, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}, told


def asked_as(client, topic, topic_id, version, partition, *, offset=0, **fields):
    """The answer for one partition to a fetch with any fields of the request or its partition."""
    of_partition = {name: fields.pop(name) for name in ("current_leader_epoch", "last_fetched_epoch") if name in fields}
    asked = FetchPartition(partition, fetch_offset=offset, partition_max_bytes=MIB, **of_partition)
    by_id = version >= 13
    named = FetchTopic("" if by_id else topic, topic_id if by_id else NO_ID, [asked])
    answer = client.connection.call(FetchRequest(topics=[named], **fields), FetchResponse, version)
    return answer, next((part for one in answer.responses for part in one.partitions), None)


@pytest.mark.parametrize("version", range(4, 19))
def test_every_version_reads_from_the_middle_of_a_batch(client, version):
    topic, topic_id = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(5))
        client.produce(topic, partition, batch(5))
        _, part = asked_as(client, topic, topic_id, version, partition, offset=7)
        assert (part.error_code, part.high_watermark, offsets(part)) == (0, 10, [5, 6, 7, 8, 9])


def test_read_committed_names_no_aborted_transaction_and_read_uncommitted_says_nothing_of_them(client):
    topic, topic_id = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(2))
        for version in (4, 11, 18):
            for isolation, aborted in ((0, None), (1, [])):
                _, part = asked_as(client, topic, topic_id, version, partition, isolation_level=isolation)
                assert (part.last_stable_offset, offsets(part)) == (2, [0, 1])
                assert part.aborted_transactions == aborted


@pytest.mark.parametrize("isolation", [2, -1])
def test_an_isolation_level_that_does_not_exist_is_refused(client, isolation):
    topic, topic_id = client.create()
    _, part = asked_as(client, topic, topic_id, 4, 0, isolation_level=isolation)
    assert part.error_code == ErrorCode.UNKNOWN_SERVER_ERROR
    answer, _ = asked_as(client, topic, topic_id, 18, 0, isolation_level=isolation)
    assert answer.error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_readers_with_another_leader_epoch_are_told(client):
    topic, topic_id = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(2))
        for version in (9, 18):
            for epoch, error in ((-1, 0), (0, 0), (7, ErrorCode.UNKNOWN_LEADER_EPOCH)):
                _, part = asked_as(client, topic, topic_id, version, partition, current_leader_epoch=epoch)
                assert part.error_code == error


@pytest.mark.parametrize("version", [12, 18])
def test_a_reader_whose_log_parted_from_ours_is_told_where(client, version):
    """KIP-595: it says of which epoch its last record is."""
    topic, topic_id = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(5))

        def told(offset, epoch, partition=partition):
            fields = {"offset": offset, "last_fetched_epoch": epoch}
            _, part = asked_as(client, topic, topic_id, version, partition, **fields)
            parted = part.diverging_epoch
            return ErrorCode(part.error_code).name, (parted.epoch, parted.end_offset), offsets(part)

        assert told(5, 0) == ("NONE", (-1, -1), [])
        assert told(2, 0) == ("NONE", (-1, -1), [0, 1, 2, 3, 4])
        assert told(40, 0) == ("NONE", (0, 5), [])
        assert told(2, 3) == ("OFFSET_OUT_OF_RANGE", (-1, -1), [])


@pytest.mark.parametrize("version", [4, 11, 14, 15, 18])
def test_a_replica_that_the_partition_does_not_have_is_refused(client, version):
    topic, topic_id = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(1))
        for replica in (0, 5):
            who = {"replica_id": replica} if version <= 14 else {"replica_state": ReplicaState(replica, 3)}
            for epoch in (-1, 0):
                knows = {"current_leader_epoch": epoch}
                _, part = asked_as(client, topic, topic_id, version, partition, **who, **knows)
                without = epoch < 0 or version < 9
                code = ErrorCode.NOT_LEADER_OR_FOLLOWER if without else ErrorCode.UNKNOWN_LEADER_EPOCH
                assert (ErrorCode(part.error_code), part.high_watermark, part.records or b"") == (code, -1, b"")
                assert (part.current_leader.leader_epoch == 0) == (without and version >= 16)


def test_min_bytes_above_what_an_answer_may_hold_does_not_wait(client):
    topic, _ = client.create()
    for partition in (0, 1):
        for _ in range(3):
            client.produce(topic, partition, batch(1, bytes(1000)))
        part = client.fetch_one(topic, partition, 0, max_wait_ms=FOR_EVER_MS, min_bytes=MIB, max_bytes=1500)
        assert offsets(part)[:1] == [0]


def test_min_bytes_of_several_mebibytes_are_gathered(client, other):
    topic, _ = client.create()
    for partition in (0, 1):
        client.send_fetch({(topic, partition): (0, 8 * MIB)}, max_wait_ms=FOR_EVER_MS, min_bytes=3 * MIB)
        for _ in range(4):
            other.produce(topic, partition, batch(1, bytes(900_000)))
        part = parts(client.receive_fetch())[topic, partition]
        assert offsets(part) == [0, 1, 2, 3]


@pytest.mark.parametrize("version", [12, 13])
def test_a_session_knows_a_topic_that_was_deleted_from_one_that_never_was(client, other, version):
    topic, topic_id = client.create(1)
    client.produce(topic, 0, batch(1))
    name = topic_id if version >= 13 else topic
    session = client.fetch({(name, 0): 0}, version, session=(0, 0)).session_id
    other.connection.call(DeleteTopicsRequest([], [topic], 10_000), DeleteTopicsResponse, 5)
    epoch, told = 1, 0
    while not told:  # Kafka says that a topic is gone before its leaders know
        answer = parts(client.fetch({(name, 0): 0}, version, session=(session, epoch)))
        told, epoch = answer[name, 0].error_code, epoch + 1
    assert told == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    never = b"\7" * 16
    if version >= 13:
        answer = parts(client.fetch({(never, 0): 0}, version, session=(session, epoch)))
        assert answer[never, 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
        other.recreate(topic)
        answer = parts(client.fetch({(name, 0): 0}, version, session=(session, epoch + 1)))
        assert answer[name, 0].error_code == ErrorCode.INCONSISTENT_TOPIC_ID


def delete_before(client, topic, partition, offset):
    asked = [DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])]
    answer = client.connection.call(DeleteRecordsRequest(asked, 10_000), DeleteRecordsResponse, 2)
    assert answer.topics[0].partitions[0].error_code == 0


def test_a_log_that_is_trimmed_under_its_readers(client, other):
    topic, _ = client.create()
    for partition in (0, 1):
        for _ in range(4):
            client.produce(topic, partition, batch(5))
        behind = client.fetch({(topic, partition): 2}, session=(0, 0)).session_id
        quiet = client.fetch({(topic, partition): 20}, session=(0, 0)).session_id
        assert not client.fetch({}, session=(quiet, 1)).responses
        delete_before(other, topic, partition, 12)
        (part,) = parts(client.fetch({(topic, partition): 2}, session=(behind, 1))).values()
        assert (part.error_code, part.records or b"") == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        (part,) = parts(client.fetch({(topic, partition): 12}, session=(behind, 2))).values()
        assert (part.error_code, part.log_start_offset, offsets(part)[:1]) == (0, 12, [10])
        (part,) = parts(client.fetch({}, session=(quiet, 2))).values()
        assert (part.error_code, part.log_start_offset, part.high_watermark, part.records or b"") == (0, 12, 20, b"")
        client.send_fetch({(topic, partition): 12}, max_wait_ms=FOR_EVER_MS, min_bytes=MIB)
        delete_before(other, topic, partition, 20)
        for _ in range(3):
            other.produce(topic, partition, batch(1, bytes(600_000)))
        told = parts(client.receive_fetch())[topic, partition]
        assert told.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_partitions_that_each_fill_an_answer_are_served_in_turn(client):
    """A slow consumer of much gets all of its partitions evenly, whichever shard they are on."""
    topic, _ = client.create(4)
    places = {(topic, partition): 0 for partition in range(4)}
    for _, partition in places:
        for _ in range(20):
            client.produce(topic, partition, batch(1, bytes(MIB // 4)))
    answer = client.fetch(places, session=(0, 0))
    served = dict.fromkeys(places, 0)
    for epoch in range(1, 13):
        moved = {}
        for place, part in parts(answer).items():
            if part.records:
                served[place] += 1
                places[place] = moved[place] = offsets(part)[-1] + 1
        answer = client.fetch(moved, session=(answer.session_id, epoch), max_wait_ms=10_000)
    assert sum(served.values()) >= 12
    assert max(served.values()) - min(served.values()) <= 2, served
