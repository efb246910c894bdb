"""Producer ids: each is handed out once, ever.

The controller hands out blocks of ids, which are durable before a shard sees them. A shard hands out the ids of its
block and drops the unused ones when it stops. A crash therefore wastes the remainder of a block and never repeats an
id. The next block is requested when the current one runs low, so that an idempotent producer hardly ever waits for the
log. In a cluster the first block is requested when the shard starts (``ask_ahead``): a broker that is cut off from the
controller has ids then.

**No controller.** A request waits for `WAIT_US` at most, then gets the retriable error that Kafka's clients know here.
A request to the controller continues; a block that comes late serves the next requests.

**Overload.** At most ``WAITERS_MAX`` requests wait for a block. Further requests, and all of them if the controller
cannot give a block, get the same error.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from millstream.cluster.client import ControllerClient
from millstream.errors import MillstreamError, Retriable
from millstream.model.error_code import ErrorCode
from millstream.shard.reactor import Reactor, Timer

BLOCK: Final = 1_000
"""Ids in a block, as in Kafka."""

LOW: Final = 100
"""Remaining ids at which the next block is requested."""

WAITERS_MAX: Final = 10_000

WAIT_US: Final = 2_000_000
"""How long a request waits for a block: an election of the controller, and far less than the request timeout of Kafka's
clients (30 s), which would keep waiting for an answer.
"""

ASK_TIMEOUT_MS: Final = 5_000
"""After this time without an answer the controller is asked again, if a request needs ids."""

AGAIN_US: Final = 5_000_000
"""Until a block that is asked for ahead is asked for again."""

Done = Callable[[int | MillstreamError], None]


class _Waiter(NamedTuple):
    """A request without an id."""

    until_us: int
    done: Done


class ProducerIds:
    """The producer ids of one shard.

    Lifecycle: made with the shard; ``ask_ahead`` once, in a cluster. Shard: one each.
    Invariants: ``_waiting`` is in the order of its deadlines, and a timer is set while it is not empty.
    """

    def __init__(self, controller: ControllerClient, reactor: Reactor) -> None:
        self._controller = controller
        self._reactor = reactor
        self._next = 0
        self._end = 0
        self._next_block = -1
        self._asked = False
        self._asks_ahead = False
        self._waiting: deque[_Waiter] = deque()
        self._timer: Timer | None = None

    def ask_ahead(self) -> None:
        """Request a block before the first producer needs an id."""
        self._asks_ahead = True
        self._ask()

    def next(self, done: Done) -> None:
        """Pass an unused id to ``done``, at once if the shard has one; a ``Retriable`` error after `WAIT_US` if not."""
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
            if self._timer is None:
                self._timer = self._reactor.call_later(WAIT_US, self._too_late)
            self._waiting.append(_Waiter(self._reactor.now_us() + WAIT_US, done))
            self._ask()

    def _open_block(self) -> None:
        self._next = self._next_block
        self._end = self._next + BLOCK
        self._next_block = -1

    def _ask(self) -> None:
        if not self._asked:
            self._asked = True
            self._controller.allocate_producer_ids(BLOCK, self._answered, ASK_TIMEOUT_MS)

    def _ask_again(self) -> None:
        if self._next == self._end and self._next_block < 0:
            self._ask()

    def _answered(self, first: int | MillstreamError) -> None:
        self._asked = False
        if isinstance(first, MillstreamError):
            if self._asks_ahead:
                self._reactor.call_later(AGAIN_US, self._ask_again)
            waiting, self._waiting = self._waiting, deque()
            for waiter in waiting:
                waiter.done(_none_now(first.message))
            return
        self._next_block = first
        waiting, self._waiting = self._waiting, deque()
        for waiter in waiting:
            self.next(waiter.done)

    def _too_late(self) -> None:
        self._timer = None
        now = self._reactor.now_us()
        late: list[_Waiter] = []
        while self._waiting and self._waiting[0].until_us <= now:
            late.append(self._waiting.popleft())
        if self._waiting:
            self._timer = self._reactor.call_later(self._waiting[0].until_us - now, self._too_late)
        for waiter in late:
            waiter.done(_none_now("the controller does not answer"))


def _none_now(reason: str) -> Retriable:
    return Retriable(f"no producer ids for now: {reason}", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
