"""Appends that wait for memory: back-pressure instead of errors.

When the log cache is full of bytes that are not in their segments yet, or the write-ahead log takes no more until the
disk has caught up, an append cannot be done now. Answering an error would make every producer at full speed try again
and again; instead the append waits here, its connection is read no further (``Exchange.hold``), and TCP tells the
producer to slow down. The queue is tried again every ``RETRY_US``, in order, and as long as it is not empty new
appends join its end. The broker's own appends (offsets of groups) go first.

What waits here is bounded: one request per connection, ``BYTES_MAX`` in all, ``WAIT_US`` each; beyond that the append
is refused retriably after all.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from millstream.partition.append import BUSY, LOOK, VERIFY, Outcome, append
from millstream.partition.inspecting import Done, InspectedAppends
from millstream.partition.partition import Partition
from millstream.partition.verifying import ProducerTransaction, VerifyingAppends
from millstream.shard.reactor import Reactor
from millstream.storage.shard_storage import ShardStorage

RETRY_US: Final = 2_000
WAIT_US: Final = 20_000_000
BYTES_MAX: Final = 64 << 20


class _Waiting:
    """One append: ``views`` stay valid until ``done``."""

    __slots__ = ("deadline_us", "done", "partition", "size", "transaction", "views")

    def __init__(
        self,
        partition: Partition,
        views: Sequence[memoryview],
        size: int,
        done: Done,
        deadline_us: int,
        transaction: ProducerTransaction | None,
    ) -> None:
        self.partition = partition
        self.views = views
        self.size = size
        self.done = done
        self.deadline_us = deadline_us
        self.transaction = transaction


class DelayedAppends:
    """The queue of one shard.

    Invariant: ``active`` says whether anything waits; then new appends must wait, too.
    """

    def __init__(self, reactor: Reactor, storage: ShardStorage) -> None:
        self._reactor = reactor
        self._storage = storage
        self._waiting: deque[_Waiting] = deque()
        self._own: deque[Callable[[], bool]] = deque()
        self._bytes = 0
        self.active = False
        self.inspected = InspectedAppends(reactor, storage, self)
        self.verifying = VerifyingAppends(reactor, storage, self)

    def add(
        self,
        partition: Partition,
        views: Sequence[memoryview],
        size: int,
        done: Done,
        transaction: ProducerTransaction | None = None,
    ) -> None:
        """Append as soon as there is room; ``done`` gets the outcome. ``views`` must stay until then. ``transaction``
        is what the request says of its transaction.
        """
        if self._bytes + size > BYTES_MAX:
            done(BUSY, None)
            return
        self._bytes += size
        deadline_us = self._reactor.now_us() + WAIT_US
        self._waiting.append(_Waiting(partition, views, size, done, deadline_us, transaction))
        self._arm()

    def take(
        self,
        why: Outcome,
        partition: Partition,
        views: Sequence[memoryview],
        size: int,
        transaction: ProducerTransaction | None,
        done: Done,
    ) -> bool:
        """Have the records of a batch inspected (``why`` is ``LOOK``), or its transaction's coordinator asked
        (``VERIFY``), and append it then. ``views`` are copied before this returns. False: no room for that now.
        """
        if why is VERIFY:
            return self.verifying.add(partition, views, size, transaction, done)
        return self.inspected.add(partition, views, size, done)

    @property
    def own_waits(self) -> bool:
        """One of the broker's own appends waits; later ones join the queue, as their order is that of the log."""
        return bool(self._own)

    def add_own(self, attempt: Callable[[], bool]) -> None:
        """Call ``attempt`` until it says that it is done; before all producers."""
        self._own.append(attempt)
        self._arm()

    def _arm(self) -> None:
        if not self.active:
            self.active = True
            self._reactor.call_later(RETRY_US, self._retry)

    def _retry(self) -> None:
        now_us = self._reactor.now_us()
        own = self._own
        while own and own[0]():
            own.popleft()
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            outcome = BUSY
            accepts = self._storage.accepts_writes and not self._storage.stopping
            if not own or not accepts:  # a full disk refuses at once, and so does a shard that stops
                outcome = append(
                    first.partition,
                    first.views,
                    first.size,
                    self._reactor.wall_ms(),
                    accepts_writes=accepts,
                    transactional=first.transaction is not None,
                )
            taken = False
            if outcome is LOOK or outcome is VERIFY:
                taken = self.take(outcome, first.partition, first.views, first.size, first.transaction, first.done)
                outcome = outcome if taken else BUSY
            if outcome is BUSY and now_us < first.deadline_us:
                break
            waiting.popleft()
            self._bytes -= first.size
            if not taken:
                first.done(outcome, None)
        self.active = False
        if waiting or own:
            self._arm()
