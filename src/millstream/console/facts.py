"""What brokers know of a cluster: brokers, topics, properties, groups and how far they have read.

Every function sends one request a broker, for any number of topics or groups, and gives values. A list of groups
is asked of every broker, which also says who coordinates each. Errors of single groups and partitions are left out of a
result; what fails as a whole raises the client's errors.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import msgspec

from millstream.client.cluster import EARLIEST, LATEST, Cluster, TopicPartition, error_of
from millstream.client.connection import Connection
from millstream.client.coordinators import GROUP, Coordinators
from millstream.client.streams_tasks import sources_of
from millstream.model.error_code import ErrorCode
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from millstream.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from millstream.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from millstream.wire.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
)
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponseTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from millstream.wire.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from millstream.wire.schema import Request, Response
from millstream.wire.stored import decode_versioned

_R = TypeVar("_R", bound=Response)

_ABSENT: Final = (
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INVALID_TOPIC_EXCEPTION,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
)

_SEVERAL_GROUPS: Final = 8
"""First version of OffsetFetch with several groups."""
_LAST_BY_NAME: Final = 9
"""Last version of OffsetFetch that names topics."""


class Snapshot(msgspec.Struct, frozen=True):
    """Brokers by id and topics by name, at one moment."""

    cluster_id: str | None
    controller_id: int
    brokers: Mapping[int, MetadataResponseBroker]
    topics: Mapping[str, MetadataResponseTopic]

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())


class Trouble(NamedTuple):
    """Partitions in need of attention: without a leader, or with fewer in-sync replicas than replicas."""

    leaderless: list[TopicPartition]
    behind: list[TopicPartition]


class BrokerLoad(NamedTuple):
    """Replicas on a broker, and those of them that lead."""

    leaders: int
    replicas: int


class Group(NamedTuple):
    """A group as its coordinator lists it. ``kind`` is ``classic``, ``consumer``, ``share``, ``streams`` or empty
    (older brokers).
    """

    group_id: str
    state: str
    kind: str
    protocol_type: str
    coordinator: int


class Member(NamedTuple):
    """A member of a group with the partitions it has."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: list[TopicPartition]


class Described(NamedTuple):
    """A group with its members."""

    state: str
    assignor: str
    members: list[Member]


class Span(NamedTuple):
    """First offset and end offset (exclusive) of a partition."""

    start: int
    end: int


class Lag(NamedTuple):
    """How far a group is behind in a partition. ``end`` is -1 if the partition could not be asked."""

    topic: str
    partition: int
    committed: int
    end: int
    finished: int = 0
    """Records after the start of a share group that it has finished."""

    @property
    def records(self) -> int:
        """Offsets between the committed one and the end that are not finished; never negative."""
        return max(self.end - self.committed - self.finished, 0)


def take_snapshot(cluster: Cluster, only: Sequence[str] | None = None) -> Snapshot:
    """Brokers and all topics that the caller may describe, or some of them."""
    wanted = None if only is None else [MetadataRequestTopic(name=name) for name in only]

    def ask() -> MetadataResponse:
        connection = cluster.any_connection()
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        return connection.ask(request, MetadataResponse, lowest=5)

    found = cluster.insist("metadata", ask)
    topics = {each.name or "": each for each in found.topics if only is None or each.error_code not in _ABSENT}
    brokers = {broker.node_id: broker for broker in sorted(found.brokers, key=lambda broker: broker.node_id)}
    return Snapshot(found.cluster_id, found.controller_id, brokers, dict(sorted(topics.items())))


def trouble(snapshot: Snapshot) -> Trouble:
    """The partitions of all topics that are not as they should be."""
    leaderless: list[TopicPartition] = []
    behind: list[TopicPartition] = []
    for name, topic in snapshot.topics.items():
        for partition in topic.partitions:
            if partition.leader_id < 0:
                leaderless.append((name, partition.partition_index))
            elif len(partition.isr_nodes) < len(partition.replica_nodes):
                behind.append((name, partition.partition_index))
    return Trouble(leaderless, behind)


def loads(snapshot: Snapshot) -> dict[int, BrokerLoad]:
    """Leaders and replicas by broker; brokers that are named by partitions but not alive are there too."""
    leaders: dict[int, int] = {}
    replicas: dict[int, int] = dict.fromkeys(snapshot.brokers, 0)
    for topic in snapshot.topics.values():
        for partition in topic.partitions:
            leaders[partition.leader_id] = leaders.get(partition.leader_id, 0) + 1
            for node in partition.replica_nodes:
                replicas[node] = replicas.get(node, 0) + 1
    return {node: BrokerLoad(leaders.get(node, 0), count) for node, count in sorted(replicas.items())}


