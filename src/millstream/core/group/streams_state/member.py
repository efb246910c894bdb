"""A member of a streams group."""

from enum import IntEnum
from typing import Self

import msgspec

from millstream.core.group.assigned_state.member import LEAVES, AssignedMember
from millstream.core.group.streams_state.tasks import (
    NOTHING_HELD,
    HeldTasks,
    of,
    restored_epochs,
    stored,
    stored_epochs,
)
from millstream.model.quantities import MemberEpoch
from millstream.wire.messages.streams_group_heartbeat import StreamsEndpoint, StreamsKeyValue
from millstream.wire.messages.streams_group_storage import (
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataValue,
)
from millstream.wire.schema import Stored


class MemberState(IntEnum):
    """Kafka's numbers."""

    STABLE = 1
    """It has the tasks that its epoch gives it."""
    UNREVOKED_TASKS = 2
    """It has to give tasks back and has not confirmed that. Its epoch stays until then."""
    UNRELEASED_TASKS = 3
    """Other members have yet to give back some tasks of its target."""
    UNKNOWN = 127

    @classmethod
    def read(cls, value: StreamsGroupCurrentMemberAssignmentValue) -> "MemberState":
        """The state of a record. A state of a newer release is UNKNOWN."""
        return cls(value.state) if value.state in (1, 2, 3) else cls.UNKNOWN


class StreamsMember(AssignedMember, frozen=True):
    """A member: one thread of an instance of the application. ``process_id`` is the instance."""

    instance_id: str | None = None
    rebalance_timeout_ms: int = -1
    topology_epoch: int = -1
    process_id: str = ""
    endpoint: StreamsEndpoint | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    state: MemberState = MemberState.STABLE
    assigned: HeldTasks = NOTHING_HELD
    revoking: HeldTasks = NOTHING_HELD

    def is_reconciled_to(self, epoch: MemberEpoch) -> bool:
        return self.state is MemberState.STABLE and self.epoch == epoch

    @property
    def must_revoke(self) -> bool:
        return self.state is MemberState.UNREVOKED_TASKS

    def at(self, epoch: MemberEpoch, state: MemberState, assigned: HeldTasks, revoking: HeldTasks) -> Self:
        """The member after a step towards its target. The epoch before is kept, in case the response is lost."""
        return msgspec.structs.replace(
            self, previous_epoch=self.epoch, epoch=epoch, state=state, assigned=assigned, revoking=revoking
        )

    # As records

    def metadata_value(self) -> StreamsGroupMemberMetadataValue:
        return StreamsGroupMemberMetadataValue(
            instance_id=self.instance_id,
            rack_id=self.rack_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            topology_epoch=self.topology_epoch,
            process_id=self.process_id,
            user_endpoint=self.endpoint,
            client_tags=[StreamsKeyValue(key, self.tags[key]) for key in sorted(self.tags)],
        )

    def with_metadata(self, value: Stored) -> Self:
        assert isinstance(value, StreamsGroupMemberMetadataValue)
        return msgspec.structs.replace(
            self,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            topology_epoch=value.topology_epoch,
            process_id=value.process_id,
            endpoint=value.user_endpoint,
            tags={tag.key: tag.value for tag in value.client_tags},
        )

    def current_value(self) -> StreamsGroupCurrentMemberAssignmentValue:
        return StreamsGroupCurrentMemberAssignmentValue(
            member_epoch=self.epoch,
            previous_member_epoch=self.previous_epoch,
            state=int(self.state),
            active_tasks=stored_epochs(self.assigned.active),
            standby_tasks=stored(self.assigned.standby),
            warmup_tasks=stored(self.assigned.warmup),
            active_tasks_pending_revocation=stored_epochs(self.revoking.active),
            standby_tasks_pending_revocation=stored(self.revoking.standby),
            warmup_tasks_pending_revocation=stored(self.revoking.warmup),
        )

    def with_current(self, value: Stored | None) -> Self:
        if value is None:
            return self.at(LEAVES, MemberState.STABLE, NOTHING_HELD, NOTHING_HELD)
        assert isinstance(value, StreamsGroupCurrentMemberAssignmentValue)
        epoch = value.member_epoch
        return msgspec.structs.replace(
            self,
            epoch=epoch,
            previous_epoch=value.previous_member_epoch,
            state=MemberState.read(value),
            assigned=HeldTasks(
                restored_epochs(value.active_tasks, epoch), of(value.standby_tasks), of(value.warmup_tasks)
            ),
            revoking=HeldTasks(
                restored_epochs(value.active_tasks_pending_revocation, epoch),
                of(value.standby_tasks_pending_revocation),
                of(value.warmup_tasks_pending_revocation),
            ),
        )
