"""One line in the operator's log for each change of the cluster, written when it is durable."""

from collections.abc import Iterable, Mapping

from millstream.cluster.metadata import MetadataCache
from millstream.config.node_properties import is_setting, without_effect
from millstream.config.topic_properties import remarks_on
from millstream.core.access.entry import AclEntry
from millstream.core.controller.commands import (
    CLUSTER_DEFAULT,
    AclsCreated,
    AclsDeleted,
    AnyCommand,
    BrokerFenced,
    BrokerLogsInStore,
    BrokerModeChanged,
    BrokerRegistered,
    BrokerReplaced,
    BrokerUnfenced,
    BrokerUnregistered,
    ClientMetricsChanged,
    ClusterCreated,
    FeatureLevelRaised,
    GroupConfigsChanged,
    NodeConfigsChanged,
    PartitionCut,
    PartitionCutDone,
    PartitionsAdded,
    ProducerIdsAllocated,
    QuotasChanged,
    ReplicasChanged,
    ReplicasMoving,
    SecretSet,
    TopicConfigsChanged,
    TopicCreated,
    TopicDeleted,
    UserRemoved,
    UserSet,
)
from millstream.model.access import Operation, PatternType, Permission, ResourceType
from millstream.model.replication import node_of
from millstream.telemetry.log import log
from millstream.wire.sasl import SCRAM_BY_NUMBER


def announce(commands: Iterable[AnyCommand], cache: MetadataCache) -> None:
    """Log the changes of ``commands``, which were just committed; ``cache`` has the state before them."""
    for command in commands:
        match command:
            case ClusterCreated():
                log.info("cluster %s created", command.cluster_id)
            case TopicCreated():
                configs = _shown(command.configs)
                log.info("topic %s created: %d partitions%s", command.name, len(command.partitions), configs)
                _remark(f"topic {command.name}", remarks_on(command.configs))
            case TopicDeleted():
                log.info("topic %s deleted", command.name)
            case PartitionsAdded():
                count = command.first_index + len(command.partitions)
                log.info("topic %s has %d partitions now", _name(command.topic_id, cache), count)
            case TopicConfigsChanged():
                name = _name(command.topic_id, cache)
                log.info("topic %s changed%s", name, _shown(command.changes))
                _remark(f"topic {name}", remarks_on(command.changes))
            case NodeConfigsChanged():
                whose = "every broker" if command.node == CLUSTER_DEFAULT else f"broker {command.node}"
                log.info("%s changed%s", whose, _shown(command.changes))
                _remark(whose, _remarks_on_settings(command.changes))
            case ClientMetricsChanged():
                log.info("client metrics subscription %s changed%s", command.name, _shown(command.changes))
            case GroupConfigsChanged():
                log.info("group %s changed%s", command.group, _shown(command.changes))
            case ProducerIdsAllocated():
                log.debug("producer ids from %d: %d", command.start, command.count)
            case ReplicasMoving() | ReplicasChanged() | PartitionCut() | PartitionCutDone():
                _announce_replicas(command, cache)
            case UserSet() | UserRemoved() | SecretSet() | AclsCreated() | AclsDeleted() | QuotasChanged():
                _announce_security(command)
            case _:
                _announce_broker(command, cache)


def _remark(what: str, remarks: Iterable[str]) -> None:
    for remark in remarks:
        log.warning("%s: %s", what, remark)


def _remarks_on_settings(changes: Mapping[str, str | None]) -> list[str]:
    """A sentence for each setting of a broker that was taken and has no effect."""
    taken = [name for name, value in changes.items() if value is not None]
    known = [f"{ignored.name}: {ignored.doc}" for ignored in without_effect(filter(is_setting, taken))]
    strange = [f"{name}: there is no such setting; it is kept, as Kafka does, and has no effect" for name in taken]
    return known + [line for name, line in zip(taken, strange, strict=True) if not is_setting(name)]


def _announce_replicas(
    command: ReplicasMoving | ReplicasChanged | PartitionCut | PartitionCutDone, cache: MetadataCache
) -> None:
    name = _name(command.topic_id, cache)
    if isinstance(command, PartitionCutDone):
        log.info("%s/%d: the replica of the unclean cut leads", name, command.index)
        return
    if isinstance(command, PartitionCut):
        log.warning(
            "%s/%d: UNCLEAN CUT: the replica of broker %d is the partition's log now; what it lacks is lost (%s)",
            name,
            command.index,
            node_of(command.replica),
            command.reason,
        )
        return
    for change in command.changes:
        now = _nodes(change.replicas)
        if isinstance(command, ReplicasMoving):
            log.info("%s/%d: the replicas shall move to brokers %s", name, change.index, now)
        elif not command.version:
            log.info("%s/%d: the replicas have moved to brokers %s", name, change.index, now)
        else:
            log.warning(
                "%s/%d: broker %s is not alive and had it alone: broker %s restores it from the object store",
                name,
                change.index,
                _nodes(_held_by(command.topic_id, change.index, cache)),
                now,
            )


