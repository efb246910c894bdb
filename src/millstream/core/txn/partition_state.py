"""The transactions in the log of one partition: open ones, ended ones, aborted ones.

::

    first batch of a producer ──► open ──marker──► ended ──marker is committed──► aborted, or forgotten

A read_committed consumer may read up to the last stable offset: the first offset of the oldest transaction that is
open, or whose marker is not committed yet; without one the high watermark. Of what is below, it leaves out the aborted
transactions, which `aborted_between` lists.

All of it is a function of the log: it is rebuilt from a snapshot (`encode`, `decode`) and the batches after it. A
truncation takes markers and batches back (`take_back`), so what a marker ended is kept until no truncation can reach it
(`committed`). Aborted transactions are kept, 32 bytes each, until retention or compaction has taken their records.

Beside that it knows which producers' transactions the coordinator has verified (KIP-890). A verification is asked for
with `ask_verification`; its answer counts only if no marker of that transaction came in between. A verification is for
one epoch: a producer that has its next epoch before the marker of its last transaction is here must not join that one.
Verifications are not in the log, and after a crash they are asked for again. A replica that starts to lead forgets the
verifications of its earlier leadership (`leads`), because the leader between may have ended those transactions.

A marker for a producer without an open transaction here ends nothing and is not written (`voided`): it makes
verifications void, and is remembered in memory, so that a marker of an older coordinator is still refused.

Source: KIP-98 (aborted transactions in a fetch), KIP-890 (verification).
"""

from __future__ import annotations

import struct
from array import array
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.errors import Corruption
from millstream.model.quantities import CoordinatorEpoch, Offset, ProducerEpoch, ProducerId

if TYPE_CHECKING:
    from collections.abc import Iterable

_COUNTS: Final = struct.Struct(">II")  # open transactions, aborted transactions
_OPEN: Final = struct.Struct(">qq")  # producer id, first offset
_COLUMNS: Final = 4  # of an aborted transaction: producer id, first offset, marker's offset, last stable offset
_ABORTED_BYTES: Final = 8 * _COLUMNS
_LITTLE_ENDIAN: Final = array("q", [1]).tobytes()[0] == 1
_EVERY_EPOCH: Final = 1 << 16
"""More than any epoch."""
COORDINATORS_KEPT: Final = 1024
"""Producers whose last coordinator is remembered though no marker in the log says it."""


class _Ended(NamedTuple):
    """A transaction whose marker may still be truncated."""

    producer_id: ProducerId
    first_offset: int
    marker_offset: Offset
    last_stable_offset: int
    """Exclusive end of what was stable once the marker was committed."""
    aborted: bool


class _Question:
    """A verification that is asked for; compared by identity."""

    __slots__ = ("epoch",)

    def __init__(self, epoch: ProducerEpoch) -> None:
        self.epoch = epoch


