"""Members, leaders and the coordinator of one run, and what goes wrong between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from millstream.core.share.partition import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Limits,
    Request,
    SharePartition,
)
from millstream.core.share.runs import SessionToken
from millstream.core.share.stored import Answer, Initialize, Outputs, Read, Report, StoredStates, Summary, Write
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from sim.engine.histories import attempt
from sim.engine.timeline import SECOND, Streams, Timeline
from sim.share.judge import Judge
from sim.share.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.share.stored import Change, Key
    from sim.engine.histories import Counts, Finding

BEGIN_US: Final = 1_000 * SECOND
_KEY: Final = ("group", b"t" * 16, 0)
_LOCK_US: Final = 2 * SECOND
_TIMEOUT_US: Final = SECOND
_AGAIN_US: Final = 200_000
"""A leader waits so long after a failed write."""
_UPDATES_MAX: Final = 7
"""Few, so that every run has snapshots."""
_REFUSED: Final = frozenset({ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_RECORD_STATE})


class Setting(msgspec.Struct, frozen=True):
    """What a run is like."""

    seconds: int = 20
    members: int = 3
    deliveries_max: int = 5
    locks_max: int = 40
    failing: float = 0.1
    """Share of the coordinator's records that are not written."""
    lost: float = 0.1
    """Share of its answers that never come."""
    resets: bool = False


def draw(seed: int) -> Setting:
    """The setting of a seed."""
    chance = Streams(seed)("setting")
    return Setting(
        members=chance.randint(1, 4),
        deliveries_max=chance.choice((1, 2, 3, 5, 8)),
        locks_max=chance.choice((5, 20, 40, 100)),
        failing=chance.choice((0, 0.1, 0.3)),
        lost=chance.choice((0, 0.1, 0.3)),
        resets=chance.random() < 0.3,
    )


class Log:
    """The data partition: batches from ``start`` to ``end`` (exclusive), some of them compacted away or aborted."""

    def __init__(self) -> None:
        self.start = self.end = 0
        self.batches: list[tuple[int, int]] = []
        self.offsets: set[int] = set()
        """Of all batches that are there and may be read."""

    def add(self, size: int, gap: int) -> None:
        """Append a batch behind a gap."""
        first = self.end + gap
        self.end = first + size
        self.batches.append((first, self.end - 1))
        self.offsets.update(range(first, self.end))

    def remove(self, index: int) -> None:
        """A batch is compacted away, or its transaction was aborted."""
        first, last = self.batches.pop(index)
        self.offsets.difference_update(range(first, last + 1))

    def trim(self, start: int) -> None:
        """Delete what is before ``start``."""
        self.start = start
        self.batches = [batch for batch in self.batches if batch[1] >= start]
        self.offsets = {offset for offset in self.offsets if offset >= start}

    def read(self, offset: int, batches: int) -> tuple[list[tuple[Offset, Offset]], Offset]:
        """Some batches from ``offset`` on, and where reading stopped."""
        found = [batch for batch in self.batches if batch[1] >= offset]
        taken = found[:batches]
        end = found[batches][0] if len(found) > batches else self.end
        return [(Offset(first), Offset(last)) for first, last in taken], Offset(end)


