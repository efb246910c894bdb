"""What a client sees of ListOffsets, OffsetForLeaderEpoch, ApiVersions and InitProducerId.

Raw requests to one real broker with two shards; every topic has a partition on each, so half of what is asked here
hops. ``pytest tests/process/edge --peer kafka`` asks a real Apache Kafka the same: a test that fails there is wrong,
unless its first line says how we differ.
"""

import struct

import msgspec
import pytest
from edge_client import NO_ID, batch, frame, raw_call

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from millstream.wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)

pytestmark = pytest.mark.process


# ListOffsets


def test_list_offsets_by_every_kind_of_time(client):
    topic, _ = client.create()
    for partition in (0, 1):
        assert client.offset(topic, partition, -2)[:3] == (0, -1, 0)
        assert client.offset(topic, partition, -1)[:3] == (0, -1, 0)
        assert client.offset(topic, partition, -3)[:3] == (0, -1, -1)
        assert client.offset(topic, partition, 0)[:3] == (0, -1, -1)
        for at in (1000, 5000, 3000):
            client.produce(topic, partition, batch(3, timestamp=at))
        found = {at: client.offset(topic, partition, at) for at in (0, 1000, 1001, 1003, 3000, 5001, 5002, 5003, -3)}
        assert found == {
            0: (0, 1000, 0, 0),
            1000: (0, 1000, 0, 0),
            1001: (0, 1001, 1, 0),
            1003: (0, 5000, 3, 0),
            3000: (0, 5000, 3, 0),
            5001: (0, 5001, 4, 0),
            5002: (0, 5002, 5, 0),
            5003: (0, -1, -1, -1),
            -3: (0, 5002, 5, 0),
        }
        assert client.offset(topic, partition, -1) == (0, -1, 9, 0)
        assert client.offset(topic, partition, -1, isolation=1) == (0, -1, 9, 0)
        assert client.offset(topic, partition, -2) == (0, -1, 0, 0)


def test_list_offsets_refuses_what_it_does_not_know(client):
    topic, _ = client.create()
    for partition in (0, 1):
        assert client.offset(topic, partition, -1, epoch=3)[0] == ErrorCode.UNKNOWN_LEADER_EPOCH
        for version, timestamp in ((6, -3), (7, -4), (8, -5), (10, -6), (11, -7)):
            assert client.offset(topic, partition, timestamp, version)[0] == ErrorCode.UNSUPPORTED_VERSION
        assert client.offset(topic, partition, -4, 8)[:3] == (0, -1, 0)
        assert client.offset(topic, partition, -5, 9) == (0, -1, -1, -1)
    assert client.offset(topic, 2, -1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert client.offset("no-such-topic", 0, -1)[0] == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_list_offsets_of_many_partitions_answers_in_order_and_refuses_doubles(client):
    topic, _ = client.create(4)
    for partition in range(4):
        client.produce(topic, partition, batch(partition + 1))
    wanted = [3, 1, 0, 1, 2]
    asked = [ListOffsetsTopic(topic, [ListOffsetsPartition(i, -1, -1) for i in wanted])]
    answer = client.connection.call(ListOffsetsRequest(-1, 0, asked), ListOffsetsResponse, 7)
    assert len(answer.topics[0].partitions) == 4  # each once
    got = {(part.partition_index, part.error_code, part.offset) for part in answer.topics[0].partitions}
    assert got == {(3, 0, 4), (1, ErrorCode.INVALID_REQUEST, -1), (0, 0, 1), (2, 0, 3)}


def test_a_topic_that_is_named_twice_is_answered_once(client):
    topic, _ = client.create()
    asked = [ListOffsetsTopic(topic, [ListOffsetsPartition(i, -1, -1)]) for i in (0, 1, 0)] + [ListOffsetsTopic(topic)]
    (answer,) = client.connection.call(ListOffsetsRequest(-1, 0, asked), ListOffsetsResponse, 11).topics
    got = sorted((part.partition_index, part.error_code) for part in answer.partitions)
    assert got == [(0, ErrorCode.INVALID_REQUEST), (1, 0)]
    nothing = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(topic)])
    assert client.connection.call(nothing, ListOffsetsResponse, 11).topics == []