class PartitionTransactions:
    """The transactions of one partition.

    Lifecycle: with the partition's ``ProducerState``. Shard: the partition's home. Invariants: ``open`` is in the order
    of first offsets; ``_ended`` and ``_aborted`` are in the order of markers.
    """

    __slots__ = ("_aborted", "_coordinators", "_ended", "_verified", "_verifying", "open")

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        """Producer id → first offset of its open transaction. Only this class writes it."""
        self._ended: deque[_Ended] = deque()
        self._aborted = array("q")
        self._verified: dict[
            int, int
        ] = {}  # producer id → epoch of which the coordinator says: this partition is in it
        self._verifying: dict[int, _Question] = {}  # producer id → its question, until a marker makes the answer void
        self._coordinators: dict[int, int] = {}
        """Producer id → epoch of the coordinator of its last marker that was not written; oldest first."""

    def __bool__(self) -> bool:
        return bool(self.open or self._ended or self._aborted)

    @property
    def unstable(self) -> bool:
        """Whether the last stable offset may be below the high watermark."""
        return bool(self.open or self._ended)

    # The log

    def began(self, producer_id: ProducerId, base_offset: Offset) -> None:
        """A transactional batch of ``producer_id`` is in the log. Its first one opens the transaction."""
        if producer_id not in self.open:
            self.open[producer_id] = base_offset

    def ended(
        self,
        producer_id: ProducerId,
        marker_offset: Offset,
        *,
        aborted: bool,
        next_epoch: ProducerEpoch = _EVERY_EPOCH,
    ) -> None:
        """A marker of ``producer_id`` is in the log. Without an open transaction it ends nothing. ``next_epoch`` is the
        first epoch whose transactions it does not end.
        """
        self._void(producer_id, next_epoch)
        first = self.open.pop(producer_id, None)
        if first is not None:
            stable = next(iter(self.open.values()), marker_offset + 1)
            self._ended.append(_Ended(producer_id, first, marker_offset, stable, aborted))

    def voided(self, producer_id: ProducerId, coordinator_epoch: CoordinatorEpoch, next_epoch: ProducerEpoch) -> None:
        """A marker of ``producer_id``, which has no open transaction here, came and is not written. ``next_epoch`` is
        the first epoch whose transactions it does not end.
        """
        assert producer_id not in self.open
        self._void(producer_id, next_epoch)
        coordinators = self._coordinators
        coordinators.pop(producer_id, None)
        coordinators[producer_id] = coordinator_epoch
        if len(coordinators) > COORDINATORS_KEPT:
            del coordinators[next(iter(coordinators))]

    def is_outdated(self, producer_id: ProducerId, coordinator_epoch: CoordinatorEpoch) -> bool:
        """Whether a later coordinator has sent a marker of ``producer_id`` that was not written."""
        return coordinator_epoch < self._coordinators.get(producer_id, coordinator_epoch)

    def _void(self, producer_id: ProducerId, next_epoch: int) -> None:
        """Forget verifications, given or asked for, of epochs before ``next_epoch``."""
        if self._verified.get(producer_id, next_epoch) < next_epoch:
            del self._verified[producer_id]
        question = self._verifying.get(producer_id)
        if question is not None and question.epoch < next_epoch:
            del self._verifying[producer_id]

    def leads(self) -> None:
        """This replica starts to lead: what it knows beside the log is of an earlier leadership."""
        self._verified.clear()
        self._verifying.clear()
        self._coordinators.clear()

    def committed(self, end_offset: Offset) -> None:
        """No truncation takes what is below ``end_offset`` (exclusive)."""
        ended = self._ended
        while ended and ended[0].marker_offset < end_offset:
            one = ended.popleft()
            if one.aborted:
                self._aborted.extend(one[:_COLUMNS])

    def take_back(self, offset: Offset) -> None:
        """The log is cut at ``offset``: undo what the batches from there on changed."""
        ended = self._ended
        while ended and ended[-1].marker_offset >= offset:
            one = ended.pop()
            self.open[one.producer_id] = one.first_offset
        left = sorted((first, producer_id) for producer_id, first in self.open.items() if first < offset)
        self.open = {producer_id: first for first, producer_id in left}
        self.leads()

    def trim(self, start_offset: Offset) -> None:
        """The log starts at ``start_offset``: forget aborted transactions whose marker is before that."""
        gone = self._place(start_offset)
        if gone:
            del self._aborted[: gone * _COLUMNS]

    def forget(self, marker_offsets: Iterable[int]) -> None:
        """Compaction found no batch left of the aborted transactions with these markers, and may remove the markers
        from the next pass on. A reader that gets an aborted transaction without a marker would leave out the later
        transactions of its producer, too.
        """
        aborted, kept, done = self._aborted, array("q"), 0
        for marker_offset in sorted(marker_offsets):
            at = self._place(Offset(marker_offset)) * _COLUMNS
            if at < len(aborted) and aborted[at + 2] == marker_offset:
                kept.extend(aborted[done:at])
                done = at + _COLUMNS
        if done:
            kept.extend(aborted[done:])
            self._aborted = kept

    def clear(self) -> None:
        """Forget everything: before a replay, and when the partition closes."""
        self.open.clear()
        self._ended.clear()
        self.leads()
        del self._aborted[:]

    # Reading

    def first_unstable(self, high_watermark: Offset) -> int:
        """First offset of the oldest transaction that is open or whose marker is at or after ``high_watermark``; -1
        without one.
        """
        first = next(iter(self.open.values()), -1)
        for one in reversed(self._ended):
            if one.marker_offset < high_watermark:
                break
            if first < 0 or one.first_offset < first:
                first = one.first_offset
        return first

    def aborted_between(self, start_offset: Offset, end_offset: Offset) -> list[tuple[int, int, int]]:
        """Aborted transactions with a batch in [``start_offset``, ``end_offset``), which ends at or before the last
        stable offset: (producer id, first offset, marker's offset), by first offset.
        """
        found: list[tuple[int, int, int]] = []
        aborted = self._aborted
        for at in range(self._place(start_offset) * _COLUMNS, len(aborted), _COLUMNS):
            producer_id, first, marker, stable = aborted[at : at + _COLUMNS]
            if first < end_offset:
                found.append((producer_id, first, marker))
            if stable >= end_offset:
                break  # what ended later started at or after that
        found += [
            one[:3]
            for one in self._ended
            if one.aborted and one.first_offset < end_offset and one.marker_offset >= start_offset
        ]
        found.sort(key=lambda one: one[1])
        return found

    def _place(self, offset: Offset) -> int:
        """Number of aborted transactions whose marker is below ``offset``."""
        low, high = 0, len(self._aborted) // _COLUMNS
        while low < high:
            middle = (low + high) // 2
            if self._aborted[middle * _COLUMNS + 2] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    # Verification

    def accepts(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether a transactional batch may be appended without asking the coordinator."""
        return self._verified.get(producer_id) == producer_epoch

    def ask_verification(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> object:
        """The coordinator is asked now. Returns the question, for `verified`."""
        question = self._verifying[producer_id] = _Question(producer_epoch)
        return question

    def verified(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, question: object) -> bool:
        """The coordinator says that this partition is part of the producer's transaction. False: a marker came since
        the question, so that the answer may be about a transaction that has ended.
        """
        if self._verifying.get(producer_id) is not question:
            return False
        del self._verifying[producer_id]
        self._verified[producer_id] = producer_epoch
        return True

    # Snapshots

    def encode(self, end_offset: Offset | None) -> bytes:
        """The state as bytes: the whole of it, or that of a log that ends at ``end_offset``. Of transactions that were
        committed after that, nothing is known: their next batch opens them.
        """
        open_ones = dict(self.open)
        place = len(self._aborted) if end_offset is None else self._place(end_offset) * _COLUMNS
        aborted, later = self._aborted[:place], self._aborted[place:]
        undone = [(later[at], later[at + 1]) for at in range(0, len(later), _COLUMNS)]
        for one in self._ended:
            if end_offset is not None and one.marker_offset >= end_offset:
                undone.append((one.producer_id, one.first_offset))
            elif one.aborted:
                aborted.extend(one[:_COLUMNS])
        open_ones.update(reversed(undone))
        by_first = sorted(
            (first, producer_id) for producer_id, first in open_ones.items() if end_offset is None or first < end_offset
        )
        out = bytearray(_COUNTS.pack(len(by_first), len(aborted) // _COLUMNS))
        for first, producer_id in by_first:
            out += _OPEN.pack(producer_id, first)
        return bytes(out) + _big_endian(aborted).tobytes()

    def decode(self, data: bytes) -> None:
        """Replace the state by an encoded one.

        Raises:
            Corruption: the bytes are not such a state.
        """
        self.clear()
        try:
            count, aborted = _COUNTS.unpack_from(data, 0)
            position = _COUNTS.size
            if len(data) != position + count * _OPEN.size + aborted * _ABORTED_BYTES:
                raise Corruption("a snapshot of transactions has the wrong length")
            for _ in range(count):
                producer_id, first = _OPEN.unpack_from(data, position)
                self.open[producer_id] = first
                position += _OPEN.size
            read = array("q")
            read.frombytes(data[position:])
            self._aborted = _big_endian(read)
        except struct.error:
            raise Corruption("a snapshot of transactions ends early") from None


def _big_endian(numbers: array[int]) -> array[int]:
    """The numbers with their bytes in the order of a snapshot, or back. Changes ``numbers``, which may be many: a
    million aborted transactions take milliseconds this way.
    """
    if _LITTLE_ENDIAN:
        numbers.byteswap()
    return numbers
