"""Appending to a partition: duplicates, sequences, refusals, and when it is acknowledged."""

import struct
from collections import deque
from types import SimpleNamespace

import pytest
from append_support import NOW, Acks, batch, make, put, whole

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.partition.append.batch import Blocked, Outcome
from millstream.partition.append.checks import reported_start_offset
from millstream.partition.append.internal import InternalLog
from millstream.partition.partition import Gate
from millstream.wire.records import batch_crc_ok, parse_header


def test_a_good_batch_gets_the_next_offsets():
    partition = make()
    assert put(partition, batch([b"a", b"b"])) == Outcome(0, 0, 2, -1)
    assert put(partition, batch([b"c"])) == Outcome(0, 2, 3, -1)
    assert partition.log.batches[1][0] == 2
    assert partition.log.batches[0][2] == 4


def test_the_high_watermark_waits_for_the_sync():
    partition = make()
    acks = Acks()
    end = put(partition, batch([b"a", b"b"])).end_offset
    partition.waiters.acks.append((end, acks, 5))
    assert partition.high_watermark == 0
    assert acks.acked_slots == []
    partition.log.sync()
    assert partition.high_watermark == 2
    assert acks.acked_slots == [5]


def test_write_caching_is_visible_at_once():
    partition = make(write_caching="true")
    put(partition, batch())
    assert partition.high_watermark == 1


def test_who_waits_for_a_sync_is_answered_though_write_caching_was_turned_on_meanwhile():
    partition = make()
    acks = Acks()
    end = put(partition, batch([b"a", b"b"])).end_offset
    partition.waiters.acks.append((end, acks, 5))
    partition.group.write_caching = True
    partition.log.sync()
    assert acks.acked_slots == [5]
    assert partition.high_watermark == partition.group.high_watermark == 2


def test_what_was_visible_stays_so_when_write_caching_is_turned_off():
    partition = make(write_caching="true")
    put(partition, batch())
    put(partition, batch())
    partition.group.write_caching = False
    partition.log.owner.on_durable(1)
    assert partition.high_watermark == partition.group.high_watermark == 2
    partition.log.sync()
    put(partition, batch())
    assert partition.high_watermark == 2
    partition.log.sync()
    assert partition.high_watermark == partition.group.high_watermark == 3


@pytest.mark.parametrize("pieces", [1, 2, 5, 40])
def test_pieces_do_not_matter(pieces):
    partition = make()
    assert put(partition, batch([b"x" * 100] * 3), pieces=pieces).error_code == 0
    damaged = bytearray(batch([b"x" * 100] * 3))
    damaged[-1] ^= 1
    assert put(partition, bytes(damaged), pieces=pieces).error_code == ErrorCode.CORRUPT_MESSAGE


