"""The table of APIs: key, name, request, response, versions.

This is the only list of APIs. Its facts come from the message declarations, so that a version is stated once. A broker
advertises the APIs that have a handler. In one case it advertises more than this table: Produce from version 0, as
Kafka 4 does, because librdkafka chooses its compression codecs by that.
"""

from typing import Any, Final

import msgspec

from millstream.wire.messages.acknowledge_events import AcknowledgeEventsRequest, AcknowledgeEventsResponse
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from millstream.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse
from millstream.wire.messages.alter_client_quotas import AlterClientQuotasRequest, AlterClientQuotasResponse
from millstream.wire.messages.alter_configs import AlterConfigsRequest, AlterConfigsResponse
from millstream.wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from millstream.wire.messages.alter_replica_log_dirs import AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
)
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from millstream.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from millstream.wire.messages.create_acls import CreateAclsRequest, CreateAclsResponse
from millstream.wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from millstream.wire.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.delete_acls import DeleteAclsRequest, DeleteAclsResponse
from millstream.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from millstream.wire.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from millstream.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsResponse,
)
from millstream.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from millstream.wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from millstream.wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from millstream.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest, DescribeLogDirsResponse
from millstream.wire.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from millstream.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from millstream.wire.messages.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from millstream.wire.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
)
from millstream.wire.messages.describe_verifiers import DescribeVerifiersRequest, DescribeVerifiersResponse
from millstream.wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.events_metadata import EventsMetadataRequest, EventsMetadataResponse
from millstream.wire.messages.feed_events import FeedEventsRequest, FeedEventsResponse
from millstream.wire.messages.fetch import FetchRequest, FetchResponse
from millstream.wire.messages.fetch_event_data import FetchEventDataRequest, FetchEventDataResponse
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from millstream.wire.messages.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from millstream.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from millstream.wire.messages.incremental_alter_configs import (
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from millstream.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from millstream.wire.messages.list_config_resources import ListConfigResourcesRequest, ListConfigResourcesResponse
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from millstream.wire.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from millstream.wire.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from millstream.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from millstream.wire.messages.metadata import MetadataRequest, MetadataResponse
from millstream.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from millstream.wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from millstream.wire.messages.produce import ProduceRequest, ProduceResponse
from millstream.wire.messages.push_events import PushEventsRequest, PushEventsResponse
from millstream.wire.messages.push_telemetry import PushTelemetryRequest, PushTelemetryResponse
from millstream.wire.messages.read_share_group_state import ReadShareGroupStateRequest, ReadShareGroupStateResponse
from millstream.wire.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
)
from millstream.wire.messages.replace_segments import ReplaceSegmentsRequest, ReplaceSegmentsResponse
from millstream.wire.messages.reserve_producer_ids import ReserveProducerIdsRequest, ReserveProducerIdsResponse
from millstream.wire.messages.restore_batches import RestoreBatchesRequest, RestoreBatchesResponse
from millstream.wire.messages.restore_verifiers import RestoreVerifiersRequest, RestoreVerifiersResponse
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from millstream.wire.messages.share_acknowledge import ShareAcknowledgeRequest, ShareAcknowledgeResponse
from millstream.wire.messages.share_fetch import ShareFetchRequest, ShareFetchResponse
from millstream.wire.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from millstream.wire.messages.streams_group_describe import (
    StreamsGroupDescribeRequest,
    StreamsGroupDescribeResponse,
)
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from millstream.wire.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from millstream.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from millstream.wire.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from millstream.wire.messages.write_share_group_state import WriteShareGroupStateRequest, WriteShareGroupStateResponse
from millstream.wire.messages.write_txn_markers import WriteTxnMarkersRequest, WriteTxnMarkersResponse
from millstream.wire.schema import Request, Response


class Api(msgspec.Struct, frozen=True):
    """One API. ``versions`` is inclusive; ``flexible`` is the first version with compact lengths and tagged fields."""

    key: int
    name: str
    request: type[Request]
    response: type[Response]
    versions: tuple[int, int]
    flexible: int


def _api(request: type[Request], response: type[Response]) -> Api:
    name = request.__name__.removesuffix("Request")
    facts: tuple[Any, ...] = (request.API_KEY, request.VERSIONS, request.FLEXIBLE)
    assert response.__name__ == f"{name}Response", f"{name}: answered by {response.__name__}"
    assert facts == (response.API_KEY, response.VERSIONS, response.FLEXIBLE), f"{name}: request and response differ"
    return Api(request.API_KEY, name, request, response, request.VERSIONS, request.FLEXIBLE)


