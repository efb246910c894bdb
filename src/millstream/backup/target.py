"""Makes in a cluster what ``source`` has found in another, as the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from millstream.client import rights
from millstream.client.cluster import BROKER_RESOURCE, EARLIEST, LATEST, TOPIC_RESOURCE, error_of
from millstream.client.coordinators import GROUP, Coordinators
from millstream.errors import OutcomeUnknown, Rejected, Retriable, Unavailable
from millstream.format.segment import whole_batches
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlterEntryData,
    EntityData,
    OpData,
)
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
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
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from millstream.wire.messages.describe_verifiers import UserVerifier
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millstream.wire.messages.reserve_producer_ids import ReserveProducerIdsRequest, ReserveProducerIdsResponse
from millstream.wire.messages.restore_batches import RestoreBatchesRequest, RestoreBatchesResponse
from millstream.wire.messages.restore_verifiers import RestoreVerifiersRequest, RestoreVerifiersResponse
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from millstream.backup.model import AclBackup, GroupBackup, QuotaBackup, ResourceConfigs, UserBackup
    from millstream.client.cluster import Cluster
    from millstream.client.connection import Connection

_COMMIT_BY_NAME: Final = 9
_SET, _DELETE = 0, 1
_USERS_AT_ONCE: Final = 500
_ACLS_AT_ONCE: Final = 500


class Target:
    """Asks one cluster. It owns no connection but those of ``cluster``. Every verb may be repeated, but ``append``."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)

    # Topics

    def topic_id(self, topic: str) -> bytes:
        return self._cluster.metadata([topic]).topics[topic].topic_id

    def create_topic(self, topic: str, partitions: int, replication: int, configs: Mapping[str, str]) -> None:
        """Make a topic, and wait until its partitions are led. One that is there is taken as it is."""
        entries = [CreatableTopicConfig(name, value) for name, value in configs.items()]
        made = CreatableTopic(topic, partitions, replication, [], entries)
        request = CreateTopicsRequest([made], int(self._cluster.timeout_s * 1000))

        def ask() -> None:
            connection = self._cluster.any_connection()
            answer = connection.ask(request, CreateTopicsResponse, lowest=2)
            one = answer.topics[0]
            if one.error_code not in (0, ErrorCode.TOPIC_ALREADY_EXISTS):
                raise error_of(one.error_code, f"topic {topic}", one.error_message)

        self._cluster.insist(f"topic {topic}", ask)
        self.ends(topic, tuple(range(partitions)))

    def delete_topic(self, topic: str) -> None:
        """Remove a topic, if it is there."""
        request = DeleteTopicsRequest([DeleteTopicState(topic)], [topic], int(self._cluster.timeout_s * 1000))

        def ask() -> None:
            connection = self._cluster.any_connection()
            answer = connection.ask(request, DeleteTopicsResponse, lowest=1)
            one = answer.responses[0]
            if one.error_code not in (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                raise error_of(one.error_code, f"topic {topic}")

        self._cluster.insist(f"topic {topic}", ask)

    def alter_topic(self, topic: str, gone: Mapping[str, None], values: Mapping[str, str]) -> None:
        """Set properties of a topic, and remove its own ones that are ``gone``."""
        changes = [AlterableConfig(name, _DELETE, None) for name in gone]
        self._alter(TOPIC_RESOURCE, topic, [*changes, *(AlterableConfig(*one) for one in _sets(values))])

    def _alter(self, kind: int, name: str, changes: Sequence[AlterableConfig], node: int | None = None) -> None:
        if not changes:
            return
        request = IncrementalAlterConfigsRequest([AlterConfigsResource(kind, name, list(changes))])

        def ask() -> None:
            connection = self._cluster.any_connection() if node is None else self._cluster.connection(node)
            one = connection.ask(request, IncrementalAlterConfigsResponse).responses[0]
            if one.error_code:
                raise error_of(one.error_code, f"settings of {name or 'all brokers'}", one.error_message)

        self._cluster.insist(f"settings of {name}", ask)

    def ends(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        """Start and end (exclusive, committed) of partitions."""
        places = [(topic, index) for index in partitions]
        starts = self._cluster.list_offsets(dict.fromkeys(places, EARLIEST))
        ends = self._cluster.list_offsets(dict.fromkeys(places, LATEST))
        return {index: (starts[topic, index].offset, ends[topic, index].offset) for index in partitions}

    # Records

    def append(self, topic: str, topic_id: bytes, partition: int, batches: bytes) -> None:
        """Put batches at the end of a partition.

        Raises:
            Rejected: it ends elsewhere, or does not take them.
            Unavailable: no leader answers, or whether they are there is unknown; the end of the partition tells.
        """
        request = RestoreBatchesRequest(topic_id, partition, batches)
        what = f"records of {topic}-{partition}"
        sent = False

        def ask() -> None:
            nonlocal sent
            connection = self._cluster.connection(self._cluster.leader(topic, partition).node_id)
            again, sent = sent, True
            answer = connection.ask(request, RestoreBatchesResponse)
            if not answer.error_code:
                return
            if again and answer.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and self._has(topic, partition, batches):
                return
            if answer.error_code == ErrorCode.REQUEST_TIMED_OUT:
                raise Retriable(f"{what}: {answer.error_message}", ErrorCode.REQUEST_TIMED_OUT)
            raise error_of(answer.error_code, what, answer.error_message)

        try:
            self._cluster.insist(what, ask, lambda: self._cluster.forget(topic))
        except OutcomeUnknown as error:
            raise Unavailable(f"{what}: {error.message}", error.code) from error

    def _has(self, topic: str, partition: int, batches: bytes) -> bool:
        """Whether a partition ends where these batches do: the first attempt has put them there."""
        end = [one.last_offset + 1 for one in whole_batches(batches)][-1]
        return self.ends(topic, (partition,))[partition][1] == end

    def delete_before(self, topic: str, partition: int, offset: int) -> None:
        """Let a partition start at ``offset``."""
        wanted = DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])
        request = DeleteRecordsRequest([wanted], int(self._cluster.timeout_s * 1000))

        def ask() -> None:
            connection = self._cluster.connection(self._cluster.leader(topic, partition).node_id)
            one = connection.ask(request, DeleteRecordsResponse).topics[0].partitions[0]
            if one.error_code:
                raise error_of(one.error_code, f"start of {topic}-{partition}")

        self._cluster.insist(f"start of {topic}-{partition}", ask, lambda: self._cluster.forget(topic))

    def abort_open(self, topic: str, partitions: Sequence[int]) -> int:
        """Abort the transactions that are open in partitions; their number."""
        return sum(self._abort(topic, index) for index in partitions)

    def _abort(self, topic: str, partition: int) -> int:
        wanted = DescribeProducersRequest([DescribeProducersTopic(topic, [partition])])

        def ask() -> int:
            connection = self._cluster.connection(self._cluster.leader(topic, partition).node_id)
            answer = connection.ask(wanted, DescribeProducersResponse)
            found = answer.topics[0].partitions[0]
            if found.error_code:
                raise error_of(found.error_code, f"producers of {topic}-{partition}", found.error_message)
            markers = [
                WritableTxnMarker(
                    one.producer_id,
                    one.producer_epoch,
                    transaction_result=False,
                    topics=[WritableTxnMarkerTopic(topic, [partition])],
                    coordinator_epoch=max(0, one.coordinator_epoch),
                )
                for one in found.active_producers
                if one.current_txn_start_offset >= 0
            ]
            if markers:
                written = connection.ask(WriteTxnMarkersRequest(markers), WriteTxnMarkersResponse, lowest=1, highest=1)
                for marker in written.markers:
                    for part in (part for each in marker.topics for part in each.partitions):
                        if part.error_code:
                            raise error_of(part.error_code, f"abort in {topic}-{partition}")
            return len(markers)

        return self._cluster.insist(f"abort in {topic}-{partition}", ask, lambda: self._cluster.forget(topic))

    def reserve_producer_ids(self, count: int) -> int:
        """The first of ``count`` producer ids that no producer gets."""

        def ask() -> int:
            connection = self._cluster.any_connection()
            answer = connection.ask(ReserveProducerIdsRequest(count), ReserveProducerIdsResponse)
            if answer.error_code:
                raise error_of(answer.error_code, "producer ids", answer.error_message)
            return answer.first_producer_id

        return self._cluster.insist("producer ids", ask)

    # The rest

    def commit(self, group: GroupBackup) -> None:
        """Commit the offsets of a group. They have no leader epoch, because those of the records are new."""
        by_topic: dict[str, list[OffsetCommitRequestPartition]] = {}
        for one in group.offsets:
            parts = by_topic.setdefault(one.topic, [])
            parts.append(OffsetCommitRequestPartition(one.partition, one.offset, -1, one.metadata))
        request = OffsetCommitRequest(
            group.group_id,
            topics=[OffsetCommitRequestTopic(topic, partitions=parts) for topic, parts in by_topic.items()],
        )
        what = f"offsets of group {group.group_id}"

        def ask(connection: Connection) -> None:
            answer = connection.ask(request, OffsetCommitResponse, lowest=6, highest=_COMMIT_BY_NAME)
            for one in (part for topic in answer.topics for part in topic.partitions):
                if one.error_code:
                    raise error_of(one.error_code, what)

        self._coordinators.insist(what, GROUP, group.group_id, ask)

    def start_share_group(self, group: GroupBackup) -> None:
        """Let a share group start at its offsets; one that is not there is made."""
        by_topic: dict[str, list[AlterShareOffsetsPartition]] = {}
        for one in group.offsets:
            by_topic.setdefault(one.topic, []).append(AlterShareOffsetsPartition(one.partition, one.offset))
        request = AlterShareGroupOffsetsRequest(
            group.group_id, [AlterShareOffsetsTopic(topic, parts) for topic, parts in by_topic.items()]
        )
        what = f"starts of share group {group.group_id}"

        def ask(connection: Connection) -> None:
            answer = connection.ask(request, AlterShareGroupOffsetsResponse)
            if answer.error_code:
                raise error_of(answer.error_code, what, answer.error_message)
            for one in (part for topic in answer.responses for part in topic.partitions):
                if one.error_code:
                    raise error_of(one.error_code, what, one.error_message)

        self._coordinators.insist(what, GROUP, group.group_id, ask)

    def set_quota(self, quota: QuotaBackup) -> None:
        entity = [EntityData(kind, name) for kind, name in quota.entity]
        ops = [OpData(key, value, remove=False) for key, value in quota.values.items()]

        def ask() -> None:
            connection = self._cluster.any_connection()
            request = AlterClientQuotasRequest([AlterEntryData(entity, ops)])
            one = connection.ask(request, AlterClientQuotasResponse).entries[0]
            if one.error_code:
                raise error_of(one.error_code, "quotas", one.error_message)

        self._cluster.insist("quotas", ask)

    def set_configs(self, one: ResourceConfigs) -> list[str]:
        """Set the settings of a broker, a group or client metrics; notes on those that stay away."""
        node = None
        if one.resource_type == BROKER_RESOURCE and one.name:
            node = int(one.name)
            if node not in self._cluster.metadata([]).brokers:
                return [
                    f"there is no broker {node} here, so its settings ({', '.join(sorted(one.configs))}) are not set"
                ]
        self._alter(one.resource_type, one.name, [AlterableConfig(*change) for change in _sets(one.configs)], node)
        return []

    def add_acls(self, acls: Sequence[AclBackup]) -> list[str]:
        """Add access control entries; a note if access is not controlled here."""
        for at in range(0, len(acls), _ACLS_AT_ONCE):
            some = [rights.Acl(*msgspec.structs.astuple(one)) for one in acls[at : at + _ACLS_AT_ONCE]]
            try:
                rights.add_acls(self._cluster.any_connection(), some)
            except Rejected as error:
                if error.code is not ErrorCode.SECURITY_DISABLED:
                    raise
                return [f"access is not controlled here, so {len(acls)} access control entries are not set"]
        return []

    def set_users(self, users: Sequence[UserBackup]) -> None:
        """Let users log in with the passwords that they had. A request has one verifier a user."""
        left = list(users)
        while left:
            some: dict[str, UserBackup] = {}
            for one in left:
                if len(some) < _USERS_AT_ONCE:
                    some.setdefault(one.user, one)
            left = [one for one in left if some.get(one.user) is not one]
            verifiers = [
                UserVerifier(one.user, one.mechanism, one.iterations, one.salt, one.stored_key, one.server_key)
                for one in some.values()
            ]
            connection = self._cluster.any_connection()
            answer = connection.ask(RestoreVerifiersRequest(verifiers), RestoreVerifiersResponse)
            if answer.error_code:
                raise Rejected(answer.error_message or "users are refused", ErrorCode(answer.error_code))


def _sets(values: Mapping[str, str]) -> list[tuple[str, int, str]]:
    return [(name, _SET, value) for name, value in values.items()]
