"""Producer ids: each is handed out once, ever.

The controller hands out blocks of ids, which are durable before a shard sees them. A shard hands out the ids of its
block and drops the unused ones when it stops. A crash therefore wastes the remainder of a block and never repeats an
id. The next block is requested when the current one runs low, so that an idempotent producer hardly ever waits for the
log.

Overload: at most ``WAITERS_MAX`` requests wait for a block. Further requests, and all of them if the controller cannot
give a block, get the retriable error that Kafka's clients know here.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from millstream.cluster.client import ControllerClient
from millstream.errors import MillstreamError, Retriable
from millstream.model.error_code import ErrorCode

BLOCK: Final = 1_000
"""Ids in a block, as in Kafka."""

LOW: Final = 100
"""Remaining ids at which the next block is requested."""

WAITERS_MAX: Final = 10_000

Done = Callable[[int | MillstreamError], None]


class ProducerIds:
    """The producer ids of one shard.

    Shard: one each.
    """

    def __init__(self, controller: ControllerClient) -> None:
        self._controller = controller
        self._next = 0
        self._end = 0
        self._next_block = -1
        self._asked = False
        self._waiting: deque[Done] = deque()

    def next(self, done: Done) -> None:
        """Pass an unused id to ``done``, at once if the shard has one."""
        if self._next == self._end and self._next_block >= 0:
            self._open_block()
        if self._next < self._end:
            producer_id = self._next
            self._next += 1
            if self._end - self._next < LOW and self._next_block < 0:
                self._ask()
            done(producer_id)
        elif len(self._waiting) >= WAITERS_MAX:
            done(Retriable(f"{WAITERS_MAX} producers wait for an id", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        else:
            self._waiting.append(done)
            self._ask()

    def _open_block(self) -> None:
        self._next = self._next_block
        self._end = self._next + BLOCK
        self._next_block = -1

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._controller.allocate_producer_ids(BLOCK, self._answered)

    def _answered(self, first: int | MillstreamError) -> None:
        self._asked = False
        waiting, self._waiting = self._waiting, deque()
        if isinstance(first, MillstreamError):
            failure = Retriable(f"no producer ids for now: {first.message}", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            for done in waiting:
                done(failure)
            return
        self._next_block = first
        for done in waiting:
            self.next(done)