@pytest.mark.parametrize("version", range(1, 12))
def test_every_version_of_list_offsets_finds_both_ends(client, version):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(3))
        epoch = 0 if version >= 4 else -1
        assert client.offset(topic, partition, -1, version) == (0, -1, 3, epoch)
        assert client.offset(topic, partition, -2, version) == (0, -1, 0, epoch)
        assert client.offset(topic, partition, 1 << 60, version) == (0, -1, -1, -1)


@pytest.mark.parametrize("isolation", [2, -1])
def test_list_offsets_knows_two_isolation_levels(client, isolation):
    topic, _ = client.create()
    assert client.offset(topic, 0, -1, isolation=isolation)[0] == ErrorCode.UNKNOWN_SERVER_ERROR


def test_the_largest_timestamp_of_records_without_one_is_that_of_the_first(client):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(1, timestamp=-1))
        assert client.offset(topic, partition, -3) == (0, -1, 0, 0)
        assert client.offset(topic, partition, 0) == (0, -1, -1, -1)


# OffsetForLeaderEpoch


def epoch_end(client, topic, partition, epoch, current=-1, version=4):
    asked = [OffsetForLeaderTopic(topic, [OffsetForLeaderPartition(partition, current, epoch)])]
    request = OffsetForLeaderEpochRequest(replica_id=-1, topics=asked)
    answer = client.connection.call(request, OffsetForLeaderEpochResponse, version)
    assert answer.topics[0].topic == topic
    part = answer.topics[0].partitions[0]
    assert part.partition == partition
    return ErrorCode(part.error_code).name, part.leader_epoch, part.end_offset


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_current_epoch_ends_at_the_log_end(client, version):
    topic, _ = client.create()
    for partition in (0, 1):
        assert epoch_end(client, topic, partition, 0, version=version) == ("NONE", 0, 0)
        client.produce(topic, partition, batch(3))
        assert epoch_end(client, topic, partition, 0, version=version) == ("NONE", 0, 3)
        assert epoch_end(client, topic, partition, 0, current=0, version=version) == ("NONE", 0, 3)
        assert epoch_end(client, topic, partition, 1, version=version) == ("NONE", -1, -1)
        assert epoch_end(client, topic, partition, -1, version=version) == ("NONE", -1, -1)
        assert epoch_end(client, topic, partition, -5, version=version) == ("NONE", -5, 0)
        assert epoch_end(client, topic, partition, 0, current=-2, version=version) == ("FENCED_LEADER_EPOCH", -1, -1)
        assert epoch_end(client, topic, partition, 0, current=1, version=version) == ("UNKNOWN_LEADER_EPOCH", -1, -1)
    assert epoch_end(client, topic, 2, 0, version=version) == ("UNKNOWN_TOPIC_OR_PARTITION", -1, -1)
    assert epoch_end(client, "no-such-topic", 0, 0, version=version) == ("UNKNOWN_TOPIC_OR_PARTITION", -1, -1)


def test_the_epoch_before_a_crash_ends_where_the_new_one_began(broker, connect):
    client = connect()
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(3))
    broker.kill()
    broker.restart()
    client = connect()
    for partition in (0, 1):
        client.until_served(topic, partition)
        now = client.offset(topic, partition, -1)[3]
        assert now >= 1
        assert epoch_end(client, topic, partition, 0) == ("NONE", 0, 3)
        assert epoch_end(client, topic, partition, now) == ("NONE", now, 3)
        assert epoch_end(client, topic, partition, 0, current=0) == ("FENCED_LEADER_EPOCH", -1, -1)
        client.produce(topic, partition, batch(2))
        assert epoch_end(client, topic, partition, 0, current=now) == ("NONE", 0, 3)
        assert epoch_end(client, topic, partition, now, current=now) == ("NONE", now, 5)


# DescribeProducers


