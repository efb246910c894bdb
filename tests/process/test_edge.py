"""What a client sees of Produce, Fetch, ListOffsets, OffsetForLeaderEpoch, ApiVersions and InitProducerId.

Raw requests to one real broker with two shards; every topic has a partition on each, so half of what is asked here
hops. ``pytest tests/process/test_edge.py --peer kafka`` asks a real Apache Kafka the same: a test that fails there
is wrong, unless its first line says how we differ.
"""

import contextlib
import itertools
import socket
import struct
import time
import urllib.request

import pytest

from millstream.client.connection import Connection
from millstream.errors import Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from millstream.wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
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
from millstream.wire.records import build_batch, checksum, iter_batches, iter_records

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

MIB = 1 << 20
NAMES = (f"edge-{number}" for number in itertools.count())
NO_ID = bytes(16)


def is_peer(config):
    return config.getoption("--peer", default=None) == "kafka"


@pytest.fixture(scope="module")
def broker(request):
    with contextlib.ExitStack() as stack:
        if is_peer(request.config):
            from bench.peers.kafka import kafka

            fast = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "400"}
            yield stack.enter_context(kafka(properties=fast))
        else:
            from millstream.testing.process import Broker

            yield stack.enter_context(Broker(shards=2, memory="128MiB"))


class Client:
    """A connection with short forms for what these tests send."""

    def __init__(self, broker):
        host, port = broker.bootstrap.rsplit(":", 1)
        self.connection = Connection(host, int(port))

    def create(self, partitions=2, **configs):
        """A topic of its own for a test: (name, id)."""
        name = next(NAMES)
        settings = [CreatableTopicConfig(key.replace("_", "."), str(value)) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
        answer = self.connection.call(CreateTopicsRequest([topic], 10_000), CreateTopicsResponse, 7).topics[0]
        assert answer.error_code == 0, answer
        for partition in range(partitions):
            while self.offset(name, partition, -1)[0]:
                time.sleep(0.02)  # Kafka says that a topic is there before its leaders know
        return name, answer.topic_id

    def produce_many(self, batches, acks=-1, version=9, timeout_ms=10_000):
        """{(topic or id, partition): batch} → the answers in that order; version 13 takes ids."""
        topics = [
            TopicProduceData(
                name if version < 13 else "", name if version >= 13 else NO_ID, [PartitionProduceData(index, batch)]
            )
            for (name, index), batch in batches.items()
        ]
        request = ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)
        if acks == 0:
            self.connection.send(request, version)
            self.connection._due.pop()
            return []
        answer = self.connection.call(request, ProduceResponse, version)
        return [part for topic in answer.responses for part in topic.partition_responses]

    def produce(self, topic, partition, batch, **options):
        """The answer for one batch."""
        return self.produce_many({(topic, partition): batch}, **options)[0]

    def error(self, topic, partition, batch, **options):
        """The error for one batch, by name."""
        answer = self.produce(topic, partition, batch, **options)
        if answer.error_code:
            assert (answer.base_offset, answer.log_append_time_ms) == (-1, -1)
        return ErrorCode(answer.error_code).name

    def producer_id(self, **fields):
        """The answer to InitProducerId, once the broker has ids to give."""
        while True:
            request = InitProducerIdRequest(**{"transactional_id": None, **fields})
            answer = self.connection.call(request, InitProducerIdResponse, 4)
            if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return answer
            time.sleep(0.02)  # a Kafka that has just started

    def offset(self, topic, partition, timestamp, version=7, epoch=-1, isolation=0):
        """(error, timestamp, offset, leader epoch)."""
        asked = [ListOffsetsTopic(topic, [ListOffsetsPartition(partition, epoch, timestamp)])]
        answer = self.connection.call(ListOffsetsRequest(-1, isolation, asked), ListOffsetsResponse, version)
        part = answer.topics[0].partitions[0]
        return part.error_code, part.timestamp, part.offset, part.leader_epoch

    def end(self, topic, partition):
        return self.offset(topic, partition, -1)[2]

    def send_fetch(self, asked, version=11, session=(0, -1), forget=(), **options):
        """``asked``: {(topic or id, partition): offset or (offset, max bytes)}; session: (id, epoch)."""
        self.connection.send(fetch_request(asked, version, session, forget, **options), version)

    def receive_fetch(self):
        return self.connection.receive(FetchResponse, 10)

    def fetch(self, asked, version=11, session=(0, -1), forget=(), **options):
        self.send_fetch(asked, version, session, forget, **options)
        return self.receive_fetch()

    def fetch_one(self, topic, partition, offset, version=11, partition_max_bytes=MIB, **options):
        """The answer for one partition."""
        answer = self.fetch({(topic, partition): (offset, partition_max_bytes)}, version, **options)
        return answer.responses[0].partitions[0]


