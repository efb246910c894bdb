"""One group: its members, and the counts that must stay consistent with them.

The verbs (``join``, ``sync``, ``rebalance`` …) decide; this class keeps the counts that they need. Members are in the
order in which they joined, so that every choice among them (a new leader, a tie between assignors) is deterministic.
"""

from collections.abc import Collection

from millstream.core.group.assigned_state.group import AnyGroup
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.counts import GroupCounts
from millstream.core.group.deadlines import JOIN, SYNC, Deadline
from millstream.core.group.member import Member, Protocols
from millstream.core.group.offsets import GroupOffsets
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.state import MAY_FOLLOW, GroupState
from millstream.core.group.streams_state.group import StreamsGroup
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.wire.codec import decode_message
from millstream.wire.messages.consumer_protocol import ConsumerProtocolSubscription

CONSUMER_PROTOCOL = "consumer"


class Rebalance:
    """The state of a rebalance, from its start to its end.

    ``first_delay_left_ms`` is how much longer the first rebalance of a group may wait for more members, and
    ``has_new_member`` says that one came during the current wait. ``writing``: the leader's assignment of this
    generation is in flight to the log.
    """

    __slots__ = (
        "awaiting_join",
        "first_delay_left_ms",
        "has_new_member",
        "join_deadline",
        "pending_joins",
        "pending_syncs",
        "sync_deadline",
        "writing",
    )

    def __init__(self, group: "Group") -> None:
        self.has_new_member = False
        self.first_delay_left_ms = 0
        self.join_deadline = Deadline(JOIN, group)
        self.sync_deadline = Deadline(SYNC, group)
        self.writing = False
        self.awaiting_join = 0
        """Number of members with a ``join_token``."""
        self.pending_joins: dict[str, Deadline[Group]] = {}
        """Member ids that were given out with MEMBER_ID_REQUIRED and not used yet (KIP-394)."""
        self.pending_syncs: set[str] = set()

    def forget(self) -> None:
        """No member joins or syncs any longer."""
        self.pending_joins.clear()
        self.pending_syncs.clear()
        self.awaiting_join = 0
        self.writing = False


