"""State of a partition's idempotent producers, so that a batch sent twice is stored once.

A producer numbers its records per partition. For each producer id the partition keeps the producer's epoch, the
sequence number that must come next, and its last five batches (a client has at most five requests in flight, so a retry
can only be one of these). A batch is then one of three things::

The rules are those of Apache Kafka 4.3 for writes without a transaction (KIP-98, KIP-360). An unknown producer may
start at any sequence (its state may have expired, or its records may have been deleted). A known producer with a new
epoch starts at 0. A lower epoch is fenced. Sequences wrap from 2^31 - 1 to 0. An old batch that is no longer among the
last five is out of order, never DUPLICATE_SEQUENCE_NUMBER (Kafka stopped returning that since it keeps five
batches).

A duplicate may be found before its first copy is durable. The caller must then hold the response until the high
watermark covers the first copy (``Duplicate.base_offset + record_count``); otherwise a crash could lose acknowledged
records.

A ``ProducerBudget`` shared by all partitions of a shard bounds memory: beyond it, the producer with the oldest append
on the shard is evicted. An evicted or expired producer is unknown, and its next batch is accepted as it is. A bound
that is too small thus costs protection against duplicates, never availability.

In a log with several replicas a truncation may take batches back. What such a batch changed is kept until it is
committed (``keep_changes``), so that ``take_back`` undoes it, and a snapshot is made as of a committed offset.

A crash loses nothing, because the state is a function of the log. It is rebuilt from a snapshot (``snapshot``,
``load``) and the batch headers after it, each passed to ``record``, or to ``end_transaction`` for a marker. A snapshot
with a wrong checksum raises ``Corruption``, and the caller replays the whole log. Pure: the caller passes the time.

Which transactions of the producers are open, and which were aborted, is in ``transactions`` (``core.txn``). It shares
the snapshot and the truncation, not the budget: an evicted producer's open transaction still ends with its marker.
"""

from __future__ import annotations

import heapq
import struct
from collections import OrderedDict, deque
from enum import Enum
from typing import Final, Literal, NamedTuple

import msgspec
from crc32c import crc32c

from millstream.core.txn.image import EPOCH_MAX
from millstream.core.txn.partition_state import PartitionTransactions
from millstream.errors import Corruption
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import CoordinatorEpoch, Offset, ProducerEpoch, ProducerId, Sequence

BATCHES_KEPT: Final = 5
"""Maximum in-flight batches of a client with idempotence (``max.in.flight.requests.per.connection``)."""

LAST_SEQUENCE: Final = 0x7FFF_FFFF
_NO_EPOCH: Final = -1

_SNAPSHOT_HEAD: Final = struct.Struct(">BI")  # format version, number of producers
_SNAPSHOT_PRODUCER: Final = struct.Struct(">qhiqB")  # id, epoch, next sequence, last append (ms), number of batches
_SNAPSHOT_BATCH: Final = struct.Struct(">iiqq")  # base sequence, record count, base offset, timestamp
_SNAPSHOT_CRC: Final = struct.Struct(">I")  # CRC-32C of everything before it
_SNAPSHOT_COORDINATOR: Final = struct.Struct(">i")  # coordinator epoch of the last marker, after a producer's batches
_SNAPSHOT_VERSION: Final = 2
_WITHOUT_TRANSACTIONS: Final = 1
"""Version of snapshots that say nothing of transactions."""

_ANY_SEQUENCE: Final = -1
"""Next sequence of a producer of whom only a marker is known."""


class Verdict(Enum):
    """The only verdict without data."""

    APPEND = "append"


Append: Final = Verdict.APPEND


class Duplicate(msgspec.Struct, frozen=True):
    """The batch is already in the log at ``base_offset``. ``timestamp`` is its max timestamp in ms."""

    base_offset: Offset
    record_count: int
    timestamp: int


