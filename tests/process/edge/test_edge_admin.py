"""What a client sees of the administrative APIs: DeleteRecords, DescribeLogDirs, DescribeTopicPartitions and others.

Raw requests to one real broker with two shards. ``pytest tests/process/edge --peer kafka`` asks a real Apache Kafka the
same: a test that fails there is wrong, unless its first line says how we differ.
"""

import time

import pytest
from edge_client import Client, batch, offsets

from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.wire.messages import alter_partition_reassignments as reassignments
from millstream.wire.messages import alter_replica_log_dirs as replica_log_dirs
from millstream.wire.messages import delete_records as records
from millstream.wire.messages import describe_client_quotas as quotas
from millstream.wire.messages import describe_configs as describing
from millstream.wire.messages import describe_log_dirs as log_dirs
from millstream.wire.messages import describe_quorum as quorum
from millstream.wire.messages import describe_topic_partitions as pages
from millstream.wire.messages import elect_leaders as elections
from millstream.wire.messages import incremental_alter_configs as changing
from millstream.wire.messages import list_partition_reassignments as moves
from waits import until

pytestmark = pytest.mark.process


def delete(client, wanted, version=2, timeout_ms=10_000):
    """{(topic, partition): offset} → {(topic, partition): (error, low watermark)}."""
    topics = [
        records.DeleteRecordsTopic(name, [records.DeleteRecordsPartition(index, offset)])
        for (name, index), offset in wanted.items()
    ]
    request = records.DeleteRecordsRequest(topics, timeout_ms)
    answer = client.connection.call(request, records.DeleteRecordsResponse, version)
    return {
        (topic.name, part.partition_index): (ErrorCode(part.error_code).name, part.low_watermark)
        for topic in answer.topics
        for part in topic.partitions
    }


# DeleteRecords


@pytest.mark.parametrize("version", [0, 1, 2])
def test_deleted_records_are_gone_for_readers_at_once(client, version):
    topic, _ = client.create()
    for partition in (0, 1):
        for _ in range(4):
            client.produce(topic, partition, batch(5))
    assert delete(client, {(topic, 0): 7, (topic, 1): -1}, version) == {
        (topic, 0): ("NONE", 7),
        (topic, 1): ("NONE", 20),
    }
    assert [client.offset(topic, partition, -2)[2] for partition in (0, 1)] == [7, 20]
    assert client.fetch_one(topic, 0, 3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert 7 in offsets(client.fetch_one(topic, 0, 7))
    assert client.fetch_one(topic, 1, 20).error_code == 0
    assert client.produce(topic, 1, batch()).base_offset == 20
    assert client.end(topic, 1) == 21


def test_records_are_deleted_up_to_the_high_watermark_and_never_come_back(client):
    topic, _ = client.create()
    client.produce(topic, 0, batch(5))
    client.produce(topic, 1, batch(5))
    assert delete(client, {(topic, 0): 5, (topic, 1): 6}) == {
        (topic, 0): ("NONE", 5),
        (topic, 1): ("OFFSET_OUT_OF_RANGE", -1),
    }
    assert delete(client, {(topic, 0): 2, (topic, 1): -2}) == {
        (topic, 0): ("NONE", 5),
        (topic, 1): ("OFFSET_OUT_OF_RANGE", -1),
    }
    assert client.offset(topic, 1, -2)[2] == 0


def test_records_of_a_compacted_topic_cannot_be_deleted(client):
    compacted, _ = client.create(cleanup_policy="compact")
    both, _ = client.create(cleanup_policy="compact,delete")
    assert delete(client, {(compacted, 0): 0, (compacted, 1): -1, (both, 0): 0}) == {
        (compacted, 0): ("POLICY_VIOLATION", -1),
        (compacted, 1): ("POLICY_VIOLATION", -1),
        (both, 0): ("NONE", 0),
    }


def test_records_of_what_is_not_there_cannot_be_deleted(client):
    topic, _ = client.create()
    assert delete(client, {(topic, 9): 0, ("nothing-here", 0): 0}, timeout_ms=0) == {
        (topic, 9): ("UNKNOWN_TOPIC_OR_PARTITION", -1),
        ("nothing-here", 0): ("UNKNOWN_TOPIC_OR_PARTITION", -1),
    }


def test_what_was_deleted_stays_deleted_after_a_crash(request, client, broker):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(10))
    assert set(delete(client, {(topic, 0): 4, (topic, 1): 10}).values()) == {("NONE", 4), ("NONE", 10)}
    if request.config.getoption("--peer", default=None) == "kafka":
        return  # Kafka writes its start offsets down once a minute
    broker.kill()
    broker.start()
    again = Client(broker)
    assert [again.offset(topic, partition, -2)[2] for partition in (0, 1)] == [4, 10]
    assert again.produce(topic, 1, batch()).base_offset == 10
    again.connection.close()