def spans(cluster: Cluster, snapshot: Snapshot, topics: Iterable[str]) -> dict[TopicPartition, Span]:
    """First and end offsets of the partitions of topics that have a leader."""
    wanted = [
        (name, partition.partition_index)
        for name in topics
        if name in snapshot.topics
        for partition in snapshot.topics[name].partitions
        if partition.leader_id in snapshot.brokers
    ]
    if not wanted:
        return {}
    # One request instead of one for each topic; it also leaves out what was deleted since the snapshot.
    known = cluster.metadata(sorted({name for name, _ in wanted}))
    wanted = [target for target in wanted if known.leader(*target) is not None]
    starts = cluster.list_offsets(dict.fromkeys(wanted, EARLIEST))
    ends = cluster.list_offsets(dict.fromkeys(wanted, LATEST))
    return {target: Span(starts[target].offset, ends[target].offset) for target in wanted}


def configs(
    cluster: Cluster, resource_type: int, name: str, *, node_id: int | None = None
) -> list[DescribeConfigsResourceResult]:
    """All properties of a topic or broker, with their sources, by name."""
    resource = DescribeConfigsResource(resource_type, name, None)
    request = DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True)

    def ask() -> list[DescribeConfigsResourceResult]:
        connection = cluster.any_connection() if node_id is None else cluster.connection(node_id)
        result = connection.ask(request, DescribeConfigsResponse).results[0]
        if result.error_code:
            raise error_of(result.error_code, f"properties of {name}", result.error_message)
        return sorted(result.configs, key=lambda config: config.name)

    return cluster.insist(f"properties of {name}", ask)


def log_dirs(cluster: Cluster, node_id: int, topics: Mapping[str, Sequence[int]]) -> list[DescribeLogDirsResult]:
    """The directories of a broker with the sizes of these partitions."""
    request = DescribeLogDirsRequest([DescribableLogDirTopic(name, list(each)) for name, each in topics.items()])
    answer = ask(cluster, node_id, request, DescribeLogDirsResponse)
    if answer.error_code:
        raise error_of(answer.error_code, f"directories of broker {node_id}")
    return answer.results


def sizes(cluster: Cluster, snapshot: Snapshot, topic: str) -> dict[int, int]:
    """Bytes on disk of each partition's leader; partitions whose broker gives none are left out."""
    by_leader: dict[int, list[int]] = {}
    for partition in snapshot.topics[topic].partitions:
        if partition.leader_id in snapshot.brokers:
            by_leader.setdefault(partition.leader_id, []).append(partition.partition_index)
    found: dict[int, int] = {}
    for node_id, partitions in by_leader.items():
        for directory in log_dirs(cluster, node_id, {topic: partitions}):
            for of in directory.topics:
                found.update(
                    {one.partition_index: one.partition_size for one in of.partitions if not one.is_future_key}
                )
    return found


# Groups


def list_groups(cluster: Cluster, snapshot: Snapshot) -> dict[str, Group]:
    """The groups of all brokers, by id."""
    found: dict[str, Group] = {}

    for node_id in snapshot.brokers:
        answer = ask(cluster, node_id, ListGroupsRequest(), ListGroupsResponse)
        if answer.error_code:
            raise error_of(answer.error_code, f"groups of broker {node_id}")
        for one in answer.groups:
            found[one.group_id] = Group(
                one.group_id, one.group_state, one.group_type.lower(), one.protocol_type, node_id
            )
    return dict(sorted(found.items()))


def find_group(cluster: Cluster, name: str) -> Group | None:
    """One group, as its coordinator lists it; None if the caller may describe no such group."""
    coordinators = Coordinators(cluster)
    answer = coordinators.insist(f"group {name}", GROUP, name, _listed)
    one = next((each for each in answer.groups if each.group_id == name), None)
    if one is None:
        return None
    return Group(name, one.group_state, one.group_type.lower(), one.protocol_type, coordinators.node(GROUP, name))


def _listed(connection: Connection) -> ListGroupsResponse:
    answer = connection.ask(ListGroupsRequest(), ListGroupsResponse)
    if answer.error_code:
        raise error_of(answer.error_code, "groups")
    return answer