class _Producer:
    """One producer id. ``batches`` holds (base sequence, record count, base offset, timestamp), oldest first."""

    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_append_ms", "next_sequence")

    def __init__(self, epoch: int, next_sequence: int, last_append_ms: int) -> None:
        self.epoch = epoch
        self.coordinator_epoch = -1
        """Epoch of the coordinator that wrote the producer's last marker; -1 for none."""
        self.next_sequence = next_sequence
        self.last_append_ms = last_append_ms
        self.batches: list[tuple[int, int, int, int]] = []

    def copy(self) -> _Producer:
        """The same, apart."""
        other = _Producer(self.epoch, self.next_sequence, self.last_append_ms)
        other.batches = list(self.batches)
        other.coordinator_epoch = self.coordinator_epoch
        return other


class _Change(NamedTuple):
    """What a batch changed: it ends at ``end_offset``, and its producer was ``before``, None if unknown."""

    end_offset: int
    producer_id: ProducerId
    before: _Producer | None


class ProducerBudget:
    """The limit on producers in all partitions of a shard. Evicts the producer with the oldest append.

    Eviction needs the partition with the oldest producer. A heap holds each partition with a time at or before its
    oldest producer's append. Those times only grow, so an outdated entry is pushed again with its real time and the
    next one is tried. The append of a known producer costs nothing.
    """

    __slots__ = ("_heap", "_order", "_prune_at", "count", "evicted", "limit")

    def __init__(self, limit: int) -> None:
        assert limit > 0
        self.limit = limit
        self.count = 0
        self.evicted = 0
        self._heap: list[tuple[int, int, ProducerState]] = []
        self._order = 0
        self._prune_at = 64

    def watch(self, state: ProducerState, oldest_ms: int) -> None:
        """``state`` has producers again; the oldest appended at ``oldest_ms``."""
        self._order += 1
        heapq.heappush(self._heap, (oldest_ms, self._order, state))
        if len(self._heap) >= self._prune_at:
            self._prune()

    def _prune(self) -> None:
        """Drop partitions without producers, closed ones included. Runs when the heap has doubled."""
        kept: list[tuple[int, int, ProducerState]] = []
        for entry in self._heap:
            state = entry[2]
            # the newest state is about to get its first producer
            state.watched = len(state) > 0 or entry[1] == self._order
            if state.watched:
                kept.append(entry)
        heapq.heapify(kept)
        self._heap = kept
        self._prune_at = 2 * len(kept) + 64

    def evict_one(self) -> None:
        """Drop the shard's producer with the oldest append."""
        heap = self._heap
        while heap:
            believed_ms, _, state = heap[0]
            oldest_ms = state.oldest_append_ms()
            if oldest_ms is None:
                heapq.heappop(heap)
                state.watched = False
                continue
            if oldest_ms <= believed_ms or len(heap) == 1:
                state.evict_oldest()
                self.evicted += 1
                return
            self._order += 1
            heapq.heapreplace(heap, (oldest_ms, self._order, state))


