"""A member of a consumer group."""

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, Self, TypeAlias

import msgspec

from millstream.core.group.assign.spec import Partitions
from millstream.core.group.assigned_state.member import LEAVES, AssignedMember
from millstream.model.quantities import MemberEpoch
from millstream.wire.messages.consumer_group_storage import (
    ClassicMemberMetadata,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
    CurrentTopicPartitions,
)
from millstream.wire.schema import Stored

Owned: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Topic id → partition → epoch at which the member got it. No topic is empty."""

NOTHING_OWNED: Final[Owned] = {}


class MemberState(IntEnum):
    """Kafka's numbers."""

    STABLE = 0
    """It owns everything that its epoch gives it."""
    UNREVOKED_PARTITIONS = 1
    """It has to revoke partitions and has not confirmed that. Its epoch stays until then."""
    UNRELEASED_PARTITIONS = 2
    """Other members have yet to revoke some partitions of its target."""
    UNKNOWN = 127


class ConsumerMember(AssignedMember, frozen=True):
    """A member of a consumer group. ``classic`` is set if it speaks the classic protocol."""

    instance_id: str | None = None
    topic_names: frozenset[str] = frozenset()
    topic_regex: str = ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMemberMetadata | None = None
    state: MemberState = MemberState.STABLE
    assigned: Owned = NOTHING_OWNED
    revoking: Owned = NOTHING_OWNED

    def is_reconciled_to(self, epoch: MemberEpoch) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    @property
    def must_revoke(self) -> bool:
        return self.state is MemberState.UNREVOKED_PARTITIONS

    @property
    def own_session_timeout_ms(self) -> int | None:
        return None if self.classic is None else self.classic.session_timeout_ms

    def held(self) -> Iterator[tuple[bytes, Mapping[int, int]]]:
        """All partitions that it owns, including those that it has yet to revoke."""
        yield from self.assigned.items()
        yield from self.revoking.items()

    def at(self, epoch: MemberEpoch, state: MemberState, assigned: Owned, revoking: Owned) -> Self:
        """The member with a new assignment. Its former epoch is kept, in case the response is lost."""
        return msgspec.structs.replace(
            self, previous_epoch=self.epoch, epoch=epoch, state=state, assigned=assigned, revoking=revoking
        )

    # As records

    def metadata_value(self) -> ConsumerGroupMemberMetadataValue:
        return ConsumerGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topic_names),
            subscribed_topic_regex=self.topic_regex,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            server_assignor=self.server_assignor,
            classic_member_metadata=self.classic,
        )

    def with_metadata(self, value: Stored) -> Self:
        assert isinstance(value, ConsumerGroupMemberMetadataValue)
        classic = value.classic_member_metadata
        return msgspec.structs.replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
            topic_regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=classic if classic is not None and classic.supported_protocols else None,
        )

    def current_value(self) -> ConsumerGroupCurrentMemberAssignmentValue:
        return ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=int(self.state),
            assigned_partitions=_stored(self.assigned),
            partitions_pending_revocation=_stored(self.revoking),
        )

    def with_current(self, value: Stored | None) -> Self:
        if value is None:
            return self.at(LEAVES, MemberState.STABLE, NOTHING_OWNED, NOTHING_OWNED)
        assert isinstance(value, ConsumerGroupCurrentMemberAssignmentValue)
        known = value.state in MemberState.__members__.values()
        return msgspec.structs.replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState(value.state) if known else MemberState.UNKNOWN,
            assigned=_restored(value.assigned_partitions, value.member_epoch),
            revoking=_restored(value.partitions_pending_revocation, value.member_epoch),
        )


def same_metadata(one: ConsumerMember, other: ConsumerMember) -> bool:
    """Whether both would be stored with the same metadata record."""
    return (
        msgspec.structs.replace(
            one,
            epoch=other.epoch,
            previous_epoch=other.previous_epoch,
            state=other.state,
            assigned=other.assigned,
            revoking=other.revoking,
        )
        == other
    )


def partitions_of(owned: Owned) -> Partitions:
    """The partitions without their epochs."""
    return {topic_id: frozenset(partitions) for topic_id, partitions in owned.items()}


def _stored(owned: Owned) -> list[CurrentTopicPartitions]:
    return [
        CurrentTopicPartitions(
            topic_id=topic_id,
            partitions=sorted(partitions),
            assignment_epochs=[partitions[index] for index in sorted(partitions)],
        )
        for topic_id, partitions in owned.items()
    ]


def _restored(stored: Iterable[CurrentTopicPartitions], epoch: int) -> Owned:
    owned: dict[bytes, dict[int, int]] = {}
    for topic in stored:
        epochs = topic.assignment_epochs
        if epochs is None or len(epochs) != len(topic.partitions):
            epochs = [epoch] * len(topic.partitions)
        if topic.partitions:
            owned[topic.topic_id] = dict(zip(topic.partitions, epochs, strict=True))
    return owned
