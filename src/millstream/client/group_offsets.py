"""Changes of a group without members: other offsets, fewer offsets, or none of it left.

Each is sent once to the group's coordinator, which refuses it while the group has members (their next commit would undo
it). After a lost connection it raises ``OutcomeUnknown``. Share groups have offsets of their own
(``client.share_groups``).
"""

from collections.abc import Callable, Collection, Mapping
from typing import TypeVar

from millstream.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition, once, refuse
from millstream.client.connection import Connection
from millstream.client.coordinators import GROUP, Coordinators
from millstream.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)

_T = TypeVar("_T")


def offsets_at(cluster: Cluster, places: Collection[TopicPartition], to: str, value: int) -> dict[TopicPartition, int]:
    """The offsets that are meant: ``earliest``, ``latest``, ``offset`` N or ``time`` in ms, within the partitions.

    A time after the last record means the end.
    """
    starts = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
    if to == "earliest":
        return {place: found.offset for place, found in starts.items()}
    ends = cluster.list_offsets(dict.fromkeys(places, LATEST))
    if to == "latest":
        return {place: found.offset for place, found in ends.items()}
    if to == "offset":
        return {place: min(max(value, starts[place].offset), ends[place].offset) for place in places}
    found = cluster.list_offsets(dict.fromkeys(places, value))
    return {place: one.offset if one.offset >= 0 else ends[place].offset for place, one in found.items()}


def set_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Let a group without members read on at these offsets.

    Raises:
        Rejected: the group has members, or a right is missing; offsets of other partitions may be set.
        OutcomeUnknown: the connection was lost.
    """
    by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, []).append(OffsetCommitRequestPartition(partition, offset))
    topics = [OffsetCommitRequestTopic(name, partitions=partitions) for name, partitions in by_topic.items()]
    request = OffsetCommitRequest(group, topics=topics)
    answer = ask_once(cluster, group, lambda line: line.ask(request, OffsetCommitResponse, lowest=2, highest=8))
    for topic in answer.topics:
        for one in topic.partitions:
            refuse(one.error_code, f"offset of {group} in {topic.name}-{one.partition_index}")


def delete_offsets(cluster: Cluster, group: str, places: Collection[TopicPartition]) -> None:
    """Let a group forget its offsets in partitions of topics that it does not read now. Raises as ``set_offsets``."""
    by_topic: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition))
    request = OffsetDeleteRequest(group, [OffsetDeleteRequestTopic(*each) for each in by_topic.items()])
    answer = ask_once(cluster, group, lambda line: line.ask(request, OffsetDeleteResponse))
    refuse(answer.error_code, f"group {group}")
    for topic in answer.topics:
        for one in topic.partitions:
            refuse(one.error_code, f"offset of {group} in {topic.name}-{one.partition_index}")


def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group of any kind that has no members, with its offsets. Raises as ``set_offsets``."""
    request = DeleteGroupsRequest([group])
    answer = ask_once(cluster, group, lambda line: line.ask(request, DeleteGroupsResponse))
    refuse(answer.results[0].error_code, f"group {group}")


def ask_once(cluster: Cluster, group: str, ask: Callable[[Connection], _T]) -> _T:
    """Send a change to the coordinator of a group. Raises OutcomeUnknown if the connection is lost."""
    coordinators = Coordinators(cluster)
    node = cluster.insist(f"coordinator of {group}", lambda: coordinators.node(GROUP, group))
    connection = cluster.connection(node)
    return once(lambda: ask(connection), f"the change of {group} may have been made")
