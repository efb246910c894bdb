"""A share group of pairs: members that take records of the topic, acknowledge some, and hold others while the next
operation happens.

::

    Sharing ──► SharePartitions ─ ServedPartition ─ core.share        (of each broker, the production code)
                      └► States ─ StoredStates                        (a perfect coordinator, which outlives brokers)

A member asks the broker that leads the partition, as clients of `World` do. An acknowledgement without a definite
answer promises nothing.

**Judged.** A record whose acknowledgement was answered is not given again. A group that reads what is committed gets
nothing that was aborted. At rest, members that take and accept come to the end of the log, and every record that a
consumer reads was given to the group at least once. What is absent: membership, sessions of connections, and who holds
a record at which time, which `sim.share` judges.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.config.group_properties import EARLIEST, READ_COMMITTED, READ_UNCOMMITTED, ShareGroupConfig
from millstream.coordinator.share_states import READ, Answered, Ask
from millstream.core.share import stored
from millstream.core.share.partition import ACCEPT, GAP, REJECT, RELEASE, Acknowledgement, Request
from millstream.core.share.runs import SessionToken
from millstream.core.share.stored import UNKNOWN, Initialize, Report, StoredStates
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, ShardId
from millstream.share.home import AcknowledgeAsk, FetchAsk, SharePartitions
from millstream.wire.batch import CONTROL
from millstream.wire.records import OVERHEAD_BYTES, iter_records, unpack_header
from sim.engine.mailbox import LocalMailbox
from sim.engine.timeline import SECOND
from sim.engine.violation import Violation
from sim.pairs.kinds import TOPIC
from sim.pairs.truth import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from millstream.core.share.partition import Acquired
    from millstream.core.share.stored import Answer, Outputs
    from millstream.iobuf import IoBuf
    from millstream.partition.partition import Partition
    from millstream.share.home import Place
    from millstream.share.served import Taken
    from sim.pairs.judge import Read
    from sim.pairs.world import World

GROUP: Final = "s"
_MAX_BYTES: Final = 4_000
_TRIES: Final = 60
_SAYS: Final = (ACCEPT, ACCEPT, RELEASE, REJECT)
_ANSWERS: Final = 0.7
"""Chance that a member says something of what it was given."""
_AGAIN: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.KAFKA_STORAGE_ERROR})
_LATE: Final = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST})
"""Answers to a member whose records another leader, or another member, may have by now."""


class _States:
    """The coordinator of the state, as the share partitions of one broker see it."""

    def __init__(self, sharing: Sharing, reactor: Any) -> None:
        self._sharing, self._reactor = sharing, reactor

    def ask_all(self, asks: Sequence[Ask], done: Callable[[Sequence[Answered]], None]) -> None:
        """As ``coordinator.share_states.ShareStates.ask_all``, of one share partition."""
        (ask,) = asks

        def answered(answer: Answer) -> None:
            self._reactor.call_soon(done, [(answer.error, answer.image)])

        made = (
            stored.Read(answered, ask.key, ask.leader_epoch)
            if ask.kind == READ
            else Report(
                answered, ask.key, ask.state_epoch, ask.leader_epoch, ask.start, ask.complete, list(ask.batches)
            )
        )
        self._sharing.ask(made)


class _Known:
    """What the members know of one share partition."""

    def __init__(self) -> None:
        self.given: set[int] = set()
        """Offsets that a member had."""
        self.finished: set[int] = set()
        """Offsets whose final acknowledgement was answered."""


class Sharing:
    """The group of one history. It is new when the cluster is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._states = StoredStates()
        self._states.loaded(0)
        self._end = 0
        """Records of the coordinator's log."""
        self._homes: dict[Any, SharePartitions] = {}
        """By the partitions of a broker, which are others after each start."""
        self._known: dict[tuple[bytes, int], _Known] = {}
        self._sessions: dict[tuple[bytes, int, str], tuple[Any, SessionToken]] = {}
        """By topic id, partition and member: with which broker, by its partitions."""
        self._tokens = 0
        self._woken: set[SessionToken] = set()
        """Sessions that were told that there may be something."""
        self._committed = False
        """The group reads what is committed; drawn by the first operation."""

    def ask(self, request: stored.Request) -> None:
        """Ask the coordinator, which has every record in its log at once."""
        self._carry_out(self._states.ask(request, 0, 0))

    def _carry_out(self, out: Outputs) -> None:
        for token, answer in out.answers:
            assert callable(token)
            token(answer)
        for write in out.writes:
            self._end += 1
            self._carry_out(self._states.persisted(write.receipt, ErrorCode.NONE, Offset(self._end), 0, 0))

    # Members

    def take(self, index: int) -> None:
        """A member takes some records, and acknowledges some of them."""
        chance = self._world.chance
        if not self._known:
            self._committed = chance.random() < 0.5
        member = chance.choice(("a", "b"))
        for _ in range(chance.randint(1, 3)):
            given, values = self._fetch(index, member, chance.choice((1, 5, 100)), strict=chance.random() < 0.5)
            for one in given:
                if chance.random() < _ANSWERS:
                    last = chance.randint(one.first, one.last)
                    says = {at: chance.choice(_SAYS) if at in values else GAP for at in range(one.first, last + 1)}
                    self._acknowledge(index, member, says)
        if chance.random() < 0.5:
            self.leave()

    def leave(self) -> None:
        """No member is there any longer: what they hold is released."""
        tables = [one.table for one in self._world.lives()]
        for table, token in self._sessions.values():
            if table in tables:
                self._homes[table].end_session(GROUP, token)
        self._sessions.clear()

    def drain(self, index: int, records: Sequence[Read]) -> None:
        """A member takes and accepts all that is left; ``records`` are those that a consumer reads."""
        world = self._world
        partition = world.serving(TOPIC, index)
        known = self._known.get((partition.topic_id, index))
        if known is None:
            return
        for _ in range(_TRIES):
            given, values = self._fetch(index, "last", 100, strict=False)
            for one in given:
                says = {at: ACCEPT if at in values else GAP for at in range(one.first, one.last + 1)}
                self._acknowledge(index, "last", says)
            if not given and self._start(partition) >= partition.high_watermark:
                break
        else:
            raise Violation(
                f"the share group stays at {self._start(partition)}, and the log ends at {partition.high_watermark}"
            )
        self.leave()
        world.until(lambda: not partition.waiters.readers, "a share partition without members stays")
        truth = world.truth_of(index)
        hidden = truth.aborted | truth.open if self._committed else ()  # an open transaction may have timed out since
        missed = [one.offset for one in records if one.offset not in known.given and one.value not in hidden]
        if missed:
            raise Violation(f"the share group never had the offsets {missed[:5]}")

    def _start(self, partition: Partition) -> int:
        """Start offset of the share partition; -1 before it is loaded."""
        for table, home in self._homes.items():
            if table.by_group.get(partition.raft_group) is partition:
                served = home._served.get(GROUP, {}).get((partition.topic_id, partition.index))
                if served is not None and served.core is not None:
                    return served.core.start
        return -1

    def _fetch(
        self, index: int, member: str, records_max: int, *, strict: bool
    ) -> tuple[Sequence[Acquired], dict[int, bytes]]:
        """What a member gets, maybe nothing, and the values of the records among it."""
        world, answers = self._world, list["Taken"]()
        partition, home, token = self._session(index, member)
        ask = FetchAsk(Request(member, token, records_max, strict), _MAX_BYTES, [self._place(partition)])
        self._woken.discard(token)
        home.fetch(ShardId(0), ask, answers.extend)
        world.until(lambda: bool(answers), "a ShareFetch is not answered")
        taken = answers[0]
        if taken.error and taken.error not in _AGAIN:
            raise Refused(taken.error.name)
        if not taken.acquired:
            world.run(lambda: token in self._woken, SECOND)
        return taken.acquired, self._note(partition, taken)

    def _note(self, partition: Partition, taken: Taken) -> dict[int, bytes]:
        """Note what a member was given. Returns the values of the records."""
        world, known = self._world, self._known_of(partition)
        given = {at for one in taken.acquired for at in range(one.first, one.last + 1)}
        again = given & known.finished
        if again:
            raise Violation(f"the share group gets {min(again)} again, and its acknowledgement was answered")
        values: dict[int, bytes] = {}
        if taken.data is not None:
            values = {at: value for at, value in _records(taken.data) if at in given}
            taken.data.release()
        known.given |= given
        if self._committed and (aborted := world.truth_of(partition.index).aborted & set(values.values())):
            raise Violation(f"the share group gets what was aborted: {min(aborted)[:40]!r}")
        return values

    def _acknowledge(self, index: int, member: str, says: dict[int, int]) -> None:
        """Acknowledge consecutive offsets, each with its kind."""
        partition, home, _ = self._session(index, member)
        given = [Acknowledgement(Offset(min(says)), Offset(max(says)), list(says.values()))]
        answers: list[ErrorCode] = []
        home.acknowledge(ShardId(0), AcknowledgeAsk(member, self._place(partition), given), answers.append)
        self._world.until(lambda: bool(answers), "an acknowledgement is not answered")
        if answers[0] is ErrorCode.NONE:
            self._known_of(partition).finished |= {at for at, kind in says.items() if kind != RELEASE}
        elif answers[0] not in _LATE:
            raise Refused(answers[0].name)

    def _known_of(self, partition: Partition) -> _Known:
        return self._known.setdefault((partition.topic_id, partition.index), _Known())

    @staticmethod
    def _place(partition: Partition) -> Place:
        return (GROUP, partition.topic_id, partition.index), partition.raft_group

    def _session(self, index: int, member: str) -> tuple[Partition, SharePartitions, SessionToken]:
        """The session of a member with the broker that leads a partition now."""
        partition = self._world.serving(TOPIC, index)
        if partition.config.has_events:
            raise Refused(ErrorCode.INVALID_REQUEST.name)  # as ``kafka.handlers.data.share_places``
        broker = self._world.broker_of(TOPIC, index)
        home = self._homes.get(broker.table) or self._home(broker)
        key = (partition.topic_id, index, member)
        table, token = self._sessions.get(key, (None, SessionToken(0)))
        if table is not broker.table:
            self._tokens += 1
            token = SessionToken(self._tokens)
            self._sessions[key] = broker.table, token
            if (GROUP, partition.topic_id, index) not in self._states.images:
                self.ask(Initialize(_answered, (GROUP, partition.topic_id, index), 1, Offset(UNKNOWN)))
        return partition, home, token

    def _home(self, broker: Any) -> SharePartitions:
        """The share partitions of a broker in its present life."""
        reactor = broker.shard.reactor
        stats = broker.shard.stats
        shard: Any = SimpleNamespace(
            id=ShardId(0), count=1, reactor=reactor, mailbox=LocalMailbox(reactor), stats=stats
        )
        isolation = READ_COMMITTED if self._committed else READ_UNCOMMITTED
        configs = {ShareGroupConfig.auto_offset_reset.name: EARLIEST, ShareGroupConfig.isolation_level.name: isolation}
        metadata: Any = SimpleNamespace(group_configs={GROUP: configs}, settings=self._world.settings)
        states: Any = _States(self, reactor)
        home = self._homes[broker.table] = SharePartitions(shard, broker.table, states, metadata)
        home.on_wake = self._woken.add
        return home


def _answered(answer: Answer) -> None:
    assert answer.error is ErrorCode.NONE, answer


def _records(data: IoBuf) -> Iterator[tuple[int, bytes]]:
    """Offset and value of each record that is no marker."""
    view, at = memoryview(bytes(data.copy(0, len(data)))), 0
    while at < len(view):
        header = unpack_header(view, at)
        batch = view[at : at + header[1] + OVERHEAD_BYTES]
        at += len(batch)
        if not header[5] & CONTROL:
            yield from ((one.offset, one.value or b"") for one in iter_records(batch))
