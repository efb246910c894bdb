"""Groups of simulated members: classic ones, and ones of the consumer protocol, through fail-over of their coordinator.

::

    ClassicMember ── JoinGroup ─ SyncGroup ─ Heartbeat ──┐
    ConsumerMember ─ ConsumerGroupHeartbeat ─────────────┼─► LocalGroups of the leader of ``__consumer_offsets``
    both ─────────── OffsetFetch, OffsetCommit ──────────┘
              └──► GroupTruth: what each was assigned

A member beats by a timer, commits what it owns, and reads back where it starts. Now and then one leaves, and one keeps
still for longer than its session, after which the first that it does is a commit as who it was.

A request other than a commit that arrives after its member has given the connection up is dropped: Kafka's protocols
promise nothing about a heartbeat that comes twice, the second time from the past.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from millstream.coordinator.asks import (
    CONSUMER_GROUP_HEARTBEAT,
    HEARTBEAT,
    JOIN_GROUP,
    LEAVE_GROUP,
    OFFSET_COMMIT,
    OFFSET_FETCH,
    SYNC_GROUP,
)
from millstream.core.group.outputs import ConsumerSettings, GroupSettings
from millstream.core.group.topics import Topic
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopics
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from sim.brokers.clients import Client
from sim.brokers.group_truth import GroupTruth, Identity
from sim.brokers.served import OFFSETS_GROUP
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.wire.schema import Message
    from sim.brokers.served import ServedBroker
    from sim.brokers.world import Cluster

READ: Final = Topic("members read", bytes(15) + b"r", 5)
MEMBERS: Final = 3
_SESSIONS: Final = 2
"""A session lasts so many times as long as a client waits for an answer: a member that waits is not expired."""
_FENCED: Final = frozenset(
    {
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.UNKNOWN_MEMBER_ID,
    }
)
"""Errors that a coordinator answers before it writes anything."""


class OneTopic:
    """`core.group.topics.Topics` with the topic that members read."""

    revision = 1
    created_revision = 1

    def by_name(self, name: str) -> Topic | None:
        """As `Topics`."""
        return READ if name == READ.name else None

    def by_id(self, topic_id: bytes) -> Topic | None:
        """As `Topics`."""
        return READ if topic_id == READ.topic_id else None

    def names(self) -> Iterable[str]:
        """As `Topics`."""
        return (READ.name,)

    def may_describe(self, principal: str, client_host: str, name: str) -> bool:
        """As `Topics`."""
        _ = principal, client_host
        return name == READ.name


def group_settings(timeout_us: int) -> GroupSettings:
    """Settings of coordinators whose members wait so long for an answer."""
    timeout_ms = timeout_us // 1000
    session_ms = _SESSIONS * timeout_ms
    return GroupSettings(
        min_session_timeout_ms=1,
        initial_rebalance_delay_ms=timeout_ms // 10,
        new_member_join_timeout_ms=2 * session_ms,
        consumer=ConsumerSettings(
            session_timeout_ms=session_ms, heartbeat_interval_ms=timeout_ms // 4, assignment_interval_ms=0
        ),
    )


class Member(Client):
    """What the members of both protocols have in common.

    Lifecycle: `go_on` in each round; it acts by its own timer until `stop`. Invariants: one request is pending at a
    time; ``owned`` is what the coordinator has assigned to this member in its present life.
    """

    def __init__(self, cluster: Cluster, number: int, truth: GroupTruth, timeout_us: int) -> None:
        super().__init__(cluster, f"member {number} of {truth.group_id}", OFFSETS_GROUP, timeout_us)
        self.truth = truth
        self.who = Identity("", -1)
        self.owned: frozenset[int] = frozenset()
        self.heard_us = -1
        """When the newest heartbeat was sent that was answered."""
        self.session_us = _SESSIONS * timeout_us
        self.calm = False
        """No member leaves or keeps still from now on."""
        self._unread: set[int] = set()
        """Partitions of ``owned`` whose committed offset this member has yet to ask for."""
        self._busy = self._running = self._awakes = False
        self._still_until_us = 0

    def go_on(self) -> None:
        """Act until `stop`."""
        self.calm = False
        if not self._running:
            self._running = True
            self._later()

    def stop(self) -> None:
        """Only wait for the answer to the pending request."""
        self._running = False

    def _later(self) -> None:
        self.cluster.after(1 + self.chance.randrange(self.timeout_us // 3), self._act)

    def _act(self) -> None:
        if not self._running:
            return
        self._later()
        if self._busy or (self.cluster.now < self._still_until_us and not self.calm):
            return
        what = self.chance.random()
        if self._awakes:
            self._awakes = False
            if self.owned:
                self._commit(self.chance.choice(sorted(self.owned)))
                return
        if not self.owned or what < 0.55:
            self.beat()
        elif self._unread:
            self._fetch(min(self._unread))
        elif what < 0.9 or self.calm:
            self._commit(self.chance.choice(sorted(self.owned)))
        elif what < 0.95:
            self.history.seen["member keeps still"] += 1
            self._still_until_us = self.cluster.now + int(self.session_us * self.chance.uniform(0.5, 3))
            self._awakes = True
        else:
            self.history.seen["member leaves"] += 1
            self.leave()

    def request(
        self, api: int, version: int, request: Message, answered: Callable[[Any, int], None], *, again: bool = False
    ) -> None:
        """Ask the coordinator; ``answered(None, -1)`` if the connection breaks. ``again``: it is carried out, too, when
        it arrives on a connection that was given up.
        """
        if not self.connected:
            self.connect()
        self._busy = True
        session = self.session

        def serve(broker: ServedBroker, reply: Callable[[Any], None]) -> None:
            if again or session == self.session:
                broker.ask_group(api, version, self.name, request, reply)

        def done(answer: tuple[Any, int] | None) -> None:
            self._busy = False
            answered(*(answer or (None, -1)))

        self.ask(serve, done)

    def failed(self, error: int | None) -> bool:
        """Whether there is no answer, or one with an error; the member reconnects then."""
        if error == ErrorCode.NONE:
            return False
        what = "no answer" if error is None else ErrorCode(error).name
        self.history.seen[f"member: {what}"] += 1
        self.disconnect()
        return True

    def take(self, partitions: Iterable[int]) -> None:
        """The coordinator has assigned partitions to this member in its epoch."""
        now = frozenset(partitions)
        self._unread = (self._unread & now) | (now - self.owned)
        self.owned = now
        self.truth.on_assigned(self.who, now, self.cluster.now)

    def forget(self) -> None:
        """The coordinator no longer knows this member: start over."""
        self.owned, self._unread = frozenset(), set()

    def beat(self) -> None:
        """Say that this member is alive, or do what is next in its protocol."""
        raise NotImplementedError

    def leave(self) -> None:
        """Leave the group; the member comes back as another one."""
        raise NotImplementedError

    # Offsets

    def _commit(self, partition: int) -> None:
        commit = self.truth.commit(partition, self.who, self.cluster.now)
        given = OffsetCommitRequestPartition(partition_index=partition, committed_offset=commit.value)
        request = OffsetCommitRequest(
            group_id=self.truth.group_id,
            generation_id_or_member_epoch=self.who.epoch,
            member_id=self.who.member_id,
            topics=[OffsetCommitRequestTopic(name=READ.name, topic_id=READ.topic_id, partitions=[given])],
        )

        def answered(answer: Any, term: int) -> None:
            error = _code(answer)
            if error == ErrorCode.NONE:
                self.history.seen["commit of a member"] += 1
                self.truth.on_committed(commit, term)
            elif error in _FENCED:
                self.truth.on_refused(commit)
                self.failed(error)
                self.forget()
            else:
                self.failed(error)

        self.request(OFFSET_COMMIT, 10, request, answered, again=True)

    def _fetch(self, partition: int) -> None:
        floor = self.truth.floor(partition)
        topic = OffsetFetchRequestTopics(name=READ.name, topic_id=READ.topic_id, partition_indexes=[partition])
        request = OffsetFetchRequestGroup(group_id=self.truth.group_id, topics=[topic])

        def answered(answer: Any, term: int) -> None:
            if self.failed(_code(answer)):
                return
            self._unread.discard(partition)
            self.history.seen["offset read back by a member"] += 1
            found = [each.committed_offset for one in answer.topics for each in one.partitions]
            self.truth.on_fetched(partition, found[0] if found else -1, floor, term)

        self.request(OFFSET_FETCH, 8, request, answered)

    @property
    def settled(self) -> bool:
        """Whether it has its place, and has read where it starts."""
        return self.who.epoch >= 0 and not self._unread


class ClassicMember(Member):
    """A member of a classic group: join, sync, and beat until a rebalance."""

    def __init__(self, cluster: Cluster, number: int, truth: GroupTruth, timeout_us: int) -> None:
        super().__init__(cluster, number, truth, timeout_us)
        self._joined: list[str] | None = None
        """As leader of a generation that is not yet assigned: its members."""
        self._step: Callable[[], None] = self._join

    def beat(self) -> None:
        """Do what is next."""
        self._step()

    def forget(self) -> None:
        """Join as a new member."""
        super().forget()
        self.who = Identity("", -1)
        self._step = self._join

    def _join(self) -> None:
        timeout_ms = self.timeout_us // 1000
        request = JoinGroupRequest(
            group_id=self.truth.group_id,
            session_timeout_ms=_SESSIONS * timeout_ms,
            rebalance_timeout_ms=timeout_ms // 2,
            member_id=self.who.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range")],
        )

        def answered(answer: Any, _: int) -> None:
            if _code(answer) == ErrorCode.MEMBER_ID_REQUIRED:
                self.who = Identity(answer.member_id, -1)
                return
            if self._refused(answer):
                return
            self.who = Identity(answer.member_id, answer.generation_id)
            self._joined = [one.member_id for one in answer.members] if answer.leader == answer.member_id else None
            self._step = self._sync

        self.request(JOIN_GROUP, 9, request, answered)

    def _sync(self) -> None:
        assignments: list[SyncGroupRequestAssignment] = []
        for place, member_id in enumerate(self._joined or ()):
            share = bytes(range(place, self.truth.partitions, len(self._joined or ())))
            assignments.append(SyncGroupRequestAssignment(member_id=member_id, assignment=share))
        request = SyncGroupRequest(
            group_id=self.truth.group_id,
            generation_id=self.who.epoch,
            member_id=self.who.member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )

        def answered(answer: Any, _: int) -> None:
            if not self._refused(answer):
                self._step = self._heartbeat
                self.owned = frozenset()  # the eager protocol: everything was given up before the join
                self.take(answer.assignment)

        self.request(SYNC_GROUP, 5, request, answered)

    def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.truth.group_id, generation_id=self.who.epoch, member_id=self.who.member_id
        )
        self.request(HEARTBEAT, 4, request, lambda answer, _: cast(None, self._refused(answer)))

    def _refused(self, answer: Any) -> bool:
        """Whether a request about the membership has failed; what is next is set then."""
        error = _code(answer)
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self.history.seen["member: REBALANCE_IN_PROGRESS"] += 1
            self.owned, self._unread, self._step = frozenset(), set(), self._join
            return True
        if error in _FENCED:
            self.forget()
        return self.failed(error)

    def leave(self) -> None:
        """Leave, and join again as another one."""
        who = MemberIdentity(member_id=self.who.member_id)
        request = LeaveGroupRequest(group_id=self.truth.group_id, members=[who])
        self.request(LEAVE_GROUP, 5, request, lambda answer, _: cast(None, self.failed(_code(answer))))
        self.forget()

    @property
    def settled(self) -> bool:
        """Whether it works in a generation."""
        return super().settled and self._step == self._heartbeat


class ConsumerMember(Member):
    """A member of a group of the consumer protocol (KIP-848): one kind of heartbeat for everything.

    It gives a partition up when it is asked to, and says so with its next heartbeat.
    """

    def __init__(
        self, cluster: Cluster, number: int, truth: GroupTruth, timeout_us: int, others: list[ConsumerMember]
    ) -> None:
        super().__init__(cluster, number, truth, timeout_us)
        self._others = others
        self._says_all = True
        """The next heartbeat says everything: an answer was lost."""
        self._number = number
        self._lives = 0
        self.forget()

    def forget(self) -> None:
        """Join as a new member."""
        super().forget()
        self._lives += 1
        self.who = Identity(f"{self._number}.{self._lives}", 0)

    def beat(self) -> None:
        """One heartbeat."""
        joins = self.who.epoch == 0
        full = joins or self._says_all
        owned = [OwnedTopicPartitions(topic_id=READ.topic_id, partitions=sorted(self.owned))] if self.owned else []
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.truth.group_id,
            member_id=self.who.member_id,
            member_epoch=self.who.epoch,
            rebalance_timeout_ms=2 * self.session_us // 1000 if full else -1,
            subscribed_topic_names=[READ.name] if full else None,
            topic_partitions=owned,
        )
        sent_us = self.cluster.now

        def answered(answer: Any, _: int) -> None:
            error = _code(answer)
            if self.failed(error):
                self._says_all = True
                if joins or error in _FENCED:
                    self.forget()
                return
            self._says_all = False
            self.heard_us = sent_us
            self.who = Identity(self.who.member_id, answer.member_epoch)
            now = self.owned
            if answer.assignment is not None:
                now = frozenset(each for one in answer.assignment.topic_partitions for each in one.partitions)
            self._check_alone(now)
            self.take(now)

        self.request(CONSUMER_GROUP_HEARTBEAT, 1, request, answered)

    def _check_alone(self, partitions: frozenset[int]) -> None:
        """No other member with a live session owns one of these (D1)."""
        for other in self._others:
            both = other.owned & partitions
            if other is not self and both and self.cluster.now < other.heard_us + other.session_us:
                raise Violation(
                    f"D1: {self.who} of group {self.truth.group_id} is assigned {sorted(both)}, which {other.who} owns "
                    f"and has sent a heartbeat {self.cluster.now - other.heard_us} us ago"
                )

    def leave(self) -> None:
        """Leave, and join again as another one."""
        request = ConsumerGroupHeartbeatRequest(
            group_id=self.truth.group_id, member_id=self.who.member_id, member_epoch=-1
        )
        self.request(CONSUMER_GROUP_HEARTBEAT, 1, request, lambda answer, _: cast(None, self.failed(_code(answer))))
        self.forget()

    @property
    def settled(self) -> bool:
        """Whether it is a member."""
        return super().settled and self.who.epoch > 0


def _code(answer: Any) -> int | None:
    """The error of an answer, or of the code that refuses the request; None if there is no answer."""
    if isinstance(answer, ErrorCode):
        return int(answer)
    if isinstance(answer, OffsetCommitResponse):
        return answer.topics[0].partitions[0].error_code
    return None if answer is None else answer.error_code


class Members:
    """A group of each protocol.

    Lifecycle: made with the history; `go_on` in each round, `finish` at its end.
    """

    def __init__(self, cluster: Cluster, timeout_us: int) -> None:
        self._cluster = cluster
        self._session_us = _SESSIONS * timeout_us
        seen = cluster.histories[OFFSETS_GROUP].seen
        classic = GroupTruth("classic", READ.partitions, seen, generations=True)
        consumer = GroupTruth("consumer", READ.partitions, seen, generations=False)
        consumers: list[ConsumerMember] = []
        consumers += (ConsumerMember(cluster, one, consumer, timeout_us, consumers) for one in range(MEMBERS))
        self._groups: tuple[list[Member], ...] = (
            [ClassicMember(cluster, one, classic, timeout_us) for one in range(MEMBERS)],
            list(consumers),
        )

    @property
    def _all(self) -> list[Member]:
        return [one for group in self._groups for one in group]

    def go_on(self) -> None:
        """Let all members act."""
        for one in self._all:
            one.go_on()

    def finish(self, limit_us: int) -> None:
        """Everybody finds its place, every partition has its owner (G5); then they stop."""
        for one in self._all:
            one.calm = True
        if not self._cluster.run(self._settled, limit_us + 20 * self._session_us):
            left = [(one.name, one.who, sorted(one.owned)) for one in self._all]
            raise Violation(f"G5: groups do not settle {limit_us} us after the heal: {left}")
        for one in self._all:
            one.stop()

    def _settled(self) -> bool:
        return all(
            all(one.settled for one in group)
            and sorted(each for one in group for each in one.owned) == list(range(READ.partitions))
            for group in self._groups
        )
