"""A member of a share group, as stored in its two records: its own facts, and its assignment.

Members are immutable values.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from millstream.core.group.assign.spec import NOTHING, Partitions
from millstream.model.quantities import MemberEpoch
from millstream.wire.messages.share_group_storage import (
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataValue,
    ShareTopicPartitions,
)

JOINS: Final = 0
LEAVES: Final = -1
"""Special epochs in a request."""


class ShareMember(msgspec.Struct, frozen=True):
    """A member. It has its target at once: there is nothing that another one has to give back."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topic_names: frozenset[str] = frozenset()
    epoch: int = JOINS
    previous_epoch: int = JOINS
    assigned: Partitions = NOTHING

    def at(self, epoch: MemberEpoch, assigned: Partitions, known: MemberEpoch) -> "ShareMember":
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

    def with_metadata(self, value: ShareGroupMemberMetadataValue) -> "ShareMember":
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

    def with_current(self, value: ShareGroupCurrentMemberAssignmentValue) -> "ShareMember":
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
