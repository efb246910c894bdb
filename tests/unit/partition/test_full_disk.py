"""A leader whose disk is full hands over to a follower that has everything, and no more often than it may."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.core.raft.messages import Configuration
from millstream.errors import Retriable
from millstream.partition.replica.full_disk import AGAIN_US, HEARD_US, LOOK_US, FullDisk
from millstream.raft.group import PeerState
from millstream.raft.replicated import ReplicatedGroup


class FakeReactor:
    def __init__(self):
        self.now = 10 * AGAIN_US
        self.timers = []

    def now_us(self):
        return self.now

    def call_later(self, delay_us, callback):
        self.timers.append((self.now + delay_us, callback))

    def pass_time(self, us):
        end = self.now + us
        while self.timers and min(self.timers)[0] <= end:
            self.timers.sort(key=lambda timer: timer[0])
            self.now, callback = self.timers.pop(0)
            callback()
        self.now = end


class FakeGroup(ReplicatedGroup):
    """Only what is asked of a group that leads with two followers, 2 and 3."""

    __slots__ = ("asked", "fake_peers", "is_leader", "refuses")

    def __init__(self, reactor):
        self.asked = []
        self.is_leader = True
        self.refuses = False
        self.committed_position = cast(Any, 10)
        self.fake_peers = lambda: [peer(2, 9, reactor.now), peer(3, 10, reactor.now)]

    leads = property(lambda self: self.is_leader)
    peers = property(lambda self: self.fake_peers())
    configuration = property(lambda _: Configuration(cast(Any, (1, 2, 3))))

    def transfer(self, to):
        self.asked.append(to)
        if self.refuses:
            raise Retriable("not now")


def peer(replica, durable, contact_us):
    return PeerState(*cast(Any, (replica, durable, durable, contact_us)))


@pytest.fixture
def rig():
    reactor = FakeReactor()
    group = FakeGroup(reactor)
    storage = SimpleNamespace(accepts_writes=False)
    partition = SimpleNamespace(group=group, log=SimpleNamespace(name="t/0"))
    FullDisk(cast(Any, reactor), storage, cast(Any, SimpleNamespace(by_group={7: partition}))).start()
    return SimpleNamespace(reactor=reactor, group=group, storage=storage)


def test_the_follower_that_has_everything_takes_the_lead_and_is_asked_once_in_a_while(rig):
    rig.reactor.pass_time(AGAIN_US)
    assert rig.group.asked == [3]
    rig.reactor.pass_time(AGAIN_US)
    assert rig.group.asked == [3, 3]


def test_a_disk_with_space_hands_nothing_over(rig):
    rig.storage.accepts_writes = True
    rig.reactor.pass_time(3 * AGAIN_US)
    assert not rig.group.asked
    rig.storage.accepts_writes = False
    rig.reactor.pass_time(LOOK_US)
    assert rig.group.asked == [3]


def test_a_disk_that_fills_up_again_hands_over_at_once(rig):
    rig.reactor.pass_time(LOOK_US)
    rig.storage.accepts_writes = True
    rig.reactor.pass_time(LOOK_US)
    rig.storage.accepts_writes = False
    rig.reactor.pass_time(LOOK_US)
    assert rig.group.asked == [3, 3]


def test_followers_that_lack_something_or_are_silent_get_nothing(rig):
    rig.group.fake_peers = lambda: [peer(2, 9, rig.reactor.now), peer(3, 10, rig.reactor.now - HEARD_US)]
    rig.reactor.pass_time(AGAIN_US)
    assert not rig.group.asked


def test_a_learner_is_not_asked(rig):
    rig.group.fake_peers = lambda: [peer(4, 10, rig.reactor.now)]
    rig.reactor.pass_time(AGAIN_US)
    assert not rig.group.asked


def test_a_replica_that_follows_and_a_refused_handover_change_nothing(rig):
    rig.group.refuses = True
    rig.reactor.pass_time(LOOK_US)
    rig.group.is_leader = False
    rig.reactor.pass_time(2 * AGAIN_US)
    assert rig.group.asked == [3]
