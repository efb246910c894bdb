"""The shell of one partition of the share state: records, loading in order, failures, pruning."""

import pytest
from coordinator_fakes import FakePartition, FakeReactor, batch_of

from millstream.coordinator.hashing import partition_of
from millstream.coordinator.share_state_partition import PRUNE_US, ShareStatePartition
from millstream.coordinator.share_state_records import decode_change, encode_change
from millstream.coordinator.share_states import asks_of, key_text
from millstream.coordinator.state_partition import State
from millstream.core.share.batches import Batch, RecordState
from millstream.core.share.stored import Delete, Image, Initialize, Read, Report, Update
from millstream.errors import Corruption, Retriable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.read_share_group_state import StateBatch
from millstream.wire.messages.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteStatePartition,
    WriteStateTopic,
)
from millstream.wire.records import iter_records

KEY = ("a:b", bytes(range(16)), 3)
NONE = ErrorCode.NONE
BATCHES = [Batch(7, 8, RecordState.ACKNOWLEDGED, 1), Batch(9, 9, RecordState.AVAILABLE, 2)]


class StateLog(FakePartition):
    """A log that may be trimmed."""

    def trim(self, start):
        self.log_start_offset = start


class Bench:
    """A coordinator over a log."""

    def __init__(self, batches=()):
        self.log = StateLog(0, batches, name="__share_group_state")
        self.reactor = FakeReactor()
        self.ends = 0
        self.states = ShareStatePartition(self.log, self.reactor, self.loaded)
        self.reactor.turn()

    def loaded(self):
        self.ends += 1

    def ask(self, kind, *fields):
        answers = []
        self.states.ask(kind(answers.append, KEY, *fields))
        self.reactor.turn()
        return answers

    def again(self):
        return Bench(self.log.batches)


def test_states_outlive_a_restart_as_updates_in_their_order():
    bench = Bench()
    bench.ask(Initialize, 1, -1)
    bench.ask(Report, 1, -1, 5, 2, BATCHES)
    bench.ask(Report, 1, -1, 6, 3, [Batch(9, 9, RecordState.ACKNOWLEDGED, 2)])
    (answer,) = bench.ask(Read, 4)
    image = answer.image
    assert (image.start, image.complete, image.leader_epoch) == (6, 3, 4)
    assert image.batches == [Batch(7, 8, RecordState.ACKNOWLEDGED, 1), Batch(9, 9, RecordState.ACKNOWLEDGED, 2)]
    again = bench.again()
    assert (again.states.state, again.ends) == (State.ACTIVE, 1)
    (answer,) = again.ask(Read, -1)
    assert answer.image == image
    again.ask(Delete)
    (answer,) = again.again().ask(Read, -1)
    assert answer.error is ErrorCode.INVALID_REQUEST


def test_a_request_is_answered_when_its_record_is_durable():
    bench = Bench()
    bench.log.hold = True
    assert bench.ask(Initialize, 1, 0) == []
    waiting = bench.ask(Report, 1, -1, 5, 2, [])
    bench.log.persist()
    bench.reactor.turn()
    bench.log.persist()
    assert [answer.error for answer in waiting] == [NONE]


def test_a_batch_that_is_not_appended_fails_its_requests_and_nothing_else():
    bench = Bench()
    bench.ask(Initialize, 1, 0)
    bench.log.refuse = Retriable("no", ErrorCode.NOT_ENOUGH_REPLICAS)
    (answer,) = bench.ask(Report, 1, -1, 5, 2, BATCHES)
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    bench.log.refuse = None
    (answer,) = bench.ask(Read, -1)
    assert answer.image.start == 0


def test_closing_refuses_who_waits():
    bench = Bench()
    bench.log.hold = True
    waiting = bench.ask(Initialize, 1, 0)
    bench.states.close()
    assert waiting == [ErrorCode.NOT_COORDINATOR]


def test_a_record_that_does_not_decode_ends_the_partition():
    bench = Bench([batch_of((b"\0\0garbage", b"x"))])
    assert bench.states.state is State.FAILED
    assert bench.states.refusal is ErrorCode.NOT_COORDINATOR
    later = Bench([batch_of((b"\0\x09later", b"x"))])
    assert later.states.state is State.ACTIVE, "a newer kind of record is skipped"


def test_the_log_start_follows_the_oldest_snapshot():
    bench = Bench()
    bench.ask(Initialize, 1, 0)
    for _ in range(501):
        bench.ask(Report, 1, -1, 5, 0, [])
    assert bench.log.log_start_offset == 0
    bench.reactor.advance(PRUNE_US // 1000 + 1)
    assert bench.log.log_start_offset == 501, "the snapshot after 500 updates"


def test_the_state_of_a_deleted_topic_is_deleted():
    bench = Bench()
    bench.ask(Initialize, 1, 0)
    bench.states.forget_topic(b"other")
    assert bench.states.core.images
    bench.states.forget_topic(KEY[1])
    bench.reactor.turn()
    assert not bench.again().states.core.images


@pytest.mark.parametrize("change", [None, Update(3, 4, -1, -1, BATCHES), Image(1, 2, 3, 7, 1, BATCHES, 11, 12)])
def test_a_record_is_what_it_was_made_of(change):
    (record,) = iter_records(batch_of(encode_change(KEY, change)))
    assert decode_change(record) == (KEY, change)


def test_a_state_that_there_is_not_is_no_record():
    key, value = encode_change(KEY, Update(3, 4, -1, -1, [Batch(1, 2, 3, 1)]))
    (record,) = iter_records(batch_of((key, value)))
    with pytest.raises(Corruption, match="does not decode"):
        decode_change(record)


def test_the_partition_is_kafkas():
    """By ``Math.abs("a:b:AAECAwQFBgcICQoLDA0ODw:3".hashCode()) % 50`` of Java."""
    assert key_text(KEY) == "a:b:AAECAwQFBgcICQoLDA0ODw:3"
    assert partition_of(key_text(KEY), 50) == 48


@pytest.mark.parametrize("batch", [(-1, 4, 2, 1), (4, 3, 2, 1), (0, 2**63 - 1, 2, 1), (0, 4, 3, 1), (0, 4, 2, -1)])
def test_a_write_of_records_that_cannot_be_is_no_question(batch):
    topic = WriteStateTopic(bytes(16), [WriteStatePartition(0, 1, 0, 0, 0, [StateBatch(*batch)])])
    with pytest.raises(ValueError):
        asks_of(WriteShareGroupStateRequest("g", [topic]))
