"""Transactions that are open in the partitions led here, for the metrics: how many, how old, how many are overdue.

A transaction that is never ended holds back every read_committed reader of its partition, and retention, compaction and
the archive with them. Its coordinator ends each within its timeout, which is at most ``transaction.max.timeout.ms``. So
one that is open for `LATE_MS` longer hangs, or its coordinator does not reach the partition.

The age counts from when this shard first saw the transaction: after a restart or a change of leader it starts at 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.raft.group import GroupRole

if TYPE_CHECKING:
    from collections.abc import Generator

    from millstream.partition.table import PartitionTable
    from millstream.shard.context import Shard

LATE_MS: Final = 300_000
"""As Apache Kafka allows before it counts a partition among ``PartitionsWithLateTransactionsCount``."""

_LOOK_US: Final = 1_000_000
_SHARE: Final = 0.1
_SLICE: Final = 1024
"""Partitions of a step: most of them have no open transaction, and cost 0.1 µs each."""

_Key = tuple[int, int, int]
"""(Raft group, producer id, first offset)"""


class OpenTransactions:
    """The watch of one shard. Lifecycle: made with the shard; ``start`` once."""

    def __init__(self, shard: Shard, table: PartitionTable, timeout_max_ms: int) -> None:
        """``timeout_max_ms`` is the largest timeout that a producer may ask for."""
        self._reactor = shard.reactor
        self._table = table
        self._late_us = (timeout_max_ms + LATE_MS) * 1000
        self._seen_us: dict[_Key, int] = {}
        self._open = shard.stats.gauge("transaction_open")
        self._oldest = shard.stats.gauge("transaction_oldest_seconds")
        self._late = shard.stats.gauge("transaction_late_partitions")

    def start(self) -> None:
        """Look every second from now on."""
        self._reactor.call_later(_LOOK_US, self._look)

    def _look(self) -> None:
        self._reactor.background("other", self.walk(), _SHARE, self.start)

    def walk(self) -> Generator[None, None, None]:
        """Look at every partition once, in slices, and set the metrics."""
        now_us = self._reactor.now_us()
        seen: dict[_Key, int] = {}
        oldest_us, late = now_us, 0
        partitions = list(self._table.by_group.values())
        for begin in range(0, len(partitions), _SLICE):
            for partition in [part for part in partitions[begin : begin + _SLICE] if part.transactions.open]:
                if partition.group.role is not GroupRole.LEADING:
                    continue
                first_us = now_us
                for producer_id, first_offset in partition.transactions.open.items():
                    key = (partition.raft_group, producer_id, first_offset)
                    seen[key] = self._seen_us.get(key, now_us)
                    first_us = min(first_us, seen[key])
                oldest_us = min(oldest_us, first_us)
                late += now_us - first_us > self._late_us
            yield
        self._seen_us = seen
        self._open.set(len(seen))
        self._oldest.set((now_us - oldest_us) // 1_000_000)
        self._late.set(late)
