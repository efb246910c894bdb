"""The metadata cache: a shard's copy of the cluster's state.

::

    controller's shard ──commands──► follower ──► MetadataCache.apply ──► state ──► TopicMeta … ──► listeners
                                                                                  ▲
                                                  handlers, partitions, coordinators read here

Each shard has one and applies the same commands in the same order. At the same ``revision`` all caches are equal.
Look-ups are dictionary reads. A ``TopicMeta`` is never changed: a topic that changes becomes a new one, and what was
derived from the old one (its resolved configuration, its encoded answers) goes with it.

Listeners open and close partitions, follow configurations. They are called after the cache has changed, in order; a
listener whose work takes long returns a generator, and the follower advances it in slices. A listener that raises stops
the shard: the partitions it was to open would be missing. Commands were checked before they were committed
(``core.controller.state``). The cache is in memory only, so a crash needs no cleanup.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Final

import msgspec

from millstream.cluster.messages import LeaderFact
from millstream.cluster.placement import ELSEWHERE
from millstream.cluster.topic_table import PartitionMeta, TopicMeta, TopicTable
from millstream.config.errors import ConfigError
from millstream.config.group_properties import group_config
from millstream.config.settings import Settings
from millstream.config.topic_properties import TopicConfig
from millstream.core.controller.commands import (
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
    PartitionState,
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
from millstream.core.controller.configs import effective_settings
from millstream.core.controller.state import ControllerState, TopicState
from millstream.errors import Rejected
from millstream.format.archive import TopicDescription
from millstream.model.cluster import LOST, NodeId
from millstream.model.events import data_topic_id, data_topic_name
from millstream.net.shared import Shared
from millstream.telemetry.log import log as operator_log

Steps = Generator[None, None, None] | None
"""What a listener returns: nothing, or the rest of its work in steps of well under 500 µs."""

DELETED_MAX: Final = 1024


class MetadataListener:
    """Callbacks for changes of the metadata. Derive from it and override the methods that matter. ``Steps`` is their
    result.
    """

    def topic_created(self, topic: TopicMeta) -> Steps:
        """A topic exists, with all its partitions."""

    def topic_deleted(self, topic: TopicMeta) -> Steps:
        """The topic was deleted."""

    def partitions_added(self, topic: TopicMeta, first_index: int) -> Steps:
        """The topic has new partitions, from ``first_index`` on."""

    def replicas_changed(self, topic: TopicMeta, indexes: Sequence[int]) -> Steps:
        """These partitions of the topic are held by other brokers than before."""

    def partition_cut(self, topic: TopicMeta, index: int) -> Steps:
        """A person has decided whose replica this partition of the topic continues from."""

    def broker_changed(self, node: NodeId) -> Steps:
        """A broker registered, was fenced, is alive again, has another mode, or has left."""

    def configs_changed(self, topic: TopicMeta) -> Steps:
        """``topic.config`` may differ: the topic's own properties changed, or the node's defaults did."""

    def settings_changed(self, settings: Settings) -> Steps:
        """Live settings of this node changed."""

    def client_metrics_changed(self, name: str) -> Steps:
        """A subscription to clients' metrics was added, changed or removed."""

    def quotas_changed(self) -> Steps:
        """Some quota changed: ``state.security.limits``."""


