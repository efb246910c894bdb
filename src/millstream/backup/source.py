"""What a cluster has beside its records, asked of it as the caller. ``target`` makes it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.backup.model import (
    AclBackup,
    GroupBackup,
    GroupOffset,
    QuotaBackup,
    ResourceConfigs,
    UserBackup,
)
from millstream.client import rights
from millstream.client.cluster import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, error_of
from millstream.client.coordinators import GROUP, Coordinators
from millstream.client.share_groups import share_offsets
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from millstream.wire.messages.describe_verifiers import DescribeVerifiersRequest, DescribeVerifiersResponse
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from millstream.wire.messages.read_share_group_state import ReadStatePartition, ReadStateTopic
from millstream.wire.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.client.cluster import Cluster
    from millstream.client.connection import Connection

CLIENT_METRICS_RESOURCE: Final = 16
_RESTORE_MARK: Final = "millstream.restore."
"""Start of the name of the topic that marks a cluster that is being restored."""
SCHEMAS: Final = "_schemas"

_OF_A_TOPIC: Final = 1
_OF_A_BROKER: Final = 2
_OF_ALL_BROKERS: Final = 3
_OF_CLIENT_METRICS, _OF_A_GROUP = 7, 8
"""Kafka's sources of a setting."""
_OWN: Final = frozenset((_OF_A_BROKER, _OF_ALL_BROKERS, _OF_CLIENT_METRICS, _OF_A_GROUP))
_OFFSET_BY_GROUP: Final = 7
_DESCRIBED_AT_ONCE: Final = 500


class Restoring(NamedTuple):
    """A restore that was started in a cluster, and has not ended: which backup, and what is added to producer ids."""

    backup: str
    shift: int

    @property
    def mark(self) -> str:
        """The name of the topic that marks the cluster."""
        return f"{_RESTORE_MARK}{self.backup}.{self.shift}"


def restoring(cluster: Cluster) -> Restoring | None:
    """The restore that was started in a cluster; None without one."""
    mark = next((name for name in cluster.metadata().topics if name.startswith(_RESTORE_MARK)), None)
    if mark is None:
        return None
    name, _, shift = mark.removeprefix(_RESTORE_MARK).rpartition(".")
    return Restoring(name, int(shift))


class FoundTopic(NamedTuple):
    """A topic of the cluster. ``configs`` are its own ones; ``is_compacted`` may come from a broker's."""

    name: str
    topic_id: bytes
    partitions: tuple[int, ...]
    replication: int
    configs: dict[str, str]
    is_compacted: bool