def fetch_request(asked, version, session, forget, max_wait_ms=0, min_bytes=1, max_bytes=50 * MIB):
    by_id = version >= 13

    def topic(kind, name, parts):
        return kind("" if by_id else name, name if by_id else NO_ID, parts)

    topics = []
    for (name, index), where in asked.items():
        offset, limit = where if isinstance(where, tuple) else (where, MIB)
        part = FetchPartition(index, fetch_offset=offset, partition_max_bytes=limit)
        if topics and topics[-1][0] == name:
            topics[-1][1].append(part)
        else:
            topics.append((name, [part]))
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        session_id=session[0],
        session_epoch=session[1],
        topics=[topic(FetchTopic, name, parts) for name, parts in topics],
        forgotten_topics_data=[topic(ForgottenTopic, name, [index]) for name, index in forget],
    )


@pytest.fixture
def connect(broker):
    """``connect()`` makes a client that is closed when the test ends."""
    with contextlib.ExitStack() as stack:

        def make():
            client = Client(broker)
            stack.callback(client.connection.close)
            return client

        yield make


@pytest.fixture
def client(connect):
    return connect()


@pytest.fixture
def other(connect):
    return connect()


def batch(count=1, value=b"value", *, timestamp=None, **options):
    now = int(time.time() * 1000) if timestamp is None else timestamp
    return build_batch([(None, value, [], now + i) for i in range(count)], **options)


def patched(data, at, form, value, *, sum_again=True):
    """A batch with one header field changed."""
    out = bytearray(data)
    struct.pack_into(form, out, at, value)
    if sum_again:
        struct.pack_into(">I", out, 17, checksum([memoryview(out)]))
    return bytes(out)


def offsets(part):
    """Offsets of the records in an answer."""
    view = memoryview(bytes(part.records or b""))
    return [record.offset for one in iter_batches(view) for record in iter_records(one)]


def parts(answer):
    """{(topic or id, partition): answer}."""
    return {
        (topic.topic or topic.topic_id, part.partition_index): part
        for topic in answer.responses
        for part in topic.partitions
    }


def raw_call(broker, data, size=65536):
    """What comes back for raw bytes until the other side closes, or one whole frame."""
    host, port = broker.bootstrap.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        got = b""
        while len(got) < 4 or len(got) < 4 + struct.unpack(">i", got[:4])[0]:
            part = connection.recv(size)
            if not part:
                return got
            got += part
        return got[4:]


def frame(api_key, version, body, *, flexible=False):
    head = struct.pack(">hhih", api_key, version, 77, 1) + b"e" + (b"\0" if flexible else b"")
    return struct.pack(">i", len(head) + len(body)) + head + body


# Produce


