"""Markers: the control batches with which a coordinator ends a transaction in a partition (KIP-98).

A marker is appended like a batch of the broker's own, and its writer is notified when it is committed; only then can
read_committed consumers read past the transaction. ``Markers`` writes to the partitions of its shard and has other
shards write to theirs.

A marker of an older coordinator, or of an older epoch than the producer's, is refused and changes nothing. Of a
transaction that ends with a new epoch (KIP-890 version 2) a marker is written once: what comes again is acknowledged
without another, also in the middle of the producer's next transaction. A marker for a producer without an open
transaction here is acknowledged and not written: it would end nothing, and a log that bears no markers (an event
topic's) never gets one. What such a producer still sends is asked about at its coordinator, which refuses it
(`core.txn.partition_state`). An append that finds no memory waits before the appends of clients.
A crash loses no marker whose writer was notified; the coordinator writes the others again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from millstream.errors import MillstreamError
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import CoordinatorEpoch, ProducerEpoch, ProducerId, RaftGroupId, TransactionVersion
from millstream.partition.hop.lookups import TIMEOUT_US
from millstream.partition.partition import Partition, own_append
from millstream.partition.table import Elsewhere, Remote
from millstream.wire.records import ABORT, COMMIT, build_batch, control_record

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.table import PartitionTable
    from millstream.shard.mailbox import Mailbox, Reply
    from millstream.shard.reactor import Reactor

WRITE_MARKER: Final = 38
EPOCH_PER_TRANSACTION: Final = 2
"""Transaction version from which every transaction ends with a new epoch."""


class Marker(NamedTuple):
    """The end of a producer's transaction, for one partition or several."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commits: bool
    coordinator_epoch: CoordinatorEpoch
    transaction_version: TransactionVersion


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[int, Marker]).decode
_decode_code = msgspec.msgpack.Decoder(int).decode


class Markers:
    """Writes markers from one shard.

    Lifecycle: made with the shard's ``Home``. Shard: one each.
    """

    def __init__(self, mailbox: Mailbox, reactor: Reactor, table: PartitionTable) -> None:
        self._mailbox = mailbox
        self._reactor = reactor
        self._table = table
        mailbox.serve(WRITE_MARKER, self._serve)

    def write(self, place: tuple[str, int], marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Write a marker to a partition (topic, index) that this broker leads; ``done`` is called once, when it is
        committed or with why it is not.
        """
        entry = self._table.find(*place)
        if isinstance(entry, Partition):
            append_marker(entry, marker, self._reactor.wall_ms(), done)
        elif isinstance(entry, Elsewhere):
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif isinstance(entry, Remote):

            def answered(answer: bytes | memoryview | MillstreamError) -> None:
                done(answer.code if isinstance(answer, MillstreamError) else ErrorCode(_decode_code(answer)))

            self._mailbox.call(entry.shard, WRITE_MARKER, _encode((entry.raft_group, marker)), answered, TIMEOUT_US)
        else:
            done(self._table.missing(place[0]) if entry is None else ErrorCode.KAFKA_STORAGE_ERROR)

    def _serve(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        _ = sender
        raft_group, marker = _decode(payload)
        partition = self._table.by_group.get(raft_group)
        if partition is None:
            reply.send(_encode(int(self._table.gone(RaftGroupId(raft_group)))))
        else:
            append_marker(partition, marker, self._reactor.wall_ms(), lambda code: reply.send(_encode(int(code))))


def append_marker(partition: Partition, marker: Marker, now_ms: int, done: Callable[[ErrorCode], None]) -> None:
    """Write a marker to a partition of this shard; ``done`` gets NONE when it is committed. ``now_ms`` is the wall
    clock.
    """
    waiting = _MarkerAppend(partition, marker, done)

    def attempt() -> bool:
        outcome = _try(partition, marker, now_ms)
        if outcome is None and partition.admission is not None:
            return False
        waiting.start(outcome if outcome is not None else ErrorCode.NOT_ENOUGH_REPLICAS)
        return True

    own_append(partition.admission, attempt)


def _try(partition: Partition, marker: Marker, now_ms: int) -> int | ErrorCode | None:
    """End offset of the marker (exclusive) or why it was not written; None: no memory now."""
    try:
        return _append(partition, marker, now_ms)
    except Exception as error:  # noqa: BLE001 - the boundary
        partition.failed("marker", error)
        return ErrorCode.REQUEST_TIMED_OUT


def _append(partition: Partition, marker: Marker, now_ms: int) -> int | ErrorCode | None:
    if partition.refusal:
        return partition.refusal
    producers = partition.producers
    who = (marker.producer_id, marker.producer_epoch, marker.coordinator_epoch)
    error = producers.check_marker(*who)
    if error is not ErrorCode.NONE:
        return error
    with_epoch = marker.transaction_version >= EPOCH_PER_TRANSACTION
    if not producers.takes_marker(*who, with_epoch=with_epoch):
        return partition.log.next_offset
    batch = build_batch(
        [control_record(COMMIT if marker.commits else ABORT, marker.coordinator_epoch, now_ms)],
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transactional=True,
        control=True,
    )
    try:
        base = partition.group.replicate((memoryview(batch),), len(batch), 1, now_ms)
    except ArenaFull:
        return None
    except MillstreamError as refused:
        return refused.code
    producers.end_transaction(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        base,
        now_ms,
        committed=marker.commits,
        with_epoch=with_epoch,
    )
    return base + 1


class _MarkerAppend:
    """Waits for the commit of one marker (``partition.AckWaiter``)."""

    __slots__ = ("done", "marker", "partition")

    def __init__(self, partition: Partition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        self.partition = partition
        self.marker = marker
        self.done = done

    def start(self, outcome: int | ErrorCode) -> None:
        """Take the outcome of ``_append``."""
        if isinstance(outcome, ErrorCode):
            self.done(outcome)
        elif outcome <= self.partition.high_watermark:
            self.acked(0)
        else:
            self.partition.waiters.acks.append((outcome, self, 0))

    def acked(self, slot: int) -> None:
        assert slot == 0
        ended = self.partition.waiters.on_transaction_ended
        if ended is not None:
            ended(self.marker.producer_id, self.marker.commits)
        self.done(ErrorCode.NONE)

    def expire(self, now_us: int) -> None:
        """The coordinator waits for as long as it takes."""

    def failed(self, slot: int, error: ErrorCode) -> None:
        assert slot == 0
        self.done(error)
