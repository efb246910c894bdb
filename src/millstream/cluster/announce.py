"""One line in the operator's log for each change of the cluster, written when it is durable."""

from collections.abc import Iterable, Mapping

from millstream.cluster.metadata import MetadataCache
from millstream.core.controller.commands import (
    CLUSTER_DEFAULT,
    AnyCommand,
    ClientMetricsChanged,
    ClusterCreated,
    GroupConfigsChanged,
    NodeConfigsChanged,
    PartitionsAdded,
    ProducerIdsAllocated,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
)
from millstream.telemetry.log import log


def announce(commands: Iterable[AnyCommand], cache: MetadataCache) -> None:
    """Say what ``commands``, which were just committed, change; ``cache`` still holds what they change."""
    for command in commands:
        match command:
            case ClusterCreated():
                log.info("cluster %s created", command.cluster_id)
            case TopicCreated():
                configs = _shown(command.configs)
                log.info("topic %s created: %d partitions%s", command.name, len(command.partitions), configs)
            case TopicDeleted():
                log.info("topic %s deleted", command.name)
            case PartitionsAdded():
                count = command.first_index + len(command.partitions)
                log.info("topic %s has %d partitions now", _name(command.topic_id, cache), count)
            case TopicConfigsChanged():
                log.info("topic %s changed%s", _name(command.topic_id, cache), _shown(command.changes))
            case NodeConfigsChanged():
                whose = "every broker" if command.node == CLUSTER_DEFAULT else f"broker {command.node}"
                log.info("%s changed%s", whose, _shown(command.changes))
            case ClientMetricsChanged():
                log.info("client metrics subscription %s changed%s", command.name, _shown(command.changes))
            case GroupConfigsChanged():
                log.info("group %s changed%s", command.group, _shown(command.changes))
            case ProducerIdsAllocated():
                log.debug("producer ids from %d: %d", command.start, command.count)


def _name(topic_id: bytes, cache: MetadataCache) -> str:
    topic = cache.topic_by_id(topic_id)
    return topic_id.hex() if topic is None else topic.name


def _shown(changes: Mapping[str, str | None]) -> str:
    words = [
        f"{name}={value}" if value is not None else f"{name} back to its default" for name, value in changes.items()
    ]
    return f" ({', '.join(words)})" if words else ""