APIS: Final[dict[int, Api]] = {
    api.key: api
    for api in (
        _api(ProduceRequest, ProduceResponse),
        _api(FetchRequest, FetchResponse),
        _api(ListOffsetsRequest, ListOffsetsResponse),
        _api(MetadataRequest, MetadataResponse),
        _api(OffsetCommitRequest, OffsetCommitResponse),
        _api(OffsetFetchRequest, OffsetFetchResponse),
        _api(FindCoordinatorRequest, FindCoordinatorResponse),
        _api(JoinGroupRequest, JoinGroupResponse),
        _api(HeartbeatRequest, HeartbeatResponse),
        _api(LeaveGroupRequest, LeaveGroupResponse),
        _api(SyncGroupRequest, SyncGroupResponse),
        _api(DescribeGroupsRequest, DescribeGroupsResponse),
        _api(ListGroupsRequest, ListGroupsResponse),
        _api(ApiVersionsRequest, ApiVersionsResponse),
        _api(CreateTopicsRequest, CreateTopicsResponse),
        _api(DeleteTopicsRequest, DeleteTopicsResponse),
        _api(InitProducerIdRequest, InitProducerIdResponse),
        _api(OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
        _api(DescribeAclsRequest, DescribeAclsResponse),
        _api(CreateAclsRequest, CreateAclsResponse),
        _api(DeleteAclsRequest, DeleteAclsResponse),
        _api(AddOffsetsToTxnRequest, AddOffsetsToTxnResponse),
        _api(AddPartitionsToTxnRequest, AddPartitionsToTxnResponse),
        _api(EndTxnRequest, EndTxnResponse),
        _api(WriteTxnMarkersRequest, WriteTxnMarkersResponse),
        _api(TxnOffsetCommitRequest, TxnOffsetCommitResponse),
        _api(DescribeTransactionsRequest, DescribeTransactionsResponse),
        _api(ListTransactionsRequest, ListTransactionsResponse),
        _api(DescribeConfigsRequest, DescribeConfigsResponse),
        _api(CreatePartitionsRequest, CreatePartitionsResponse),
        _api(DeleteGroupsRequest, DeleteGroupsResponse),
        _api(OffsetDeleteRequest, OffsetDeleteResponse),
        _api(IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse),
        _api(DescribeClusterRequest, DescribeClusterResponse),
        _api(DescribeProducersRequest, DescribeProducersResponse),
        _api(ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse),
        _api(ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse),
        _api(DeleteRecordsRequest, DeleteRecordsResponse),
        _api(AlterConfigsRequest, AlterConfigsResponse),
        _api(AlterReplicaLogDirsRequest, AlterReplicaLogDirsResponse),
        _api(DescribeLogDirsRequest, DescribeLogDirsResponse),
        _api(ElectLeadersRequest, ElectLeadersResponse),
        _api(AlterPartitionReassignmentsRequest, AlterPartitionReassignmentsResponse),
        _api(ListPartitionReassignmentsRequest, ListPartitionReassignmentsResponse),
        _api(DescribeClientQuotasRequest, DescribeClientQuotasResponse),
        _api(AlterClientQuotasRequest, AlterClientQuotasResponse),
        _api(DescribeQuorumRequest, DescribeQuorumResponse),
        _api(UpdateFeaturesRequest, UpdateFeaturesResponse),
        _api(UnregisterBrokerRequest, UnregisterBrokerResponse),
        _api(GetTelemetrySubscriptionsRequest, GetTelemetrySubscriptionsResponse),
        _api(PushTelemetryRequest, PushTelemetryResponse),
        _api(ListConfigResourcesRequest, ListConfigResourcesResponse),
        _api(DescribeTopicPartitionsRequest, DescribeTopicPartitionsResponse),
        _api(ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse),
        _api(ShareGroupDescribeRequest, ShareGroupDescribeResponse),
        _api(ShareFetchRequest, ShareFetchResponse),
        _api(ShareAcknowledgeRequest, ShareAcknowledgeResponse),
        _api(InitializeShareGroupStateRequest, InitializeShareGroupStateResponse),
        _api(ReadShareGroupStateRequest, ReadShareGroupStateResponse),
        _api(WriteShareGroupStateRequest, WriteShareGroupStateResponse),
        _api(DeleteShareGroupStateRequest, DeleteShareGroupStateResponse),
        _api(ReadShareGroupStateSummaryRequest, ReadShareGroupStateSummaryResponse),
        _api(StreamsGroupHeartbeatRequest, StreamsGroupHeartbeatResponse),
        _api(StreamsGroupDescribeRequest, StreamsGroupDescribeResponse),
        _api(DescribeShareGroupOffsetsRequest, DescribeShareGroupOffsetsResponse),
        _api(AlterShareGroupOffsetsRequest, AlterShareGroupOffsetsResponse),
        _api(DeleteShareGroupOffsetsRequest, DeleteShareGroupOffsetsResponse),
        _api(SaslHandshakeRequest, SaslHandshakeResponse),
        _api(SaslAuthenticateRequest, SaslAuthenticateResponse),
        _api(DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse),
        _api(AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse),
        _api(PushEventsRequest, PushEventsResponse),
        _api(FeedEventsRequest, FeedEventsResponse),
        _api(FetchEventDataRequest, FetchEventDataResponse),
        _api(AcknowledgeEventsRequest, AcknowledgeEventsResponse),
        _api(EventsMetadataRequest, EventsMetadataResponse),
        _api(ReplaceSegmentsRequest, ReplaceSegmentsResponse),
        _api(RestoreBatchesRequest, RestoreBatchesResponse),
        _api(ReserveProducerIdsRequest, ReserveProducerIdsResponse),
        _api(DescribeVerifiersRequest, DescribeVerifiersResponse),
        _api(RestoreVerifiersRequest, RestoreVerifiersResponse),
    )
}
"""Every declared API, by key."""

API_VERSIONS: Final[dict[int, tuple[int, int]]] = {api.key: api.versions for api in APIS.values()}
"""Lowest and highest declared version of each API, both inclusive."""


def api_name(key: int) -> str:
    """Kafka's name of an API, or ``"api <key>"`` for one that is not declared."""
    api = APIS.get(key)
    return api.name if api is not None else f"api {key}"
