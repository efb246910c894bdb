"""CreateTopics, DeleteTopics, CreatePartitions and DescribeCluster in all their versions."""

import pytest
from control_bench import ControlBench, versions

from millstream.errors import Unavailable
from millstream.kafka.cluster_view import CLUSTER_OPERATIONS
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from millstream.wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.describe_cluster import DescribeClusterRequest
from millstream.wire.messages.operations import OPERATIONS_NOT_ASKED
from millstream.wire.schema import ZERO_UUID


def creation(*topics, **options):
    return CreateTopicsRequest(topics=list(topics), timeout_ms=options.pop("timeout_ms", 10_000), **options)


def creatable(name, partitions=-1, factor=-1, assignments=(), **configs):
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=factor,
        assignments=[CreatableReplicaAssignment(partition_index=i, broker_ids=list(b)) for i, b in assignments],
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


@pytest.mark.parametrize("version", versions(CreateTopicsRequest))
def test_topics_are_created_and_answered_with_what_the_version_has(version):
    bench = ControlBench(num_partitions=4)
    answer = bench.ask(creation(creatable("a"), creatable("b", 2, 1, retention_ms="5")), version)
    assert [(t.name, t.error_code, t.error_message) for t in answer.topics] == [("a", 0, None), ("b", 0, None)]
    known = bench.node().metadata
    if version >= 5:
        assert [(t.num_partitions, t.replication_factor) for t in answer.topics] == [(4, 1), (2, 1)]
        configs = {config.name: (config.value, config.config_source) for config in answer.topics[1].configs}
        assert configs["retention.ms"] == ("5", 1)
        assert configs["segment.bytes"] == ("1073741824", 5)
        names = [config.name for config in answer.topics[0].configs]
        assert names == sorted(names)
    ids = [topic.topic_id for topic in answer.topics]
    assert ids == ([known.topic(name).topic_id for name in "ab"] if version >= 7 else [ZERO_UUID] * 2)
    assert len(known.topic("a").partitions) == 4


def test_each_topic_of_a_request_gets_its_own_answer():
    bench = ControlBench()
    bench.create("exists")
    answer = bench.ask(
        creation(
            creatable("exists"),
            creatable("good"),
            creatable("twice"),
            creatable("bad", foo="x"),
            creatable("twice"),
            creatable("manual", assignments=[(0, [1]), (1, [1])]),
        )
    )
    assert [(t.name, ErrorCode(t.error_code).name) for t in answer.topics] == [
        ("exists", "TOPIC_ALREADY_EXISTS"),
        ("good", "NONE"),
        ("twice", "INVALID_REQUEST"),
        ("bad", "INVALID_CONFIG"),
        ("manual", "NONE"),
    ]
    failed = answer.topics[0]
    assert (failed.num_partitions, failed.replication_factor, failed.configs) == (-1, -1, [])
    assert failed.error_message == "Topic 'exists' already exists."


def test_an_empty_request_has_an_empty_answer():
    assert ControlBench().ask(creation()).topics == []


def test_validate_only_creates_nothing_and_says_what_would_be():
    bench = ControlBench()
    (topic,) = bench.ask(creation(creatable("v", 3, retention_ms="5"), validate_only=True)).topics
    assert (topic.error_code, topic.num_partitions) == (0, 3)
    assert ("retention.ms", "5") in [(config.name, config.value) for config in topic.configs]
    assert bench.node().metadata.topic("v") is None


@pytest.mark.parametrize("version", versions(CreateTopicsRequest))
def test_a_request_that_runs_out_of_time_is_told_so_for_each_topic_and_may_still_succeed(version):
    bench = ControlBench()
    context = bench.begin(creation(creatable("a"), creatable("b"), timeout_ms=1_000), version)
    bench.world.run(sync=False)  # it has reached the controller
    while not context.bodies:
        bench.world.nodes[1].reactor.skew_us += 100_000
        bench.world.run(sync=False)
    answer = bench.end(context)
    assert [(t.name, t.error_code) for t in answer.topics] == [
        ("a", ErrorCode.REQUEST_TIMED_OUT),
        ("b", ErrorCode.REQUEST_TIMED_OUT),
    ]
    bench.world.run()
    assert bench.node().metadata.names() == ("a", "b")


def test_a_controller_that_cannot_write_answers_for_every_topic():
    bench = ControlBench()
    bench.world.log.refuse = Unavailable("disk full")
    answer = bench.ask(creation(creatable("a"), creatable("b")))
    assert [t.error_code for t in answer.topics] == [ErrorCode.KAFKA_STORAGE_ERROR] * 2


# DeleteTopics


def deletion(version, *topics, timeout_ms=10_000):
    if version < 6:
        return DeleteTopicsRequest(topic_names=list(topics), timeout_ms=timeout_ms)
    states = [DeleteTopicState(name=t) if isinstance(t, str) else DeleteTopicState(topic_id=t) for t in topics]
    return DeleteTopicsRequest(topics=states, timeout_ms=timeout_ms)


@pytest.mark.parametrize("version", versions(DeleteTopicsRequest))
def test_topics_are_deleted_by_name(version):
    bench = ControlBench()
    topic_id = bench.create("a")
    bench.create("b")
    answer = bench.ask(deletion(version, "a", "nope"), version)
    shown = [(r.name, r.topic_id, ErrorCode(r.error_code).name) for r in answer.responses]
    assert shown == [
        ("a", topic_id if version >= 6 else ZERO_UUID, "NONE"),
        ("nope", ZERO_UUID, "UNKNOWN_TOPIC_OR_PARTITION"),
    ]
    words = None if version < 5 else "This server does not host this topic-partition."
    assert [r.error_message for r in answer.responses] == [None, words]
    assert bench.node().metadata.names() == ("b",)


