"""RestoreBatches: what continues the log is appended as it is; anything else is refused and leaves no trace."""

import struct

import pytest
from append_support import NOW, batch, make, put

from millstream.backup.batches import empty_batches
from millstream.errors import MillstreamError
from millstream.format.events.batch import build_event_batch
from millstream.model.error_code import ErrorCode
from millstream.partition.append.restored import restore_batches
from millstream.wire.records import ABORT, CRC_START, build_batch, checksum, control_record

OLD = 1_500_000_000_000


class Turns:
    """Admission of a shard whose memory comes back when the test says so."""

    own_waits = False

    def __init__(self):
        self.waiting = []

    def add_own(self, attempt):
        self.waiting.append(attempt)


def restore(partition, *batches):
    """What the request is answered with; None: it is not answered yet."""
    answers = []
    restore_batches(partition, b"".join(batches), NOW, answers.append)
    partition.log.sync()
    assert len(answers) < 2
    return answers[0] if answers else None


def code_of(answer):
    assert isinstance(answer, MillstreamError), answer
    return answer.code


def marker(base, producer):
    record = control_record(ABORT, 3, OLD)
    return build_batch(
        [record], base_offset=base, producer_id=producer, producer_epoch=0, transactional=True, control=True
    )


def changed(made, at, layout, value):
    """The batch with another field ``at`` that byte of its header, and the checksum of that."""
    out = bytearray(made)
    struct.pack_into(layout, out, at, value)
    struct.pack_into(">I", out, CRC_START - 4, checksum([memoryview(out)]))
    return bytes(out)


def with_last_delta(delta):
    """A batch whose last offset is so far behind its first."""
    return changed(batch(producer_id=5, producer_epoch=1, base_sequence=0), CRC_START + 2, ">i", delta)


def test_batches_keep_offsets_times_and_bytes():
    partition = make(term=9)
    gap = list(empty_batches(0, 5))
    first, second = batch([b"a", b"b"], OLD, base_offset=5, compression=4), batch([b"c"], OLD, base_offset=7)
    assert restore(partition, *gap, first) == 7
    assert restore(partition, second) == 8
    assert [(base, bytes(data[16:]), epoch) for base, data, epoch, _ in partition.log.batches] == [
        (0, gap[0][16:], 9),
        (5, first[16:], 9),
        (7, second[16:], 9),
    ]
    assert partition.high_watermark == 8
    assert put(partition, batch()).base_offset == 8


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (batch(base_offset=1), ErrorCode.OFFSET_OUT_OF_RANGE),
        (batch() + batch(base_offset=2), ErrorCode.OFFSET_OUT_OF_RANGE),
        (batch()[:-1], ErrorCode.CORRUPT_MESSAGE),
        (batch()[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
        (batch() + b"rest", ErrorCode.CORRUPT_MESSAGE),
        (b"", ErrorCode.INVALID_RECORD),
        (with_last_delta(2**31 - 1), ErrorCode.INVALID_RECORD),
        (b"".join(map(bytes, build_event_batch([b"{}"], [()], now_ms=NOW))), ErrorCode.INVALID_RECORD),
    ],
    ids=["offset", "gap", "cut", "flipped", "more", "nothing", "long", "events"],
)
def test_what_does_not_fit_is_refused_as_a_whole(data, code):
    partition = make()
    assert code_of(restore(partition, data)) is code
    assert partition.log.batches == []
    assert restore(partition, batch()) == 1


def test_only_the_leader_of_a_clients_topic_takes_batches():
    assert code_of(restore(make(name="__consumer_offsets"), batch())) is ErrorCode.INVALID_TOPIC_EXCEPTION
    partition = make()
    partition.resign()
    assert code_of(restore(partition, batch())) is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_producer_that_was_restored_is_recognised():
    partition = make()
    own = {"producer_id": 5, "producer_epoch": 1}
    assert restore(partition, batch([b"a", b"b"], base_sequence=40, **own)) == 2
    assert put(partition, batch([b"a", b"b"], base_sequence=40, **own)).base_offset == 0, "it is there"
    assert put(partition, batch([b"c"], base_sequence=42, **own)).base_offset == 2
    wrong = put(partition, batch([b"d"], base_sequence=99, **own))
    assert wrong.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_transactions_are_as_their_markers_say():
    partition = make()
    of_one = batch(producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    of_two = batch(base_offset=1, producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    assert restore(partition, of_one, of_two, marker(2, 1)) == 3
    assert partition.last_stable_offset == 1, "that of producer 2 is open"
    assert [one[:2] for one in partition.transactions.aborted_between(0, 3)] == [(1, 0)]


def test_without_memory_it_waits_and_loses_nothing():
    partition = make()
    partition.admission = Turns()
    partition.log.full = True
    answers = []
    restore_batches(partition, batch() + batch(base_offset=1), NOW, answers.append)
    (attempt,) = partition.admission.waiting
    assert not attempt() and not answers
    partition.log.full = False
    assert attempt()
    assert not answers, "nothing is synced yet"
    partition.log.sync()
    assert answers == [2]


def test_another_client_that_comes_first_is_noticed():
    partition = make()
    partition.admission = Turns()
    partition.log.full = True
    answers = []
    restore_batches(partition, batch(), NOW, answers.append)
    (attempt,) = partition.admission.waiting
    partition.log.full = False
    put(partition, batch())
    assert attempt()
    assert code_of(answers[0]) is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_leader_that_resigns_says_that_the_outcome_is_unknown():
    partition = make()
    answers = []
    restore_batches(partition, batch(), NOW, answers.append)
    partition.resign()
    assert type(answers[0]).__name__ == "OutcomeUnknown"


@pytest.mark.parametrize(
    ("at", "layout", "value", "said"),
    [
        (57, ">i", -1, "-1 records in 1 offsets"),
        (57, ">i", -(2**31), "records in 1 offsets"),
        (57, ">i", 2, "2 records in 1 offsets"),
        (CRC_START, ">h", 7, "codec 7"),
        (51, ">h", -1, "producer 5 without an epoch"),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(at, layout, value, said):
    """A count below zero stopped the partition when it was measured: its batch was in the log by then."""
    partition = make()
    answer = restore(partition, changed(batch(producer_id=5, producer_epoch=1, base_sequence=0), at, layout, value))
    assert code_of(answer) is ErrorCode.INVALID_RECORD and said in answer.message
    assert partition.log.next_offset == 0 and not partition.refusal
