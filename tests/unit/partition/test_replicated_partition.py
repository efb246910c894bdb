"""Partitions over real groups of three voters: acknowledgements, fail-over, leader epochs, appends that do not fit."""

from collections import deque
from typing import Any

import pytest
from append_support import NOW, Acks, batch, put

from millstream.config.settings import Settings
from millstream.config.topic_resolution import topic_config
from millstream.core.producer_state import ProducerBudget, ProducerState
from millstream.core.raft.messages import Append, LogPoint, TermRun
from millstream.model.error_code import ErrorCode
from millstream.partition.meters import Meters
from millstream.partition.partition import Partition
from millstream.partition.read.epoch_end import epoch_end
from millstream.partition.replica.following import follow_group
from millstream.partition.table import PartitionTable
from millstream.telemetry.metrics import StatsSlab
from sim.brokers.world import Broker, Cluster
from sim.engine.local_storage import plain_batch

NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


class Partitions:
    """A partition on each broker of a cluster that has elected a leader."""

    def __init__(self, seed: int) -> None:
        self.cluster = Cluster(seed)
        self.of: dict[Broker, Partition] = {}
        settings = Settings(data_dir="/nowhere")
        for broker in self.cluster.brokers.values():
            producers = ProducerState(60_000, ProducerBudget(10))
            producers.keep_changes()
            group: Any = broker.group
            made = Partition(
                "t", bytes(16), 0, 7, broker.log, group, topic_config({}, settings), producers, Meters(StatsSlab())
            )
            table = PartitionTable()
            table.add("t", bytes(16), made)
            follow_group(made, table, lambda: NOW)
            self.of[broker] = made
        assert self.cluster.run(lambda: self.cluster.leader() is not None)
        leader = self.cluster.leader()
        assert leader is not None
        self.leader = leader
        self.others = [one for one in self.cluster.brokers.values() if one is not leader]

    def send(self, broker: Broker, acks: Acks, slot: int, *, own_sync: bool) -> tuple[int, int, int, int]:
        partition = self.of[broker]
        broker.idle = False
        outcome = put(partition, batch())
        assert not outcome.error_code, outcome
        partition.park((outcome.end_offset, acks, slot), own_sync=own_sync)
        return outcome

    def isolate(self, broker: Broker) -> None:
        others = [one for one in self.cluster.brokers.values() if one is not broker]
        ways = [(broker.replica, one.replica) for one in others]
        self.cluster.cut = {*ways, *((to, sender) for sender, to in ways)}

    def another_leader(self) -> Broker:
        assert self.cluster.run(lambda: self.cluster.leader() in self.others)
        leader = self.cluster.leader()
        assert leader is not None
        return leader


def test_acks_1_waits_for_the_own_disk_and_acks_all_for_the_quorum() -> None:
    all_of = Partitions(1)
    cluster, leader = all_of.cluster, all_of.leader
    acks = Acks()
    all_of.send(leader, acks, 0, own_sync=False)
    assert cluster.run(lambda: acks.acked_slots == [0])
    for other in all_of.others:
        other.hang_disk(400_000)
    all_of.send(leader, acks, 1, own_sync=False)
    all_of.send(leader, acks, 2, own_sync=True)
    assert acks.acked_slots == [0], "nothing is synced yet"
    assert cluster.run(lambda: len(acks.acked_slots) > 1, 300_000)
    assert acks.acked_slots == [0, 2]
    assert all_of.of[leader].high_watermark == 1, "one disk of three has it"
    assert cluster.run(lambda: acks.acked_slots == [0, 2, 1])
    put_again = all_of.send(leader, acks, 3, own_sync=True)
    assert cluster.run(lambda: acks.acked_slots[-1] == 3) and put_again.end_offset == 4