class Assignors:
    """The assignors that members support, and the one that the generation uses.

    ``supporters`` counts the members that name each assignor. The topics that the members of the generation consume are
    decoded when they are first asked for: a group may have thousands of members, all of which wait while a generation
    starts.
    """

    __slots__ = ("_encoded", "_topics", "chosen", "supporters")

    def __init__(self) -> None:
        self.supporters: dict[str, int] = {}
        self.chosen: str | None = None
        self._topics: frozenset[str] | None = None
        self._encoded: set[bytes] | None = None

    def count(self, protocols: Protocols, count: int) -> None:
        """A member with these protocols comes (``count`` 1) or goes (-1)."""
        for name, _ in protocols:
            total = self.supporters.get(name, 0) + count
            if total:
                self.supporters[name] = total
            else:
                del self.supporters[name]

    def vote(self, members: Collection[Member]) -> str:
        """The assignor that most members prefer among those that all support. The first vote wins a tie."""
        candidates = {name for name, count in self.supporters.items() if count == len(members)}
        votes: dict[str, int] = {}
        for member in members:
            vote = next(name for name, _ in member.protocols if name in candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def refresh(self, group: "Group") -> None:
        """Remember what the members of a new generation sent."""
        self.forget_topics()
        if group.protocol_type != CONSUMER_PROTOCOL:
            return
        if not group.members:
            self._topics = frozenset()
        elif self.chosen is not None:
            self._encoded = {member.metadata(self.chosen) for member in group.members.values()}

    def forget_topics(self) -> None:
        self._topics = self._encoded = None

    @property
    def topics(self) -> frozenset[str] | None:
        """None if they are unknown."""
        if self._encoded is not None:
            encoded, self._encoded = self._encoded, None
            topics: set[str] = set()
            try:
                for metadata in encoded:
                    # After the version number, every version starts with the fields of version 0.
                    topics.update(decode_message(ConsumerProtocolSubscription, 0, metadata, 2).topics)
            except MillstreamError:
                return None  # members may use any encoding; the group then keeps all its offsets
            self._topics = frozenset(topics)
        return self._topics


class Standing:
    """A group's state, since when it is in it, and its part in the counts over all groups.

    ``since_ms`` is on the wall clock; -1 if an old record lacks it. ``size`` is the number of the group's members that
    are included in ``counts``, from ``enter`` to ``vanish``.
    """

    __slots__ = ("_group_id", "counts", "previous", "since_ms", "size", "state")

    def __init__(self, group_id: str, wall_ms: int) -> None:
        self._group_id = group_id
        self.counts: GroupCounts | None = None
        self.state = GroupState.EMPTY
        self.previous = GroupState.DEAD
        self.since_ms = wall_ms
        self.size = 0

    def enter(self, counts: GroupCounts) -> None:
        """The group exists from now on; count it."""
        self.counts = counts
        counts.states[self.state] += 1
        counts.members += self.size

    def vanish(self) -> None:
        """The group was deleted; stop counting it."""
        if self.counts is not None:
            self.counts.states[self.state] -= 1
            self.counts.members -= self.size
            self.counts = None

    def move_to(self, state: GroupState, wall_ms: int) -> None:
        """Enter a state that may follow the current one."""
        assert self.state in MAY_FOLLOW[state], f"group {self._group_id}: {state} cannot follow {self.state}"
        self.show(state, self.size)
        self.since_ms = wall_ms

    def show(self, state: GroupState, size: int) -> None:
        """Take over a state and a size as they are."""
        if self.counts is not None:
            self.counts.states[self.state] -= 1
            self.counts.states[state] += 1
        self.previous, self.state = self.state, state
        self.resize(size)

    def resize(self, size: int) -> None:
        if self.counts is not None:
            self.counts.members += size - self.size
        self.size = size

    def restore(self, state: GroupState, since_ms: int) -> None:
        """The state of a group that was read from the log, and is not counted yet."""
        self.state, self.previous, self.since_ms, self.size = state, GroupState.DEAD, since_ms, 0


class Writes:
    """A group's writes to the log."""

    __slots__ = ("in_flight", "last_receipt")

    def __init__(self) -> None:
        self.in_flight = 0
        self.last_receipt = 0
        """Receipt of the newest one."""


class Group:
    """A classic group, or only the committed offsets of one (``protocol_type`` None: no member ever joined).

    If ``consumer`` is set, the group is a consumer group (KIP-848), whose members are there; its offsets, and its
    durable state, are here. The same holds for ``streams``, a streams group (KIP-1071). If ``share`` is set, it is
    a share group (KIP-932), which has no offsets.

    Invariants: ``leader_id`` names a member, or is None without a leader; ``statics`` maps instance ids to members.
    """

    __slots__ = (
        "assigned",
        "assignors",
        "generation",
        "group_id",
        "leader_id",
        "members",
        "offsets",
        "protocol_type",
        "rebalance",
        "standing",
        "statics",
        "writes",
    )

    def __init__(self, group_id: str, wall_ms: int) -> None:
        self.group_id = group_id
        self.standing = Standing(group_id, wall_ms)
        self.assigned: AnyGroup | None = None
        """Set for a group whose members the coordinator assigns (KIP-848, KIP-932, KIP-1071)."""
        self.generation = 0
        self.protocol_type: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.statics: dict[str, str] = {}
        self.assignors = Assignors()
        self.rebalance = Rebalance(self)
        self.writes = Writes()
        self.offsets = GroupOffsets()

    @property
    def state(self) -> GroupState:
        return self.standing.state

    @property
    def consumer(self) -> ConsumerGroup | None:
        """The content of a consumer group."""
        return self.assigned if isinstance(self.assigned, ConsumerGroup) else None

    @property
    def share(self) -> ShareGroup | None:
        """The content of a share group."""
        return self.assigned if isinstance(self.assigned, ShareGroup) else None

    @property
    def streams(self) -> StreamsGroup | None:
        """The content of a streams group."""
        return self.assigned if isinstance(self.assigned, StreamsGroup) else None

    def forget_generations(self) -> None:
        """Reset to a group without generations: nothing of it is left in the log, and later commits come from consumers
        without membership.
        """
        if self.assigned is None:
            self.generation = 0
            self.protocol_type = self.assignors.chosen = None
            self.assignors.forget_topics()

    # The kinds of group

    def begin_assigned(self, content: AnyGroup) -> None:
        """Become a group whose members the coordinator assigns. From now on no request is parked here."""
        self._forget_classic()
        self.assigned = content
        self.protocol_type = content.group_type

    def follow_assigned(self) -> None:
        """Show the state and the size of a group whose members the coordinator assigns."""
        assert self.assigned is not None
        self.standing.show(self.assigned.state, len(self.assigned.members))

    def begin_classic(self, image: "Group") -> None:
        """Become the classic group ``image``, whose members' deadlines already name this group."""
        self._forget_classic()
        self.assigned = None
        self.members, self.statics, self.assignors = image.members, image.statics, image.assignors
        self.leader_id, self.generation = image.leader_id, image.generation
        self.protocol_type = image.protocol_type
        self.standing.since_ms = image.standing.since_ms
        self.assignors.refresh(self)
        self.standing.show(image.state, len(image.members))

    def begin_empty(self) -> None:
        """Become a classic group without members: the last record of another kind of group was deleted."""
        self.begin_classic(Group(self.group_id, self.standing.since_ms))

    def _forget_classic(self) -> None:
        self.members, self.statics, self.assignors = {}, {}, Assignors()
        self.rebalance.forget()
        self.leader_id = None
        self.generation = 0

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def can_rebalance(self) -> bool:
        """Whether a rebalance may start. While members are joining it cannot."""
        return self.state in MAY_FOLLOW[GroupState.PREPARING_REBALANCE]

    @property
    def all_joined(self) -> bool:
        return len(self.members) == self.rebalance.awaiting_join and not self.rebalance.pending_joins

    @property
    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance timeout of any member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    # Members

    def add(self, member: Member, join_token: object | None) -> None:
        """Add a member. Neither its id nor its instance is in the group yet."""
        assert member.member_id not in self.members
        if member.instance_id is not None:
            assert member.instance_id not in self.statics
            self.statics[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self.standing.resize(len(self.members))
        self.assignors.count(member.protocols, 1)
        member.join_token = join_token
        if join_token is not None:
            self.rebalance.awaiting_join += 1
        self.rebalance.pending_joins.pop(member.member_id, None)

    def remove(self, member_id: str) -> None:
        """Remove a member, or a given-out member id. Its parked requests must have been answered."""
        member = self.members.pop(member_id, None)
        if member is not None:
            self.standing.resize(len(self.members))
            self.assignors.count(member.protocols, -1)
            if member.join_token is not None:
                self.rebalance.awaiting_join -= 1
            if member.instance_id is not None and self.statics.get(member.instance_id) == member_id:
                del self.statics[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        self.rebalance.pending_joins.pop(member_id, None)
        self.rebalance.pending_syncs.discard(member_id)

    def replace_static(self, old: Member, new: Member) -> None:
        """Give a static member's place to its successor. ``old`` has no parked request left."""
        assert old.join_token is None
        assert new.instance_id is not None
        # Keep the position in the order of members.
        self.members = {
            (new.member_id if member is old else member_id): (new if member is old else member)
            for member_id, member in self.members.items()
        }
        if self.leader_id == old.member_id:
            self.leader_id = new.member_id
        self.statics[new.instance_id] = new.member_id
        if old.member_id in self.rebalance.pending_syncs:
            self.rebalance.pending_syncs.remove(old.member_id)
            self.rebalance.pending_syncs.add(new.member_id)

    def update(self, member: Member, protocols: Protocols, rebalance_timeout_ms: int, session_timeout_ms: int) -> None:
        """Store the facts of a join."""
        if protocols is not member.protocols:
            self.assignors.count(member.protocols, -1)
            member.protocols = protocols
            self.assignors.count(protocols, 1)
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: Member, token: object | None) -> object | None:
        """Park ``token`` until the rebalance ends (None: no request). Returns the token that was parked before."""
        before = member.join_token
        member.join_token = token
        self.rebalance.awaiting_join += (token is not None) - (before is not None)
        return before

    # Who a request comes from

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """NONE if the request comes from a member. A static member must be the current one of its instance."""
        if instance_id is not None:
            current = self.statics.get(instance_id)
            if current is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if current != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # Assignors

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member with these protocols could join: it must share an assignor with all members."""
        if self.is_empty:
            return bool(protocol_type) and bool(protocols)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(
            self.assignors.supporters.get(name, 0) == size for name, _ in protocols
        )

    def select_protocol(self) -> str:
        """The assignor for the next generation."""
        return self.assignors.vote(self.members.values())

    def consumes(self, topic: str) -> bool:
        """Whether members may be reading ``topic`` now. True if a consumer group's topics are unknown."""
        if self.assigned is not None:
            return self.assigned.consumes(topic)
        topics = self.assignors.topics
        if topics is not None:
            return topic in topics
        return self.protocol_type == CONSUMER_PROTOCOL
