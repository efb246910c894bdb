"""Records of ``__consumer_offsets`` that streams groups (KIP-1071) write, as Apache Kafka 4.3 lays them out.

A group is the sum of its newest records: the topology (23), the group's epoch and for which topology its topics were
found right (17), each member's facts (19), the tasks that every member is to have (20 the epoch, 21 a member), and
those that it has (22). A null value forgets.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.assigned_group_storage import (
    AssignmentEpochKey,
    AssignmentEpochValue,
    CurrentKey,
    CurrentValue,
    GroupEpochKey,
    GroupEpochValue,
    MemberKey,
    TargetKey,
)
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsEndpoint,
    StreamsKeyValue,
    StreamsSubtopology,
    StreamsTaskIds,
)
from millstream.wire.schema import F, Int32, Int64, Message, Stored, StoredKey


class StreamsGroupMetadataKey(GroupEpochKey, api_key=17):
    """Key of a group's epoch."""


class StreamsGroupMetadataValue(GroupEpochValue, api_key=17, versions=(0, 0), flexible=0):
    """The group epoch, a hash of the topics as they were when it was set, the epoch of the topology whose topics were
    found right then (-1: none), and the settings of the assignor.
    """

    metadata_hash: Int64 = 0
    validated_topology_epoch: Annotated[Int32, F("0+", tag=0)] = -1
    last_assignment_configs: Annotated[list[StreamsKeyValue] | None, F("0+", tag=1, nullable="0+")] = None


class StreamsGroupMemberMetadataKey(MemberKey, api_key=19):
    """Key of a member's facts."""


class StreamsGroupMemberMetadataValue(Stored, api_key=19, versions=(0, 0), flexible=0):
    """Who a member is. Members of one process have the same process id."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout_ms: Int32 = -1
    topology_epoch: Int32 = 0
    process_id: str = ""
    user_endpoint: StreamsEndpoint | None = None
    client_tags: list[StreamsKeyValue] = []


class StreamsGroupTargetAssignmentMetadataKey(AssignmentEpochKey, api_key=20):
    """Key of the target assignment's epoch."""


class StreamsGroupTargetAssignmentMetadataValue(AssignmentEpochValue, api_key=20, versions=(0, 0), flexible=0):
    """For which group epoch the target assignment was made, and when (wall clock, ms)."""


class StreamsGroupTargetAssignmentMemberKey(TargetKey, api_key=21):
    """Key of the tasks that a member is to have."""


class StreamsGroupTargetAssignmentMemberValue(Stored, api_key=21, versions=(0, 0), flexible=0):
    """The tasks that a member is to have."""

    active_tasks: list[StreamsTaskIds] = []
    standby_tasks: list[StreamsTaskIds] = []
    warmup_tasks: list[StreamsTaskIds] = []


class StreamsGroupCurrentMemberAssignmentKey(CurrentKey, api_key=22):
    """Key of the tasks that a member has."""


class StoredTaskIds(Message):
    """Tasks of one subtopology, and (active tasks) the member epoch with which each was given."""

    subtopology_id: str = ""
    partitions: list[Int32] = []
    assignment_epochs: Annotated[list[Int32] | None, F("0+", tag=0, nullable="0+")] = None


class StreamsGroupCurrentMemberAssignmentValue(CurrentValue, api_key=22, versions=(0, 0), flexible=0):
    """The tasks that a member has, those that it has yet to give back, and the epochs by which it is known."""

    active_tasks: list[StoredTaskIds] = []
    standby_tasks: list[StoredTaskIds] = []
    warmup_tasks: list[StoredTaskIds] = []
    active_tasks_pending_revocation: list[StoredTaskIds] = []
    standby_tasks_pending_revocation: list[StoredTaskIds] = []
    warmup_tasks_pending_revocation: list[StoredTaskIds] = []


class StreamsGroupTopologyKey(StoredKey, api_key=23):
    """Key of a group's topology."""

    group: str = ""


class StreamsGroupTopologyValue(Stored, api_key=23, versions=(0, 0), flexible=0):
    """The topology that the first member brought."""

    epoch: Int32 = 0
    subtopologies: list[StreamsSubtopology] = []
