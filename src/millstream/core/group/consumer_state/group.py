"""A consumer group: the sum of its newest records, with derived counts.

``apply`` processes one record, just decided or read from the log. The newest records of a group may be applied in any
order. ``record`` returns the current value of a key, so that a change that could not be written is undone by applying
the former values.

Derived counts (owners of partitions, subscribers of topics) follow each record and are not stored.
"""

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec

from millstream.core.group.assign.spec import NOTHING, Partitions
from millstream.core.group.consumer_state.member import NOTHING_OWNED, ConsumerMember, MemberState, Owned
from millstream.core.group.consumer_state.topics import NEVER_CHECKED, Topics
from millstream.core.group.deadlines import Deadline
from millstream.core.group.state import GroupState
from millstream.wire.messages.consumer_group_storage import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    TargetTopicPartitions,
)
from millstream.wire.stored import ConsumerGroupKey

FIRST_EPOCH: Final = 1
"""Group and assignment epoch of a group without stored epochs, as in Kafka."""
NEVER_MS: Final = -1

ConsumerGroupValue: TypeAlias = (
    ConsumerGroupMetadataValue
    | ConsumerGroupMemberMetadataValue
    | ConsumerGroupTargetAssignmentMetadataValue
    | ConsumerGroupTargetAssignmentMemberValue
    | ConsumerGroupCurrentMemberAssignmentValue
    | ConsumerGroupRegularExpressionValue
)
ConsumerRecord: TypeAlias = tuple[ConsumerGroupKey, ConsumerGroupValue | None]


class Resolved(msgspec.Struct, frozen=True):
    """Topics that a regular expression matches, at a revision of the metadata and a time (wall clock, ms)."""

    topics: frozenset[str]
    revision: int
    at_ms: int


class MemberTimers:
    """The deadlines of one member. ``rebalance`` and, for classic members, ``join`` and ``sync`` are only set while
    needed.
    """

    __slots__ = ("join", "rebalance", "session", "sync")

    def __init__(
        self, session: Deadline[Any], rebalance: Deadline[Any], join: Deadline[Any], sync: Deadline[Any]
    ) -> None:
        self.session = session
        self.rebalance = rebalance
        self.join = join
        self.sync = sync


