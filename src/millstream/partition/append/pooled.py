"""Pushes of events that wait for buffers of their partition, or for memory in the log.

A push is admitted by the producers' pools of its partition (``partition.events.pools``). One that is not waits here, in
the order of its partition, and later pushes of the partition join the row. Its connection is read no further; those of
other partitions are. The first of a row is tried again when a lease goes back, and every ``RETRY_US`` if what it
lacks is memory in the log.

**Overload.** ``BYTES_MAX`` of batches wait on a shard, ``WAIT_US`` each; beyond that a push is refused with
THROTTLING_QUOTA_EXCEEDED, which clients try again. A partition that is closed, fails or is led elsewhere refuses its
row, and so do a full disk and a shard that stops. **Crash.** What waits here is lost; no client has an acknowledgement.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.model.error_code import ErrorCode
from millstream.partition.append.batch import Blocked, Outcome
from millstream.partition.events.partition import EventsPartition

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.append.batch import Batch, Done
    from millstream.shard.reactor import Reactor, Timer

RETRY_US: Final = 2_000
WAIT_US: Final = 20_000_000
BYTES_MAX: Final = 64 << 20

EXHAUSTED: Final = Outcome(int(ErrorCode.THROTTLING_QUOTA_EXCEEDED))


class _Push:
    """One batch in the row of its partition."""

    __slots__ = ("batch", "deadline_us", "done")

    def __init__(self, batch: Batch, done: Done, deadline_us: int) -> None:
        self.batch = batch
        self.done = done
        self.deadline_us = deadline_us


class PooledAppends:
    """The rows of one shard. Invariant: a row that is not empty has a timer, and is woken when a lease goes back."""

    def __init__(
        self,
        reactor: Reactor,
        append: Callable[[Batch], Outcome | Blocked],
        inspect: Callable[[Batch, Done], bool],
    ) -> None:
        """``inspect`` has the records of a batch inspected; False: no room now."""
        self.reactor = reactor
        self._append = append
        self._inspect = inspect
        self._bytes = 0

    @property
    def waits(self) -> bool:
        """Whether any batch waits."""
        return bool(self._bytes)

    def add(self, batch: Batch, done: Done) -> bool:
        """Append as soon as there are buffers and memory; its views must stay valid until ``done``. False: so much
        waits that this one is to be refused.
        """
        partition = batch.partition
        assert isinstance(partition, EventsPartition), "a topic's kind never changes"
        if self._bytes + batch.size > BYTES_MAX:
            partition.gaps.expect(self.reactor.wall_ms())
            return False
        self._bytes += batch.size
        row = partition.pools.pushes
        row.append(_Push(batch, done, self.reactor.now_us() + WAIT_US))
        if len(row) == 1:
            _Row(self, partition).rest()
        return True

    def append_row(self, partition: EventsPartition) -> int:
        """Append what can be appended, in order. Returns when to try again (µs); -1 if nothing waits."""
        row = partition.pools.pushes
        while row:
            first = row[0]
            assert isinstance(first, _Push)
            partition.pools.retrying = True
            try:
                outcome = self._append(first.batch)
            finally:
                partition.pools.retrying = False
            taken = outcome is Blocked.NEEDS_INSPECTION and self._inspect(first.batch, first.done)
            if isinstance(outcome, Blocked) and not taken:
                now_us = self.reactor.now_us()
                if now_us < first.deadline_us:
                    return first.deadline_us if outcome is Blocked.NEEDS_BUFFERS else now_us + RETRY_US
                partition.gaps.expect(self.reactor.wall_ms())
                outcome = EXHAUSTED
            row.popleft()
            self._bytes -= first.batch.size
            if isinstance(outcome, Outcome):
                first.done(outcome, None)
        return -1


class _Row:
    """The wait of one partition's row, from its first push on until it is empty."""

    __slots__ = ("_again_us", "_owner", "_partition", "_timer")

    def __init__(self, owner: PooledAppends, partition: EventsPartition) -> None:
        self._owner = owner
        self._partition = partition
        self._timer: Timer | None = None
        self._again_us = owner.reactor.now_us() + RETRY_US

    def rest(self) -> None:
        """Wait for the timer, or for a lease that goes back."""
        self._timer = self._owner.reactor.call_at(self._again_us, self._advance)
        self._partition.pools.producers.waiting.add(self._wake)

    def _wake(self) -> None:
        self._owner.reactor.call_soon(self._advance)

    def _advance(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._partition.pools.producers.waiting.discard(self._wake)
        self._again_us = self._owner.append_row(self._partition)
        if self._again_us >= 0:
            self.rest()
