"""A partition whose group has several voters: what the group's events change, and who may look at how much of the log.

::

    on_lead ──► appends are taken                       on_serving ──► coordinators load, ListOffsets answers
    on_resign ─► acks are answered: unknown outcome ──► coordinators unload
    on_replicated ─► idempotent producers of a follower, so that it can lead
    on_truncate ──► what the cut batches changed of them is undone
    on_commit ────► high watermark; what is below is never cut; acks=all
    on_synced ────► acks=1

Retention and compaction look at what is committed only, retention of the leader alone: the new start is agreed, and
each replica trims when it is committed. Snapshots of the producers are as of a committed offset, so that after a crash
a truncation finds nothing in them that it takes.

A replica that follows knows everything that a leader knows, and answers no client.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millstream.errors import MillstreamError
from millstream.model.quantities import Offset
from millstream.partition.append.known_producers import enter_batch
from millstream.raft.group import GroupRole
from millstream.wire.records import CONTROL, HEADER_BYTES, marker_of, unpack_header

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.core.producer_state import ProducerState
    from millstream.model.replication import Term
    from millstream.partition.partition import Partition
    from millstream.partition.table import PartitionTable
    from millstream.storage.log.entries import SentBatch


def follow_group(partition: Partition, table: PartitionTable, now_ms: Callable[[], int]) -> None:
    """Connect a partition with its group, which was just opened. The producers keep changes already
    (``ProducerState.keep_changes``). ``now_ms`` is the wall clock.
    """
    group, log, producers, events = partition.group, partition.log, partition.producers, partition.group.events

    partition.waiters.own_acks = deque()

    def on_commit(high_watermark: Offset) -> None:
        producers.committed(Offset(group.committed_offset))
        partition.on_commit(high_watermark)
        partition.waiters.synced(high_watermark)

    def on_lead(_term: Term) -> None:
        partition.gaps.expect(now_ms())
        partition.lead()
        table.leads(partition)

    def on_serving(_term: Term) -> None:
        table.serves(partition)

    def on_resign() -> None:
        partition.resign()
        table.resigned(partition)

    def on_replicated(batches: Sequence[SentBatch]) -> None:
        record_batches(producers, batches, now_ms())

    def on_truncate(offset: Offset) -> None:
        producers.take_back(offset)
        partition.high_watermark = min(partition.high_watermark, offset)

    def move_start(start: Offset) -> None:
        if group.role is not GroupRole.LEADING:
            return
        try:
            group.propose_log_start(start)
        except MillstreamError:
            return  # retention asks again

    events.on_commit = on_commit
    events.on_synced = partition.waiters.synced
    events.on_lead = on_lead
    events.on_serving = on_serving
    events.on_resign = on_resign
    events.on_replicated = on_replicated
    events.on_truncate = on_truncate
    log.owner.committed = lambda: group.committed_offset
    log.owner.move_start = move_start
    log.owner.producer_snapshot = lambda: producers.snapshot(log.snapshot_offset)


def record_batches(producers: ProducerState, batches: Sequence[SentBatch], now_ms: int) -> None:
    """Enter batches of another leader, as `append` enters those of a client."""
    for batch in batches:
        head = batch.views[0]
        if len(head) < HEADER_BYTES:
            head = memoryview(b"".join(batch.views))
        header = list(unpack_header(head, 0))
        header[0] = batch.base_offset
        if header[5] & CONTROL:
            header += marker_of(b"".join(batch.views))
        enter_batch(producers, header, now_ms)