def metric(broker, name):
    """The values of a metric, one for each shard if it tells them apart."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.partition(" ")[0].partition("{")[0] == name]


def hops(broker):
    """Messages that each shard received from the other."""
    return metric(broker, "millstream_ring_hops_total")


def test_a_topic_has_a_partition_on_each_shard(broker, client, request):
    """What the rest of this file counts on (and Kafka does not have)."""
    if is_peer(request.config):
        return
    topic, _ = client.create()
    before = hops(broker)
    for _ in range(50):
        assert [client.error(topic, partition, batch()) for partition in (0, 1)] == ["NONE", "NONE"]
    assert len(before) == 2
    assert all(after - once >= 50 for after, once in zip(hops(broker), before, strict=True))


@pytest.mark.parametrize("version", [3, 5, 8, 9, 12])
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_answers_base_offset_and_log_start_in_every_version(client, version, acks):
    topic, _ = client.create()
    for partition in (0, 1):
        for base in (0, 3):
            answer = client.produce(topic, partition, batch(3), acks=acks, version=version)
            start = 0 if version >= 5 else -1
            got = (answer.index, answer.error_code, answer.base_offset, answer.log_append_time_ms)
            assert got == (partition, 0, base, -1)
            assert answer.log_start_offset == start
        assert client.end(topic, partition) == 6


def test_produce_by_topic_id(client):
    topic, topic_id = client.create()
    for partition in (0, 1):
        assert client.produce(topic_id, partition, batch(2), version=13).base_offset == 0
        assert client.end(topic, partition) == 2
    assert client.error(b"\7" * 16, 0, batch(), version=13) == "UNKNOWN_TOPIC_ID"
    assert client.error(topic_id, 2, batch(), version=13) == "UNKNOWN_TOPIC_OR_PARTITION"


def test_acks_0_is_not_answered_and_a_refusal_closes_the_connection(client, other):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce_many({(topic, partition): batch(2)}, acks=0)
        assert client.produce(topic, partition, batch(1)).base_offset == 2  # and answers stay in step
    client.produce_many({(topic, 5): batch()}, acks=0)
    with pytest.raises(Unavailable):
        client.end(topic, 0)
    assert other.end(topic, 0) == 3


def test_acks_0_refused_on_the_other_shard_closes_the_connection_too(connect):
    for partition in (0, 1):
        client = connect()
        topic, _ = client.create()
        client.produce_many({(topic, partition): patched(batch(), 17, ">I", 1, sum_again=False)}, acks=0)
        with pytest.raises(Unavailable):
            while True:
                client.end(topic, 0)


def test_one_request_to_many_partitions_answers_each_on_its_own(client):
    topic, _ = client.create(4)
    other, _ = client.create()
    wanted = {
        (topic, 0): batch(1),
        (topic, 1): batch(2),
        (topic, 2): patched(batch(), 17, ">I", 1, sum_again=False),
        (topic, 3): batch(4),
        (other, 0): batch(5),
        (other, 9): batch(1),
        (other, 1): batch(6),
        ("no-such-topic", 0): batch(1),
    }
    answers = client.produce_many(wanted)
    refused = [ErrorCode(answer.error_code).name for answer in answers if answer.error_code]
    assert sorted(refused) == ["CORRUPT_MESSAGE", "UNKNOWN_TOPIC_OR_PARTITION", "UNKNOWN_TOPIC_OR_PARTITION"]
    assert sorted(answer.index for answer in answers) == sorted(index for _, index in wanted)
    assert [client.end(topic, i) for i in range(4)] == [1, 2, 0, 4]
    assert [client.end(other, i) for i in range(2)] == [5, 6]


REFUSED = {
    "a checksum that does not hold": (lambda: patched(batch(), 17, ">I", 1, sum_again=False), "CORRUPT_MESSAGE"),
    "no batch": (lambda: b"", "INVALID_RECORD"),
    "no records field": (lambda: None, "INVALID_RECORD"),
    "half a header": (lambda: batch()[:30], "INVALID_RECORD"),
    "a batch cut short": (lambda: batch()[:-1], "INVALID_RECORD"),
    "two batches": (lambda: batch() + batch(), "INVALID_RECORD"),
    "a length below the header": (lambda: patched(batch(), 8, ">i", 5, sum_again=False), "CORRUPT_MESSAGE"),
    "magic 1": (lambda: patched(batch(), 16, ">b", 1), "INVALID_RECORD"),
    "magic 3": (lambda: patched(batch(), 16, ">b", 3), "CORRUPT_MESSAGE"),
    "no records": (lambda: patched(batch(), 57, ">i", 0), "INVALID_RECORD"),
    "a count beside the deltas": (lambda: patched(batch(3), 57, ">i", 2), "INVALID_RECORD"),
    "more records than bytes": (
        lambda: patched(patched(batch(), 57, ">i", 1000), 23, ">i", 999),
        "INVALID_RECORD",
    ),
    "a codec that does not exist": (lambda: patched(batch(), 21, ">h", 6), "INVALID_RECORD"),  # Kafka: a server error
    "a control batch": (lambda: batch(control=True), "INVALID_RECORD"),
    "a timestamp too far ahead": (
        lambda: batch(timestamp=int(time.time() * 1000) + 7_200_000),
        "INVALID_TIMESTAMP",
    ),
    "a batch beyond max.message.bytes": (lambda: batch(1, bytes(2 * MIB)), "MESSAGE_TOO_LARGE"),
    "an idempotent batch without a sequence": (
        lambda: batch(producer_id=900, producer_epoch=0, base_sequence=-1),
        "INVALID_RECORD",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_refused_batch_leaves_no_trace(client, what, request):
    """With Kafka 4.3.1's error, but for two: it has no answer for a missing field, and a server error for a codec."""
    make, error = REFUSED[what]
    if is_peer(request.config) and what in ("no records field", "a codec that does not exist"):
        return
    topic, _ = client.create()
    for partition in (0, 1):
        assert client.error(topic, partition, make()) == error
        assert client.produce(topic, partition, batch()).base_offset == 0