# DescribeLogDirs, AlterReplicaLogDirs


def sizes(client, topics=None, version=5):
    asked = None if topics is None else [log_dirs.DescribableLogDirTopic(*topic) for topic in topics]
    answer = client.connection.call(log_dirs.DescribeLogDirsRequest(asked), log_dirs.DescribeLogDirsResponse, version)
    (found,) = answer.results
    assert found.error_code == answer.error_code == 0
    named = {(topic.name, part.partition_index): part for topic in found.topics for part in topic.partitions}
    assert {(part.offset_lag, part.is_future_key) for part in named.values()} <= {(0, False)}
    return found, {key: part.partition_size for key, part in named.items()}


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5])
def test_a_partition_takes_what_its_batches_take(client, version):
    topic, _ = client.create()
    data = batch(3, b"x" * 1000)
    client.produce(topic, 0, data)
    client.produce(topic, 1, data)
    client.produce(topic, 1, data)
    found, every = sizes(client, None, version)
    assert (every[topic, 0], every[topic, 1]) == (len(data), 2 * len(data))
    _, some = sizes(client, [(topic, [1, 9]), ("nothing-here", [0])], version)
    assert some == {(topic, 1): 2 * len(data)}
    assert sizes(client, [], version)[1] == {}
    if version >= 4:
        assert found.total_bytes > found.usable_bytes > 0
        assert not found.is_cordoned
    else:
        assert (found.total_bytes, found.usable_bytes) == (-1, -1)


@pytest.mark.parametrize("version", [1, 2])
def test_a_replica_may_stay_where_it_is_and_go_nowhere_else(client, version):
    topic, _ = client.create()
    here = sizes(client)[0].log_dir

    def move(path, name, index):
        wanted = [replica_log_dirs.AlterReplicaLogDirTopic(name, [index])]
        request = replica_log_dirs.AlterReplicaLogDirsRequest([replica_log_dirs.AlterReplicaLogDir(path, wanted)])
        answer = client.connection.call(request, replica_log_dirs.AlterReplicaLogDirsResponse, version)
        return ErrorCode(answer.results[0].partitions[0].error_code).name

    assert move(here, topic, 0) == "NONE"
    assert move(here, topic, 9) == "UNKNOWN_TOPIC_OR_PARTITION"
    assert move("/elsewhere", topic, 0) == "LOG_DIR_NOT_FOUND"


# DescribeTopicPartitions


def page(client, names, limit=2000, cursor=None):
    request = pages.DescribeTopicPartitionsRequest([pages.TopicRequest(name) for name in names], limit, cursor)
    return client.connection.call(request, pages.DescribeTopicPartitionsResponse, 0)


def test_topics_come_in_pages_that_a_cursor_continues(client):
    names = sorted(client.create(partitions=3)[0] for _ in range(3))
    seen, cursor, rounds = [], None, 0
    while rounds == 0 or cursor is not None:
        answer = page(client, names, 2, cursor)
        got = [(topic.name, part.partition_index) for topic in answer.topics for part in topic.partitions]
        assert 1 <= len(got) <= 2
        seen += got
        cursor, rounds = answer.next_cursor, rounds + 1
    assert seen == [(name, index) for name in names for index in range(3)]
    everything = page(client, [])
    assert set(names) <= {topic.name for topic in everything.topics}


def test_a_described_partition_says_who_leads_and_who_could(client):
    name, topic_id = client.create(partitions=1)
    (topic,) = page(client, [name]).topics
    (part,) = topic.partitions
    assert (topic.topic_id, topic.error_code, topic.is_internal) == (topic_id, 0, False)
    assert part.replica_nodes == part.isr_nodes == [part.leader_id]
    assert part.eligible_leader_replicas == part.last_known_elr == part.offline_replicas == []
    assert topic.topic_authorized_operations == 3576


