"""Metadata in all versions, as Apache Kafka 4.3.1 answers the same requests."""

import msgspec
import pytest
from control_bench import ControlBench, versions

from millstream.errors import Unavailable
from millstream.kafka.cluster_view import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from millstream.model.error_code import ErrorCode
from millstream.wire.codec import encode_response
from millstream.wire.messages.delete_topics import DeleteTopicsRequest
from millstream.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import ZERO_UUID

ALL = versions(MetadataRequest)


def named(*names, **options):
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], **options)


def by_id(*ids, name=None, **options):
    return MetadataRequest(topics=[MetadataRequestTopic(name=name, topic_id=i) for i in ids], **options)


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize("count", [0, 1, 130])
def test_an_answer_in_pieces_has_the_bytes_of_an_answer_in_one(version, count):
    bench = ControlBench(1, num_partitions=3, rack="r1")
    for number in range(count):
        bench.world.create(f"t{number:03d}", 3)
    bench.world.run()
    cache = bench.world.nodes[0].cache
    context = bench.begin(MetadataRequest(topics=[] if version == 0 else None), version, 0)
    whole = MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=1, host="10.0.0.7", port=9092, rack="r1")],
        cluster_id=cache.cluster_id,
        controller_id=1,
        topics=[
            MetadataResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    MetadataResponsePartition(
                        partition_index=index, leader_id=1, leader_epoch=0, replica_nodes=[1], isr_nodes=[1]
                    )
                    for index in range(3)
                ],
            )
            for topic in cache.topics()
        ],
    )
    assert context.bodies == [bytes(encode_response(whole, version))]


def test_version_0_says_all_with_an_empty_list_and_later_ones_with_null():
    bench = ControlBench()
    bench.create("a")
    bench.create("b")
    assert [topic.name for topic in bench.ask(MetadataRequest(topics=[]), 0).topics] == ["a", "b"]
    for version in ALL[1:]:
        assert bench.ask(MetadataRequest(topics=[]), version).topics == []
        assert [topic.name for topic in bench.ask(MetadataRequest(topics=None), version).topics] == ["a", "b"]


@pytest.mark.parametrize("version", ALL)
def test_a_named_topic_is_shown_with_what_the_version_has(version):
    bench = ControlBench()
    topic_id = bench.create("t", 2)
    answer = bench.ask(named("t"), version)
    (topic,) = answer.topics
    assert (topic.error_code, topic.name, topic.is_internal) == (0, "t", False)
    assert topic.topic_id == (topic_id if version >= 10 else ZERO_UUID)
    assert [(part.partition_index, part.leader_id, part.error_code) for part in topic.partitions] == [
        (0, 1, 0),
        (1, 1, 0),
    ]
    assert topic.partitions[0].leader_epoch == (0 if version >= 7 else -1)
    assert topic.partitions[0].offline_replicas == []
    assert topic.topic_authorized_operations == OPERATIONS_NOT_ASKED
    assert answer.cluster_id == (bench.node().metadata.cluster_id if version >= 2 else None)
    assert answer.controller_id == (1 if version >= 1 else -1)
    assert [(b.node_id, b.host, b.port, b.rack) for b in answer.brokers] == [(1, "10.0.0.7", 9092, None)]


@pytest.mark.parametrize("version", ALL)
def test_a_replica_of_a_dead_broker_is_told_as_the_version_can(version, monkeypatch):
    bench = ControlBench()
    bench.create("t")
    cache = bench.node().metadata
    (part,) = cache.topic("t").partitions
    two = msgspec.structs.replace(part, replicas=(1, 2), in_sync=(1,))
    monkeypatch.setattr(cache.topic("t"), "partitions", [two])
    (topic,) = bench.ask(named("t"), version).topics
    (shown,) = topic.partitions
    assert (shown.leader_id, shown.isr_nodes) == (1, [1])
    if version == 0:
        assert (shown.error_code, shown.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1])
    else:
        assert (shown.error_code, shown.replica_nodes) == (0, [1, 2])
    assert shown.offline_replicas == ([2] if version >= 5 else [])


def test_an_advertised_listener_is_told_instead_of_the_address_that_the_client_used():
    bench = ControlBench(advertised_listeners="broker.example.org:19092")
    (broker,) = bench.ask(named()).brokers
    assert (broker.host, broker.port) == ("broker.example.org", 19092)


def test_a_listener_on_a_name_is_told_by_it_because_certificates_have_names():
    bench = ControlBench(listen="broker-7.example.org:9092")
    (broker,) = bench.ask(named()).brokers
    assert (broker.host, broker.port) == ("broker-7.example.org", 9092)
    (broker,) = ControlBench(listen="10.1.2.3:9092").ask(named()).brokers
    assert broker.host == "10.0.0.7", "an address may be translated on the way"


def test_topics_are_found_by_id_and_an_unknown_id_is_told():
    bench = ControlBench()
    topic_id = bench.create("t")
    answer = bench.ask(by_id(topic_id, b"?" * 16, topic_id), 12)
    assert [(t.error_code, t.name, t.topic_id) for t in answer.topics] == [
        (0, "t", topic_id),
        (ErrorCode.UNKNOWN_TOPIC_ID, None, b"?" * 16),
    ]


def test_names_are_not_looked_at_when_there_is_an_id():
    bench = ControlBench()
    topic_id = bench.create("t")
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name="new"), MetadataRequestTopic(name="nope", topic_id=topic_id)]
    )
    assert [topic.name for topic in bench.ask(request, 13).topics] == ["t"]
    assert bench.node().metadata.topic("new") is None