def damage(at, form, value):
    """A batch with one header field replaced and the checksum made right again."""
    from crc32c import crc32c

    data = bytearray(batch([b"a", b"b"]))
    struct.pack_into(form, data, at, value)
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize(
    ("what", "data", "error"),
    [
        ("empty", b"", ErrorCode.INVALID_RECORD),
        ("a header cut short", batch()[:60], ErrorCode.INVALID_RECORD),
        ("a batch cut short", batch()[:-1], ErrorCode.INVALID_RECORD),
        ("two batches", batch() + batch(), ErrorCode.INVALID_RECORD),
        ("old magic", damage(16, ">b", 1), ErrorCode.INVALID_RECORD),
        ("a wrong checksum", batch()[:-1] + b"\xff", ErrorCode.CORRUPT_MESSAGE),
        ("no records", damage(57, ">i", 0), ErrorCode.INVALID_RECORD),
        ("deltas that do not match the count", damage(23, ">i", 7), ErrorCode.INVALID_RECORD),
        ("an unknown codec", damage(21, ">h", 5), ErrorCode.INVALID_RECORD),
        ("a control batch", damage(21, ">h", 0x20), ErrorCode.INVALID_RECORD),
        ("a transactional batch", damage(21, ">h", 0x10), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("a control batch of a transaction", damage(21, ">h", 0x30), ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
        ("a base offset", damage(0, ">q", 7), ErrorCode.INVALID_RECORD),
    ],
)
def test_a_bad_batch_is_refused_and_leaves_no_trace(what, data, error):
    partition = make()
    assert put(partition, data).error_code == error, what
    assert partition.log.batches == []
    assert whole(put(partition, batch()))[:2] == (0, 0)


def test_a_large_batch_is_refused_by_size():
    partition = make(max_message_bytes=200)
    assert put(partition, batch([b"x" * 300])).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_log_append_time_rewrites_the_header_and_the_checksum():
    partition = make(message_timestamp_type="LogAppendTime")
    outcome = put(partition, batch([b"a"], timestamp=5))
    error, append_time = outcome.error_code, outcome.log_append_time_ms
    assert (error, append_time) == (0, NOW)
    stored = partition.log.batches[0][1]
    header = parse_header(stored)
    assert header.max_timestamp == NOW
    assert header.attributes & 0x08
    assert batch_crc_ok(stored)
    assert partition.log.batches[0][3] == NOW


def test_a_repeated_idempotent_batch_gets_its_first_answer():
    partition = make()
    sent = batch([b"a", b"b"], producer_id=9, producer_epoch=0, base_sequence=0)
    first = put(partition, sent)
    assert put(partition, batch([b"c"], producer_id=9, producer_epoch=0, base_sequence=2)).base_offset == 2
    assert whole(put(partition, sent))[:3] == whole(first)[:3]
    assert len(partition.log.batches) == 2


def test_a_gap_in_sequence_is_an_error():
    partition = make()
    put(partition, batch(producer_id=9, producer_epoch=0, base_sequence=0))
    late = put(partition, batch(producer_id=9, producer_epoch=0, base_sequence=5))
    assert late.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_got_no_memory_may_be_sent_again():
    partition = make()
    sent = batch(producer_id=9, producer_epoch=0, base_sequence=0)
    partition.log.full = True
    assert put(partition, sent) is Blocked.NO_MEMORY
    partition.log.full = False
    assert put(partition, sent) == Outcome(0, 0, 1, -1)


def test_a_full_disk_refuses_retriably():
    assert put(make(), batch(), accepts_writes=False).error_code == ErrorCode.KAFKA_STORAGE_ERROR


def test_closing_answers_who_waits():
    partition = make()
    acks = Acks()
    end = put(partition, batch()).end_offset
    partition.waiters.acks.append((end, acks, 0))
    partition.close()
    assert acks.failed_slots == [(0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)]
    assert put(partition, batch()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_internal_appends_are_told_after_the_sync():
    partition = make()
    done = []
    InternalLog(partition).append(batch([b"a"]), done.append)
    InternalLog(partition).append(batch([b"b", b"c"]), done.append)
    assert done == []
    partition.log.sync()
    assert done == [0, 1]


def test_an_internal_append_that_the_log_cannot_take_is_told_so():
    partition = make()
    done = []

    def refuse(*_):
        raise Rejected("too large", ErrorCode.MESSAGE_TOO_LARGE)

    partition.log.make_room = refuse
    InternalLog(partition).append(batch([b"a"]), done.append)
    assert [error.code for error in done] == [ErrorCode.MESSAGE_TOO_LARGE]


def test_internal_appends_keep_their_order_while_one_waits_for_memory():
    partition = make()
    queue = deque()
    partition.admission = SimpleNamespace(add_own=queue.append, own_waits=False)
    done = []
    partition.log.full = True
    InternalLog(partition).append(batch([b"a"]), done.append)
    partition.admission.own_waits = True
    partition.log.full = False
    InternalLog(partition).append(batch([b"b", b"c"]), done.append)
    while queue:
        assert queue.popleft()()
    partition.log.sync()
    assert done == [0, 1]


@pytest.mark.parametrize(
    ("overrides", "data"),
    [
        ({}, batch(timestamp=NOW + 7_200_000)),
        ({}, damage(21, ">h", 0x08)),
        ({"compression_type": "gzip"}, batch()),
        ({"compression_type": "gzip"}, batch(compression=4)),
        ({"cleanup_policy": "compact"}, batch()),
        ({"message_timestamp_before_max_ms": 1000}, batch()),
    ],
)
def test_what_the_header_does_not_settle_is_looked_at_first(overrides, data):
    partition = make(**overrides)
    assert put(partition, data) is Blocked.NEEDS_INSPECTION
    assert partition.log.batches == []
    assert put(partition, data, inspected=True).error_code == 0


@pytest.mark.parametrize("gate", [Gate(0), Gate.SHARED])
@pytest.mark.parametrize("codec", range(5))
def test_where_the_topic_has_no_codec_no_batch_is_opened(gate, codec):
    partition = make()
    partition.gate |= gate
    assert put(partition, batch([b"v"] * 9, compression=codec)) == Outcome(0, 0, 9, -1)


def test_a_batch_that_has_the_topics_codec_is_appended_as_it_is():
    partition = make(compression_type="gzip")
    assert put(partition, batch(compression=1)) == Outcome(0, 0, 1, -1)
    assert put(make(compression_type="uncompressed"), batch()) == Outcome(0, 0, 1, -1)


def test_nothing_overtakes_a_batch_that_is_being_looked_at():
    partition = make()
    partition.gate |= Gate.ORDER
    partition.set_gate()
    assert put(partition, batch()) is Blocked.NEEDS_INSPECTION
    partition.gate &= ~Gate.ORDER
    partition.set_gate()
    assert put(partition, batch()).error_code == 0


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_clients_do_not_write_to_the_brokers_own_topics(name):
    partition = make(name=name)
    assert put(partition, batch()).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert partition.log.batches == []


def test_a_batch_larger_than_a_segment_is_told_so():
    partition = make(max_message_bytes=3_000_000, segment_bytes=1 << 20)
    assert put(partition, batch([bytes(2_000_000)])).error_code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_repeated_batch_is_answered_with_its_time():
    partition = make()
    sent = batch(producer_id=9, producer_epoch=0, base_sequence=0)
    assert put(partition, sent) == Outcome(0, 0, 1, -1)
    assert put(partition, sent) == Outcome(0, 0, 1, NOW)


def test_the_log_start_goes_with_some_refusals_and_not_with_others():
    partition = make()
    partition.log.start_offset = 5
    assert reported_start_offset(partition, put(partition, b"")) == -1
    assert reported_start_offset(partition, put(partition, batch()[:-1] + b"\xff")) == -1
    assert reported_start_offset(partition, put(partition, damage(57, ">i", 0))) == 5


def test_batches_of_a_new_producer_that_overtook_its_refused_first_one_are_to_be_sent_again():
    partition = make()
    partition.gaps.expect(NOW - 1)  # it was opened after the client's first batch came
    ours = {"producer_id": 9, "producer_epoch": 0}

    def send(*sequences):
        return [put(partition, batch(base_sequence=sequence, **ours)).error_code for sequence in sequences]

    assert send(1, 2, 3) == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 3
    assert send(0, 1, 2, 3) == [0] * 4
    assert partition.log.next_offset == 4


def test_a_producer_whose_state_is_gone_goes_on_at_its_second_try_after_a_partition_was_opened():
    partition = make()
    partition.gaps.expect(NOW - 1)
    ours = {"producer_id": 9, "producer_epoch": 0}
    assert put(partition, batch(base_sequence=57, **ours)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert put(partition, batch(base_sequence=57, **ours)).error_code == 0
    partition.gaps.until_ms = NOW
    assert put(partition, batch(base_sequence=31, producer_id=10, producer_epoch=0)).error_code == 0, "as in Kafka"


@pytest.mark.parametrize("jump_ms", [-86_400_000, 86_400_000])
def test_gaps_are_not_expected_for_a_day_when_the_clock_is_set_by_a_day(jump_ms):
    partition = make()
    partition.gaps.expect(NOW)
    assert partition.gaps.is_expected(NOW + 1_000)
    assert not partition.gaps.is_expected(NOW + 1_000 + jump_ms)