class MetadataCache:
    """The topics of the cluster as one shard knows them.

    Lifecycle: made from the loaded cluster before the shard's parts that use it; it exists as long as the shard. Shard:
    one each; ``apply`` is called by the shard's ``Follower`` only. Invariant: holds the topics of ``state``, with a
    home for every partition.
    """

    def __init__(self, state: ControllerState, homes: dict[int, int], start_settings: Settings) -> None:
        """``homes`` are the home shards by Raft group; ``start_settings`` the node's, without live changes."""
        self.state = state.copy()
        self.start_settings = start_settings
        self.settings = live_settings(self.state, start_settings)
        """The node's settings with live changes."""
        self.http_endpoint = ""
        """``http://host:port`` of this broker, once the supervisor has bound it; shown by DescribeConfigs."""
        self.encoded: dict[int, Shared] = {}
        """Pieces of responses about all topics, by a key of the Kafka handlers; emptied when any topic changes."""
        self.group_configs: dict[str, dict[str, int]] = {}
        """Properties of consumer groups: id → property → value. The object is never replaced, so it may be kept."""
        self.deleted: dict[str, None] = {}
        """Names of topics that were deleted since the start and that no client asked for since, oldest first; at most
        ``DELETED_MAX``. The handler that answers about a name removes it.
        """
        self._table = TopicTable()
        self._listeners: list[MetadataListener] = []
        self.on_leaders: Callable[[bytes, Sequence[LeaderFact]], None] = _nobody
        """Called with (topic id, facts) after leaders of a topic were reported."""
        for group in self.state.configs.groups:
            self._set_group(group)
        for topic in self.state.topics.values():
            partitions = _partitions(
                topic.partitions, 0, [homes.get(part.raft_group, ELSEWHERE) for part in topic.partitions]
            )
            self._put(TopicMeta(topic, partitions, self.settings))

    # Looking up

    @property
    def cluster_id(self) -> str:
        return self.state.cluster_id

    @property
    def revision(self) -> int:
        """How many commands this shard has applied."""
        return self.state.revision

    @property
    def node_id(self) -> int:
        return self.start_settings.node_id

    def is_alive(self, node: int) -> bool:
        """Whether a broker is not fenced, as far as this shard knows; this one is alive."""
        broker = self.state.registry.brokers.get(NodeId(node))
        return node == self.node_id or (broker is not None and not broker.fenced)

    def leader_of(self, part: PartitionMeta) -> int | None:
        """The broker that leads a partition; None if the one that led it last is not alive."""
        return part.leader if self.is_alive(part.leader) else None

    def other_replica(self, part: PartitionMeta, turn: int) -> int | None:
        """A broker to ask for the leader of a partition whose replica here has had none for some seconds: from turn 1
        on each other replica that counts as alive. None if the leader is known, or an election may still last, or there
        is no such replica.
        """
        if part.leader != LOST or not turn:
            return None
        others = [node for node in part.replicas if node != self.node_id and self.is_alive(node)]
        return others[turn % len(others)] if others else None

    def in_sync(self, part: PartitionMeta) -> list[int]:
        """The replicas of a partition that are in sync, in their order, without brokers that are not alive."""
        return [node for node in part.replicas if node in part.in_sync and self.is_alive(node)]

    def topic(self, name: str) -> TopicMeta | None:
        return self._table.by_name.get(name) or self._table.data_by_name.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicMeta | None:
        return self._table.by_id.get(topic_id) or self._table.data_by_id.get(topic_id)

    def description(self, topic_id: bytes) -> TopicDescription | None:
        """What a recovery from the object store needs to know of a topic; None for one that does not exist."""
        topic = self.topic_by_id(topic_id)
        if topic is None:
            return None
        replicas = len(topic.partitions[0].replicas)
        return TopicDescription(
            topic.name, topic_id.hex(), len(topic.partitions), dict(topic.configs), self.cluster_id, replicas
        )

    def partition(self, name: str, index: int) -> PartitionMeta | None:
        """One partition, None when the topic or the index does not exist."""
        topic = self.topic(name)
        return topic.partitions[index] if topic is not None and 0 <= index < len(topic.partitions) else None

    def group_place(self, raft_group: int) -> tuple[bytes, int] | None:
        """Topic id and partition index of a Raft group; None for a group that does not exist."""
        return self._table.places.get(raft_group)

    def home_of_group(self, raft_group: int) -> int | None:
        """The home shard of a Raft group on this broker; None if this broker has no replica of it."""
        place = self._table.places.get(raft_group)
        if place is None:
            return None
        home = self._table.by_id[place[0]].partitions[place[1]].home_shard
        return None if home == ELSEWHERE else home

    def topic_config(self, name: str) -> TopicConfig:
        """The resolved configuration of an existing topic; KeyError for another."""
        return self._table.by_name[name].config

    def topics(self) -> Iterable[TopicMeta]:
        """Every topic, by name."""
        return map(self._table.by_name.__getitem__, self.names())

    def names(self) -> tuple[str, ...]:
        """Every topic's name, sorted."""
        return self._table.names()

    # Following

    def subscribe(self, listener: MetadataListener) -> None:
        """Call ``listener`` for every change from now on. It looks up by itself what exists already."""
        self._listeners.append(listener)

    def apply(self, command: AnyCommand, homes: Iterator[int]) -> Generator[None, None, None]:
        """Apply ``command`` and call the listeners, in steps. ``homes`` has the home shards of new and moved
        partitions, in order.

        Raises:
            Corruption: the command contradicts the state.
        """
        gone = self._table.by_id.get(command.topic_id) if isinstance(command, TopicDeleted) else None
        self.state.apply(command)
        match command:
            case NodeConfigsChanged():
                yield from self._settings_changed()
                return
            case GroupConfigsChanged():
                self._set_group(command.group)
                return
            case TopicDeleted():
                assert gone is not None
                notify = self._deleted(gone)
            case (
                BrokerRegistered()
                | BrokerReplaced()
                | BrokerFenced()
                | BrokerUnfenced()
                | BrokerLogsInStore()
                | BrokerModeChanged()
                | BrokerUnregistered()
            ):
                self.encoded.clear()
                for topic in self._table.all():
                    topic.encoded.clear()
                notify = _broker_changed(command.node)
            case ClientMetricsChanged():
                notify = _client_metrics_changed(command.name)
            case QuotasChanged():
                notify = _quotas_changed
            case PartitionCut():
                notify = _partition_cut(self._table.by_id[command.topic_id], command.index)
            case (
                ClusterCreated()
                | ProducerIdsAllocated()
                | FeatureLevelRaised()
                | UserSet()
                | UserRemoved()
                | SecretSet()
                | AclsCreated()
                | AclsDeleted()
                | PartitionCutDone()
            ):
                return
            case _:
                notify = self._topic_changed(command, homes)
        for listener in self._listeners:
            yield from notify(listener) or ()

    def _topic_changed(
        self,
        command: TopicCreated | PartitionsAdded | TopicConfigsChanged | ReplicasMoving | ReplicasChanged,
        homes: Iterator[int],
    ) -> Callable[[MetadataListener], Steps]:
        """Store a topic's new value, after the state has it; returns the notification of listeners."""
        match command:
            case TopicCreated():
                state = self.state.topics.by_id[command.topic_id]
                created = TopicMeta(state, _partitions(command.partitions, 0, homes), self.settings)
                self._put(created)
                return lambda listener: listener.topic_created(created)
            case PartitionsAdded():
                added = _partitions(command.partitions, command.first_index, homes)
                grown = self._changed(command.topic_id, added)
                return lambda listener: listener.partitions_added(grown, command.first_index)
            case TopicConfigsChanged():
                configured = self._changed(command.topic_id)
                return lambda listener: listener.configs_changed(configured)
            case ReplicasMoving() | ReplicasChanged():
                moved = self._moved(command, homes)
                indexes = [change.index for change in command.changes]
                return lambda listener: listener.replicas_changed(moved, indexes)

    def _deleted(self, gone: TopicMeta) -> Callable[[MetadataListener], Steps]:
        self._table.remove(gone)
        self.encoded.clear()
        self.deleted[gone.name] = None
        if len(self.deleted) > DELETED_MAX:
            del self.deleted[next(iter(self.deleted))]
        return lambda listener: listener.topic_deleted(gone)

    def set_leader_epochs(self, topic_id: bytes, facts: Sequence[LeaderFact]) -> None:
        """Partitions of a topic have these leaders and replicas in sync. Deleted partitions and older epochs are
        ignored.
        """
        topic = self._table.by_id.get(topic_id)
        if topic is None:
            return
        partitions = list(topic.partitions)
        for index, epoch, node, in_sync in facts:
            if index < len(partitions) and epoch >= partitions[index].leader_epoch:
                part = partitions[index]
                if not in_sync:
                    in_sync = part.in_sync if epoch == part.leader_epoch else part.replicas
                heard = part.heard or node >= 0
                partitions[index] = msgspec.structs.replace(
                    part, leader_epoch=epoch, leader=node, in_sync=in_sync, heard=heard
                )
        self._put(TopicMeta(self.state.topics.by_id[topic_id], tuple(partitions), self.settings))
        self.on_leaders(topic_id, facts)

    def set_failed(self, node: int, raft_group: int, *, failed: bool) -> None:
        """The replica of a group on a broker has failed, or is served. A group that does not exist is ignored."""
        place = self._table.places.get(raft_group)
        topic = None if place is None else self._table.by_id.get(place[0])
        if place is None or topic is None:
            return
        part = topic.partitions[place[1]]
        nodes = tuple(sorted({*part.failed, node} if failed else {*part.failed} - {node}))
        if nodes != part.failed:
            partitions = list(topic.partitions)
            partitions[place[1]] = msgspec.structs.replace(part, failed=nodes)
            self._put(TopicMeta(self.state.topics.by_id[place[0]], tuple(partitions), self.settings))

    def _set_group(self, group: str) -> None:
        """Store the properties of ``group``. Properties of another release that this one refuses are left out, with a
        log line.
        """
        configs = self.state.configs.groups.get(group)
        self.group_configs.pop(group, None)
        if configs is None:
            return
        try:
            self.group_configs[group] = group_config(configs, self.settings)
        except Rejected as error:
            operator_log.warning("group %s: stored properties are ignored: %s", group, error.message)

    def _put(self, topic: TopicMeta) -> None:
        self.encoded.clear()
        has_data = topic.configs.get("topic.kind") == "events"
        self._table.put(topic, _data_topic(topic, self.settings) if has_data else None)
        self.deleted.pop(topic.name, None)

    def _changed(self, topic_id: bytes, added: tuple[PartitionMeta, ...] = ()) -> TopicMeta:
        """A topic's new value, after the state has it."""
        partitions = self._table.by_id[topic_id].partitions + added
        topic = TopicMeta(self.state.topics.by_id[topic_id], partitions, self.settings)
        self._put(topic)
        return topic

    def _moved(self, command: ReplicasMoving | ReplicasChanged, homes: Iterator[int]) -> TopicMeta:
        """The new value of a topic whose replicas changed, after the state has it. Leaders stay as they are until they
        report.
        """
        state = self.state.topics.by_id[command.topic_id]
        partitions = list(self._table.by_id[command.topic_id].partitions)
        for change in command.changes:
            before, replicas = partitions[change.index], state.partitions[change.index].replicas
            in_sync = tuple(node for node in before.in_sync if node in replicas) or replicas
            partitions[change.index] = msgspec.structs.replace(
                before, replicas=replicas, home_shard=next(homes), in_sync=in_sync
            )
        topic = TopicMeta(state, tuple(partitions), self.settings)
        self._put(topic)
        return topic

    def _settings_changed(self) -> Generator[None, None, None]:
        """The node's live settings changed, and the defaults of every topic with them."""
        self.settings = live_settings(self.state, self.start_settings)
        for listener in self._listeners:
            yield from listener.settings_changed(self.settings) or ()
        for name in self.names():
            topic = self._table.by_name.get(name)
            if topic is None:
                continue
            topic = self._changed(topic.topic_id)
            for listener in self._listeners:
                yield from listener.configs_changed(topic) or ()
            yield


