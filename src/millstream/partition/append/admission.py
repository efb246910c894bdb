"""Admission: every producer's batch enters a partition here, now or in its turn.

::

    submit ─► append ─┬─ outcome ──────────────────────────────────────► done
                      ├─ NEEDS_INSPECTION ─► `inspection`   (worker) ──► append ─► done
                      ├─ NEEDS_VERDICT ────► `verification` (coordinator) ─► append ─► done
                      ├─ NEEDS_BUFFERS ────► `pooled` (a commit of its partition) ─► append ─► done
                      └─ NO_MEMORY, or no room in the first two ─► queue, every RETRY_US: append ─► …

**Overload.** When the log cache is full of bytes that are not in their segments yet, or the write-ahead log takes no
more until the disk has caught up, a batch waits in the queue. An error instead would make every producer at full speed
try again and again. The connection of a batch that waits is read no further (``Exchange.hold``), so that TCP slows its
producer down. While the queue is not empty, new batches join its end, and the broker's own appends (offsets of groups)
go first. The queue is bounded: one request per connection, ``BYTES_MAX`` in all, ``WAIT_US`` each; a batch beyond that
is refused retriably. **Crash.** What waits was acknowledged to no client.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from millstream.model.error_code import ErrorCode
from millstream.partition.append.batch import Batch, Blocked, Done, Outcome, ProducerTransaction
from millstream.partition.append.checks import append
from millstream.partition.append.inspection import Inspection
from millstream.partition.append.pooled import EXHAUSTED, PooledAppends
from millstream.partition.append.verification import Verification
from millstream.partition.partition import Partition
from millstream.shard.reactor import Reactor
from millstream.storage.shard_storage import ShardStorage

RETRY_US: Final = 2_000
WAIT_US: Final = 20_000_000
BYTES_MAX: Final = 64 << 20

OUT_OF_MEMORY: Final = Outcome(int(ErrorCode.NOT_ENOUGH_REPLICAS))
"""Outcome of a batch that found no memory in time."""
_TRANSACTION_ENDED: Final = Outcome(int(ErrorCode.INVALID_TXN_STATE))
"""A marker came between the coordinator's verdict and the append."""