class Coordinator:
    """The coordinator of the state over its log. A new one loads the log."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.core = StoredStates(_UPDATES_MAX)
        for at, (key, change) in enumerate(world.records):
            self.core.replay(key, change, Offset(at))
        self.core.loaded(world.now_us)
        self.over = False

    def ask(self, request: Read | Report | Initialize | Summary) -> None:
        """A request has arrived; its token takes the answer."""
        self._carry_out(self.core.ask(request, self.world.now_us, self.world.now_us // 1000))
        self._tick()

    def _tick(self) -> None:
        due_us = self.core.deadline_us
        if due_us is not None and due_us <= self.world.now_us:
            self._carry_out(self.core.time_passed(self.world.now_us, self.world.now_us // 1000))

    def _carry_out(self, out: Outputs) -> None:
        for token, answer in out.answers:
            assert callable(token)
            token(answer)
        for write in out.writes:
            self.world.unsettled.append(write)
            self.world.later(self.world.chance("disk").randrange(1, 5_000), self._settle)

    def _settle(self) -> None:
        """The oldest record on its way is written, or not."""
        if self.over:
            return
        world = self.world
        write = world.unsettled.pop(0)
        fails = not world.healed and world.chance("disk").random() < world.setting.failing
        if not fails:
            world.append(write)
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else ErrorCode.NONE
        self._carry_out(
            self.core.persisted(
                write.receipt, error, Offset(len(world.records) - 1), world.now_us, world.now_us // 1000
            )
        )


class Leader:
    """The shell of a share partition in one term of its log."""

    def __init__(self, world: World, term: int) -> None:
        self.world = world
        self.term = term
        self.core: SharePartition | None = None
        self.model: Model | None = None
        self.state_epoch = -1
        self.closed = False
        self._rests = False
        self._write = 0
        self._load()

    def _load(self) -> None:
        def loaded(answer: Answer) -> None:
            if self.closed or self.core is not None:
                return
            if answer.error is not ErrorCode.NONE:
                self.world.later(_AGAIN_US, self._load)
                return
            image = answer.image
            assert image is not None
            world = self.world
            start = max(image.start, world.log.start)
            self.state_epoch = image.state_epoch
            stored = image.batches
            is_stored = image.start >= 0
            self.core = SharePartition(Offset(start), stored, limits=world.limits, is_stored=is_stored)
            self.model = Model(start, stored, world.limits, is_stored=is_stored)
            world.judge.new_leader()
            self.check()

        self.world.to_coordinator(lambda done: Read(done, _KEY, self.term), loaded, self._load)

    def check(self) -> None:
        """Compare with the model, and judge the start."""
        assert self.core is not None and self.model is not None
        self.model.compare(self.core)
        if self.state_epoch == self.world.state_epoch:
            self.world.judge.passed(self.core.start, self.world.log.offsets, "the start")

    def fetch(self, member: str, token: SessionToken) -> list[tuple[int, int]]:
        """A member fetches. The ranges that it got."""
        world = self.world
        chance = world.chance("fetch")
        core, model = self.core, self.model
        if core is None or model is None or self.closed:
            return []
        offset = core.next_offset()
        if offset is None:
            return []
        batches, end = world.log.read(offset, chance.randint(1, 4))
        request = Request(
            member, token, chance.choice((1, 3, 10, 100)), chance.random() < 0.5, chance.choice((1, 5, 500))
        )
        given = core.acquire(request, offset, batches, end, world.now_us)
        model.acquire(request, offset, batches, end, world.now_us, given)
        read = {place for first, last in batches for place in range(first, last + 1)}
        limit = world.limits.deliveries_max
        if self.state_epoch == world.state_epoch:
            world.judge.delivered(member, token, given, limit, _LOCK_US, world.now_us, read)
        self._store()
        return [(one.first, one.last) for one in given]

    def acknowledge(self, member: str, given: list[Acknowledgement], done: Callable[[ErrorCode], None]) -> None:
        """A member acknowledges."""
        world, core, model = self.world, self.core, self.model
        if core is None or model is None or self.closed:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return
        start = core.start
        said = {
            offset: one.types[0 if len(one.types) == 1 else offset - one.first]
            for one in given
            for offset in range(max(one.first, start), one.last + 1)
        }

        def answered(error: ErrorCode) -> None:
            if error is ErrorCode.NONE and self.state_epoch == world.state_epoch:
                world.judge.answered({offset: kind for offset, kind in said.items() if kind != RENEW})
            done(error)

        error = core.acknowledge(member, given, answered, world.now_us)
        mine = model.acknowledge(member, given, world.now_us)
        model.agree(error, mine)
        if error not in _REFUSED and self.state_epoch == world.state_epoch:
            world.judge.said(member, said)
            renewed = [offset for offset, kind in said.items() if kind == RENEW]
            world.judge.renewed(renewed, _LOCK_US, world.now_us)
        if error is not None:
            done(error)
        self._store()

    def end_session(self, token: SessionToken) -> None:
        """A session is over."""
        if self.core is not None and self.model is not None and not self.closed:
            self.core.end_session(token)
            self.model.end_session(token)
            self.world.judge.session_over(token)
            self._store()

    def replace_session(self, member: str, token: SessionToken) -> None:
        """A member has a new session."""
        if self.core is not None and self.model is not None and not self.closed:
            self.core.replace_session(member, token)
            self.model.replace_session(member, token)
            self.world.judge.session_replaced(member, token)
            self.check()

    def log_start_moved(self) -> None:
        """The log was trimmed."""
        if self.core is not None and self.model is not None and not self.closed:
            self.core.move_log_start(Offset(self.world.log.start))
            self.model.move_log_start(self.world.log.start)
            self._store()

    def tick(self) -> None:
        """Time has passed."""
        if self.core is not None and self.model is not None and not self.closed:
            self.core.expire(self.world.now_us)
            self.model.expire(self.world.now_us)
            self._store()

    def _store(self) -> None:
        core, model = self.core, self.model
        assert core is not None and model is not None
        self.check()
        if self._rests or self.closed or self._write:
            return
        write = core.take_write()
        model.take_write(write)
        if write is None:
            return
        self._write += 1

        def written(answer: Answer) -> None:
            self._written(answer.error)

        def report(done: Callable[[Answer], None]) -> Report:
            return Report(done, _KEY, self.state_epoch, self.term, write.start, write.complete, write.batches)

        self.world.to_coordinator(report, written, lambda: self._written(ErrorCode.REQUEST_TIMED_OUT))

    def _written(self, error: ErrorCode) -> None:
        self._write = 0
        if self.closed:
            return
        core, model = self.core, self.model
        assert core is not None and model is not None
        if error in (ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.FENCED_STATE_EPOCH):
            self.close()
            self.world.lead()
            return
        for one in core.written(error, self.world.now_us):
            assert callable(one.request)
            one.request(one.error)
        model.written(error, self.world.now_us)
        self._rests = error is not ErrorCode.NONE
        if self._rests:
            self.world.later(_AGAIN_US, self._go_on)
        self._store()

    def _go_on(self) -> None:
        self._rests = False
        if not self.closed:
            self._store()

    def close(self) -> None:
        """Another leads."""
        self.closed = True
        if self.core is not None:
            for request in self.core.close():
                assert callable(request)
                request(ErrorCode.NOT_LEADER_OR_FOLLOWER)


class Member:
    """Takes records and says something of them, not always what it should."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.token = world.next_token()
        self.held: list[tuple[int, int]] = []
        self.later()

    def later(self) -> None:
        """Act again after a while."""
        self.world.later(self.world.chance("members").randrange(1_000, 400_000), self.act)

    def act(self) -> None:
        """One step."""
        world, chance = self.world, self.world.chance("members")
        leader = world.leader
        roll = chance.random()
        if world.healed:
            self._say_of_all()
            self.held = leader.fetch(self.name, self.token)
        elif roll < 0.45:
            self.held += leader.fetch(self.name, self.token)
        elif roll < 0.9:
            self._say()
        elif roll < 0.94:
            old, self.token = self.token, world.next_token()
            if chance.random() < 0.5:
                leader.end_session(old)
                self.held = []
            else:  # the end of the old connection is noticed late
                leader.replace_session(self.name, self.token)
                world.later(chance.randrange(3 * SECOND), lambda: world.leader.end_session(old))
        elif self.held:
            self.held.pop()  # and says nothing: its lock expires
        self.later()

    def _say_of_all(self) -> None:
        for first, last in self.held:
            one = Acknowledgement(Offset(first), Offset(last), [ACCEPT])
            self.world.leader.acknowledge(self.name, [one], lambda _: None)
        self.held = []

    def _say(self) -> None:
        chance = self.world.chance("members")
        given: list[Acknowledgement] = []
        for first, last in sorted(self.held):
            if chance.random() < 0.3 or (given and first <= given[-1].last):
                continue
            end = last if chance.random() < 0.7 else chance.randint(first, last)
            types = [chance.choice((ACCEPT, ACCEPT, ACCEPT, RELEASE, REJECT, GAP, RENEW))]
            if chance.random() < 0.3:
                types = [chance.choice((ACCEPT, RELEASE, REJECT, GAP, RENEW)) for _ in range(first, end + 1)]
            given.append(Acknowledgement(Offset(first), Offset(end), types))
        if chance.random() < 0.05:  # something that it does not hold
            first = chance.randrange(self.world.log.end + 3)
            given = [Acknowledgement(Offset(first), Offset(first + chance.randrange(5)), [ACCEPT])]
        elif chance.random() < 0.9:
            done = [(one.first, one.last) for one in given]
            self.held = [one for one in self.held if one not in done]
        if given:
            self.world.leader.acknowledge(self.name, given, lambda _: None)


