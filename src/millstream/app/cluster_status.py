"""The state of the cluster as one broker sees it, for ``/v1/cluster`` and ``millstream cluster``.

The shard that has the controller answers from its metadata, in slices. What is wrong is said in sentences, each with
the remedy; a cluster without any is healthy. A broker that is cut off from the others says that it knows no controller,
and shows what it knew last. A broker that has just started does not know every leader yet: for `HEARING_US` it
counts such partitions apart, and does not call them leaderless.
"""

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from millstream.cluster.metadata import MetadataCache
from millstream.cluster.topic_table import PartitionMeta, TopicMeta
from millstream.core.controller.restoring import restorable_partitions
from millstream.model.cluster import NodeId
from millstream.raft.installs import InstallProgress
from millstream.shard.control import ControlEnd
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.shared_uploads import SharedUploads

CLUSTER: Final = "cluster"
"""The question on the control channel."""

NAMED_MAX: Final = 100
"""Partitions that are named in each list."""

HEARING_US: Final = 30_000_000
"""From the start of a broker on: the others connect and tell of their leaderships within it, elections included."""

_SHARE: Final = 0.1
_SLICE: Final = 64


class Controlled(Protocol):
    """The controller as this page needs it."""

    @property
    def leader(self) -> NodeId | None:
        """The broker that decides; None if this one knows none."""
        ...

    @property
    def voters(self) -> tuple[int, ...]:
        """The brokers that hold the controller's log."""
        ...


class BrokerStatus(msgspec.Struct):
    """One registered broker; ``leaders`` and ``replicas`` are numbers of partitions."""

    id: int
    alive: bool
    address: str
    peer: str
    rack: str
    shards: int
    release: str
    leaders: int = 0
    replicas: int = 0
    mode: str = "serving"
    """`serving`, `drained` or `leaving`."""
    lost: bool = False
    """Its disk was declared lost, and no other has taken its place."""
    leads_alone: int = 0
    """Partitions that it leads as their only replica."""


class MoveStatus(msgspec.Struct, frozen=True):
    """One partition that moves, by node ids."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    target: tuple[int, ...]


class SharedStatus(msgspec.Struct, frozen=True):
    """What one broker has of shared topics and the object store has not."""

    partitions: int = 0
    """Shared partitions with a replica here."""
    uncommitted_bytes: int = 0
    """Bytes of those led here that no committed object has; the write-ahead log alone has them."""
    upload_lag_ms: int = 0
    """Age of the oldest of them."""


class PartitionName(msgspec.Struct, frozen=True):
    """One partition."""

    topic: str
    partition: int


class ClusterStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. The lists of partitions have the first ``NAMED_MAX`` of their kind."""

    cluster_id: str
    node_id: int
    controller: int | None
    healthy: bool = True
    problems: list[str] = []
    brokers: list[BrokerStatus]
    topics: int
    partitions: int
    shared_topics: int
    leaderless_count: int
    leaderless: list[PartitionName]
    not_heard_count: int
    """Partitions whose leader this broker does not know yet, because it has just started."""
    under_replicated_count: int
    under_replicated: list[PartitionName]
    moves_count: int
    moves: list[MoveStatus]
    voters: tuple[int, ...]
    """Brokers that vote on the controller's log."""
    feature_level: int
    installs: list[InstallProgress]
    """Logs that this broker is receiving as files; others are."""
    shared: SharedStatus
    """What this broker has not uploaded of shared topics; others have theirs."""
    take_overs: int
    """Disks of dead brokers that were taken over since this broker's start."""
    restorable_partitions: int
    """Shared partitions of dead brokers that live ones are to restore from the object store."""
    restored_partitions: int
    """Those that live brokers were given to restore since this broker's start."""
    failed_partitions: list[str]
    """Partitions that this broker holds and does not serve, as NAME:PARTITION; others have theirs."""


class OwnParts(NamedTuple):
    """What a shard tells of itself."""

    installs: Callable[[], list[InstallProgress]]
    uploads: SharedUploads | None
    stats: StatsSlab
    failed: Callable[[], list[str]] = list
    """Partitions that the shard does not serve, as NAME:PARTITION."""


_NAMED_IN_A_LINE: Final = 5