class ProducerState:
    """The producers of one partition.

    Lifecycle: one per open partition, on its home shard. ``clear`` returns its share of the budget. Invariant:
    ``_producers`` is ordered by last append, oldest first.
    """

    __slots__ = ("_budget", "_producers", "_uncommitted", "expiration_ms", "transactions", "watched")

    def __init__(self, expiration_ms: int, budget: ProducerBudget) -> None:
        self.expiration_ms = expiration_ms
        self._budget = budget
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self._uncommitted: deque[_Change] | None = None
        """What each batch changed that a truncation may still take, oldest first; None in a log that is never cut."""
        self.transactions = PartitionTransactions()
        self.watched = False
        """True while the budget's heap holds this state. Only the budget writes it."""

    def __len__(self) -> int:
        return len(self._producers)

    def check(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: Sequence, record_count: int
    ) -> Literal[Verdict.APPEND] | Duplicate | ErrorCode:
        """Decide about a client's batch, without changing anything. ``producer_id`` is >= 0."""
        producer = self._producers.get(producer_id)
        if producer is not None and base_sequence == producer.next_sequence and producer_epoch == producer.epoch:
            return Append
        if base_sequence < 0:
            return ErrorCode.INVALID_RECORD
        if producer is None:
            return Append
        return self._check_unusual(producer, producer_epoch, base_sequence, record_count)

    @staticmethod
    def _check_unusual(
        producer: _Producer, producer_epoch: ProducerEpoch, base_sequence: int, record_count: int
    ) -> Literal[Verdict.APPEND] | Duplicate | ErrorCode:
        if producer_epoch == producer.epoch:
            for sequence, count, base_offset, timestamp in producer.batches:
                if sequence == base_sequence and count == record_count:
                    return Duplicate(Offset(base_offset), count, timestamp)
            # Kafka accepts any sequence of a producer whose epoch is "none", so it is accepted here.
            anything = producer_epoch == _NO_EPOCH or producer.next_sequence == _ANY_SEQUENCE
            return Append if anything else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if producer_epoch < producer.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if base_sequence == 0 or producer.epoch == _NO_EPOCH:
            return Append
        return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def record(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: Sequence,
        record_count: int,
        base_offset: Offset,
        timestamp: int,
        now_ms: int,
    ) -> None:
        """Record a batch that is in the log, or that a replay finds there. ``record_count`` is the last offset delta
        plus one.

        ``timestamp`` is the batch's max timestamp. ``now_ms`` is the wall clock, from which expiry counts.
        """
        producer = self._touch(producer_id, producer_epoch, base_offset + record_count, now_ms)
        batches = producer.batches
        if batches and base_offset <= batches[-1][2]:
            return  # known from a snapshot that is ahead of the log
        producer.next_sequence = (base_sequence + record_count) & LAST_SEQUENCE
        batches.append((base_sequence, record_count, base_offset, timestamp))
        if len(batches) > BATCHES_KEPT:
            del batches[0]

    def record_epoch(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, end_offset: int, now_ms: int
    ) -> None:
        """Record a batch without a sequence that is in the log, or that a replay finds there: offsets that a
        transaction commits. ``end_offset`` is exclusive.
        """
        known = producer_id in self._producers
        producer = self._touch(producer_id, producer_epoch, end_offset, now_ms)
        if not known:
            producer.next_sequence = _ANY_SEQUENCE

    def _touch(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, end_offset: int, now_ms: int) -> _Producer:
        """The producer, in ``producer_epoch``, as the one with the newest append."""
        producers = self._producers
        producer = producers.get(producer_id)
        if self._uncommitted is not None:
            before = None if producer is None else producer.copy()
            self._uncommitted.append(_Change(end_offset, producer_id, before))
        if producer is None:
            return self._admit(producer_id, producer_epoch, now_ms)
        producers.move_to_end(producer_id)
        producer.last_append_ms = now_ms
        if producer.epoch != producer_epoch:
            producer.epoch = producer_epoch
            producer.batches.clear()
            producer.next_sequence = 0
        return producer

    def epoch_of(self, producer_id: ProducerId) -> int | None:
        """The producer's epoch; None if it is unknown."""
        producer = self._producers.get(producer_id)
        return None if producer is None else producer.epoch

    def check_epoch(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> ErrorCode:
        """NONE unless the producer is known in a later epoch."""
        producer = self._producers.get(producer_id)
        fenced = producer is not None and producer_epoch < producer.epoch
        return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else ErrorCode.NONE

    def check_marker(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch, coordinator_epoch: CoordinatorEpoch
    ) -> ErrorCode:
        """Decide about a marker, without changing anything: an older coordinator or an older producer is fenced."""
        producer = self._producers.get(producer_id)
        if producer is not None and coordinator_epoch < producer.coordinator_epoch:
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        if self.transactions.is_outdated(producer_id, coordinator_epoch):
            return ErrorCode.TRANSACTION_COORDINATOR_FENCED
        return self.check_epoch(producer_id, producer_epoch)

    def takes_marker(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        coordinator_epoch: CoordinatorEpoch,
        *,
        with_epoch: bool,
    ) -> bool:
        """Whether a marker that was checked has to be written. If not, the log has it already, or the producer has no
        transaction open here; its writer may be answered once all that is in the log now is committed.
        """
        if with_epoch and self.epoch_of(producer_id) == producer_epoch < EPOCH_MAX:
            return False  # what is open is the next transaction; none starts in the last epoch
        if producer_id in self.transactions.open:
            return True
        self.transactions.voided(producer_id, coordinator_epoch, producer_epoch if with_epoch else producer_epoch + 1)
        return False

    def end_transaction(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        coordinator_epoch: CoordinatorEpoch,
        offset: Offset,
        now_ms: int,
        *,
        committed: bool,
        with_epoch: bool = False,
    ) -> None:
        """Record a marker that is in the log at ``offset``. A later epoch than the producer's fences what it still
        sends in that one (KIP-890). ``with_epoch``: the transaction has ended with the epoch of the marker, which is
        that of the producer's next one.
        """
        known = producer_id in self._producers
        producer = self._touch(producer_id, producer_epoch, offset + 1, now_ms)
        producer.coordinator_epoch = coordinator_epoch
        if not known:
            producer.next_sequence = _ANY_SEQUENCE
        next_epoch = producer_epoch if with_epoch else producer_epoch + 1
        self.transactions.ended(producer_id, offset, aborted=not committed, next_epoch=next_epoch)

    # A log with several replicas, whose end may be cut

    def keep_changes(self) -> None:
        """From now on keep what each batch changes, until `committed` covers it or `take_back` undoes it."""
        self._uncommitted = deque()

    def committed(self, end_offset: Offset) -> None:
        """No truncation takes what is below ``end_offset`` (exclusive)."""
        changes = self._uncommitted
        while changes and changes[0].end_offset <= end_offset:
            changes.popleft()
        self.transactions.committed(end_offset)

    def take_back(self, offset: Offset) -> None:
        """The log is cut at ``offset``: undo what the batches from there on changed. They are not committed."""
        self.transactions.take_back(offset)
        changes = self._uncommitted
        while changes and changes[-1].end_offset > offset:
            _, producer_id, before = changes.pop()
            producer = self._producers.get(producer_id)
            if producer is None:
                continue  # evicted since
            if before is None:
                del self._producers[producer_id]
                self._budget.count -= 1
            else:
                # The time of the last append stays: producers are in the order of it.
                producer.epoch, producer.next_sequence = before.epoch, before.next_sequence
                producer.batches, producer.coordinator_epoch = before.batches, before.coordinator_epoch

    def _as_of(self, committed_offset: Offset | None) -> dict[int, _Producer]:
        """The producers, without what batches at or after ``committed_offset`` changed."""
        found = dict(self._producers)
        if self._uncommitted and committed_offset is not None:
            for end_offset, producer_id, before in reversed(self._uncommitted):
                if end_offset <= committed_offset:
                    break
                if before is None:
                    found.pop(producer_id, None)
                elif producer_id in found:
                    found[producer_id] = before
        return found

    def _admit(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, now_ms: int) -> _Producer:
        budget = self._budget
        if budget.count >= budget.limit:
            budget.evict_one()
        budget.count += 1
        if not self.watched:
            self.watched = True
            budget.watch(self, now_ms)
        producer = self._producers[producer_id] = _Producer(producer_epoch, 0, now_ms)
        return producer

    def active(self) -> list[tuple[int, int, int, int, int, int]]:
        """(producer id, epoch, last sequence, timestamp of the last batch in ms, epoch of the last marker's
        coordinator, first offset of the open transaction) of all producers, oldest append first. -1 for what there is
        not.
        """
        return [
            (
                producer_id,
                producer.epoch,
                (producer.next_sequence - 1) & LAST_SEQUENCE if producer.batches else -1,
                producer.batches[-1][3] if producer.batches else -1,
                producer.coordinator_epoch,
                self.transactions.open.get(producer_id, -1),
            )
            for producer_id, producer in self._producers.items()
        ]

    def expire(self, now_ms: int) -> int:
        """Drop producers without an append for ``producer.id.expiration.ms``. Returns their number."""
        horizon_ms = now_ms - self.expiration_ms
        expired = 0
        while (oldest_ms := self.oldest_append_ms()) is not None and oldest_ms <= horizon_ms:
            self.evict_oldest()
            expired += 1
        return expired

    def oldest_append_ms(self) -> int | None:
        """Time of the oldest producer's last append; None without producers."""
        for producer in self._producers.values():
            return producer.last_append_ms
        return None

    def last_offsets(self) -> dict[int, int]:
        """Last offset of each producer. Compaction must keep the header of its batch."""
        return {
            producer_id: producer.batches[-1][2] + producer.batches[-1][1] - 1
            for producer_id, producer in self._producers.items()
            if producer.batches
        }

    def marked_epochs(self) -> dict[int, int]:
        """Epoch of each producer of which only a marker is known. Compaction must keep that marker, which fences the
        epochs before.
        """
        return {producer_id: one.epoch for producer_id, one in self._producers.items() if not one.batches}

    def evict_oldest(self) -> None:
        """Drop the producer with the oldest append."""
        self._producers.popitem(last=False)
        self._budget.count -= 1

    def clear(self) -> None:
        """Drop all producers: before a replay, and when the partition closes."""
        self._budget.count -= len(self._producers)
        self._producers.clear()
        self.transactions.clear()
        if self._uncommitted is not None:
            self._uncommitted.clear()

    def snapshot(self, committed_offset: Offset | None = None, end_offset: Offset | None = None) -> bytes:
        """The state as bytes, oldest append first: the whole of it, or that as of ``committed_offset``. With
        ``end_offset`` it is for a replica whose log ends there and continues to at least ``committed_offset``: it has
        the producers as they will be then, and the transactions as they are at its end.
        """
        producers = self._as_of(committed_offset)
        out = bytearray(_SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, len(producers)))
        for producer_id, producer in producers.items():
            out += _SNAPSHOT_PRODUCER.pack(
                producer_id, producer.epoch, producer.next_sequence, producer.last_append_ms, len(producer.batches)
            )
            for batch in producer.batches:
                out += _SNAPSHOT_BATCH.pack(*batch)
            out += _SNAPSHOT_COORDINATOR.pack(producer.coordinator_epoch)
        out += self.transactions.encode(committed_offset if end_offset is None else end_offset)
        out += _SNAPSHOT_CRC.pack(crc32c(out))
        return bytes(out)

    def load(self, data: bytes) -> None:
        """Replace the state by a snapshot's.

        Raises:
            Corruption: the bytes are not a whole snapshot. The state is then empty.
        """
        self.clear()
        size = len(data) - _SNAPSHOT_CRC.size
        if size < _SNAPSHOT_HEAD.size or _SNAPSHOT_CRC.unpack_from(data, size)[0] != crc32c(data[:size]):
            raise Corruption("a producer snapshot does not match its checksum")
        version, count = _SNAPSHOT_HEAD.unpack_from(data, 0)
        if version not in (_WITHOUT_TRANSACTIONS, _SNAPSHOT_VERSION):
            raise Corruption(f"a producer snapshot has format {version}, this broker reads {_SNAPSHOT_VERSION}")
        position = _SNAPSHOT_HEAD.size
        try:
            for _ in range(count):
                producer_id, epoch, next_sequence, last_append_ms, batches = _SNAPSHOT_PRODUCER.unpack_from(
                    data, position
                )
                position += _SNAPSHOT_PRODUCER.size
                if producer_id in self._producers:
                    raise Corruption(f"a producer snapshot has producer {producer_id} twice")
                producer = self._admit(producer_id, epoch, last_append_ms)
                producer.next_sequence = next_sequence
                for _ in range(batches):
                    producer.batches.append(_SNAPSHOT_BATCH.unpack_from(data, position))
                    position += _SNAPSHOT_BATCH.size
                if version == _SNAPSHOT_VERSION:
                    (producer.coordinator_epoch,) = _SNAPSHOT_COORDINATOR.unpack_from(data, position)
                    position += _SNAPSHOT_COORDINATOR.size
            if version == _SNAPSHOT_VERSION:
                self.transactions.decode(data[position:size])
            elif position != size:
                raise Corruption(f"a producer snapshot has {size - position} bytes too many")
        except struct.error:
            self.clear()
            raise Corruption("a producer snapshot ends before its last producer") from None
        except Corruption:
            self.clear()
            raise