def test_log_append_time_is_in_the_answer_and_in_the_batch(client):
    topic, _ = client.create(message_timestamp_type="LogAppendTime")
    for partition in (0, 1):
        answer = client.produce(topic, partition, batch(2, timestamp=5))
        assert abs(answer.log_append_time_ms - time.time() * 1000) < 60_000
        part = client.fetch_one(topic, partition, 0)
        (stored,) = iter_batches(memoryview(bytes(part.records)))
        assert [record.timestamp for record in iter_records(stored)] == [answer.log_append_time_ms] * 2


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_batches_of_every_codec_are_stored_as_they_came(client, codec):
    topic, _ = client.create()
    one = batch(20, b"compressible " * 50, compression=codec)
    for partition in (0, 1):
        assert client.error(topic, partition, one) == "NONE"
        (got,) = stored(client, topic, partition, 20)
        assert got[16:] == one[16:]


def test_a_request_larger_than_a_fragment_reaches_both_shards(client):
    """It is received in pieces, whose parts are lent to the other shard."""
    topic, topic_id = client.create()
    values = {p: bytes([p + 1]) * 700_001 for p in (0, 1)}
    for version, name, base in ((9, topic, 0), (13, topic_id, 1)):
        wanted = {(name, p): batch(1, values[p]) for p in (0, 1)}
        answers = client.produce_many(wanted, version=version)
        assert sorted((part.index, part.error_code, part.base_offset) for part in answers) == [
            (0, 0, base),
            (1, 0, base),
        ]
    client.produce_many({(topic, p): batch(1, values[p]) for p in (0, 1)}, acks=0)
    damaged = {(topic, p): patched(batch(1, values[p]), 700_000, ">b", 9, sum_again=False) for p in (0, 1)}
    assert {part.error_code for part in client.produce_many(damaged)} == {ErrorCode.CORRUPT_MESSAGE}
    for p in (0, 1):
        got = [record.value for one in stored(client, topic, p, 3) for record in iter_records(memoryview(one))]
        assert [bytes(value) for value in got] == [values[p]] * 3


def test_acks_out_of_range_is_refused(client):
    topic, _ = client.create()
    assert client.error(topic, 0, batch(), acks=2) == "INVALID_REQUIRED_ACKS"
    assert client.error(topic, 1, batch(), acks=-2) == "INVALID_REQUIRED_ACKS"


def test_acks_all_below_min_insync_replicas_is_refused(client, request):
    """Kafka 4.3.1 counts no more replicas than the partition has, and accepts."""
    accepted = is_peer(request.config)
    topic, _ = client.create(min_insync_replicas=2)
    for partition in (0, 1):
        assert client.error(topic, partition, batch()) == ("NONE" if accepted else "NOT_ENOUGH_REPLICAS")
        assert client.error(topic, partition, batch(), acks=1) == "NONE"