def _data_topic(topic: TopicMeta, settings: Settings) -> TopicMeta:
    """The data of an event topic as a topic."""
    name, configs = data_topic_name(topic.name), {**topic.configs, "kafka.view": "data"}
    state = TopicState(name, data_topic_id(topic.topic_id), (), configs, 0)
    return TopicMeta(state, topic.partitions, settings, data_of=topic.name)


def _nobody(_topic_id: bytes, _facts: Sequence[LeaderFact]) -> None:
    """Nothing waits for leaders."""


def _broker_changed(node: NodeId) -> Callable[[MetadataListener], Steps]:
    return lambda listener: listener.broker_changed(node)


def _partition_cut(topic: TopicMeta, index: int) -> Callable[[MetadataListener], Steps]:
    return lambda listener: listener.partition_cut(topic, index)


def _quotas_changed(listener: MetadataListener) -> Steps:
    return listener.quotas_changed()


def _client_metrics_changed(name: str) -> Callable[[MetadataListener], Steps]:
    return lambda listener: listener.client_metrics_changed(name)


def _partitions(
    partitions: Sequence[PartitionState], first_index: int, homes: Iterable[int]
) -> tuple[PartitionMeta, ...]:
    taken = iter(homes)
    return tuple(
        PartitionMeta(index, part.raft_group, part.replicas, part.leader, part.leader_epoch, next(taken), part.replicas)
        for index, part in enumerate(partitions, first_index)
    )


def live_settings(state: ControllerState, start_settings: Settings) -> Settings:
    """A node's settings with the live changes of ``state``. Changes that this release refuses are left out, with a log
    line.
    """
    try:
        return effective_settings(state, start_settings, start_settings.node_id)
    except ConfigError as error:
        operator_log.warning("stored broker configurations are ignored: %s", error.message)
        return start_settings