def test_topics_that_cannot_be_described_say_why_and_take_no_room(client):
    name, _ = client.create(partitions=2)
    answer = page(client, [name, "zz-nothing-here", "a name"], 2)
    assert [(topic.name, ErrorCode(topic.error_code).name) for topic in answer.topics] == [
        ("a name", "INVALID_TOPIC_EXCEPTION"),
        (name, "NONE"),
    ]
    assert answer.next_cursor == pages.Cursor("zz-nothing-here", 0)
    (unknown,) = page(client, ["zz-nothing-here"]).topics
    assert ErrorCode(unknown.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_cursor_that_no_page_gave_is_refused(client):
    name, _ = client.create(partitions=2)
    for cursor in (pages.Cursor("zz-not-asked-for", 0), pages.Cursor(name, -1)):
        (topic,) = page(client, [name], cursor=cursor).topics
        assert ErrorCode(topic.error_code) is ErrorCode.INVALID_REQUEST
    assert page(client, [name], cursor=pages.Cursor(name, 7)).topics[0].partitions == []
    assert page(client, [], cursor=pages.Cursor(name, -1)).topics == []


# Elections, reassignments, quorum, quotas


@pytest.mark.parametrize("version", [0, 1, 2])
def test_no_election_is_ever_needed(client, version):
    name, _ = client.create(partitions=1)
    asked = [elections.TopicPartitions(name, [0, 9]), elections.TopicPartitions("nothing-here", [0])]
    request = elections.ElectLeadersRequest(0, asked)
    answer = client.connection.call(request, elections.ElectLeadersResponse, version)
    found = [ErrorCode(p.error_code).name for t in answer.replica_election_results for p in t.partition_result]
    assert found == ["ELECTION_NOT_NEEDED", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION"]
    everything = client.connection.call(elections.ElectLeadersRequest(0, None), elections.ElectLeadersResponse, version)
    assert not any(topic.partition_result for topic in everything.replica_election_results)


def test_an_unknown_kind_of_election_is_refused(client):
    name, _ = client.create(partitions=1)
    request = elections.ElectLeadersRequest(2, [elections.TopicPartitions(name, [0])])
    answer = client.connection.call(request, elections.ElectLeadersResponse, 2)
    assert ErrorCode(answer.error_code) is ErrorCode.INVALID_REQUEST
    assert answer.replica_election_results[0].partition_result[0].error_message == "Unknown election type 2"


@pytest.mark.parametrize("version", [0, 1])
def test_partitions_are_where_they_are(client, version):
    name, _ = client.create(partitions=3)
    own = page(client, [name]).topics[0].partitions[0].leader_id
    wanted = [(0, [own]), (1, [own + 7]), (2, None), (9, [own]), (0, []), (0, [own, own])]
    parts = [reassignments.ReassignablePartition(index, nodes) for index, nodes in wanted]
    request = reassignments.AlterPartitionReassignmentsRequest(topics=[reassignments.ReassignableTopic(name, parts)])
    answer = client.connection.call(request, reassignments.AlterPartitionReassignmentsResponse, version)
    assert [ErrorCode(part.error_code).name for part in answer.responses[0].partitions] == [
        "NONE",
        "INVALID_REPLICATION_ASSIGNMENT",
        "NO_REASSIGNMENT_IN_PROGRESS",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_REPLICATION_ASSIGNMENT",
        "INVALID_REPLICATION_ASSIGNMENT",
    ]
    under_way = client.connection.call(
        moves.ListPartitionReassignmentsRequest(), moves.ListPartitionReassignmentsResponse, 0
    )
    assert (under_way.error_code, under_way.topics) == (0, [])


@pytest.mark.parametrize("version", [0, 1, 2])
def test_the_quorum_is_this_node_and_moves_with_every_change(client, version):
    def describe(*asked):
        topics = [quorum.QuorumTopicRequest(name, [quorum.QuorumPartitionRequest(index)]) for name, index in asked]
        answer = client.connection.call(quorum.DescribeQuorumRequest(topics), quorum.DescribeQuorumResponse, version)
        return answer, answer.topics[0].partitions[0]

    _, before = describe(("__cluster_metadata", 0))
    client.create()
    answer, after = describe(("__cluster_metadata", 0))
    assert after.high_watermark > before.high_watermark
    assert [voter.replica_id for voter in after.current_voters] == [after.leader_id]
    assert after.current_voters[0].log_end_offset >= after.high_watermark
    assert after.observers == []
    if version >= 1:
        assert abs(after.current_voters[0].last_caught_up_timestamp - time.time() * 1000) < 60_000
    assert [node.node_id for node in answer.nodes] == ([after.leader_id] if version >= 2 else [])
    for asked in ((("__cluster_metadata", 1),), (("nothing-here", 0),), (("__cluster_metadata", 0), ("x", 0))):
        _, part = describe(*asked)
        assert ErrorCode(part.error_code) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", [0, 1])
def test_a_filter_finds_no_quotas_or_is_told_to_be_wrong(client, version):
    def ask(*components, strict=False):
        asked = [quotas.ComponentData(*component) for component in components]
        request = quotas.DescribeClientQuotasRequest(asked, strict)
        return client.connection.call(request, quotas.DescribeClientQuotasResponse, version)

    for good in ((), (("user", 2, None),), (("user", 0, "a"), ("client-id", 1, None)), (("ip", 0, "10.0.0.1"),)):
        answer = ask(*good, strict=True)
        assert (answer.error_code, answer.entries) == (0, [])
    for bad, code in (
        ((("colour", 2, None),), "UNSUPPORTED_VERSION"),
        ((("user", 2, None), ("user", 2, None)), "INVALID_REQUEST"),
        ((("user", 7, None),), "INVALID_REQUEST"),
        ((("user", 0, None),), "INVALID_REQUEST"),
        ((("user", 1, "a"),), "INVALID_REQUEST"),
        ((("user", 2, None), ("ip", 2, None)), "INVALID_REQUEST"),
        ((("", 0, "x"),), "INVALID_REQUEST"),
    ):
        answer = ask(*bad)
        assert (ErrorCode(answer.error_code).name, answer.entries) == (code, None)
        assert answer.error_message


# Levels of loggers


def test_the_level_of_the_root_logger_is_set_and_shown(client, other):
    node = str(page(client, [client.create(partitions=1)[0]]).topics[0].partitions[0].leader_id)

    def alter(name, operation, value):
        configs = [changing.AlterableConfig(name, operation, value)]
        request = changing.IncrementalAlterConfigsRequest([changing.AlterConfigsResource(8, node, configs)])
        answer = client.connection.call(request, changing.IncrementalAlterConfigsResponse, 1).responses[0]
        return ErrorCode(answer.error_code).name

    def level(connection):
        request = describing.DescribeConfigsRequest([describing.DescribeConfigsResource(8, node, None)])
        answer = connection.call(request, describing.DescribeConfigsResponse, 4).results[0]
        return {entry.name: entry.value for entry in answer.configs}["root"]

    before = level(client.connection)
    assert alter("root", 0, "WARN") == "NONE"
    assert level(client.connection) == "WARN"
    until(lambda: level(other.connection) == "WARN")
    assert alter("root", 0, "LOUD") == "INVALID_CONFIG"
    assert alter("no.such.logger", 0, "WARN") == "INVALID_CONFIG"
    assert alter("root", 1, None) == "INVALID_REQUEST"
    assert alter("root", 2, "INFO") == "INVALID_REQUEST"
    assert alter("root", 0, before) == "NONE"


# Live settings


def test_a_limit_on_connections_holds_at_once_and_can_be_lifted(request, client, broker):
    if request.config.getoption("--peer", default=None) == "kafka":
        return  # Kafka makes room by closing somebody else's connection, or lets the new one wait
    node = str(page(client, [client.create(partitions=1)[0]]).topics[0].partitions[0].leader_id)

    def alter(*change):
        configs = [changing.AlterableConfig(*change)]
        asked = changing.IncrementalAlterConfigsRequest([changing.AlterConfigsResource(4, node, configs)])
        answer = client.connection.call(asked, changing.IncrementalAlterConfigsResponse, 1).responses[0]
        assert answer.error_code == 0, answer.error_message

    def refused():
        try:
            again = Client(broker)
            again.offset("nothing-here", 0, -1)
        except (OSError, MillstreamError):
            return True
        again.connection.close()
        return False

    alter("max.connections", 0, "1")
    until(refused)
    alter("max.connections", 1, None)
    until(lambda: not refused())


@pytest.mark.parametrize("version", range(1, 5))
def test_many_resources_are_described_as_each_of_them_alone(client, version):
    names = [client.create(retention_ms=60_000 + number)[0] for number in range(3)]
    resources = [
        describing.DescribeConfigsResource(2, name, None) for name in [*names, "not-there", "wrong name", names[0]]
    ]
    resources.append(describing.DescribeConfigsResource(2, names[1], ["retention.ms"]))

    def described(some):
        request = describing.DescribeConfigsRequest(some, include_synonyms=True, include_documentation=version >= 3)
        return client.connection.call(request, describing.DescribeConfigsResponse, version).results

    assert described(resources) == [described([one])[0] for one in resources]
