"""A connection with short forms for what the tests of the edge send, and what they look at in answers."""

import itertools
import socket
import struct
import time
import urllib.request

from millstream.client.connection import Connection
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
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
from millstream.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from millstream.wire.records import build_batch, checksum, iter_batches, iter_records
from waits import until

MIB = 1 << 20
NAMES = (f"edge-{number}" for number in itertools.count())
NO_ID = bytes(16)


def is_peer(config):
    return config.getoption("--peer", default=None) == "kafka"


class Client:
    """A connection with short forms for what these tests send."""

    def __init__(self, broker):
        host, port = broker.bootstrap.rsplit(":", 1)
        self.connection = Connection(host, int(port), timeout_s=60)

    def create(self, partitions=2, **configs):
        """A topic of its own for a test: (name, id)."""
        return self.recreate(next(NAMES), partitions, **configs)

    def recreate(self, name, partitions=1, **configs):
        """A topic of that name: (name, id)."""
        settings = [CreatableTopicConfig(key.replace("_", "."), str(value)) for key, value in configs.items()]
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
        answer = self.connection.call(CreateTopicsRequest([topic], 10_000), CreateTopicsResponse, 7).topics[0]
        assert answer.error_code == 0, answer
        self.until_served(name, *range(partitions))  # Kafka says that a topic is there before its leaders know
        return name, answer.topic_id

    def until_served(self, topic, *partitions):
        """Wait until the leaders of these partitions answer, as after a start."""
        for partition in partitions:
            until(lambda partition=partition: not self.offset(topic, partition, -1)[0], f"{topic} is not served")

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
        request = InitProducerIdRequest(**{"transactional_id": None, **fields})

        def answered():
            answer = self.connection.call(request, InitProducerIdResponse, 4)
            return answer if answer.error_code != ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else None

        return until(answered, "a Kafka that has just started never loads")

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
    with socket.create_connection((host, int(port)), timeout=60) as connection:
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


def metric(broker, name):
    """The values of a metric, one for each shard if it tells them apart."""
    with urllib.request.urlopen(f"{broker.http}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.partition(" ")[0].partition("{")[0] == name]