def _held_by(topic_id: bytes, index: int, cache: MetadataCache) -> tuple[int, ...]:
    topic = cache.topic_by_id(topic_id)
    return () if topic is None else topic.partitions[index].replicas


def _nodes(replicas: tuple[int, ...]) -> str:
    return ", ".join(map(str, replicas))


def _announce_security(command: UserSet | UserRemoved | SecretSet | AclsCreated | AclsDeleted | QuotasChanged) -> None:
    """Users, rights and quotas by name; nothing of a credential."""
    match command:
        case UserSet():
            log.info("user %s: a credential for %s is set", command.user, SCRAM_BY_NUMBER[command.mechanism].name)
        case UserRemoved():
            log.info("user %s: the credential for %s is removed", command.user, SCRAM_BY_NUMBER[command.mechanism].name)
        case SecretSet():
            log.debug("the cluster's secret %s is set", command.name)
        case QuotasChanged():
            whose = ", ".join(f"{kind} {'<default>' if name is None else name!r}" for kind, name in command.entity)
            changes = {key: None if value is None else f"{value:g}" for key, value in command.changes.items()}
            log.info("quota of %s changed%s", whose, _shown(changes))
        case AclsCreated() | AclsDeleted():
            verb = "created" if isinstance(command, AclsCreated) else "deleted"
            for entry in command.entries:
                log.info("access control entry %s: %s", verb, _entry(entry))


def _entry(entry: AclEntry) -> str:
    resource, pattern = ResourceType(entry.resource_type).name.lower(), PatternType(entry.pattern_type).name.lower()
    what = f"{Permission(entry.permission).name.lower()} {Operation(entry.operation).name.lower()}"
    return f"{what} on {resource} {entry.name} ({pattern}) for {entry.principal} from {entry.host}"


def _announce_broker(
    command: FeatureLevelRaised
    | BrokerRegistered
    | BrokerReplaced
    | BrokerFenced
    | BrokerUnfenced
    | BrokerLogsInStore
    | BrokerModeChanged
    | BrokerUnregistered,
    cache: MetadataCache,
) -> None:
    match command:
        case FeatureLevelRaised():
            log.info("the cluster has feature level %d now", command.level)
        case BrokerRegistered():
            peer = command.profile.peer
            log.info(
                "broker %d registered: release %s, %s:%d", command.node, command.profile.release, peer.host, peer.port
            )
        case BrokerReplaced():
            disks = command.previous.hex(), command.incarnation.hex()
            if is_take_over(command, cache):
                log.warning(
                    "broker %d: data directory %s is taken over as %s: %s", command.node, *disks, command.reason
                )
            elif command.reason:
                log.warning(
                    "broker %d: data directory %s was declared lost: %s", command.node, disks[0], command.reason
                )
            else:
                log.warning("broker %d: data directory %s is replaced by %s", command.node, *disks)
        case BrokerFenced():
            log.warning("broker %d has stopped or gives no sign of life, and is fenced", command.node)
        case BrokerUnfenced():
            log.info("broker %d is alive", command.node)
        case BrokerLogsInStore():
            log.info("broker %d: the object store has all that it acknowledged of shared topics", command.node)
        case BrokerModeChanged():
            log.info("broker %d is %s from now on", command.node, command.mode)
        case BrokerUnregistered():
            log.info("broker %d has left the cluster", command.node)


def is_take_over(command: AnyCommand, cache: MetadataCache) -> bool:
    """Whether this command continues the disk of a dead broker on another broker."""
    if not isinstance(command, BrokerReplaced) or not command.version:
        return False  # a replacement by its number of before, which version 0 does not say
    before = cache.state.registry.brokers.get(command.node)
    return before is not None and before.replacement == command.replacement


def is_taken(commands: Iterable[AnyCommand], cache: MetadataCache) -> bool:
    """Whether others restore partitions that the broker of ``cache`` has alone; that has the state before them."""
    return any(
        isinstance(command, ReplicasChanged)
        and command.version > 0
        and any(_held_by(command.topic_id, change.index, cache) == (cache.node_id,) for change in command.changes)
        for command in commands
    )


def _name(topic_id: bytes, cache: MetadataCache) -> str:
    topic = cache.topic_by_id(topic_id)
    return topic_id.hex() if topic is None else topic.name


def _shown(changes: Mapping[str, str | None]) -> str:
    words = [
        f"{name}={value}" if value is not None else f"{name} back to its default" for name, value in changes.items()
    ]
    return f" ({', '.join(words)})" if words else ""
