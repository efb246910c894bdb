"""The client against a small fake broker: answers, faults that pass, faults that do not."""

import socket
import threading

import pytest
from fake_kafka import HANG_UP, FakeKafka

from millstream.client import EARLIEST, LATEST, Cluster, Connection, OffsetOutOfRange, PartitionLog, TopicReplaced
from millstream.client.cluster import BROKER_RESOURCE
from millstream.errors import OutcomeUnknown, Rejected, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.errors import ProtocolError
from millstream.wire.records import build_batch, iter_batches, iter_records


def batch(*values, timestamp=100):
    return build_batch([(None, value, (), timestamp + i) for i, value in enumerate(values)])


def values_in(view):
    return [record.value for found in iter_batches(view) for record in iter_records(found)]


@pytest.fixture
def kafka():
    with FakeKafka({"t": 2, "u": 1}) as fake:
        yield fake


@pytest.fixture
def cluster(kafka):
    with Cluster(kafka.bootstrap, timeout_s=60) as opened:
        yield opened


def test_metadata_of_all_topics_and_of_one(cluster, kafka):
    assert set(cluster.metadata().topics) == {"t", "u"}
    found = cluster.metadata(["t"]).topics["t"]
    assert found.topic_id == kafka.topics["t"].id
    assert list(found.partitions) == [0, 1]


def test_a_topic_that_does_not_exist_comes_with_its_code(cluster):
    assert cluster.metadata(["nope"]).topics["nope"].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_what_is_produced_is_read_back_byte_by_byte(cluster):
    first = cluster.produce("t", 1, [batch(b"a", b"b")])
    second = cluster.produce("t", 1, [batch(b"c")])
    assert (first, second) == (0, 2)
    with PartitionLog(cluster, "t", 1) as log:
        log.request(0)
        fetched = log.receive()
        assert values_in(fetched.records) == [b"a", b"b", b"c"]
        assert fetched.high_watermark == 3


def test_offsets_earliest_latest_and_by_time(cluster, kafka):
    cluster.produce("t", 0, [batch(b"a", b"b", b"c", timestamp=1000)])
    kafka.log("t").start = 1
    asked = cluster.list_offsets({("t", 0): EARLIEST, ("t", 1): LATEST, ("u", 0): LATEST})
    assert {target: found.offset for target, found in asked.items()} == {("t", 0): 1, ("t", 1): 0, ("u", 0): 0}
    assert cluster.list_offsets({("t", 0): 1002})["t", 0][:2] == (2, 1002)
    assert cluster.list_offsets({("t", 0): 9999})["t", 0].offset == -1


@pytest.mark.parametrize("fault", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.LEADER_NOT_AVAILABLE, HANG_UP])
def test_faults_that_pass_are_waited_out(cluster, kafka, fault):
    cluster.produce("t", 0, [batch(b"a")])
    kafka.faults["ListOffsets"] += [fault, fault]
    assert cluster.list_offsets({("t", 0): LATEST})["t", 0].offset == 1
    kafka.faults["Fetch"] += [fault, fault]
    with PartitionLog(cluster, "t", 0) as log:
        log.request(0)
        assert values_in(log.receive().records) == [b"a"]


