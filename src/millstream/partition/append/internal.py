"""Partitions of the broker's own topics, for the parts of the broker that keep their state in them.

``InternalLog`` appends batches that the broker built and reads committed batches back. The batches are trusted: their
records are not inspected. Of a producer only its transaction is checked: it must be open here, or verified. An append
that finds no memory waits in ``partition.append.admission``, before the appends of clients and in the order of the
calls. A partition that closes first fails the append with Unavailable. A crash loses what was not synced, and no
``done`` was called for that.
"""

import contextlib
from collections.abc import Callable

from millstream.errors import MillstreamError, Retriable, Unavailable
from millstream.iobuf import ArenaFull, IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, ProducerEpoch, ProducerId
from millstream.partition.append.checks import append_trusted
from millstream.partition.partition import Partition, own_append
from millstream.partition.read.batches import read
from millstream.partition.table import PartitionTable


class InternalLog:
    """One partition as a log of the broker's own.

    Lifecycle: a view without state; as many as wanted may exist for a partition. Shard: the partition's home.
    """

    __slots__ = ("_partition",)

    def __init__(self, partition: Partition) -> None:
        self._partition = partition

    @property
    def name(self) -> str:
        """The topic's name."""
        return self._partition.name

    @property
    def index(self) -> int:
        return self._partition.index

    @property
    def log_start_offset(self) -> int:
        return self._partition.log_start_offset

    @property
    def high_watermark(self) -> int:
        """End (exclusive) of what is committed."""
        return self._partition.high_watermark

    def append(self, batch: bytes, done: Callable[[int | MillstreamError], None]) -> None:
        """Append one batch of ``wire.records``; ``done`` gets its base offset once it is committed, or an error."""
        partition = self._partition
        internal = _InternalAppend(partition, done)

        def attempt() -> bool:
            outcome = append_trusted(partition, batch)
            if isinstance(outcome, Retriable) and partition.admission is not None:
                return False
            internal.start(outcome)
            return True

        own_append(partition.admission, attempt)

    def trim(self, start: Offset) -> None:
        """Let the log start at ``start``, soon. Does nothing if this replica leads no more or there is no memory."""
        partition = self._partition
        try:
            with contextlib.suppress(MillstreamError, ArenaFull):
                partition.group.propose_log_start(start)
        except Exception as error:  # noqa: BLE001 - the boundary
            partition.failed("trim", error)

    def on_transaction_ended(self, callback: Callable[[int, bool], None]) -> None:
        """Call ``callback`` with (producer id, whether it committed) when a marker of this partition is committed,
        instead of the callback that was set before.
        """
        self._partition.waiters.on_transaction_ended = callback

    @property
    def leader_epoch(self) -> int:
        return self._partition.leader_epoch

    # As ``core.txn.partition_state`` has them

    def accepts(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> bool:
        """Whether a transactional batch may be appended without asking the transaction's coordinator."""
        return self._partition.transactions.accepts(producer_id, producer_epoch)

    def ask_verification(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> object:
        """The coordinator is asked now. Returns the question, for ``verified``."""
        try:
            return self._partition.transactions.ask_verification(producer_id, producer_epoch)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._partition.failed("verification", error)
            return None

    def verified(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, question: object) -> bool:
        """The coordinator says yes. False if a marker came since the question."""
        try:
            return self._partition.transactions.verified(producer_id, producer_epoch, question)
        except Exception as error:  # noqa: BLE001 - the boundary
            self._partition.failed("verification", error)
            return False

    def read(self, offset: Offset, max_bytes: int, done: Callable[[list[bytes] | MillstreamError], None]) -> None:
        """Read whole committed batches from ``offset`` on, at least one if there is any; an empty list at the end."""

        def finish(result: IoBuf | MillstreamError) -> None:
            if isinstance(result, MillstreamError):
                done(result)
                return
            try:
                batches = [bytes(view) for view in result.views()]
            finally:
                result.release()
            done([b"".join(batches)] if batches else [])

        read(self._partition, offset, max_bytes, finish)


class InternalLogs:
    """The partitions of one shard as ``InternalLog``, as they open and close."""

    def __init__(self, table: PartitionTable) -> None:
        self._table = table

    def on_open(self, callback: Callable[[InternalLog], None]) -> None:
        """Call ``callback`` for every partition of this shard, those that are open now included."""
        self._table.on_open(lambda partition: callback(InternalLog(partition)))

    def on_close(self, callback: Callable[[InternalLog], None]) -> None:
        """Call ``callback`` before a partition of this shard closes."""
        self._table.on_close(lambda partition: callback(InternalLog(partition)))


class _InternalAppend:
    """Waits for the commit of one internal batch (``partition.AckWaiter``) and calls ``done``."""

    __slots__ = ("base_offset", "done", "partition")

    def __init__(self, partition: Partition, done: Callable[[int | MillstreamError], None]) -> None:
        self.partition = partition
        self.done = done
        self.base_offset = -1

    def start(self, outcome: tuple[int, int] | MillstreamError) -> None:
        """Take the outcome of ``append_trusted``."""
        if isinstance(outcome, MillstreamError):
            self.done(outcome)
            return
        self.base_offset, end = outcome
        if end <= self.partition.high_watermark:
            self.acked(0)
        else:
            self.partition.waiters.acks.append((end, self, 0))

    def acked(self, slot: int) -> None:
        assert slot == 0
        self.done(self.base_offset)

    def expire(self, now_us: int) -> None:
        """No effect: the broker's own appends have no timeout."""

    def failed(self, slot: int, error: ErrorCode) -> None:
        assert slot == 0
        self.done(Unavailable("the partition was closed before the batch was committed", error))
