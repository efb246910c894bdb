"""A request sees the effect of the one before it on its connection, though both were sent at once.

``pytest tests/process/edge --peer kafka`` asks a real Apache Kafka the same. Where Kafka applies a change of metadata a
moment after its response, the pair is for our broker alone.
"""

import pytest
from edge_client import NAMES, Client, batch, fetch_request, is_peer
from edge_transactions import Transaction

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from millstream.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from millstream.wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from millstream.wire.messages.fetch import FetchResponse
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from waits import until

pytestmark = pytest.mark.process

ROUNDS = 12


def at_once(client, *calls):
    """Send (request, response type, version) one behind the other, and return all responses."""
    for request, _, version in calls:
        client.connection.send(request, version)
    return [client.connection.receive(response) for _, response, _ in calls]


def produce(topic, partition, acks=-1):
    asked = [TopicProduceData(topic, bytes(16), [PartitionProduceData(partition, batch())])]
    return ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=asked), ProduceResponse, 9


def list_offset(topic, partition, timestamp):
    asked = [ListOffsetsTopic(topic, [ListOffsetsPartition(partition, -1, timestamp)])]
    return ListOffsetsRequest(-1, 0, asked), ListOffsetsResponse, 7


def delete_records(topic, partition, offset):
    asked = [DeleteRecordsTopic(topic, [DeleteRecordsPartition(partition, offset)])]
    return DeleteRecordsRequest(asked, 10_000), DeleteRecordsResponse, 2


def metadata(topic):
    return MetadataRequest([MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False), MetadataResponse, 9


def offset_of(answer):
    part = answer.topics[0].partitions[0]
    assert part.error_code == 0
    return part.offset


def ready(client, kind, key):
    """The coordinator of a group (0) or a transactional id (1) works."""
    asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key])
    until(lambda: not client.connection.call(asked, FindCoordinatorResponse, 4).coordinators[0].error_code)
    return key


@pytest.mark.parametrize("partition", [0, 1])
def test_what_reads_a_log_sees_what_was_produced_before(client, partition):
    topic = client.create()[0]
    for round_ in range(ROUNDS):
        for acks in (1, -1):
            before = client.end(topic, partition)
            answers = at_once(client, produce(topic, partition, acks), list_offset(topic, partition, -1))
            assert offset_of(answers[1]) == before + 1, round_
        fetch = fetch_request({(topic, partition): before + 1}, 11, (0, -1), (), max_wait_ms=0)
        answers = at_once(client, produce(topic, partition), (fetch, FetchResponse, 11))
        assert answers[1].responses[0].partitions[0].records, round_


@pytest.mark.parametrize("partition", [0, 1])
def test_the_start_of_a_log_is_that_of_the_delete_records_before(client, partition):
    topic = client.create()[0]
    for round_ in range(ROUNDS):
        answers = at_once(
            client,
            produce(topic, partition),
            produce(topic, partition),
            delete_records(topic, partition, 2 * round_ + 1),
            delete_records(topic, partition, -1),
            list_offset(topic, partition, -2),
            list_offset(topic, partition, -1),
        )
        assert [one.topics[0].partitions[0].low_watermark for one in answers[2:4]] == [2 * round_ + 1, 2 * round_ + 2]
        assert [offset_of(one) for one in answers[4:]] == [2 * round_ + 2] * 2


def test_offsets_of_a_group_are_those_of_the_commit_or_the_deletion_before(client):
    topic = client.create()[0]
    for round_ in range(ROUNDS):
        group = ready(client, 0, f"order-{round_}")
        where = [OffsetCommitRequestTopic(topic, bytes(16), [OffsetCommitRequestPartition(1, round_)])]
        commit = OffsetCommitRequest(group_id=group, topics=where), OffsetCommitResponse, 8
        wanted = OffsetFetchRequestGroup(group_id=group, topics=[OffsetFetchRequestTopics(topic, bytes(16), [1])])
        fetch = OffsetFetchRequest(groups=[wanted]), OffsetFetchResponse, 8
        gone = [OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(1)])]
        delete = OffsetDeleteRequest(group, gone), OffsetDeleteResponse, 0
        until(lambda commit=commit: not client.connection.call(*commit).topics[0].partitions[0].error_code)
        answers = at_once(client, delete, fetch, commit, fetch)
        found = [answers[place].groups[0].topics[0].partitions[0].committed_offset for place in (1, 3)]
        assert found == [-1, round_]
        answers = at_once(
            client,
            (DeleteGroupsRequest([group]), DeleteGroupsResponse, 2),
            (ListGroupsRequest(), ListGroupsResponse, 3),
        )
        assert answers[0].results[0].error_code == 0
        assert group not in [one.group_id for one in answers[1].groups]