def test_topics_are_deleted_by_id():
    bench = ControlBench()
    topic_id = bench.create("a")
    answer = bench.ask(deletion(6, topic_id, b"?" * 16), 6)
    assert [(r.name, r.topic_id, r.error_code) for r in answer.responses] == [
        ("a", topic_id, 0),
        (None, b"?" * 16, ErrorCode.UNKNOWN_TOPIC_ID),
    ]
    assert bench.node().metadata.names() == ()


@pytest.mark.parametrize("version", versions(DeleteTopicsRequest))
def test_a_deletion_that_cannot_be_written_is_answered_for_each_topic_once(version):
    bench = ControlBench()
    bench.create("a")
    bench.world.log.refuse = Unavailable("disk full")
    answer = bench.ask(deletion(version, "a", "a", "b"), version)
    codes = [(r.name, ErrorCode(r.error_code).name) for r in answer.responses]
    # The name given twice is refused before anything is written, so only a request with one deletion reaches the log.
    assert codes == [("a", "INVALID_REQUEST"), ("b", "UNKNOWN_TOPIC_OR_PARTITION")]
    answer = bench.ask(deletion(version, "a", "b"), version)
    codes = [(r.name, ErrorCode(r.error_code).name) for r in answer.responses]
    assert codes == [("a", "KAFKA_STORAGE_ERROR"), ("b", "KAFKA_STORAGE_ERROR")]
    assert bench.node().metadata.names() == ("a",)


# CreatePartitions


def growth(*topics, **options):
    return CreatePartitionsRequest(
        topics=[
            CreatePartitionsTopic(
                name=name,
                count=count,
                assignments=None if nodes is None else [CreatePartitionsAssignment(broker_ids=n) for n in nodes],
            )
            for name, count, nodes in topics
        ],
        timeout_ms=10_000,
        **options,
    )


@pytest.mark.parametrize("version", versions(CreatePartitionsRequest))
def test_topics_grow_and_say_why_they_cannot(version):
    bench = ControlBench()
    for name in "abc":
        bench.create(name, 2)
    answer = bench.ask(growth(("a", 4, None), ("b", 3, [[1]]), ("c", 2, None), ("nope", 3, None)), version)
    assert [(r.name, ErrorCode(r.error_code).name, r.error_message) for r in answer.results] == [
        ("a", "NONE", None),
        ("b", "NONE", None),
        ("c", "INVALID_PARTITIONS", "Topic already has 2 partition(s)."),
        ("nope", "UNKNOWN_TOPIC_OR_PARTITION", None),
    ]
    assert [len(topic.partitions) for topic in bench.node().metadata.topics()] == [4, 3, 2]


def test_validate_only_grows_nothing():
    bench = ControlBench()
    bench.create("a", 2)
    (result,) = bench.ask(growth(("a", 4, None), validate_only=True)).results
    assert result.error_code == 0
    assert len(bench.node().metadata.topic("a").partitions) == 2


def test_a_growth_that_cannot_be_written_is_answered_for_each_topic():
    bench = ControlBench()
    bench.create("a", 2)
    bench.world.log.refuse = Unavailable("disk full")
    (result,) = bench.ask(growth(("a", 4, None))).results
    assert (result.name, result.error_code) == ("a", ErrorCode.KAFKA_STORAGE_ERROR)


# DescribeCluster


@pytest.mark.parametrize("version", versions(DescribeClusterRequest))
def test_the_cluster_is_described(version):
    bench = ControlBench(rack="r7")
    answer = bench.ask(DescribeClusterRequest(), version)
    assert (answer.error_code, answer.error_message, answer.endpoint_type) == (0, None, 1)
    assert (answer.cluster_id, answer.controller_id) == (bench.node().metadata.cluster_id, 1)
    assert [(b.broker_id, b.host, b.port, b.rack, b.is_fenced) for b in answer.brokers] == [
        (1, "10.0.0.7", 9092, "r7", False)
    ]
    assert answer.cluster_authorized_operations == OPERATIONS_NOT_ASKED
    asked = bench.ask(DescribeClusterRequest(include_cluster_authorized_operations=True), version)
    assert asked.cluster_authorized_operations == CLUSTER_OPERATIONS


@pytest.mark.parametrize("version", [1, 2])
def test_brokers_are_the_controllers(version):
    answer = ControlBench().ask(DescribeClusterRequest(endpoint_type=2), version)
    assert (answer.error_code, answer.endpoint_type, answer.controller_id) == (0, 2, 1)
    assert [each.broker_id for each in answer.brokers] == [1]


@pytest.mark.parametrize("version", [1, 2])
def test_an_unknown_kind_of_endpoint_is_refused(version):
    answer = ControlBench().ask(DescribeClusterRequest(endpoint_type=3), version)
    said = (ErrorCode(answer.error_code).name, answer.error_message)
    assert said == ("UNSUPPORTED_ENDPOINT_TYPE", "Unsupported endpoint type 3")
    assert (answer.cluster_id, answer.controller_id, answer.brokers) == ("", -1, [])


@pytest.mark.parametrize("version", versions(DeleteTopicsRequest))
def test_where_deleting_is_turned_off_no_topic_goes(version):
    bench = ControlBench(delete_topic_enable=False)
    bench.create("t")
    if version >= 6:
        request = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")], timeout_ms=1000)
    else:
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    (answer,) = bench.ask(request, version).responses
    expected = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
    assert (answer.name, answer.error_code) == ("t", expected)
    assert bench.node().metadata.topic("t") is not None