def test_a_fault_that_does_not_pass_is_told_at_once(cluster, kafka):
    kafka.faults["ListOffsets"].append(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(Rejected, match="TOPIC_AUTHORIZATION_FAILED"):
        cluster.list_offsets({("t", 0): LATEST})
    assert kafka.requests["ListOffsets"] == 1


def test_a_fault_that_never_passes_ends_with_the_time(kafka):
    kafka.faults["ListOffsets"] += [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 1000
    with Cluster(kafka.bootstrap, timeout_s=2) as cluster, pytest.raises(Unavailable, match="NOT_LEADER"):
        cluster.list_offsets({("t", 0): LATEST})


def test_nobody_there_names_the_address():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with Cluster(f"127.0.0.1:{port}", timeout_s=0.2) as cluster, pytest.raises(Unavailable, match=f"127.0.0.1:{port}"):
        cluster.metadata()


def test_the_second_bootstrap_address_serves_when_the_first_is_dead(kafka):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"127.0.0.1:{listener.getsockname()[1]}"
    with Cluster(f"{dead},{kafka.bootstrap}", timeout_s=60) as cluster:
        assert set(cluster.metadata().topics) == {"t", "u"}


@pytest.mark.parametrize("text", ["", " , ", "host", "host:", "host:0", "host:99999", ":9092", "host:port"])
def test_a_bootstrap_that_is_no_address_is_refused(text):
    with pytest.raises(Rejected):
        Cluster(text)


def test_a_produce_whose_connection_is_lost_is_neither_success_nor_failure(cluster, kafka):
    kafka.faults["Produce"].append(HANG_UP)
    with pytest.raises(OutcomeUnknown):
        cluster.produce("t", 0, [batch(b"a")])


def test_a_refused_produce_says_whether_trying_again_helps(cluster, kafka):
    kafka.faults["Produce"] += [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.MESSAGE_TOO_LARGE]
    with pytest.raises(Retriable):
        cluster.produce("t", 0, [batch(b"a")])
    with pytest.raises(Rejected, match="MESSAGE_TOO_LARGE"):
        cluster.produce("t", 0, [batch(b"a")])
    assert cluster.produce("t", 0, [batch(b"a")]) == 0


def test_one_answer_is_decoded_while_the_next_is_fetched(cluster, kafka):
    for index in range(50):
        cluster.produce("t", 0, [batch(b"%d" % index)])
    got = []
    with PartitionLog(cluster, "t", 0, max_bytes=200) as log:
        log.request(0)
        while len(got) < 50:
            view = log.receive().records
            whole = [bytes(found) for found in whole_batches(view)]
            got += [value for found in whole for value in values_in(memoryview(found))]
            if len(got) < 50:
                log.request(len(got))
    assert got == [b"%d" % index for index in range(50)]
    assert kafka.requests["Fetch"] > 10


def whole_batches(view):
    at = 0
    while len(view) - at >= 12:
        size = int.from_bytes(view[at + 8 : at + 12], "big") + 12
        if at + size > len(view):
            return
        yield view[at : at + size]
        at += size


def test_an_offset_that_was_deleted_is_named_with_the_start_of_the_log(cluster, kafka):
    cluster.produce("t", 0, [batch(b"a", b"b")])
    kafka.log("t").start = 1
    with PartitionLog(cluster, "t", 0) as log:
        log.request(0)
        with pytest.raises(OffsetOutOfRange) as caught:
            log.receive()
    assert caught.value.log_start_offset == 1


def test_a_topic_that_was_created_again_is_not_mistaken_for_the_old_one(cluster, kafka):
    old = kafka.topics["t"].id
    kafka.topics["t"].id = bytes(15) + b"\1"
    with PartitionLog(cluster, "t", 0, topic_id=old) as log:
        log.request(0)
        with pytest.raises(TopicReplaced):
            log.receive()


def test_configuration_of_a_broker(cluster, kafka):
    kafka.configs = {"millstream.http.endpoint": "http://x", "other": "1"}
    keys = ["millstream.http.endpoint"]
    assert cluster.describe_configs(BROKER_RESOURCE, "1", keys, node_id=1) == {"millstream.http.endpoint": "http://x"}


def test_a_broker_that_is_older_than_the_question_is_asked_in_its_way(kafka):
    kafka.versions[18] = (0, 2)
    with Connection(*kafka.bootstrap.split(":")) as connection:
        assert connection.versions[1] == kafka.versions[1]


def test_an_api_that_the_broker_lacks_is_named(kafka):
    kafka.versions[3] = (0, 9)
    with Cluster(kafka.bootstrap, timeout_s=60) as cluster, pytest.raises(Rejected, match="Metadata 10 to 13"):
        cluster.metadata()


def test_something_that_is_no_broker_is_told_apart():
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(ProtocolError, match="no Kafka broker"):
            Connection("127.0.0.1", listener.getsockname()[1], timeout_s=60)
        thread.join()
