"""New replicas begin once the disk says that they were made: after every shard, once, and again after a refusal."""

import errno

import pytest

from millstream.cluster.creations import Creations
from millstream.cluster.messages import Commit
from millstream.cluster.placement import ELSEWHERE
from millstream.core.controller.commands import BrokerFenced, PartitionState, TopicCreated


class Broker:
    """A broker whose shards apply, and whose disk may refuse, when the test says so."""

    def __init__(self):
        self.settled, self.full, self.marks, self.begun, self.later = 0, False, [], [], []
        self.creations = Creations(self, self.move_mark, lambda: self.settled, self.begun.append)

    def call_later(self, delay_us, callback):
        assert delay_us > 0
        self.later.append(callback)

    def move_mark(self, revision):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.marks.append(revision)

    def apply(self, revision):
        self.settled = revision
        self.creations.advance()


def created(revision, *, homes=(0,), version=1):
    partition = PartitionState(7, (1, 2, 3), 1, version)
    command = TopicCreated("t", bytes(16), (partition,), {}, version=version)
    return Commit(revision, (command,), homes)


@pytest.fixture
def broker():
    return Broker()


def test_replicas_begin_when_every_shard_has_made_them_and_the_mark_is_moved(broker):
    commit = created(4)
    broker.creations.note(commit)
    broker.apply(commit.end - 1)
    assert (broker.marks, broker.begun) == ([], [])
    broker.apply(commit.end)
    assert (broker.marks, broker.begun) == ([commit.end], [commit.end])
    broker.apply(commit.end + 9)
    assert broker.begun == [commit.end], "there is nothing new"


def test_one_mark_covers_all_that_is_made(broker):
    for revision in (4, 5, 6):
        broker.creations.note(created(revision))
    broker.apply(6)
    broker.apply(7)
    assert broker.begun == broker.marks
    assert len(broker.marks) == 2


@pytest.mark.parametrize(
    "commit",
    [
        created(4, homes=(ELSEWHERE,)),
        created(4, version=0),
        Commit(4, (BrokerFenced(2, 7),), ()),
    ],
    ids=["on other brokers", "that elect", "no topic"],
)
def test_nothing_is_noted_for_commands_without_such_replicas(broker, commit):
    broker.creations.note(commit)
    broker.apply(9)
    assert broker.marks == []


def test_a_full_disk_delays_the_beginning(broker):
    commit = created(4)
    broker.full = True
    broker.creations.note(commit)
    broker.apply(commit.end)
    broker.apply(commit.end)
    assert broker.begun == []
    assert len(broker.later) == 1
    broker.full = False
    broker.later.pop()()
    assert broker.begun == [commit.end]
