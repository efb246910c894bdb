"""The context of one step: time, settings, deadlines, and the outputs."""

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

from millstream.core.group.counts import GroupCounts
from millstream.core.group.deadlines import Deadline, Deadlines
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import (
    GroupSettings,
    Input,
    Key,
    Outputs,
    StateAsk,
    StateRequest,
    StateResponse,
    Value,
    Write,
)
from millstream.core.group.topics import Topics
from millstream.model.error_code import ErrorCode
from millstream.wire.schema import Message


class Pending(Protocol):
    """A write in flight, and what happens when its outcome is known."""

    group: Group

    def settle(self, step: "Step", error: ErrorCode) -> None:
        """``error`` is NONE if the records are durable. Otherwise they are not in the log, and ``error`` is for the
        clients.
        """
        ...


class Waiting:
    """A request whose response must wait for a write of its group."""

    __slots__ = ("answer", "token")

    def __init__(self, token: Token, answer: Callable[[ErrorCode], Message]) -> None:
        self.token = token
        self.answer = answer


Answered: TypeAlias = "Callable[[Step, StateResponse], None]"
"""What follows the answer of the share coordinator."""


class OpenAsk:
    """An ask without an answer. ``token``: the request that waits for it, if it is exclusive."""

    __slots__ = ("answered", "group", "token")

    def __init__(self, group: Group, answered: "Answered", token: Token | None) -> None:
        self.group = group
        self.answered = answered
        self.token = token

    @property
    def is_exclusive(self) -> bool:
        return self.token is not None


class Asks:
    """The open asks of one coordinator, by number."""

    __slots__ = ("_last", "open")

    def __init__(self) -> None:
        self.open: dict[int, OpenAsk] = {}
        self._last = 0

    def add(self, ask: OpenAsk) -> int:
        """Note an ask; returns its number."""
        self._last += 1
        self.open[self._last] = ask
        return self._last

    def of(self, group: Group) -> list[OpenAsk]:
        """The open asks of a group."""
        return [ask for ask in self.open.values() if ask.group is group]

    def holds(self, group: Group) -> bool:
        """Whether an exclusive ask of the group is open."""
        return any(ask.is_exclusive for ask in self.of(group))

    @property
    def tokens(self) -> list[Token]:
        """The requests that wait for an exclusive ask."""
        return [ask.token for ask in self.open.values() if ask.token is not None]


class Step:
    """The context of one step. ``now_us`` is monotonic, ``wall_ms`` the wall clock."""

    __slots__ = (
        "asks",
        "busy",
        "counts",
        "deadlines",
        "now_us",
        "out",
        "receipts",
        "settings",
        "topics",
        "waiting",
        "wall_ms",
        "writes",
    )

    def __init__(
        self,
        settings: GroupSettings,
        counts: GroupCounts,
        deadlines: Deadlines[Group],
        writes: dict[int, Pending],
        waiting: dict[int, list[Waiting]],
        busy: dict[str, deque[Input]],
        asks: Asks,
        topics: Topics,
        receipts: list[int],
        now_us: int,
        wall_ms: int,
    ) -> None:
        self.settings = settings
        self.counts = counts
        self.deadlines = deadlines
        self.writes = writes
        self.waiting = waiting
        self.busy = busy
        """Groups with a change in flight to the log, each with the requests that wait for it."""
        self.asks = asks
        self.topics = topics
        self.receipts = receipts
        self.now_us = now_us
        self.wall_ms = wall_ms
        self.out = Outputs()

    @property
    def next_receipt(self) -> int:
        """Receipt of the next ``write``. Receipts rise in the order of the log."""
        return self.receipts[0] + 1

    def write(
        self,
        records: tuple[tuple[Key, Value | None], ...],
        pending: Pending,
        producer: tuple[int, int] | None = None,
    ) -> None:
        """Persist ``records``, as part of the transaction of ``producer`` (id, epoch) if that is given. ``pending`` is
        settled when that is done or has failed.
        """
        receipt = self.receipts[0] = self.receipts[0] + 1
        self.writes[receipt] = pending
        pending.group.writes.in_flight += 1
        pending.group.writes.last_receipt = receipt
        self.out.writes.append(Write(receipt, records, producer))

    def when_written(self, group: Group, token: Token, answer: Callable[[ErrorCode], Message]) -> None:
        """Respond when the newest write of ``group``, which is in flight, is durable or has failed.

        Writes settle in order, so all earlier ones have settled by then.
        """
        assert group.writes.in_flight, "nothing is being written"
        self.waiting.setdefault(group.writes.last_receipt, []).append(Waiting(token, answer))

    def ask(self, group: Group, request: StateRequest, answered: Answered, token: Token | None = None) -> None:
        """Ask for share state, then call ``answered``. With ``token``, the request that waits for it, the ask is
        exclusive: called when a change of the group settles, it holds the group.
        """
        number = self.asks.add(OpenAsk(group, answered, token))
        self.out.asks.append(StateAsk(number, group.group_id, request, token is not None))

    def write_alone(
        self,
        group: Group,
        records: tuple[tuple[Key, Value | None], ...],
        token: Token | None,
        settled: Callable[["Step", ErrorCode], None],
    ) -> None:
        """Persist ``records``, then call ``settled``. Other requests about the group wait for that.

        ``token`` is the request that waits for the outcome, if any.
        """
        assert group.group_id not in self.busy, "one change at a time"
        self.busy[group.group_id] = deque()
        self.write(records, PendingAlone(group, token, settled))

    def after(self, deadline: Deadline[Group], delay_ms: int) -> None:
        """Set ``deadline`` to ``delay_ms`` from now; 0 or less is due at once."""
        self.deadlines.set(deadline, self.now_us + max(delay_ms, 0) * 1000)

    def log(self, group: Group, line: str) -> None:
        """Log a change of ``group`` for the operator."""
        self.out.log_lines.append(f"group {group.group_id}: {line}")

    def cancel(self, deadline: Deadline[Group]) -> None:
        self.deadlines.cancel(deadline)


class PendingAlone:
    """A write that the other requests about its group wait for."""

    __slots__ = ("_settled", "group", "token")

    def __init__(self, group: Group, token: Token | None, settled: Callable[[Step, ErrorCode], None]) -> None:
        self.group = group
        self.token = token
        self._settled = settled

    def settle(self, step: Step, error: ErrorCode) -> None:
        self._settled(step, error)


class Forget:
    """A write that no request waits for."""

    __slots__ = ("group",)

    def __init__(self, group: Group) -> None:
        self.group = group

    def settle(self, step: Step, error: ErrorCode) -> None:
        if error is not ErrorCode.NONE:
            step.log(self.group, f"its state could not be written ({error.name}); the next rebalance writes it")


def unanswered(step: Step) -> None:
    """What follows a write for which no request waits: nothing."""
    _ = step


def unanswered_failed(step: Step, error: ErrorCode) -> None:
    """What follows such a write that has failed: nothing. Its caller says why that is enough."""
    _ = step, error
