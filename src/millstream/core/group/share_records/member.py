"""A member of a share group."""

from collections.abc import Iterable, Mapping
from typing import Self

import msgspec

from millstream.core.group.assign.spec import NOTHING, Partitions
from millstream.core.group.assigned_state.member import LEAVES, AssignedMember
from millstream.model.quantities import MemberEpoch
from millstream.wire.messages.share_group_storage import (
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
    ShareTopicPartitions,
)
from millstream.wire.schema import Stored


class ShareMember(AssignedMember, frozen=True):
    """A member. It has its target at once: there is nothing that another one has to give back."""

    topic_names: frozenset[str] = frozenset()
    assigned: Partitions = NOTHING

    def at(self, epoch: MemberEpoch, assigned: Partitions, known: MemberEpoch) -> Self:
        """The member with a new assignment. The epoch that the member knows is kept, in case the response is lost."""
        previous = self.previous_epoch if epoch == self.epoch else known
        return msgspec.structs.replace(self, previous_epoch=previous, epoch=epoch, assigned=assigned)

    # As records

    def metadata_value(self) -> ShareGroupMemberMetadataValue:
        return ShareGroupMemberMetadataValue(
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            subscribed_topic_names=sorted(self.topic_names),
        )

    def with_metadata(self, value: Stored) -> Self:
        assert isinstance(value, ShareGroupMemberMetadataValue)
        return msgspec.structs.replace(
            self,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topic_names=frozenset(value.subscribed_topic_names),
        )

    def current_value(self) -> ShareGroupCurrentMemberAssignmentValue:
        return ShareGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            assigned_partitions=stored(self.assigned),
        )

    def with_current(self, value: Stored | None) -> Self:
        if value is None:
            return self.at(LEAVES, NOTHING, LEAVES)
        assert isinstance(value, ShareGroupCurrentMemberAssignmentValue)
        return msgspec.structs.replace(
            self,
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            assigned=restored(value.assigned_partitions),
        )


def stored(partitions: Mapping[bytes, frozenset[int]]) -> list[ShareTopicPartitions]:
    """Partitions as records have them."""
    return [ShareTopicPartitions(topic_id, sorted(indexes)) for topic_id, indexes in partitions.items()]


def restored(topics: Iterable[ShareTopicPartitions]) -> Partitions:
    """Partitions of a record."""
    return {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.partitions}