def serve_cluster_status(
    control: ControlEnd,
    reactor: Reactor,
    metadata: MetadataCache,
    controller: Controlled | None,
    own: OwnParts,
) -> None:
    """Answer the question on a shard; one without ``controller`` tells only what concerns itself."""
    hearing_until_us = reactor.now_us() + HEARING_US

    def answer_status(arguments: Any, answer: Callable[[Any], None]) -> None:
        _ = arguments
        if controller is None:
            parts = {"installs": own.installs(), "shared": _shared(own.uploads), "failed_partitions": own.failed()}
            answer(msgspec.to_builtins(parts))
            return
        survey = _Survey(metadata, hears=reactor.now_us() < hearing_until_us)
        status = partial(_status, survey, metadata, controller, own)
        reactor.background("other", survey.walk(), _SHARE, lambda: answer(msgspec.to_builtins(status())))

    control.serve(CLUSTER, answer_status)


def _shared(uploads: SharedUploads | None) -> SharedStatus:
    """What one shard has not uploaded."""
    if uploads is None:
        return SharedStatus()
    return SharedStatus(len(uploads.archives), uploads.backlog.size_bytes, uploads.lag_ms)


def joined(answers: list[Any]) -> dict[str, Any]:
    """The answers of all shards in one; the first is that of the controller's."""
    shared = [answer["shared"] for answer in answers]
    failed = sorted(name for answer in answers for name in answer["failed_partitions"])
    problems = [*answers[0]["problems"]]
    if failed:
        named = ", ".join(failed[:_NAMED_IN_A_LINE]) + (", …" if len(failed) > _NAMED_IN_A_LINE else "")
        problems.append(
            f"partitions that broker {answers[0]['node_id']} does not serve: {named}; 'millstream topic repair "
            f"{failed[0]}', asked of that broker, says what brings one back"
        )
    return {
        **answers[0],
        "failed_partitions": failed[:NAMED_MAX],
        "problems": problems,
        "healthy": not problems,
        "installs": [one for answer in answers for one in answer["installs"]],
        "shared": {
            "partitions": sum(one["partitions"] for one in shared),
            "uncommitted_bytes": sum(one["uncommitted_bytes"] for one in shared),
            "upload_lag_ms": max(one["upload_lag_ms"] for one in shared),
        },
    }


class _Named:
    """Partitions of one kind: how many there are, and the names of the first ``NAMED_MAX``."""

    __slots__ = ("count", "names")

    def __init__(self) -> None:
        self.count = 0
        self.names: list[PartitionName] = []

    def add(self, topic: str, index: int) -> None:
        self.count += 1
        if len(self.names) < NAMED_MAX:
            self.names.append(PartitionName(topic, index))


class _Survey:
    """What one walk over all partitions finds. Lifecycle: ``walk`` once, in slices."""

    def __init__(self, metadata: MetadataCache, *, hears: bool) -> None:
        """``hears``: this broker has just started, and does not know every leader yet."""
        self._metadata = metadata
        self._hears = hears
        self.brokers = {broker.id: broker for broker in _brokers(metadata)}
        self.topics = 0
        self.shared_topics = 0
        self.partitions = 0
        self.not_heard = 0
        self.leaderless = _Named()
        self.under_replicated = _Named()

    def walk(self) -> Generator[None, None, None]:
        metadata = self._metadata
        for name in metadata.names():
            topic = metadata.topic(name)
            if topic is None:
                continue  # deleted during the walk
            self.topics += 1
            self.shared_topics += topic.config.is_shared
            for index in range(len(topic.partitions)):
                self.partitions += 1
                if self.partitions % _SLICE == 0:
                    yield
                self._count(topic, index)

    def _count(self, topic: TopicMeta, index: int) -> None:
        metadata, by_node = self._metadata, self.brokers
        part = topic.partitions[index]
        leader = metadata.leader_of(part)
        if self._hears and _may_yet_be_heard(metadata, part):
            self.not_heard += 1
        elif leader is None:
            self.leaderless.add(topic.name, index)
        elif leader in by_node:
            by_node[leader].leaders += 1
            by_node[leader].leads_alone += len(part.replicas) == 1
        if len(metadata.in_sync(part)) < len(part.replicas):
            self.under_replicated.add(topic.name, index)
        for node in part.replicas:
            if node in by_node:
                by_node[node].replicas += 1