def test_who_waits_is_told_first_and_another_leaders_commit_acknowledges_nothing() -> None:
    all_of = Partitions(2)
    cluster, leader = all_of.cluster, all_of.leader
    acks = Acks()
    all_of.isolate(leader)
    leader.hang_disk(10_000_000)
    ends = [all_of.send(leader, acks, slot, own_sync=slot == 1).end_offset for slot in range(2)]
    told: deque[Any] = deque()
    resign = leader.group.events.on_resign

    def resigns() -> None:
        resign()
        told.append((list(acks.failed_slots), leader.group.high_watermark, leader.log.next_offset))

    leader.group.events.on_resign = resigns
    second = all_of.another_leader()
    theirs = Acks()
    for slot in range(3):
        all_of.send(second, theirs, slot, own_sync=False)
    assert cluster.run(lambda: len(theirs.acked_slots) == 3)
    cluster.heal()
    cluster.settle()
    assert told[0] == ([(0, NOT_LEADER), (1, NOT_LEADER)], 0, ends[-1]), "before anything was cut or committed"
    assert all_of.of[leader].high_watermark == 3, "their batches stand at the same offsets"
    assert acks.acked_slots == []
    assert all_of.of[leader].waiters.acks == all_of.of[leader].waiters.own_acks == deque()


def test_the_ends_of_leader_epochs_survive_a_fail_over() -> None:
    all_of = Partitions(3)
    cluster, leader = all_of.cluster, all_of.leader
    first_term = leader.group.term
    acks = Acks()
    all_of.send(leader, acks, 0, own_sync=False)
    assert cluster.run(lambda: bool(acks.acked_slots))
    all_of.isolate(leader)
    for slot in range(1, 4):
        all_of.send(leader, acks, slot, own_sync=False)
    assert epoch_end(all_of.of[leader], -1, first_term) == (0, first_term, 4), "it does not know better yet"
    second = all_of.another_leader()
    all_of.send(second, acks, 9, own_sync=False)
    assert cluster.run(lambda: 9 in acks.acked_slots)
    term = second.group.term
    partition = all_of.of[second]
    assert epoch_end(partition, term, first_term) == (0, first_term, 1), "a reader at 2 has to go back"
    assert epoch_end(partition, term, term) == (0, term, 2)
    assert epoch_end(partition, first_term, term)[0] == ErrorCode.FENCED_LEADER_EPOCH
    assert epoch_end(partition, term + 1, term)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
    cluster.heal()
    cluster.settle()
    assert epoch_end(all_of.of[leader], -1, first_term) == (NOT_LEADER, -1, -1)


@pytest.mark.parametrize("what", ["offset", "term", "inside of a batch"])
def test_an_append_that_does_not_continue_the_log_is_refused_and_told(
    what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    all_of = Partitions(4)
    cluster, leader = all_of.cluster, all_of.leader
    acks = Acks()
    all_of.send(leader, acks, 0, own_sync=False)
    assert cluster.run(lambda: bool(acks.acked_slots))
    assert leader.append(77, count=5)
    cluster.settle()
    follower = all_of.others[0]
    group, log = follower.group, follower.log
    position: Any = log.next_raft_position
    current: Any = group.term
    end, offset, term = position, log.next_offset, current
    prev = LogPoint(end, term)
    of, base = current, offset
    if what == "offset":
        base = offset + 1
    elif what == "term":
        of = term - 1
    else:
        prev = LogPoint(end - 2, term)
        base, of = offset - 2, term + 1
    data = plain_batch(base, 3, epoch=of)
    at: Any = prev.position
    run = TermRun(at + 3, of)
    nothing: Any = 0
    bad = Append(max(of, term), prev, (run,), (), nothing, nothing, 1)
    capfd.readouterr()
    group.on_message(leader.replica, bad, [memoryview(data)])
    assert "is dropped: " in capfd.readouterr().err
    assert (log.next_raft_position, log.next_offset) == (end, offset)
    follower.idle = leader.idle = False
    assert leader.append(78)
    cluster.settle()
    assert log.next_offset == offset + 1