def describe_groups(cluster: Cluster, groups: Sequence[Group]) -> dict[str, Described]:
    """Members of groups, by id. Share groups are left out."""
    found: dict[str, Described] = {}
    for node_id, kind, ids in _by_coordinator(groups):
        if kind == "consumer":
            answer = ask(cluster, node_id, ConsumerGroupDescribeRequest(ids), ConsumerGroupDescribeResponse)
            for one in answer.groups:
                if not one.error_code:
                    members = [
                        Member(
                            member.member_id,
                            member.instance_id,
                            member.client_id,
                            member.client_host,
                            [(t.topic_name, p) for t in member.assignment.topic_partitions for p in t.partitions],
                        )
                        for member in one.members
                    ]
                    found[one.group_id] = Described(one.group_state, one.assignor_name, members)
        elif kind == "streams":
            for one in ask(cluster, node_id, StreamsGroupDescribeRequest(ids), StreamsGroupDescribeResponse).groups:
                if not one.error_code:
                    members = [
                        Member(
                            member.member_id,
                            member.instance_id,
                            member.client_id,
                            member.client_host,
                            sources_of(one, member),
                        )
                        for member in one.members
                    ]
                    found[one.group_id] = Described(one.group_state, "sticky", members)
        elif kind in ("classic", ""):
            classic = ask(cluster, node_id, DescribeGroupsRequest(ids), DescribeGroupsResponse)
            for one in classic.groups:
                if not one.error_code:
                    members = [
                        Member(
                            member.member_id,
                            member.group_instance_id,
                            member.client_id,
                            member.client_host,
                            assigned(member.member_assignment),
                        )
                        for member in one.members
                    ]
                    found[one.group_id] = Described(one.group_state, one.protocol_data, members)
    return found


def assigned(data: bytes) -> list[TopicPartition]:
    """What the leader of a classic group assigned to a member. Bytes of other protocols give nothing."""
    if not data:
        return []
    try:
        read = decode_versioned(ConsumerProtocolAssignment, data)
    except ProtocolError:
        return []
    return sorted((topic.topic, partition) for topic in read.assigned_partitions for partition in topic.partitions)


def committed(
    cluster: Cluster, groups: Sequence[Group], topic: str | None = None, partitions: Sequence[int] = ()
) -> dict[str, dict[TopicPartition, int]]:
    """Committed offsets by group; of one topic alone if it is named."""
    found: dict[str, dict[TopicPartition, int]] = {}
    wanted = None if topic is None else [OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))]
    for node_id, _, ids in _by_coordinator([group._replace(kind="") for group in groups]):
        version = cluster.connection(node_id).version_of(OffsetFetchRequest.API_KEY, 2, _LAST_BY_NAME)
        if version >= _SEVERAL_GROUPS:
            request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=wanted) for group in ids])
            for one in ask(cluster, node_id, request, OffsetFetchResponse, _LAST_BY_NAME).groups:
                if not one.error_code:
                    found[one.group_id] = {
                        (of.name, place.partition_index): place.committed_offset
                        for of in one.topics
                        for place in of.partitions
                        if place.committed_offset >= 0
                    }
            continue
        for group in ids:
            answer = ask(cluster, node_id, OffsetFetchRequest(group, None), OffsetFetchResponse, version)
            if not answer.error_code:
                found[group] = {
                    (of.name, place.partition_index): place.committed_offset
                    for of in answer.topics
                    if topic in (None, of.name)
                    for place in of.partitions
                    if place.committed_offset >= 0
                }
    return found


def lags(cluster: Cluster, offsets: Mapping[str, Mapping[TopicPartition, int]]) -> dict[str, list[Lag]]:
    """How far groups are behind the ends of what they have committed, by group."""
    places = sorted({place for of in offsets.values() for place in of})
    ends: dict[TopicPartition, int] = {}
    if places:
        now = cluster.metadata(sorted({name for name, _ in places}))
        asked = [place for place in places if now.leader(*place) is not None]
        ends = {place: found.offset for place, found in cluster.list_offsets(dict.fromkeys(asked, LATEST)).items()}
    return {
        group: [Lag(*place, offset, ends.get(place, -1)) for place, offset in sorted(of.items())]
        for group, of in offsets.items()
    }


def ask(cluster: Cluster, node_id: int, request: Request, answer: type[_R], highest: int = 32767) -> _R:
    """What a broker answers; a connection that was lost while it was idle is replaced."""

    def ask() -> _R:
        connection = cluster.connection(node_id)
        return connection.ask(request, answer, highest=highest)

    return cluster.insist(f"broker {node_id}", ask)


def _by_coordinator(groups: Sequence[Group]) -> list[tuple[int, str, list[str]]]:
    """Coordinator, kind and ids, for one request each."""
    found: dict[tuple[int, str], list[str]] = {}
    for group in groups:
        found.setdefault((group.coordinator, group.kind), []).append(group.group_id)
    return [(node_id, kind, ids) for (node_id, kind), ids in found.items()]