def test_zstd_needs_produce_version_7(client):
    topic, _ = client.create()
    for partition in (0, 1):
        compressed = batch(compression=4)
        assert client.error(topic, partition, compressed, version=6) == "UNSUPPORTED_COMPRESSION_TYPE"
        assert client.error(topic, partition, compressed, version=7) == "NONE"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_produce_below_version_3_is_advertised_and_refused(broker, client, version, request):
    """Kafka 4.3.1 closes the connection; we say UNSUPPORTED_VERSION, which tells the client's user why."""
    assert client.connection.versions[0][0] == 0
    topic, _ = client.create()
    records = b"whatever a message set is"
    body = struct.pack(">hiih", -1, 1000, 1, len(topic)) + topic.encode()
    body += struct.pack(">iii", 1, 0, len(records)) + records
    answer = raw_call(broker, frame(0, version, body))
    if is_peer(request.config):
        return
    place = 4 + 4 + 2 + len(topic) + 4
    assert struct.unpack_from(">ihq", answer, place) == (0, ErrorCode.UNSUPPORTED_VERSION, -1)


def test_idempotent_sequences_hold_over_kill_9(broker, connect, request):
    """Kafka 4.3.1 knows only the last batch again after a restart, we the last five."""
    client = connect()
    topic, _ = client.create()
    answer = client.producer_id()
    assert (answer.error_code, answer.producer_epoch) == (0, 0)

    def numbered(sequence, count=2, epoch=0):
        return batch(count, producer_id=answer.producer_id, producer_epoch=epoch, base_sequence=sequence)

    for partition in (0, 1):
        assert [client.produce(topic, partition, numbered(s)).base_offset for s in (0, 2, 4)] == [0, 2, 4]
    for restarted in (False, True):
        if restarted:
            broker.kill()
            broker.restart()
            client = connect()
            for partition in (0, 1):
                while client.offset(topic, partition, -1)[0]:
                    time.sleep(0.02)
        for partition in (0, 1):
            known = 4 if restarted and is_peer(request.config) else 2
            again = client.produce(topic, partition, numbered(known))
            assert (again.error_code, again.base_offset) == (0, known)
            assert client.error(topic, partition, numbered(8)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
            assert client.error(topic, partition, numbered(2, count=3)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
            assert client.end(topic, partition) == 6
    for partition in (0, 1):
        assert client.produce(topic, partition, numbered(6)).base_offset == 6
        assert client.error(topic, partition, numbered(5, epoch=1)) == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert client.produce(topic, partition, numbered(0, epoch=1)).base_offset == 8
        assert client.error(topic, partition, numbered(8)) == "INVALID_PRODUCER_EPOCH"
        assert client.end(topic, partition) == 10


# Fetch


@pytest.mark.parametrize("version", [4, 5, 7, 11, 12])
def test_fetch_by_name_in_every_version(client, version):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(3))
        part = client.fetch_one(topic, partition, 0, version)
        assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, 3, 3)
        assert part.log_start_offset == (0 if version >= 5 else -1)
        assert offsets(part) == [0, 1, 2]


@pytest.mark.parametrize("version", [13, 16, 17])
def test_fetch_by_topic_id(client, version):
    topic, topic_id = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(3))
    unknown = b"\7" * 16
    answer = parts(client.fetch({(topic_id, 0): 0, (topic_id, 1): 0, (topic_id, 7): 0, (unknown, 0): 0}, version))
    assert offsets(answer[topic_id, 0]) == offsets(answer[topic_id, 1]) == [0, 1, 2]
    assert answer[topic_id, 7].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer[unknown, 0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_fetch_in_the_middle_of_a_batch_gives_the_whole_batch(client):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(5))
        client.produce(topic, partition, batch(5))
        assert offsets(client.fetch_one(topic, partition, 3)) == list(range(10))
        assert offsets(client.fetch_one(topic, partition, 7)) == list(range(5, 10))


def test_offsets_outside_the_log_are_refused_at_once(client):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(2))
        for offset in (3, -1, 1 << 62):
            part = client.fetch_one(topic, partition, offset, max_wait_ms=60_000)
            assert (part.error_code, part.records or b"") == (ErrorCode.OFFSET_OUT_OF_RANGE, b"")
        part = client.fetch_one(topic, partition, 2)
        assert (part.error_code, part.high_watermark, part.records or b"") == (0, 2, b"")


