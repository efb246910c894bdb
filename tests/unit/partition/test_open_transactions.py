"""Metrics of transactions that are open in partitions led here."""

from types import SimpleNamespace

from millstream.core.txn.partition_state import PartitionTransactions
from millstream.partition.append.open_transactions import LATE_MS, OpenTransactions
from millstream.raft.group import GroupRole

TIMEOUT_MS = 60_000


class World:
    """Partitions by Raft group, and a clock."""

    def __init__(self, *groups):
        self.us = 1_000_000
        self.partitions = {
            group: SimpleNamespace(
                raft_group=group, transactions=PartitionTransactions(), group=SimpleNamespace(role=GroupRole.LEADING)
            )
            for group in groups
        }
        self.values = {}
        stats = SimpleNamespace(gauge=lambda name: SimpleNamespace(set=lambda value: self.values.update({name: value})))
        shard = SimpleNamespace(reactor=SimpleNamespace(now_us=lambda: self.us), stats=stats)
        self.watch = OpenTransactions(shard, SimpleNamespace(by_group=self.partitions), TIMEOUT_MS)

    def look(self, after_ms=0):
        """(open, age of the oldest in s, late partitions)"""
        self.us += after_ms * 1000
        list(self.watch.walk())
        names = ("transaction_open", "transaction_oldest_seconds", "transaction_late_partitions")
        return tuple(self.values[name] for name in names)


def test_a_transaction_that_is_open_for_too_long_is_late_until_it_ends():
    world = World(1, 2)
    assert world.look() == (0, 0, 0)
    world.partitions[1].transactions.began(7, 10)
    world.partitions[2].transactions.began(7, 4)
    assert world.look() == (2, 0, 0)
    world.partitions[2].transactions.ended(7, 5, aborted=False)
    assert world.look(TIMEOUT_MS + LATE_MS) == (1, (TIMEOUT_MS + LATE_MS) // 1000, 0)
    assert world.look(1_000) == (1, (TIMEOUT_MS + LATE_MS) // 1000 + 1, 1)
    world.partitions[1].transactions.ended(7, 11, aborted=True)
    world.partitions[1].transactions.began(7, 12)
    assert world.look(1_000) == (1, 0, 0), "another transaction of the same producer"


def test_what_is_open_on_a_follower_is_the_leaders():
    world = World(1)
    world.partitions[1].transactions.began(7, 10)
    world.partitions[1].group.role = GroupRole.FOLLOWING
    assert world.look() == (0, 0, 0)