def producers(client, topic, partition):
    """(error, producers as tuples), sorted."""
    request = DescribeProducersRequest([DescribeProducersTopic(topic, [partition])])
    (answer,) = client.connection.call(request, DescribeProducersResponse, 0).topics
    (part,) = answer.partitions
    assert (answer.name, part.partition_index) == (topic, partition)
    return part.error_code, sorted(msgspec.structs.astuple(one) for one in part.active_producers)


def test_a_partition_tells_which_producers_it_remembers(client):
    topic, _ = client.create()
    for partition in (0, 1):
        assert producers(client, topic, partition) == (0, [])
        client.produce(topic, partition, batch(2))  # of no producer
        told = []
        for base, count, epoch in ((0, 3, 0), (7, 1, 4), (2**31 - 1, 2, 0)):
            number = client.producer_id().producer_id
            numbered = {"producer_id": number, "producer_epoch": epoch, "base_sequence": base}
            assert client.error(topic, partition, batch(count, timestamp=5000, **numbered)) == "NONE"
            told.append((number, epoch, (base + count - 1) % 2**31, 5000 + count - 1, -1, -1))
        assert producers(client, topic, partition) == (0, sorted(told))
    assert producers(client, topic, 2) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])
    assert producers(client, "no-such-topic", 0) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, [])


# ApiVersions, InitProducerId, frames


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(broker):
    answer = raw_call(broker, frame(18, 99, b"\0\0", flexible=True))
    correlation, error, count = struct.unpack_from(">ihi", answer)
    table = [struct.unpack_from(">hhh", answer, 10 + 6 * i) for i in range(count)]
    assert (correlation, error) == (77, ErrorCode.UNSUPPORTED_VERSION)
    assert len(answer) == 10 + 6 * count
    assert any(key == 18 and low == 0 and high >= 3 for key, low, high in table)


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_every_api_that_is_advertised_has_a_range(client, version):
    request = ApiVersionsRequest("edge", "1.0")
    answer = client.connection.call(request, ApiVersionsResponse, version)
    assert answer.error_code == 0
    ranges = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
    assert ranges[0][0] == 0 and ranges[23] == (2, 4) and ranges[18][1] >= 4
    assert all(0 <= low <= high for low, high in ranges.values())


def test_a_client_name_against_the_rules_is_refused(client):
    answer = client.connection.call(ApiVersionsRequest("no spaces please", "1.0"), ApiVersionsResponse, 3)
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert client.connection.call(ApiVersionsRequest("edge", "1.0"), ApiVersionsResponse, 3).error_code == 0


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4, 5])
def test_producer_ids_in_every_version(client, version):
    assert client.producer_id().error_code == 0
    answer = client.connection.call(InitProducerIdRequest(None), InitProducerIdResponse, version)
    assert (answer.error_code, answer.producer_epoch) == (0, 0) and answer.producer_id >= 0


def test_producer_ids_are_unique_and_odd_requests_refused(client, other):
    given = [who.producer_id() for who in (client, other) * 20]
    assert len({answer.producer_id for answer in given}) == 40
    assert {(answer.error_code, answer.producer_epoch) for answer in given} == {(0, 0)}
    again = client.producer_id(producer_id=given[0].producer_id, producer_epoch=3)
    assert (again.error_code, again.producer_epoch) == (0, 0) and again.producer_id != given[0].producer_id
    for odd in ({"producer_id": 5}, {"producer_epoch": 5}, {"transactional_id": ""}):
        assert client.producer_id(**odd).error_code == ErrorCode.INVALID_REQUEST, odd


def test_pipelined_requests_are_answered_in_order(client):
    topic, _ = client.create()
    sent = []
    for number in range(50):
        part = number % 2
        request = ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(topic, NO_ID, [PartitionProduceData(part, batch())])],
        )
        client.connection.send(request, 9)
        sent.append((part, number // 2))
    got = []
    for _ in sent:
        part = client.connection.receive(ProduceResponse).responses[0].partition_responses[0]
        got.append((part.index, part.base_offset))
    assert got == sent