def test_unknown_partitions_are_refused_at_once(client, request):
    """Kafka 4.3.1 says so only when the time of the other partitions is up; a client learns it sooner from us."""
    topic, _ = client.create()
    wait_ms = 100 if is_peer(request.config) else 60_000
    answer = parts(client.fetch({(topic, 0): 0, (topic, 2): 0, ("no-such-topic", 0): 0}, max_wait_ms=wait_ms))
    assert answer[topic, 0].error_code == 0
    assert answer[topic, 2].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer["no-such-topic", 0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_the_first_batch_goes_whatever_its_size(client):
    topic, _ = client.create()
    for partition in (0, 1):
        for _ in range(2):
            client.produce(topic, partition, batch(1, bytes(100_000)))
        part = client.fetch_one(topic, partition, 0, partition_max_bytes=1000, max_bytes=1000)
        assert offsets(part)[:1] == [0] and len(part.records) < 200_000
    answer = parts(client.fetch({(topic, 0): (0, 1000), (topic, 1): (0, 1000)}, max_bytes=1000))
    sizes = [len(answer[topic, partition].records or b"") for partition in (0, 1)]
    assert min(sizes) < 1100 < 100_000 <= max(sizes), sizes


def test_no_partition_starves_beside_one_that_fills_every_answer(client):
    """Each is served in its turn, on whichever shard it lives: with a session, and when the client turns the order."""
    topic, _ = client.create()
    for partition in (0, 1):
        for _ in range(6):
            client.produce(topic, partition, batch(1, bytes(700_000)))
    limit = 1_000_000

    first = client.fetch({(topic, 0): (0, limit), (topic, 1): (0, limit)}, session=(0, 0), max_bytes=limit)
    position = {(topic, 0): 0, (topic, 1): 0}
    answer = first
    for epoch in range(1, 5):
        moved = {}
        for key, part in parts(answer).items():
            if got := offsets(part):
                position[key] = got[-1] + 1
                moved[key] = (position[key], limit)
        answer = client.fetch(moved, session=(first.session_id, epoch), max_bytes=limit)
        assert answer.error_code == 0
    assert min(position.values()) >= 1, position

    position = {(topic, 0): 0, (topic, 1): 0}
    for _ in range(4):
        answer = client.fetch({key: (at, limit) for key, at in position.items()}, max_bytes=limit)
        for key, part in parts(answer).items():
            if got := offsets(part):
                at = position.pop(key)
                position[key] = max(at, got[-1] + 1)  # behind the others, as clients do
    assert min(position.values()) >= 1, position


def test_limits_of_zero_still_give_the_first_batch(client):
    topic, _ = client.create()
    for partition in (0, 1):
        client.produce(topic, partition, batch(2))
        assert offsets(client.fetch_one(topic, partition, 0, max_bytes=0)) == [0, 1]
        assert offsets(client.fetch_one(topic, partition, 0, partition_max_bytes=0)) == [0, 1]


def test_what_grows_wakes_a_reader_that_wants_more_with_and_without_a_session(client, other):
    topic, _ = client.create()
    for partition in (0, 1):
        for session in ((0, -1), (0, 0)):
            began, start = time.monotonic(), client.end(topic, partition)
            asked = {(topic, partition): start}
            if session == (0, 0):
                opened = client.fetch(asked, session=session)
                session, asked = (opened.session_id, 1), {}
            client.send_fetch(asked, session=session, max_wait_ms=30_000, min_bytes=5000)
            for _ in range(6):
                other.produce(topic, partition, batch(1, bytes(1000)))
            answer = parts(client.receive_fetch())
            assert offsets(answer[topic, partition])[:5] == list(range(start, start + 5))
            assert time.monotonic() - began < 10


@pytest.mark.parametrize("version", [4, 11, 13])
def test_a_waiting_fetch_is_woken_by_data_on_any_shard(client, other, version):
    topic, topic_id = client.create()
    name = topic_id if version >= 13 else topic
    for partition in (0, 1):
        ends = {(name, i): other.end(topic, i) for i in (0, 1)}
        began = time.monotonic()
        client.send_fetch(ends, version, max_wait_ms=30_000)
        other.produce(topic, partition, batch(1))
        answer = parts(client.receive_fetch())
        assert time.monotonic() - began < 10
        assert offsets(answer[name, partition]) == [ends[name, partition]]


def test_min_bytes_are_gathered_from_both_shards(client, other):
    topic, _ = client.create()
    began = time.monotonic()
    client.send_fetch({(topic, 0): 0, (topic, 1): 0}, max_wait_ms=30_000, min_bytes=2500)
    for partition in (0, 1):
        other.produce(topic, partition, batch(1, bytes(1000)))
    assert client.connection._due
    other.produce(topic, 0, batch(1, bytes(1000)))
    answer = parts(client.receive_fetch())
    assert time.monotonic() - began < 10
    assert offsets(answer[topic, 0]) == [0, 1]
    assert offsets(answer[topic, 1]) == [0]


def test_a_fetch_ends_with_what_there_is_when_its_time_is_up(client):
    topic, _ = client.create()
    client.produce(topic, 1, batch(1))
    began = time.monotonic()
    answer = parts(client.fetch({(topic, 0): 0, (topic, 1): 0}, max_wait_ms=300, min_bytes=10_000))
    assert 0.25 < time.monotonic() - began < 5
    assert offsets(answer[topic, 0]) == []
    assert offsets(answer[topic, 1]) == [0]


def test_a_fetch_of_nothing_is_answered_at_once(client):
    began = time.monotonic()
    answer = client.fetch({}, max_wait_ms=20_000)
    assert (answer.error_code, answer.session_id, list(answer.responses)) == (0, 0, [])
    topic, _ = client.create()
    session = client.fetch({(topic, 0): 0}, session=(0, 0)).session_id
    closed = client.fetch({}, session=(session, -1), max_wait_ms=20_000)  # how consumers close their session
    assert (closed.error_code, closed.session_id) == (0, 0)
    assert time.monotonic() - began < 5
    gone = client.fetch({}, session=(session, 1))
    assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("version", [7, 11, 13])
def test_a_session_sends_only_what_changed(client, other, version):
    topic, topic_id = client.create()
    name = topic_id if version >= 13 else topic
    keys = [(name, 0), (name, 1)]
    first = client.fetch(dict.fromkeys(keys, 0), version, session=(0, 0))
    assert first.session_id > 0 and sorted(parts(first)) == sorted(keys)
    quiet = client.fetch({}, version, session=(first.session_id, 1))
    assert (quiet.error_code, quiet.session_id, list(quiet.responses)) == (0, first.session_id, [])
    epoch = 2
    for partition in (0, 1):
        client.send_fetch({}, version, session=(first.session_id, epoch), max_wait_ms=30_000)
        other.produce(topic, partition, batch(1))
        answer = parts(client.receive_fetch())
        assert list(answer) == [(name, partition)] and offsets(answer[name, partition]) == [0]
        answer = client.fetch({(name, partition): 1}, version, session=(first.session_id, epoch + 1))
        assert answer.error_code == 0
        epoch += 2
    wrong = client.fetch({}, version, session=(first.session_id, 1))
    assert wrong.error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_forgotten_partitions_are_not_answered_any_more(client, other):
    topic, _ = client.create()
    session = client.fetch({(topic, 0): 0, (topic, 1): 0}, session=(0, 0)).session_id
    client.fetch({}, session=(session, 1), forget=[(topic, 0)])
    other.produce(topic, 0, batch(1))
    other.produce(topic, 1, batch(1))
    answer = parts(client.fetch({}, session=(session, 2), max_wait_ms=5000))
    assert list(answer) == [(topic, 1)]
    back = parts(client.fetch({(topic, 0): 0, (topic, 1): 1}, session=(session, 3)))
    assert offsets(back[topic, 0]) == [0]


def test_a_thousand_partitions_in_one_fetch(client, other):
    topic, topic_id = client.create(1000)
    asked = {(topic_id, i): 0 for i in range(1000)}
    for partition in (0, 1, 500, 999):
        other.produce(topic, partition, batch(1))
    answer = client.fetch(asked, 13, session=(0, 0))
    got = parts(answer)
    assert len(got) == 1000
    assert sorted(key[1] for key, part in got.items() if offsets(part)) == [0, 1, 500, 999]
    began = time.monotonic()
    moved = {(topic_id, i): 1 for i in (0, 1, 500, 999)}
    assert client.fetch(moved, 13, session=(answer.session_id, 1)).error_code == 0
    moved = {}
    for epoch, partition in enumerate((7, 8, 700, 701), start=2):
        client.send_fetch(moved, 13, session=(answer.session_id, epoch), max_wait_ms=30_000)
        other.produce(topic, partition, batch(1))
        assert list(parts(client.receive_fetch())) == [(topic_id, partition)]
        moved = {(topic_id, partition): 1}
    assert time.monotonic() - began < 15


def stored(client, topic, partition, end):
    """All batches of a partition, read one after the other."""
    batches, at = [], 0
    while at < end:
        part = client.fetch_one(topic, partition, at, max_wait_ms=5000)
        assert part.error_code == 0 and part.records, (at, part.error_code)
        got = [bytes(one) for one in iter_batches(memoryview(bytes(part.records)))]
        batches += got
        at = offsets(part)[-1] + 1
    return batches


def test_what_was_evicted_from_memory_is_read_from_disk_unchanged(broker, client, connect, request):
    topic, _ = client.create()
    filler, _ = client.create()
    sent = {p: [batch(3, bytes([p, i]) * 5000, timestamp=1000 + i) for i in range(40)] for p in (0, 1)}
    for partition, batches in sent.items():
        for one in batches:
            assert client.error(topic, partition, one) == "NONE"
    big = batch(1, bytes(1_000_000))
    for number in range(0 if is_peer(request.config) else 120):
        assert client.error(filler, number % 2, big) == "NONE"
    for restarted in (False, True):
        if restarted:
            broker.kill()
            broker.restart()
            client = connect()
            while client.offset(topic, 0, -1)[0] or client.offset(topic, 1, -1)[0]:
                time.sleep(0.02)
        misses = [0.0] if is_peer(request.config) else metric(broker, "millstream_cache_misses_total")
        for partition, batches in sent.items():
            got = stored(client, topic, partition, 120)
            assert [one[16:] for one in got] == [one[16:] for one in batches]  # but for base offset and leader epoch
            assert client.offset(topic, partition, 1017)[1:3] == (1017, 47)
            assert offsets(client.fetch_one(topic, partition, 61, partition_max_bytes=100)) == [60, 61, 62]
        assert is_peer(request.config) or sum(metric(broker, "millstream_cache_misses_total")) > sum(misses)


def test_a_waiting_reader_is_told_that_its_topic_was_deleted(client, other):
    for version, error in ((11, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (13, ErrorCode.UNKNOWN_TOPIC_ID)):
        topic, topic_id = client.create()
        name = topic_id if version >= 13 else topic
        began = time.monotonic()
        client.send_fetch({(name, 0): 0, (name, 1): 0}, version, max_wait_ms=20_000)
        deleted = other.connection.call(DeleteTopicsRequest([], [topic], 10_000), DeleteTopicsResponse, 5)
        assert deleted.responses[0].error_code == 0
        answer = parts(client.receive_fetch())
        assert time.monotonic() - began < 15
        told = {part.error_code for part in answer.values()}
        assert told & {error, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER}, told


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
    got = {(part.partition_index, part.error_code, part.offset) for part in answer.topics[0].partitions}
    assert got == {(3, 0, 4), (1, ErrorCode.INVALID_REQUEST, -1), (0, 0, 1), (2, 0, 3)}


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
        while client.offset(topic, partition, -1)[0]:
            time.sleep(0.02)
        now = client.offset(topic, partition, -1)[3]
        assert now >= 1
        assert epoch_end(client, topic, partition, 0) == ("NONE", 0, 3)
        assert epoch_end(client, topic, partition, now) == ("NONE", now, 3)
        assert epoch_end(client, topic, partition, 0, current=0) == ("FENCED_LEADER_EPOCH", -1, -1)
        client.produce(topic, partition, batch(2))
        assert epoch_end(client, topic, partition, 0, current=now) == ("NONE", 0, 3)
        assert epoch_end(client, topic, partition, now, current=now) == ("NONE", now, 5)


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
