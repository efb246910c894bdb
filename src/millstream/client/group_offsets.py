"""Moves a consumer group without members to other offsets.

``set_offsets`` is sent once to the group's coordinator, which refuses it while the group has members (their next
commit would undo it). After a lost connection it raises ``OutcomeUnknown``.
"""

from collections.abc import Collection, Mapping

from millstream.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition, error_of
from millstream.client.coordinators import GROUP, Coordinators
from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)


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
    coordinators = Coordinators(cluster)
    node = cluster.insist(f"coordinator of {group}", lambda: coordinators.node(GROUP, group))
    connection = cluster.connection(node)
    request = OffsetCommitRequest(group, topics=topics)
    try:
        answer = connection.ask(request, OffsetCommitResponse, lowest=2, highest=8)
    except Unavailable as error:
        raise OutcomeUnknown(f"{error.message}; the offsets of {group} may have been set", error.code) from error
    for topic in answer.topics:
        for one in topic.partitions:
            if one.error_code:
                failed = error_of(one.error_code, f"offset of {group} in {topic.name}-{one.partition_index}")
                raise Rejected(failed.message, failed.code)