def _status(survey: _Survey, metadata: MetadataCache, controller: Controlled, own: OwnParts) -> ClusterStatus:
    """The answer, after the walk."""
    state, settings = metadata.state, metadata.settings
    takes_over = settings.dead_broker_take_over_after_ms >= 0
    status = ClusterStatus(
        cluster_id=metadata.cluster_id,
        node_id=metadata.node_id,
        controller=controller.leader,
        brokers=list(survey.brokers.values()),
        topics=survey.topics,
        partitions=survey.partitions,
        shared_topics=survey.shared_topics,
        leaderless_count=survey.leaderless.count,
        leaderless=survey.leaderless.names,
        not_heard_count=survey.not_heard,
        under_replicated_count=survey.under_replicated.count,
        under_replicated=survey.under_replicated.names,
        moves_count=len(state.moves),
        moves=_moves(metadata),
        voters=controller.voters,
        feature_level=state.feature_level,
        installs=own.installs(),
        shared=_shared(own.uploads),
        take_overs=own.stats.counter("take_overs").value,
        restorable_partitions=restorable_partitions(state, settings) if takes_over else 0,
        restored_partitions=own.stats.counter("take_over_partitions").value,
        failed_partitions=own.failed(),
    )
    problems = _problems(status)
    return msgspec.structs.replace(status, problems=problems, healthy=not problems)


def _moves(metadata: MetadataCache) -> list[MoveStatus]:
    """The first partitions that move."""
    found: list[MoveStatus] = []
    state = metadata.state
    for move in list(state.moves.values())[:NAMED_MAX]:
        topic = state.topics.by_id[move.topic_id]
        found.append(MoveStatus(topic.name, move.index, topic.partitions[move.index].replicas, move.target))
    return found


def _brokers(metadata: MetadataCache) -> list[BrokerStatus]:
    """The registered brokers. A single broker does not register."""
    registry = metadata.state.registry
    found: list[BrokerStatus] = []
    for node in registry.nodes():
        profile = registry.brokers[node].profile
        listener = profile.listeners[0]
        found.append(
            BrokerStatus(
                node,
                metadata.is_alive(node),
                _address(listener.host, listener.port),
                _address(profile.peer.host, profile.peer.port),
                profile.rack,
                profile.shards,
                profile.release,
                mode=registry.mode(node),
                lost=registry.brokers[node].is_lost,
            )
        )
    return found


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _may_yet_be_heard(metadata: MetadataCache, part: PartitionMeta) -> bool:
    """Whether another broker may lead a partition, and has not said so to this one since its start."""
    return not part.heard and any(node != metadata.node_id and metadata.is_alive(node) for node in part.replicas)


def _problems(status: ClusterStatus) -> list[str]:
    """What is wrong, in sentences with the remedy."""
    problems: list[str] = []
    if status.controller is None:
        voters = status.voters
        needed = len(voters) // 2 + 1
        problems.append(
            f"broker {status.node_id} knows no controller, so topics cannot be changed; start brokers, or mend their "
            f"network, until {needed} of the brokers {', '.join(map(str, voters))} reach each other"
        )
    dead = [str(broker.id) for broker in status.brokers if not broker.alive and not broker.lost]
    lost = [str(broker.id) for broker in status.brokers if broker.lost]
    if lost:
        problems.append(
            f"brokers that were declared lost: {', '.join(lost)}; start each of them once with an empty directory and "
            "--replace, or let it go with 'millstream cluster decommission ID'"
        )
    if dead:
        problems.append(
            f"brokers that are not alive: {', '.join(dead)}; start each of them again, with its data directory"
        )
    if status.not_heard_count:
        problems.append(
            f"partitions whose leader broker {status.node_id}, which has just started, does not know yet: "
            f"{status.not_heard_count}; ask again in some seconds"
        )
    if status.leaderless_count:
        problems.append(
            f"partitions without a leader, which are not served: {status.leaderless_count}; start brokers until a "
            "majority of their replicas is alive"
        )
    if status.restorable_partitions:
        problems.append(
            f"shared partitions of dead brokers that live ones restore from the object store: "
            f"{status.restorable_partitions}; that starts by itself after dead.broker.take.over.after.ms"
        )
    if status.under_replicated_count:
        problems.append(
            f"partitions with replicas that are not in sync: {status.under_replicated_count}; a replica catches up by "
            "itself when its broker is alive"
        )
    return problems
