"""Time, the network and the faults of one run."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.model.error_code import ErrorCode
from sim.engine.histories import attempt
from sim.engine.timeline import SECOND, Timeline
from sim.transactions.clients import Producer
from sim.transactions.judge import Judge
from sim.transactions.parts import Data, Leader

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.txn.image import Image, TopicPartition
    from millstream.partition.append.markers import Marker
    from sim.engine.histories import Counts, Finding
    from sim.transactions.clients import Steps

BEGIN_US: Final = 1_700_000_000 * SECOND
_OUTCOMES: Final = {True: "committed", False: "aborted", None: "fenced or in doubt"}
_ANSWER_US: Final = 300_000
"""A client waits so long for an answer."""


_KILL: Final = 0.003
"""Share of the steps of clients at which one is killed."""


class Setting(msgspec.Struct, frozen=True):
    """What a run is like."""

    seconds: int = 6
    ids: int = 2
    loss: float = 0.04
    late: float = 0.06
    """Share of requests that arrive once more, up to two seconds later."""
    fault_every_us: int = 300_000


class World:
    """One run. Lifecycle: `run` once."""

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        self.setting = setting or Setting()
        self.chance = random.Random(seed)
        self.now_us = BEGIN_US
        self.healed = False
        self.killed = False
        """No client takes another step."""
        self.judge = Judge()
        self.next_id = 100
        self.next_value = 0
        self.stored: dict[str, Image] = {}
        """The coordinator's log, by its last record of each transactional id."""
        self._events: Timeline[Callable[[], None]] = Timeline()
        self.partitions: dict[TopicPartition, Data] = {
            place: Data(self, place) for place in (("t", 0), ("t", 1), ("u", 0))
        }
        self.leader = Leader(self, 1)
        self.versions = {f"id-{number}": self.chance.choice((0, 2)) for number in range(self.setting.ids)}

    def call_later(self, delay_us: int, do: Callable[[], None]) -> None:
        """Do something after a time; as of ``shard.reactor``."""
        self._events.add(self.now_us + delay_us, do)

    def run(self) -> Judge:
        """Clients and faults, then the heal, then the judgement. Raises Violation."""
        for name in self.versions:
            self._start(name)
        self._break_something()
        self._until(self.now_us + self.setting.seconds * SECOND)
        self.healed = True
        self.killed = self.chance.random() < 0.5
        self._until(self.now_us + 20 * SECOND)
        self.judge.finish(self.partitions.values(), self.stored)
        return self.judge

    def _until(self, end_us: int) -> None:
        while (due_us := self._events.due_us()) is not None and due_us <= end_us:
            self.now_us = due_us
            self._events.pop()()
        self.now_us = end_us

    # The log

    def store(self, name: str, image: Image | None) -> None:
        """The coordinator's log has this record."""
        if image is None:
            self.stored.pop(name, None)
        else:
            self.stored[name] = image
            self.judge.decided(image)

    # The network

    def _delay_us(self) -> int:
        return self.chance.randrange(100, 3_000)

    def _carry(self, deliver: Callable[[], None], *, unruly: bool, late: bool) -> None:
        """A message on its way: lost, or late and twice, if it may be."""
        if not unruly or self.healed:
            self.call_later(self._delay_us(), deliver)
            return
        if self.chance.random() >= self.setting.loss:
            self.call_later(self._delay_us(), deliver)
        if late and self.chance.random() < self.setting.late:
            self.call_later(self.chance.randrange(2 * SECOND), deliver)

    def _answering(self, done: Callable[[Any], None], *, unruly: bool) -> Callable[[Any], None]:
        def answer(result: Any) -> None:
            if not unruly or self.healed or self.chance.random() >= self.setting.loss:
                self.call_later(self._delay_us(), lambda: done(result))

        return answer

    def ask_coordinator(
        self, request: Callable[[Any], Any], done: Callable[[Any], None], *, unruly: bool = False, late: bool = False
    ) -> None:
        """A request to the coordinator that leads when it arrives. ``request`` makes it of the token for the answer.
        One that the leader takes along when it fails is answered NOT_COORDINATOR.
        """
        first = _once(done)

        def deliver() -> None:
            leader = self.leader
            leader.step(request(self._answering(first, unruly=unruly)))
            self.call_later(2 * SECOND, lambda: first(ErrorCode.NOT_COORDINATOR))

        self._carry(deliver, unruly=unruly, late=late)

    def ask_partition(self, place: TopicPartition, write: Any, done: Callable[[Any], None]) -> None:
        """A Produce."""
        answer = self._answering(done, unruly=True)
        self._carry(lambda: self.partitions[place].produce(write, answer), unruly=True, late=True)

    def write_marker(self, place: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """A coordinator writes a marker. One whose answer is lost was written, and no longer travels."""

        def deliver() -> None:
            error = self.partitions[place].mark(marker)
            lost = not self.healed and self.chance.random() < self.setting.loss
            answer = ErrorCode.REQUEST_TIMED_OUT if lost else error
            self.call_later(self._delay_us(), lambda: done(answer))

        self.call_later(self._delay_us() * self.chance.choice((1, 1, 1, 100)), deliver)

    # Clients

    def _start(self, name: str) -> None:
        self._go(Producer(self, name, self.versions[name]).run(), None)

    def _go(self, steps: Steps, answer: Any) -> None:
        """Let a client run to its next question, or kill it."""
        if self.killed or (not self.healed and self.chance.random() < _KILL):
            return
        try:
            asked = steps.send(answer)
        except StopIteration:
            return
        if isinstance(asked, int):
            self.call_later(asked, lambda: self._go(steps, None))
            return
        first = _once(lambda result: self._go(steps, result))
        self.call_later(_ANSWER_US, lambda: first(None))
        asked(first)

    # Faults

    def _break_something(self) -> None:
        if self.healed:
            return
        chance = self.chance
        fault = chance.randrange(6)
        if fault < 2:
            self._fail_over()
        elif fault == 2:
            chance.choice(list(self.partitions.values())).rebuild()
        elif fault == 3:
            chance.choice(list(self.partitions.values())).save()
        else:
            self._start(chance.choice(list(self.versions)))  # its predecessor stays: a zombie
        for data in self.partitions.values():
            self.judge.read(data)
        self.call_later(chance.randrange(1, 2 * self.setting.fault_every_us), self._break_something)

    def _fail_over(self) -> None:
        """Another coordinator leads: some of what was being written is in the log, the rest is not."""
        old = self.leader
        kept = self.chance.randint(0, len(old.unsettled))
        old.depose(self.chance.randrange(SECOND))
        for _, name, image in old.unsettled[:kept]:
            self.store(name, image)
        self.leader = Leader(self, old.term + 1)


def _once(done: Callable[[Any], None]) -> Callable[[Any], None]:
    """The callback for the first of several answers."""
    waiting = [done]

    def answer(result: Any) -> None:
        if waiting:
            waiting.pop()(result)

    return answer


def run(seed: int, setting: Setting | None = None) -> Judge:
    """One run from a seed.

    Raises:
        Violation: a promise was broken.
    """
    return World(seed, setting).run()


def play(seed: int, counts: Counts) -> Finding | None:
    """Play the history of a seed; a finding is in ``counts``, too."""
    world = World(seed)
    finding = attempt(seed, counts, world.run, (AssertionError,))
    counts.simulated_us += world.now_us - BEGIN_US
    for outcome in (True, False, None):
        ended = sum(one.committed is outcome for one in world.judge.attempts)
        counts.seen[_OUTCOMES[outcome]] += ended
    return finding