class ConsumerGroup:
    """The state of one consumer group.

    Invariants: ``owners`` names exactly the member that owns, or has yet to revoke, each partition; ``statics`` maps
    instance ids to members; ``behind`` counts the members that are not reconciled to ``assignment_epoch``.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = FIRST_EPOCH
        self.metadata_hash = 0
        self.assignment_epoch = FIRST_EPOCH
        self.assignment_ms = 0
        """Time at which the target assignment was computed (wall clock, ms); 0 for never."""
        self.members: dict[str, ConsumerMember] = {}
        self.targets: dict[str, Partitions] = {}
        self.expressions: dict[str, Resolved] = {}
        self.statics: dict[str, str] = {}
        self.owners: dict[bytes, dict[int, str]] = {}
        self.behind = 0
        self.classic_members = 0
        self.supporters: dict[str, int] = {}
        """Classic assignor → number of classic members that support it."""
        self.assignors: dict[str, int] = {}
        self.name_counts: dict[str, int] = {}
        self.regex_counts: dict[str, int] = {}
        self.timers: dict[str, MemberTimers] = {}
        self.checked_revision = NEVER_CHECKED
        """Revision of the metadata with which ``metadata_hash`` was last compared."""
        self.is_resolving = False
        """Whether the group's regular expressions are being resolved."""

    # What it is

    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        return GroupState.RECONCILING if self.behind else GroupState.STABLE

    def target(self, member: ConsumerMember) -> Partitions:
        """The member's target assignment. A static member inherits its predecessor's."""
        member_id = member.member_id
        if member.instance_id is not None:
            member_id = self.statics.get(member.instance_id, member_id)
        return self.targets.get(member_id, NOTHING)

    def subscribed_names(self) -> set[str]:
        """Every topic that a member subscribes to, by name or by regular expression."""
        names = set(self.name_counts)
        for regex in self.regex_counts:
            resolved = self.expressions.get(regex)
            if resolved is not None:
                names |= resolved.topics
        return names

    def names_of(self, member: ConsumerMember) -> frozenset[str]:
        """The topics that one member subscribes to. An unresolved regular expression matches nothing."""
        resolved = self.expressions.get(member.topic_regex) if member.topic_regex else None
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def topic_ids_of(self, member: ConsumerMember, topics: Topics) -> frozenset[bytes]:
        """The ids of those topics, as far as they exist."""
        found = (topics.by_name(name) for name in self.names_of(member))
        return frozenset(topic.topic_id for topic in found if topic is not None)

    def consumes(self, topic: str) -> bool:
        return topic in self.name_counts or any(
            topic in self.expressions[regex].topics for regex in self.regex_counts if regex in self.expressions
        )

    def is_owned(self, topic_id: bytes, partition: int) -> bool:
        """Whether a member owns this partition, or has yet to revoke it."""
        return partition in self.owners.get(topic_id, {})

    def preferred_assignor(self) -> str | None:
        """The assignor that most members request; None if none does."""
        return max(self.assignors, key=self.assignors.__getitem__) if self.assignors else None

    def supports(self, protocol_type: str, assignors: Iterable[str]) -> bool:
        """Whether a classic member with these assignors could join: it must share one with all other classic
        members.
        """
        return protocol_type == "consumer" and any(
            self.supporters.get(name, 0) == self.classic_members for name in assignors
        )

    @property
    def last_resolved_ms(self) -> int:
        """Time at which regular expressions were last resolved (wall clock, ms); -1 for never."""
        return max((resolved.at_ms for resolved in self.expressions.values()), default=NEVER_MS)

    # Records

    def apply(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        """Apply a record; value None deletes."""
        match key:
            case ConsumerGroupMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupMetadataValue)
                self.epoch = FIRST_EPOCH if value is None else value.epoch
                self.metadata_hash = 0 if value is None else value.metadata_hash
            case ConsumerGroupMemberMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupMemberMetadataValue)
                self._apply_metadata(key.member_id, value)
            case ConsumerGroupTargetAssignmentMetadataKey():
                assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMetadataValue)
                self.assignment_epoch = FIRST_EPOCH if value is None else value.assignment_epoch
                self.assignment_ms = 0 if value is None else value.assignment_timestamp
                epoch = self.assignment_epoch
                self.behind = sum(not member.is_reconciled_to(epoch) for member in self.members.values())
            case ConsumerGroupTargetAssignmentMemberKey():
                assert value is None or isinstance(value, ConsumerGroupTargetAssignmentMemberValue)
                if value is None:
                    self.targets.pop(key.member_id, None)
                else:
                    self.targets[key.member_id] = {
                        topic.topic_id: frozenset(topic.partitions) for topic in value.topic_partitions
                    }
            case ConsumerGroupCurrentMemberAssignmentKey():
                assert value is None or isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
                self._apply_current(key.member_id, value)
            case ConsumerGroupRegularExpressionKey():
                assert value is None or isinstance(value, ConsumerGroupRegularExpressionValue)
                if value is None:
                    self.expressions.pop(key.regular_expression, None)
                else:
                    self.expressions[key.regular_expression] = Resolved(
                        frozenset(value.topics), value.version, value.timestamp
                    )

    def record(self, key: ConsumerGroupKey) -> ConsumerGroupValue | None:
        """The current value of ``key``."""
        match key:
            case ConsumerGroupMetadataKey():
                return ConsumerGroupMetadataValue(self.epoch, self.metadata_hash)
            case ConsumerGroupMemberMetadataKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.metadata_value()
            case ConsumerGroupTargetAssignmentMetadataKey():
                return ConsumerGroupTargetAssignmentMetadataValue(self.assignment_epoch, self.assignment_ms)
            case ConsumerGroupTargetAssignmentMemberKey():
                target = self.targets.get(key.member_id)
                return None if target is None else target_value(target)
            case ConsumerGroupCurrentMemberAssignmentKey():
                member = self.members.get(key.member_id)
                return None if member is None else member.current_value()
            case ConsumerGroupRegularExpressionKey():
                resolved = self.expressions.get(key.regular_expression)
                return None if resolved is None else resolved_value(resolved)

    def tombstones(self) -> list[ConsumerRecord]:
        """The records that delete the group."""
        group_id = self.group_id
        records: list[ConsumerRecord] = []
        for member_id in self.members:
            records += member_tombstones(group_id, member_id)
        records.append((ConsumerGroupTargetAssignmentMetadataKey(group_id), None))
        records += [(ConsumerGroupRegularExpressionKey(group_id, regex), None) for regex in self.expressions]
        records.append((ConsumerGroupMetadataKey(group_id), None))
        return records

    def _apply_metadata(self, member_id: str, value: ConsumerGroupMemberMetadataValue | None) -> None:
        before = self.members.get(member_id)
        if before is not None:
            self._count(before, -1)
        if value is None:
            if before is not None:
                self._own(before, NOTHING_OWNED, NOTHING_OWNED)
                self.behind -= not before.is_reconciled_to(self.assignment_epoch)
                del self.members[member_id]
                self._free_instance(before)
            return
        if before is None:
            before = self._fresh(member_id)
        member = self.members[member_id] = before.with_metadata(value)
        self._count(member, 1)
        if member.instance_id != before.instance_id:
            self._free_instance(before)
        if member.instance_id is not None:
            self.statics[member.instance_id] = member_id

    def _free_instance(self, member: ConsumerMember) -> None:
        if member.instance_id is not None and self.statics.get(member.instance_id) == member.member_id:
            del self.statics[member.instance_id]

    def _apply_current(self, member_id: str, value: ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        before = self.members.get(member_id)
        if before is None:
            if value is None:
                return
            before = self._fresh(member_id)
        if value is None:
            member = before.at(-1, MemberState.STABLE, NOTHING_OWNED, NOTHING_OWNED)
        else:
            member = before.with_current(value)
        self._own(before, member.assigned, member.revoking)
        self.members[member_id] = member
        epoch = self.assignment_epoch
        self.behind += (not member.is_reconciled_to(epoch)) - (not before.is_reconciled_to(epoch))

    def _fresh(self, member_id: str) -> ConsumerMember:
        member = self.members[member_id] = ConsumerMember(member_id)
        self.behind += not member.is_reconciled_to(self.assignment_epoch)
        return member

    def _own(self, before: ConsumerMember, *now: Owned) -> None:
        """Change the owner of a member's partitions: remove those of ``before``, add those of ``now``."""
        member_id = before.member_id
        for owned in (before.assigned, before.revoking):
            for topic_id, partitions in owned.items():
                owners = self.owners.get(topic_id)
                if owners is None:
                    continue
                for partition in partitions:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    del self.owners[topic_id]
        for owned in now:
            for topic_id, partitions in owned.items():
                self.owners.setdefault(topic_id, {}).update(dict.fromkeys(partitions, member_id))

    def _count(self, member: ConsumerMember, by: int) -> None:
        for name in member.topic_names:
            _add(self.name_counts, name, by)
        if member.topic_regex:
            _add(self.regex_counts, member.topic_regex, by)
        if member.server_assignor is not None:
            _add(self.assignors, member.server_assignor, by)
        if member.classic is not None:
            self.classic_members += by
            for protocol in member.classic.supported_protocols:
                _add(self.supporters, protocol.name, by)


def _add(counts: dict[str, int], name: str, by: int) -> None:
    count = counts.get(name, 0) + by
    if count:
        counts[name] = count
    else:
        counts.pop(name, None)


def member_tombstones(group_id: str, member_id: str) -> list[ConsumerRecord]:
    """The records that delete a member."""
    return [
        (ConsumerGroupCurrentMemberAssignmentKey(group_id, member_id), None),
        (ConsumerGroupTargetAssignmentMemberKey(group_id, member_id), None),
        (ConsumerGroupMemberMetadataKey(group_id, member_id), None),
    ]


def target_value(target: Partitions) -> ConsumerGroupTargetAssignmentMemberValue:
    """The record of a member's target assignment."""
    return ConsumerGroupTargetAssignmentMemberValue(
        topic_partitions=[
            TargetTopicPartitions(topic_id=topic_id, partitions=sorted(partitions))
            for topic_id, partitions in target.items()
        ]
    )


def resolved_value(resolved: Resolved) -> ConsumerGroupRegularExpressionValue:
    """The record of an expression's topics."""
    return ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.revision, timestamp=resolved.at_ms
    )