@pytest.mark.parametrize(
    ("request_", "version"),
    [
        (by_id(b"x" * 16, name="a"), 10),
        (by_id(ZERO_UUID), 10),
        (by_id(b"x" * 16, name="a"), 11),
        (by_id(ZERO_UUID), 12),
        (by_id(ZERO_UUID), 13),
    ],
)
def test_a_request_that_names_nothing_or_with_what_its_version_lacks_is_refused_as_a_whole(request_, version):
    answer = ControlBench().ask(request_, version)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_REQUEST]
    assert (answer.brokers, answer.controller_id, answer.cluster_id) == ([], -1, None)


@pytest.mark.parametrize("version", ALL[4:])
def test_what_does_not_exist_and_may_not_be_created_is_told(version):
    bench = ControlBench()
    request = named("nope", "é", "", "__consumer_offsets", "nope", allow_auto_topic_creation=False)
    answer = bench.ask(request, version)
    assert [(t.name, ErrorCode(t.error_code).name, t.is_internal) for t in answer.topics] == [
        ("nope", "UNKNOWN_TOPIC_OR_PARTITION", False),
        ("é", "INVALID_TOPIC_EXCEPTION", False),
        ("", "INVALID_TOPIC_EXCEPTION", False),
        ("__consumer_offsets", "UNKNOWN_TOPIC_OR_PARTITION", True),
    ]
    assert not bench.node().metadata.names()


@pytest.mark.parametrize("version", ALL)
def test_what_does_not_exist_is_created_and_in_the_same_answer(version):
    bench = ControlBench(num_partitions=3)
    answer = bench.ask(named("new", "bad name"), version)
    assert [(t.name, t.error_code, len(t.partitions)) for t in answer.topics] == [
        ("new", 0, 3),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]
    assert bench.recorded == [("User:ANONYMOUS", "10.0.0.9", "Metadata", ["new"], [])]
    bench.ask(named("new"), version)
    assert len(bench.recorded) == 1, "asking for what exists is no change"


def test_the_first_to_ask_after_a_deletion_sees_it_and_the_second_a_new_topic():
    bench = ControlBench()
    (before,) = bench.ask(named("t"), 12).topics
    bench.ask(DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000), 4)
    (first,) = bench.ask(named("t"), 12).topics
    assert first.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    (second,) = bench.ask(named("t"), 12).topics
    assert second.error_code == 0
    assert [what for _, _, _, what, _ in bench.recorded] == [["t"], ["t"]]
    assert second.topic_id != before.topic_id


def test_nothing_is_created_when_the_broker_does_not_allow_it():
    bench = ControlBench(auto_create_topics_enable=False)
    (topic,) = bench.ask(named("new")).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.node().metadata.topic("new") is None


def test_asking_for_all_topics_creates_none():
    bench = ControlBench()
    assert bench.ask(MetadataRequest(topics=None)).topics == []


def test_a_name_that_collides_is_refused_and_a_creation_that_fails_for_now_is_to_be_tried_again():
    bench = ControlBench()
    bench.create("a.b")
    (topic,) = bench.ask(named("a_b")).topics
    assert topic.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    (topic,) = bench.ask(named("__cluster_metadata")).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    bench.world.log.refuse = Unavailable("disk full")
    (topic,) = bench.ask(named("later")).topics
    assert topic.error_code == ErrorCode.LEADER_NOT_AVAILABLE


@pytest.mark.parametrize("version", ALL[8:])
def test_authorised_operations_are_told_to_who_asks(version):
    bench = ControlBench()
    bench.create("t")
    request = named(
        "t",
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=8 <= version <= 10,
    )
    answer = bench.ask(request, version)
    assert answer.topics[0].topic_authorized_operations == TOPIC_OPERATIONS == 3576
    expected = CLUSTER_OPERATIONS if version <= 10 else OPERATIONS_NOT_ASKED
    assert answer.cluster_authorized_operations == expected
    assert CLUSTER_OPERATIONS == 8096
    plain = bench.ask(named("t"), version)
    assert plain.topics[0].topic_authorized_operations == OPERATIONS_NOT_ASKED
    assert plain.cluster_authorized_operations == OPERATIONS_NOT_ASKED


def test_pieces_are_made_once_and_anew_when_the_topic_or_its_leaders_change():
    bench = ControlBench()
    topic_id = bench.create("t")
    bench.create("u")
    cache = bench.node().metadata
    bench.ask(MetadataRequest(topics=None), 13)
    kept = cache.topic("t").encoded
    assert len(kept) == 1
    before = dict(kept)
    bench.ask(named("t"), 13)
    assert cache.topic("t").encoded is kept
    assert kept == before
    bench.world.nodes[0].follower.report_leader(topic_id, 0, 9)
    bench.world.run()
    for request in (MetadataRequest(topics=None), named("t")):
        assert bench.ask(request, 13).topics[0].partitions[0].leader_epoch == 9


def test_the_topic_of_consumer_groups_is_shown_as_internal():
    bench = ControlBench(offsets_topic_num_partitions=5)
    (topic,) = bench.ask(named("__consumer_offsets")).topics
    assert (topic.error_code, topic.is_internal, len(topic.partitions)) == (0, True, 5)


@pytest.mark.parametrize("name", ["__cluster_metadata", "__transaction_state", "__share_group_state"])
def test_asking_for_a_topic_that_nobody_here_writes_does_not_create_it(name):
    bench = ControlBench()
    (topic,) = bench.ask(named(name)).topics
    assert ErrorCode(topic.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert bench.node().metadata.topic(name) is None
