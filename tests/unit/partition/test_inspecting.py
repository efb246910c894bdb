"""The row in which batches wait for what is found in their records."""

from types import SimpleNamespace

import pytest
from append_support import NOW, Acks, batch, make, put, whole

from millstream.iobuf import Arena, IoBuf
from millstream.model.error_code import ErrorCode
from millstream.partition.append.admission import Admission
from millstream.partition.append.batch import Batch, Blocked
from millstream.partition.append.inspection import INLINE_RECORDS, Inspection, rules_of
from millstream.partition.partition import Gate
from millstream.storage.processes.inspections import Verdict
from millstream.wire.inspection import AS_IT_CAME, Refusal
from millstream.wire.records import build_batch, iter_records, parse_header


class Row:
    """What ``Inspection`` uses of a shard; verdicts come when the test says so."""

    def __init__(self):
        self.arena = Arena.create(0, 4 << 20)
        self.room = True
        self.under_way = []
        self.own = []
        self.done = []
        self.storage = SimpleNamespace(inspections=self, accepts_writes=True, stopping=False)
        reactor = SimpleNamespace(wall_ms=lambda: NOW)
        append = Admission(reactor, self.storage)._append_inspected
        self.appends = Inspection(reactor, self.storage, append, self.own.append)

    def start(self, views, size, rules, done):
        if self.room:
            self.under_way.append((b"".join(views), rules, done))
        return self.room

    def add(self, partition, data):
        place = len(self.done)
        self.done.append(None)

        def settled(outcome, refusal):
            assert self.done[place] is None
            self.done[place] = (outcome, refusal)

        return self.appends.add(Batch(partition, (memoryview(data),), len(data)), settled)

    def judge(self, place, data=None, error=0):
        """The verdict on the batch that was sent ``place``-th."""
        sent, _, done = self.under_way[place]
        if error:
            done(Verdict(error, Refusal("no", [(0, "no")]), None))
            return
        data = sent if data is None else data
        fragment = self.arena.allocate(len(data))
        fragment.view[: len(data)] = data
        chain = IoBuf()
        chain.append(fragment, 0, len(data))
        done(Verdict(0, None, chain))


def squeezed(value, **options):
    return batch([value], compression=1, **options)


def values(partition):
    return [record.value for one in partition.log.batches for record in iter_records(bytes(one[1]))]


def test_verdicts_are_acted_on_in_the_order_of_the_batches():
    row, partition = Row(), make(compression_type="zstd")
    for value in (b"a", b"b", b"c", b"d"):
        assert row.add(partition, squeezed(value))
    row.judge(2)
    row.judge(1, error=int(ErrorCode.INVALID_RECORD))
    assert partition.log.batches == [] and row.done == [None] * 4
    row.judge(0)
    assert values(partition) == [b"a", b"c"]
    assert [None if one is None else whole(one[0])[:2] for one in row.done] == [
        (0, 0),
        (int(ErrorCode.INVALID_RECORD), -1),
        (0, 1),
        None,
    ]
    assert row.done[1][1].records == [(0, "no")]
    assert partition.gate & Gate.ORDER
    row.judge(3)
    assert values(partition) == [b"a", b"c", b"d"]
    assert not partition.gate & Gate.ORDER


def test_sequence_numbers_are_checked_when_a_batch_is_appended():
    row, partition = Row(), make(compression_type="zstd")
    numbered = {"producer_id": 9, "producer_epoch": 0}
    for sequence in (0, 1, 1, 7):
        row.add(partition, squeezed(b"v", base_sequence=sequence, **numbered))
    for place in (3, 2, 1, 0):
        row.judge(place)
    assert [whole(one[0])[:2] for one in row.done] == [
        (0, 0),
        (0, 1),
        (0, 1),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
    ]


def test_a_verdict_without_memory_in_the_log_is_tried_again_before_those_behind_it():
    row, partition = Row(), make(compression_type="zstd")
    for value in (b"a", b"b"):
        row.add(partition, squeezed(value))
    partition.log.full = True
    held = row.arena.in_use_bytes
    row.judge(0)
    row.judge(1)
    (attempt,) = row.own
    assert not attempt() and row.done == [None, None] and row.arena.in_use_bytes > held
    partition.log.full = False
    assert attempt()
    assert values(partition) == [b"a", b"b"] and row.arena.in_use_bytes == held
    row.add(partition, squeezed(b"c"))
    row.judge(2)
    assert values(partition) == [b"a", b"b", b"c"] and len(row.own) == 1


