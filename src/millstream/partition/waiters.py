"""Who waits for a partition: producers for a commit, fetches for data, deletions for a log start."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Protocol

from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.quantities import Offset, ProducerId, SlotIndex


class AckWaiter(Protocol):
    """A produce call that waits for one or more partitions."""

    def acked(self, slot: SlotIndex) -> None:
        """The batch in ``slot`` of the call is committed."""
        ...

    def failed(self, slot: SlotIndex, error: ErrorCode) -> None:
        """The batch in ``slot`` will never be committed here."""
        ...

    def expire(self, now_us: int) -> None:
        """Time went by without a commit; answer if it is too late."""
        ...


Ack = tuple[int, AckWaiter, int]
"""A batch whose acknowledgement waits: its end offset (exclusive), the call, its slot in the call."""


class DataWaiter(Protocol):
    """A fetch that waits for the high watermark to move."""

    def wake(self) -> None:
        """Data arrived in the partition, or it closed. Called once; watch again for the next time."""
        ...


class Refusable(Protocol):
    """A request that is answered later (``partition.asked``)."""

    def refuse(self) -> None:
        """Answer that the partition has failed."""
        ...


class Waiters:
    """Everyone who waits for one partition.

    Lifecycle and shard: the partition's. Invariant: ``acks`` and ``own_acks`` are sorted by end offset.
    """

    __slots__ = ("acks", "on_transaction_ended", "own_acks", "readers", "requests", "trims")

    def __init__(self) -> None:
        self.acks: deque[Ack] = deque()
        """Batches that wait for the high watermark."""
        self.own_acks: deque[Ack] | None = None
        """Those that wait only for this replica's own disk (acks=1). None for a sole voter, whose disk is the quorum.
        """
        self.trims: list[tuple[int, Callable[[ErrorCode], None]]] = []
        """Callers that wait for a log start at least so high; they get NONE, or why it does not come."""
        self.readers: set[DataWaiter] = set()
        self.requests: set[Refusable] = set()
        """Requests without an answer yet; each removes itself with its answer (``partition.asked``)."""
        self.on_transaction_ended: Callable[[ProducerId, bool], None] | None = None
        """Called with (producer id, whether it committed) when a marker is committed; set by who keeps state in this
        partition.
        """

    def committed(self, high_watermark: Offset) -> None:
        """Acknowledge what the high watermark covers."""
        acks = self.acks
        while acks and acks[0][0] <= high_watermark:
            _, call, slot = acks.popleft()
            call.acked(slot)

    def synced(self, end_offset: Offset) -> None:
        """Acknowledge to acks=1 what this replica's disk has."""
        own = self.own_acks
        while own and own[0][0] <= end_offset:
            _, call, slot = own.popleft()
            call.acked(slot)

    def settle_trims(self, start: Offset) -> None:
        """Answer who waits for a log start up to ``start``."""
        waiting, self.trims = self.trims, []
        for wanted, done in waiting:
            if wanted <= start:
                done(ErrorCode.NONE)
            else:
                self.trims.append((wanted, done))

    def wake_readers(self) -> None:
        """Tell everyone who waits for data, once."""
        readers, self.readers = self.readers, set()
        for reader in readers:
            reader.wake()

    def fail(self, error: ErrorCode) -> None:
        """Answer ``error`` to producers and deletions, and wake the readers."""
        acks, self.acks = self.acks, deque()
        if self.own_acks is not None:
            acks += self.own_acks
            self.own_acks = deque()
        for _, call, slot in acks:
            call.failed(slot, error)
        trims, self.trims = self.trims, []
        for _, done in trims:
            done(error)
        self.wake_readers()

    def take_all(self) -> list[Callable[[], None]]:
        """Take everyone who waits. Each call answers one, who must be answered even if another cannot be. The outcome
        of what was appended is unknown.
        """
        acks, self.acks = [*self.acks, *(self.own_acks or ())], deque()
        if self.own_acks is not None:
            self.own_acks = deque()
        trims, self.trims = self.trims, []
        readers, self.readers = self.readers, set()
        unknown = ErrorCode.REQUEST_TIMED_OUT
        answers = [partial(call.failed, slot, unknown) for _, call, slot in acks]
        answers += [partial(done, unknown) for _, done in trims]
        answers += [reader.wake for reader in readers]
        answers += [request.refuse for request in self.requests]
        return answers
