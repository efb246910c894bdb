"""Offsets that are committed in transactions: the question to the coordinator, markers that come first, loading."""

import pytest
from coordinator_fakes import FakePartition, FakeReactor

from millstream.coordinator.groups_partition import GroupsPartition
from millstream.coordinator.records import encode_record
from millstream.coordinator.state_partition import State
from millstream.core.group.commit import offset_record
from millstream.core.group.counts import GroupCounts
from millstream.core.group.offsets import CommittedOffset
from millstream.core.group.outputs import Commit, GroupSettings
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest
from millstream.wire.records import build_batch

PRODUCER, EPOCH = 7, 0


class World:
    """The groups of one partition, a transaction coordinator that answers when told, and a client."""

    def __init__(self, batches=()):
        self.partition = FakePartition(3, batches)
        self.reactor = FakeReactor()
        self.groups = GroupsPartition(self.partition, self.reactor, GroupSettings(), GroupCounts(), lambda: None)
        self.reactor.turn()
        self.questions = []
        self.groups.verified.ask = lambda question, answer: self.questions.append((question, answer))
        self.answers = []

    def commit(self, offset=5, epoch=EPOCH, *, adds=False):
        """A TxnOffsetCommit."""
        place = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        request = OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="t", partitions=[place])])
        asked = TxnOffsetCommitRequest(transactional_id="x", group_id="g", producer_id=PRODUCER, producer_epoch=epoch)

        def verified(error):
            if error is ErrorCode.NONE:
                self.groups.step(Commit(self._done, request, 9, (PRODUCER, epoch)))
            else:
                self.answers.append(error)

        self.groups.verified.verify(asked, verified, adds=adds)

    def _done(self, answer):
        self.answers.append(ErrorCode(answer.topics[0].partitions[0].error_code))

    def answer(self, error=ErrorCode.NONE):
        """The coordinator answers its oldest question."""
        self.questions.pop(0)[1]([error])

    def offset(self):
        """What the group has committed."""
        group = self.groups.core.groups.get("g")
        found = None if group is None else group.offsets.get("t", 0)
        return None if found is None else found.offset


@pytest.mark.parametrize("adds", [False, True])
def test_the_coordinator_is_asked_once_for_each_transaction(adds):
    world = World()
    world.commit(5, adds=adds)
    world.commit(6, adds=adds)
    ((question, _),) = world.questions
    assert (question.transactional_id, question.adds) == ("x", adds)
    assert question.partitions == (("__consumer_offsets", 3),)
    assert world.answers == []
    world.answer()
    world.reactor.turn()
    world.commit(7, adds=adds)
    world.reactor.turn()
    assert world.answers == [ErrorCode.NONE] * 3
    assert not world.questions
    assert world.offset() is None
    world.partition.end_transaction(PRODUCER, EPOCH, commits=True)
    assert world.offset() == 7


def test_a_refusal_of_the_coordinator_is_the_answer():
    world = World()
    world.commit()
    world.answer(ErrorCode.TRANSACTION_ABORTABLE)
    assert world.answers == [ErrorCode.TRANSACTION_ABORTABLE]
    world.commit()
    assert len(world.questions) == 1, "it may be part of the transaction by now"


def test_a_commit_that_comes_after_its_transaction_opens_none():
    """Protocol version 1: the producer keeps its epoch, so that only the question tells the two apart."""
    world = World()
    world.commit(5)
    world.partition.end_transaction(PRODUCER, EPOCH, commits=False)
    world.answer()  # about the transaction that has ended meanwhile
    world.reactor.turn()
    assert world.answers == [ErrorCode.INVALID_TXN_STATE]
    assert world.partition.transactions.open == {}


def test_a_verified_commit_that_a_marker_overtakes_is_not_appended():
    world = World()
    world.commit(5)
    world.answer()
    world.partition.end_transaction(PRODUCER, EPOCH, commits=False)  # before the end of the turn
    world.reactor.turn()
    assert world.answers == [ErrorCode.INVALID_TXN_STATE]
    assert world.partition.transactions.open == {}


def test_a_commit_of_another_epoch_has_its_own_question():
    world = World()
    world.commit(5, epoch=0)
    world.commit(6, epoch=1)
    assert len(world.questions) == 1
    world.answer(ErrorCode.PRODUCER_FENCED)
    ((question, _),) = world.questions
    assert question.producer_epoch == 1
    world.answer()
    world.reactor.turn()
    assert world.answers == [ErrorCode.PRODUCER_FENCED, ErrorCode.NONE]


def test_what_waits_is_refused_when_the_partition_closes_and_a_late_answer_does_nothing():
    world = World()
    world.commit()
    world.commit()
    world.groups.close()
    assert world.answers == [ErrorCode.NOT_COORDINATOR] * 2
    world.answer()
    assert world.answers == [ErrorCode.NOT_COORDINATOR] * 2


def stored(offset):
    key, value = encode_record(*offset_record("g", "t", 0, CommittedOffset(offset, -1, "", 1)))
    return key, value, (), 0


def transactional(offset, base_offset):
    return build_batch(
        [stored(offset)], base_offset=base_offset, producer_id=PRODUCER, producer_epoch=EPOCH, transactional=True
    )


@pytest.mark.parametrize("ends", ["before the loading", "after it"])
def test_an_offset_deleted_during_its_transaction_does_not_come_back_with_the_next_coordinator(ends):
    batches = [transactional(5, 0), build_batch([(stored(5)[0], None, (), 0)], base_offset=1)]
    partition = FakePartition(3, batches)
    partition.transactions.began(PRODUCER, 0)
    partition.ended = lambda producer_id, commits: None
    if ends == "before the loading":
        partition.end_transaction(PRODUCER, EPOCH, commits=True)
    world = World(partition.batches)
    assert world.groups.state is State.ACTIVE
    if ends == "after it":
        world.partition.end_transaction(PRODUCER, EPOCH, commits=True)
    assert world.offset() is None