def test_without_room_nothing_joins_the_row():
    row, partition = Row(), make(compression_type="zstd")
    row.room = False
    assert not row.add(partition, squeezed(b"a"))
    assert row.done == [None] and not row.appends._rows and not partition.gate & Gate.ORDER


def test_a_partition_that_goes_refuses_what_comes_out_of_its_row():
    row, partition = Row(), make(compression_type="zstd")
    row.add(partition, squeezed(b"a"))
    held = row.arena.in_use_bytes
    partition.close()
    row.judge(0)
    assert row.done[0][0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert row.arena.in_use_bytes == held and partition.log.batches == []


def test_a_shard_that_stops_refuses_what_comes_out_of_the_row():
    row, partition = Row(), make(compression_type="zstd")
    row.add(partition, squeezed(b"a"))
    row.storage.stopping = True
    row.judge(0)
    assert row.done[0][0].error_code == ErrorCode.KAFKA_STORAGE_ERROR and partition.log.batches == []


def test_a_topic_that_changes_its_mind_keeps_the_order_of_what_is_under_way():
    row, partition = Row(), make(compression_type="zstd")
    row.add(partition, squeezed(b"a"))
    partition.config = make().config
    partition.set_gate()
    assert put(partition, batch([b"b"])) is Blocked.NEEDS_INSPECTION
    assert row.add(partition, batch([b"b"]))
    row.judge(1)
    row.judge(0)
    assert values(partition) == [b"a", b"b"]
    assert whole(put(partition, batch([b"c"])))[:2] == (0, 2)


@pytest.mark.parametrize(("count", "inline"), [(1, True), (INLINE_RECORDS, True), (INLINE_RECORDS + 1, False)])
def test_a_small_batch_is_looked_at_in_place(count, inline):
    row, partition = Row(), make(cleanup_policy="compact")
    data = build_batch([(b"k", b"v", [], NOW)] * count)
    assert row.add(partition, data)
    assert (not row.under_way) == inline
    if inline:
        assert whole(row.done[0][0])[:2] == (0, 0)
        assert row.add(partition, build_batch([(None, b"v", [], NOW)] * count))
        assert row.done[1][0].error_code == ErrorCode.INVALID_RECORD
        assert len(row.done[1][1].records) == count
        partition.log.full = True
        assert not row.add(partition, data)


def test_a_header_that_lies_about_time_is_put_right_in_place():
    row, partition = Row(), make()
    data = bytearray(batch([b"v"]))
    data[35:43] = (NOW + 9_999_999).to_bytes(8, "big")
    from crc32c import crc32c

    data[17:21] = crc32c(bytes(data[21:])).to_bytes(4, "big")
    assert row.add(partition, bytes(data))
    assert parse_header(partition.log.batches[0][1]).max_timestamp == NOW


def test_the_rules_are_the_topics():
    limits = {"message_timestamp_before_max_ms": 5, "message_timestamp_after_max_ms": 7, "max_message_bytes": 1000}
    rules = rules_of(
        make(compression_type="gzip", compression_gzip_level=9, cleanup_policy="compact", **limits).config, 50
    )
    assert (rules.codec, rules.level, rules.keyed, rules.append_time) == (1, 9, True, False)
    assert (rules.oldest_ms, rules.newest_ms, rules.batch_bytes_max) == (45, 57, 1000)
    plain = rules_of(make(message_timestamp_type="LogAppendTime").config, 50)
    assert (plain.codec, plain.level, plain.keyed, plain.append_time) == (AS_IT_CAME, None, False, True)


def test_the_ack_waits_for_the_sync_as_ever():
    row, partition = Row(), make(compression_type="zstd")
    acks = Acks()
    row.add(partition, squeezed(b"a"))
    row.judge(0)
    partition.waiters.acks.append((row.done[0][0].end_offset, acks, 3))
    assert partition.high_watermark == 0
    partition.log.sync()
    assert acks.acked_slots == [3]