def test_transactions_are_described_as_the_request_before_left_them(client):
    topic = client.create()[0]
    one = Transaction(client, "order")
    describe = DescribeTransactionsRequest([one.name]), DescribeTransactionsResponse, 0
    for _ in range(ROUNDS):
        begin = InitProducerIdRequest(one.name, 60_000), InitProducerIdResponse, 4
        while (answers := at_once(client, begin, describe))[0].error_code:
            assert answers[0].error_code == ErrorCode.CONCURRENT_TRANSACTIONS
        one.epoch = answers[0].producer_epoch
        state = answers[1].transaction_states[0]
        assert (state.producer_epoch, state.transaction_state) == (one.epoch, "Empty")
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=one.name,
            v3_and_below_producer_id=one.id,
            v3_and_below_producer_epoch=one.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(topic, [0])],
        )
        state = at_once(client, (add, AddPartitionsToTxnResponse, 3), describe)[1].transaction_states[0]
        assert (state.transaction_state, [named.topic for named in state.topics]) == ("Ongoing", [topic])


def test_metadata_are_those_of_the_change_before(connect, request):
    if is_peer(request.config):
        pytest.skip("Kafka's brokers apply a change after the controller has answered")
    clients = [connect() for _ in range(4)]
    for round_ in range(ROUNDS):
        client, name = clients[round_ % 4], next(NAMES)
        create = CreateTopicsRequest([CreatableTopic(name=name, num_partitions=2, replication_factor=1)], 10_000)
        grow = CreatePartitionsRequest([CreatePartitionsTopic(name, 3, None)], 10_000)
        change = AlterConfigsResource(2, name, [AlterableConfig("max.message.bytes", 0, str(5000 + round_))])
        asked = DescribeConfigsResource(2, name, ["max.message.bytes"])
        answers = at_once(
            client,
            (create, CreateTopicsResponse, 6),
            metadata(name),
            (grow, CreatePartitionsResponse, 3),
            metadata(name),
            (IncrementalAlterConfigsRequest([change]), IncrementalAlterConfigsResponse, 1),
            (DescribeConfigsRequest([asked]), DescribeConfigsResponse, 4),
            (DeleteTopicsRequest([DeleteTopicState(name)], timeout_ms=10_000), DeleteTopicsResponse, 6),
            metadata(name),
        )
        assert [len(answers[place].topics[0].partitions) for place in (1, 3)] == [2, 3]
        assert answers[5].results[0].configs[0].value == str(5000 + round_)
        assert answers[7].topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_fetch_that_waits_is_followed_by_what_comes_behind_it(client, other):
    topic = client.create()[0]
    for _ in range(3):
        client.produce(topic, 0, batch())
    wait = fetch_request({(topic, 1): 0}, 11, (0, -1), (), max_wait_ms=500), FetchResponse, 11
    answers = at_once(client, wait, delete_records(topic, 0, 2), list_offset(topic, 0, -2), wait, produce(topic, 1))
    assert answers[1].topics[0].partitions[0].low_watermark == offset_of(answers[2]) == 2
    assert answers[4].responses[0].partition_responses[0].error_code == 0
    assert other.end(topic, 1) == 1


def test_a_connection_that_goes_while_a_request_waits_leaves_nothing_behind(connect, other):
    topic = other.create()[0]
    for _ in range(ROUNDS):
        client: Client = connect()
        for asked, _, version in (produce(topic, 0), delete_records(topic, 0, -1), list_offset(topic, 0, -2)):
            client.connection.send(asked, version)
        client.connection.close()
    assert other.error(topic, 0, batch()) == "NONE"
