"""Changes to a cluster through Kafka's API, as the caller, each one request.

A change that the cluster refuses raises ``Rejected`` with its reason. Nothing is sent a second time after a lost
connection: ``OutcomeUnknown`` says that the change may have been made, and the page that it leads to shows whether.
Where Kafka can check without changing (``validate_only``), ``check=True`` does that.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple, TypeVar

from millstream.client.cluster import Cluster, TopicPartition, refuse
from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.events.selectors import murmur2
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.records import Headers, build_batch
from millstream.wire.schema import Request, Response

_SET: Final = 0
_REMOVE: Final = 1

_R = TypeVar("_R", bound=Response)


class NewTopic(NamedTuple):
    """A topic to create; -1 partitions or replicas are the cluster's defaults."""

    name: str
    partitions_count: int
    replicas_count: int
    properties: Mapping[str, str]


def create_topic(cluster: Cluster, topic: NewTopic, *, check: bool) -> CreatableTopicResult:
    """Create a topic, or only check that it could be; what it has then."""
    configs = [CreatableTopicConfig(name, value) for name, value in topic.properties.items()]
    wanted = CreatableTopic(topic.name, topic.partitions_count, topic.replicas_count, [], configs)
    request = CreateTopicsRequest([wanted], _timeout_ms(cluster), check)
    answer = _controller(cluster, request, CreateTopicsResponse, 4, f"topic {topic.name}")
    (result,) = answer.topics
    refuse(result.error_code, f"topic {topic.name}", result.error_message)
    return result


def delete_topic(cluster: Cluster, name: str) -> None:
    """Delete a topic with its records."""
    what = f"topic {name}"
    request = DeleteTopicsRequest([DeleteTopicState(name)], [name], _timeout_ms(cluster))
    answer = _controller(cluster, request, DeleteTopicsResponse, 1, what)
    refuse(answer.responses[0].error_code, what, answer.responses[0].error_message)


def add_partitions(cluster: Cluster, name: str, partitions_count: int, *, check: bool) -> None:
    """Raise the number of partitions to a total."""
    what = f"partitions of {name}"
    wanted = CreatePartitionsTopic(name, partitions_count, None)
    request = CreatePartitionsRequest([wanted], _timeout_ms(cluster), check)
    answer = _controller(cluster, request, CreatePartitionsResponse, 0, what)
    refuse(answer.results[0].error_code, what, answer.results[0].error_message)


def alter_property(
    cluster: Cluster,
    resource_type: int,
    resource: str,
    name: str,
    value: str | None,
    *,
    check: bool,
    node_id: int | None = None,
) -> None:
    """Set a property of a topic or a broker; None takes the own value away."""
    change = AlterableConfig(name, _REMOVE if value is None else _SET, value)
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(resource_type, resource, [change])], check)
    connection = cluster.any_connection() if node_id is None else cluster.connection(node_id)
    what = f"{name} of {resource}"
    answer = _once(lambda: connection.ask(request, IncrementalAlterConfigsResponse), what)
    refuse(answer.responses[0].error_code, what, answer.responses[0].error_message)


def delete_records(cluster: Cluster, before: Mapping[TopicPartition, int]) -> None:
    """Delete the records before these offsets; partitions that succeeded stay so if a later one fails."""
    for (topic, partition), offset in before.items():
        what = f"records of {topic}-{partition}"
        wanted = DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])
        request = DeleteRecordsRequest([wanted], _timeout_ms(cluster))
        connection = cluster.connection(cluster.leader(topic, partition).node_id)
        answer = _once(partial(connection.ask, request, DeleteRecordsResponse), what)
        refuse(answer.topics[0].partitions[0].error_code, what)


def send(cluster: Cluster, place: TopicPartition, key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """Append one record, acknowledged by all in-sync replicas; its offset."""
    batch = build_batch([(key, value, headers, int(time.time() * 1000))])
    return cluster.produce(*place, [batch])


def partition_of(key: bytes, partitions_count: int) -> int:
    """The partition that Apache Kafka's Java producer chooses for a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions_count


def _controller(cluster: Cluster, request: Request, answer: type[_R], lowest: int, what: str) -> _R:
    """Send to the broker that the cluster names as its controller; brokers of a KRaft cluster pass it on."""
    found = cluster.metadata([])
    node_id = found.controller_id if found.controller_id in found.brokers else next(iter(found.brokers))
    connection = cluster.connection(node_id)
    return _once(lambda: connection.ask(request, answer, lowest=lowest), what)


def _once(ask: Callable[[], _R], what: str) -> _R:
    """A lost connection leaves a change in doubt."""
    try:
        return ask()
    except Unavailable as error:
        raise OutcomeUnknown(f"{what}: {error.message}; it may have been done") from error


def _timeout_ms(cluster: Cluster) -> int:
    return int(cluster.timeout_s * 1000)


def read_properties(text: str) -> dict[str, str]:
    """Properties, one ``name=value`` a line; empty lines and those with ``#`` in front do not count.

    Raises:
        Rejected: a line is not valid.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition("=")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not separator or not name.strip():
            raise Rejected(f"{line.strip()[:100]!r} is not name=value")
        found[name.strip()] = value.strip()
    return found


def differing(current: Mapping[TopicPartition, int], wanted: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """The places whose offsets differ, in their order."""
    return [place for place in sorted(wanted) if current.get(place) != wanted[place]]