class Admission:
    """The appends of one shard.

    Invariant: ``_retries`` says whether anything is in the queue; then new batches must join it.
    """

    def __init__(self, reactor: Reactor, storage: ShardStorage) -> None:
        self._reactor = reactor
        self._storage = storage
        self._queue: deque[tuple[Batch, Done, int]] = deque()  # with the deadline of each batch (µs)
        self._own: deque[Callable[[], bool]] = deque()
        self._bytes = 0  # of the batches in the queue
        self._retries = False
        self._inspection = Inspection(reactor, storage, self._append_inspected, self.add_own)
        self.verification = Verification(reactor, self._append_verified)
        self._pooled = PooledAppends(reactor, self._append, self._inspection.add)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for memory, for buffers or for a coordinator."""
        return not (self._retries or self._own or self.verification.waits or self._pooled.waits)

    def submit(self, batch: Batch, done: Done) -> bool:
        """Append a batch; ``done`` gets its outcome, perhaps before this returns. False: the batch is in a queue. Its
        views must stay valid until ``done``, and its producer should be held.
        """
        return self.advance(batch, done, self.attempt(batch.partition, batch.views, batch.size, batch.transaction))

    def attempt(
        self,
        partition: Partition,
        views: Sequence[memoryview],
        size: int,
        transaction: ProducerTransaction | None,
    ) -> Outcome | Blocked:
        """Append now, unless batches wait for memory. The first half of `submit`, for callers that make neither a batch
        nor a ``done`` before one is needed; a blocked batch is for `advance`.
        """
        if self._retries:
            return Blocked.NO_MEMORY
        accepts = self._storage.accepts_writes and not self._storage.stopping
        named = transaction is not None
        return append(partition, views, size, self._reactor.wall_ms(), accepts_writes=accepts, transactional=named)

    @property
    def _accepts_writes(self) -> bool:
        return self._storage.accepts_writes and not self._storage.stopping

    def _append(self, batch: Batch) -> Outcome | Blocked:
        return append(
            batch.partition,
            batch.views,
            batch.size,
            self._reactor.wall_ms(),
            accepts_writes=self._accepts_writes,
            transactional=batch.transaction is not None,
        )

    def _append_inspected(self, partition: Partition, views: Sequence[memoryview], size: int) -> Outcome | None:
        """Append a batch whose records are good, and whose transaction was verified before. None: no memory now."""
        now_ms, accepts = self._reactor.wall_ms(), self._accepts_writes
        outcome = append(partition, views, size, now_ms, accepts_writes=accepts, inspected=True, transactional=True)
        if isinstance(outcome, Outcome):
            return outcome
        return None if outcome is Blocked.NO_MEMORY else _TRANSACTION_ENDED

    def _append_verified(self, batch: Batch, done: Done) -> None:
        """Append a batch of which the coordinator has said that the partition is part of its transaction."""
        outcome = self.attempt(batch.partition, batch.views, batch.size, batch.transaction)
        self.advance(batch, done, _TRANSACTION_ENDED if outcome is Blocked.NEEDS_VERDICT else outcome)

    def advance(self, batch: Batch, done: Done, outcome: Outcome | Blocked) -> bool:
        """Act on an attempt to append. False: the batch has joined the queue."""
        if isinstance(outcome, Outcome):
            done(outcome, None)
            return True
        if outcome is Blocked.NEEDS_BUFFERS:
            if self._pooled.add(batch, done):
                return False
            done(EXHAUSTED, None)
            return True
        if self._takes(batch, done, outcome):
            return True
        if self._bytes + batch.size > BYTES_MAX:
            done(OUT_OF_MEMORY, None)
            return True
        self._bytes += batch.size
        self._queue.append((batch, done, self._reactor.now_us() + WAIT_US))
        self._arm()
        return False

    def _takes(self, batch: Batch, done: Done, blocked: Blocked) -> bool:
        """Give a batch to what it needs. False: it needs memory, or there is no room for it now."""
        if blocked is Blocked.NEEDS_INSPECTION:
            return self._inspection.add(batch, done)
        if blocked is Blocked.NEEDS_BUFFERS:
            return self._pooled.add(batch, done)
        return blocked is Blocked.NEEDS_VERDICT and self.verification.add(batch, done)

    @property
    def own_waits(self) -> bool:
        """One of the broker's own appends waits; later ones join the queue, as their order is that of the log."""
        return bool(self._own)

    def add_own(self, attempt: Callable[[], bool]) -> None:
        """Call ``attempt`` until it returns True; before all producers."""
        self._own.append(attempt)
        self._arm()

    def _arm(self) -> None:
        if not self._retries:
            self._retries = True
            self._reactor.call_later(RETRY_US, self._retry)

    def _retry(self) -> None:
        now_us = self._reactor.now_us()
        own, queue = self._own, self._queue
        while own and own[0]():
            own.popleft()
        while queue:
            batch, done, deadline_us = queue[0]
            outcome: Outcome | Blocked = Blocked.NO_MEMORY
            if not own or not self._accepts_writes:  # a full disk refuses at once, and so does a shard that stops
                outcome = self._append(batch)
            taken = isinstance(outcome, Blocked) and self._takes(batch, done, outcome)
            if isinstance(outcome, Blocked) and not taken:
                if outcome is Blocked.NEEDS_BUFFERS:
                    outcome = EXHAUSTED
                elif now_us < deadline_us:
                    break
                else:
                    outcome = OUT_OF_MEMORY
            queue.popleft()
            self._bytes -= batch.size
            if isinstance(outcome, Outcome):
                done(outcome, None)
        self._retries = False
        if queue or own:
            self._arm()