class World:
    """One run. Lifecycle: `run` once."""

    def __init__(self, seed: int, setting: Setting) -> None:
        self.setting = setting
        self.chance = Streams(seed)
        self.now_us = BEGIN_US
        self.healed = False
        self.judge = Judge()
        self.limits = Limits(_LOCK_US, setting.deliveries_max, setting.locks_max)
        self.log = Log()
        self.records: list[tuple[Key, Change]] = []
        """The log of the state topic's partition."""
        self.unsettled: list[Write] = []
        self.state_epoch = 0
        self.delivered = 0
        self._token = self._epoch = 0
        self._term = 0
        self._events: Timeline[Callable[[], None]] = Timeline()
        self.coordinator = Coordinator(self)
        self._initialize(0, -1)
        self.leader = Leader(self, 0)

    def next_token(self) -> SessionToken:
        """A token that no other session has."""
        self._token += 1
        return SessionToken(self._token)

    def later(self, delay_us: int, do: Callable[[], None]) -> None:
        """Do something after a time."""
        self._events.add(self.now_us + delay_us, do)

    def run(self) -> None:
        """Members and faults, then the heal, then the judgement. Raises Violation."""
        for number in range(self.setting.members):
            Member(self, f"member-{number}")
        self._produce()
        self._break_something()
        self._tick()
        self._until(self.now_us + self.setting.seconds * SECOND)
        self.healed = True
        self._until(self.now_us + 90 * SECOND)
        assert self.leader.core is not None
        self.judge.finish(self.leader.core.start, self.log.end)

    def _until(self, end_us: int) -> None:
        while (due_us := self._events.due_us()) is not None and due_us <= end_us:
            self.now_us = due_us
            self._events.pop()()
        self.now_us = end_us

    def _tick(self) -> None:
        self.leader.tick()
        self.later(100_000, self._tick)

    def _produce(self) -> None:
        chance = self.chance("producer")
        if not self.healed:
            self.log.add(chance.choice((1, 1, 3, 10, 30)), chance.choice((0, 0, 0, 1, 7)))
            self.later(chance.randrange(1_000_000), self._produce)

    # The coordinator

    def append(self, write: Write) -> None:
        """A record is in the log of the state topic."""
        self.records.append((write.key, write.change))
        image = self.coordinator.core.images.get(_KEY)
        if image is not None and image.state_epoch == self.state_epoch:
            self.judge.passed(image.start, self.log.offsets, "the stored start")

    def to_coordinator(
        self, request: Callable[[Callable[[Answer], None]], Read | Report], done: Callable[[Answer], None],
        too_late: Callable[[], None],
    ) -> None:  # fmt: skip
        """Ask the coordinator that there is when the request arrives. Requests and answers may be lost or late."""
        chance = self.chance("network")
        waiting = [done]

        def arrive(answer: Answer) -> None:
            if waiting:
                waiting.pop()(answer)

        def answered(answer: Answer) -> None:
            if self.healed or chance.random() >= self.setting.lost:
                self.later(chance.randrange(100, 3_000), lambda: arrive(answer))

        def give_up() -> None:
            if waiting:
                waiting.pop()
                too_late()

        delay_us = chance.choice((1_000, 1_000, 1_000, 1_500_000, 5_000_000)) if not self.healed else 1_000
        self.later(delay_us, lambda: self.coordinator.ask(request(answered)))
        self.later(_TIMEOUT_US, give_up)

    def _initialize(self, epoch: int, start: int) -> None:
        """The group coordinator sets the start; it tries until it is done."""

        def done(answer: Answer) -> None:
            if answer.error is ErrorCode.NONE and epoch > self.state_epoch:
                self.state_epoch = epoch
                self.judge.reset(start, self.log.end)
            elif answer.error is not ErrorCode.NONE:
                self._epoch += 1  # the first attempt may be in the log, and a leader may work with it
                again = self._epoch
                self.later(_AGAIN_US, lambda: self._initialize(again, start))

        self.coordinator.ask(Initialize(done, _KEY, epoch, Offset(start)))

    # Faults

    def lead(self) -> None:
        """A new leader."""
        self._term += 1
        self.leader = Leader(self, self._term)

    def _break_something(self) -> None:
        if self.healed:
            return
        chance = self.chance("faults")
        fault = chance.randrange(8)
        if fault == 0:
            self.leader.close()
            self.lead()
        elif fault == 1:
            self._fail_over()
        elif fault == 2 and self.log.batches:
            self.log.remove(chance.randrange(len(self.log.batches)))
        elif fault == 3 and self.log.end > self.log.start:
            self.log.trim(chance.randint(self.log.start, self.log.start + (self.log.end - self.log.start) // 4))
            self.leader.log_start_moved()
        elif fault == 4 and self.setting.resets and chance.random() < 0.3:
            self._epoch += 1
            self._initialize(self._epoch, chance.randint(self.log.start, self.log.end))
        self.later(chance.randrange(1, SECOND), self._break_something)

    def _fail_over(self) -> None:
        """Another coordinator: some of what was being written is in the log, the rest is not."""
        old = self.coordinator
        old.over = True
        waiting = old.core.unload()
        for write in self.unsettled[: self.chance("faults").randint(0, len(self.unsettled))]:
            self.records.append((write.key, write.change))
        self.unsettled.clear()
        self.coordinator = Coordinator(self)
        for token in waiting:
            assert callable(token)
            token(Answer(ErrorCode.NOT_COORDINATOR))


def play(seed: int, counts: Counts, setting: Setting | None = None) -> Finding | None:
    """Play the history of a seed; a finding is in ``counts``, too."""
    world = World(seed, setting or draw(seed))
    finding = attempt(seed, counts, world.run, (AssertionError,), world.setting)
    counts.simulated_us += world.now_us - BEGIN_US
    counts.seen["acknowledged"] += len(world.judge.finished)
    counts.seen["records of state"] += len(world.records)
    return finding