class Source:
    """Asks one cluster. It owns no connection but those of ``cluster``."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._coordinators = Coordinators(cluster)
        self.notes: list[str] = []
        """What the cluster has and cannot be read, in sentences."""

    def topics(self) -> list[FoundTopic]:
        """All topics but the broker's own, those of the data of event topics, and the mark of a restoring."""

        def ask() -> MetadataResponse:
            connection = self.cluster.any_connection()
            return connection.ask(MetadataRequest(None, allow_auto_topic_creation=False), MetadataResponse, lowest=10)

        found = [
            one
            for one in self.cluster.insist("topics", ask).topics
            if one.name and (not one.is_internal or one.name == SCHEMAS) and not one.name.startswith(_RESTORE_MARK)
        ]
        for one in found:
            if one.error_code:
                raise error_of(one.error_code, f"topic {one.name}")
        configs: dict[str, dict[str, str]] = {}
        compacted: set[str] = set()
        for at in range(0, len(found), _DESCRIBED_AT_ONCE):
            names = [one.name or "" for one in found[at : at + _DESCRIBED_AT_ONCE]]
            for result in self._described([DescribeConfigsResource(TOPIC_RESOURCE, name, None) for name in names]):
                configs[result.resource_name] = _values(result, {_OF_A_TOPIC})
                if any(one.name == "cleanup.policy" and "compact" in (one.value or "") for one in result.configs):
                    compacted.add(result.resource_name)
        events = {name for name, own in configs.items() if own.get("topic.kind") == "events"}
        return [
            FoundTopic(
                one.name or "",
                one.topic_id,
                tuple(sorted(part.partition_index for part in one.partitions)),
                max((len(part.replica_nodes) for part in one.partitions), default=1),
                configs[one.name or ""],
                one.name in compacted,
            )
            for one in sorted(found, key=lambda one: one.name or "")
            if not ((one.name or "").endswith(".data") and (one.name or "").removesuffix(".data") in events)
        ]

    def resources(self) -> list[ResourceConfigs]:
        """Dynamic settings of brokers, of groups and of client metrics."""
        brokers = sorted(self.cluster.metadata([]).brokers)
        found: list[ResourceConfigs] = []
        for node in brokers:
            for name in ("", str(node)) if node == brokers[0] else (str(node),):
                (result,) = self._described([DescribeConfigsResource(BROKER_RESOURCE, name, None)], node)
                wanted = {_OF_ALL_BROKERS} if not name else {_OF_A_BROKER}
                found.append(ResourceConfigs(BROKER_RESOURCE, name, _values(result, wanted)))
                self._note_hidden(result, wanted)
        for kind in (CLIENT_METRICS_RESOURCE, GROUP_RESOURCE):
            for name in self._names_of(kind):
                (result,) = self._described([DescribeConfigsResource(kind, name, None)])
                found.append(ResourceConfigs(kind, name, _values(result, _OWN)))
        return [one for one in found if one.configs]

    def _note_hidden(self, result: DescribeConfigsResult, sources: set[int]) -> None:
        for one in result.configs:
            if one.config_source in sources and one.value is None and one.is_sensitive:
                who = f"broker {result.resource_name}" if result.resource_name else "all brokers"
                self.notes.append(f"the setting {one.name} of {who} is secret, so it is not in the backup")

    def _names_of(self, kind: int) -> list[str]:
        def ask() -> ListConfigResourcesResponse:
            connection = self.cluster.any_connection()
            return connection.ask(ListConfigResourcesRequest([kind]), ListConfigResourcesResponse, lowest=1)

        answer = self.cluster.insist("settings", ask)
        if answer.error_code:
            raise error_of(answer.error_code, "settings")
        return sorted(one.resource_name for one in answer.config_resources)

    def _described(
        self, resources: Sequence[DescribeConfigsResource], node: int | None = None
    ) -> list[DescribeConfigsResult]:
        def ask() -> list[DescribeConfigsResult]:
            connection = self.cluster.any_connection() if node is None else self.cluster.connection(node)
            request = DescribeConfigsRequest(list(resources))
            results = connection.ask(request, DescribeConfigsResponse, lowest=1)
            for one in results.results:
                if one.error_code:
                    raise error_of(one.error_code, f"settings of {one.resource_name}", one.error_message)
            return results.results

        return self.cluster.insist("settings", ask) if resources else []

    def groups(self) -> tuple[list[GroupBackup], list[GroupBackup]]:
        """Groups with committed offsets, and share groups with partitions."""
        names: set[str] = set()
        shares: set[str] = set()
        for node in sorted(self.cluster.metadata([]).brokers):
            for one in self._listed(node):
                (shares if one[1] == "share" else names).add(one[0])
        found = [GroupBackup(name, tuple(self._offsets(name))) for name in sorted(names)]
        found_shares = [GroupBackup(name, tuple(self._starts(name))) for name in sorted(shares)]
        return [one for one in found if one.offsets], [one for one in found_shares if one.offsets]

    def _listed(self, node: int) -> list[tuple[str, str]]:
        def ask() -> list[tuple[str, str]]:
            connection = self.cluster.connection(node)
            answer = connection.ask(ListGroupsRequest(), ListGroupsResponse)
            if answer.error_code:
                raise error_of(answer.error_code, "groups")
            return [(one.group_id, one.group_type.lower()) for one in answer.groups]

        return self.cluster.insist("groups", ask, lambda: self.cluster.metadata([]))

    def _offsets(self, group: str) -> list[GroupOffset]:
        def ask(connection: Connection) -> list[GroupOffset]:
            answer = connection.ask(
                OffsetFetchRequest(group, None), OffsetFetchResponse, lowest=2, highest=_OFFSET_BY_GROUP
            )
            if answer.error_code:
                raise error_of(answer.error_code, f"offsets of group {group}")
            found: list[GroupOffset] = []
            for topic in answer.topics:
                for one in topic.partitions:
                    if one.error_code:
                        raise error_of(one.error_code, f"offsets of group {group}")
                    if one.committed_offset >= 0:
                        found.append(
                            GroupOffset(topic.name, one.partition_index, one.committed_offset, one.metadata or "")
                        )
            return sorted(found, key=lambda one: (one.topic, one.partition))

        return self._coordinators.insist(f"offsets of group {group}", GROUP, group, ask)

    def _starts(self, group: str) -> list[GroupOffset]:
        """The starts of a share group. DescribeShareGroupOffsets says which partitions it has. It says -1 for a start
        that cannot be read, too, so the starts are asked for with ReadShareGroupStateSummary.
        """
        what = f"starts of share group {group}"

        topics = share_offsets(self._coordinators, group)
        names = {topic.topic_id: topic.topic_name for topic in topics}
        asked = [
            ReadStateTopic(topic.topic_id, [ReadStatePartition(one.partition_index) for one in topic.partitions])
            for topic in topics
        ]

        def ask() -> list[GroupOffset]:
            connection = self.cluster.any_connection()
            request = ReadShareGroupStateSummaryRequest(group, asked)
            answer = connection.ask(request, ReadShareGroupStateSummaryResponse)
            found: list[GroupOffset] = []
            for topic in answer.results:
                for one in topic.partitions:
                    if one.error_code:
                        raise error_of(one.error_code, what, one.error_message)
                    found.append(GroupOffset(names[topic.topic_id], one.partition, one.start_offset, ""))
            return sorted(found, key=lambda one: (one.topic, one.partition))

        return self.cluster.insist(what, ask) if asked else []

    def users(self) -> list[UserBackup]:
        """The verifiers of all users."""
        connection = self.cluster.any_connection()
        answer = connection.ask(DescribeVerifiersRequest(), DescribeVerifiersResponse)
        if answer.error_code:
            raise error_of(answer.error_code, "users", answer.error_message)
        return [
            UserBackup(
                one.user, one.mechanism, one.iterations, bytes(one.salt), bytes(one.stored_key), bytes(one.server_key)
            )
            for one in answer.verifiers
        ]

    def acls(self) -> list[AclBackup]:
        """All access control entries; none, with a note, where access is not controlled."""
        try:
            return [AclBackup(*one) for one in rights.read_acls(self.cluster.any_connection())]
        except Rejected as error:
            if error.code is not ErrorCode.SECURITY_DISABLED:
                raise
        self.notes.append("access is not controlled in this cluster, so no access control entry is read")
        return []

    def quotas(self) -> list[QuotaBackup]:
        """All quotas."""
        found = rights.read_quotas(self.cluster.any_connection())
        return [QuotaBackup(entity, values) for entity, values in found.items()]


def require_ours(cluster: Cluster) -> None:
    """Raises Rejected if the brokers are not Millstream's, or older than backups."""
    connection = cluster.any_connection()
    if DescribeVerifiersRequest.API_KEY not in connection.versions:
        raise Rejected(
            f"the broker at {connection.address} serves no backups: it is no Millstream, or an older release",
            ErrorCode.UNSUPPORTED_VERSION,
        )


def _values(result: DescribeConfigsResult, sources: set[int] | frozenset[int]) -> dict[str, str]:
    return {one.name: one.value for one in result.configs if one.config_source in sources and one.value is not None}
