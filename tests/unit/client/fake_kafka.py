"""A Kafka broker of a hundred lines for client tests: logs in memory, and every fault on demand.

It serves what the client asks for and nothing else, from threads of the test's own process. ``faults`` maps an API's
name to a list of things to do to its next requests, one each: an error code to answer with, or ``HANG_UP`` to close the
connection without an answer.
"""

import socket
import struct
import threading
import uuid
from collections import defaultdict

from millstream.model.error_code import ErrorCode
from millstream.wire.apis import API_VERSIONS, api_name
from millstream.wire.codec import decode_request, parse_request_header
from millstream.wire.frames import response_frame
from millstream.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millstream.wire.messages.describe_configs import (
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from millstream.wire.messages.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from millstream.wire.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from millstream.wire.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from millstream.wire.records import iter_batches, iter_records, parse_header

HANG_UP = "hang up"
SERVED = {0: (3, 12), 1: (4, 17), 2: (1, 8), 3: (0, 12), 18: (0, 4), 32: (1, 4)}


class Log:
    """One partition: whole batches."""

    def __init__(self):
        self.batches = []
        self.start = 0
        self.aborted = []
        self.epoch = 0

    @property
    def end(self):
        return parse_header(self.batches[-1]).next_offset if self.batches else self.start

    def append(self, data):
        for batch in iter_batches(memoryview(data)):
            copy = bytearray(batch)
            copy[:8] = struct.pack(">q", self.end)
            self.batches.append(bytes(copy))

    def extend(self, data):
        """Add batches that already have their offsets."""
        self.batches += [bytes(batch) for batch in iter_batches(memoryview(data))]

    def trim(self, start):
        self.start = start
        self.batches = [batch for batch in self.batches if parse_header(batch).next_offset > start]

    def read(self, offset, max_bytes):
        out = b""
        for batch in self.batches:
            if parse_header(batch).next_offset > offset and (not out or len(out) + len(batch) <= max_bytes):
                out += batch
            elif out:
                # As real brokers do: the answer is cut at the limit, in the middle of a batch.
                return out + batch[: max(0, max_bytes - len(out))]
        return out

    def offset_at(self, timestamp):
        if timestamp == -2:
            return self.start, -1
        if timestamp == -1:
            return self.end, -1
        for batch in self.batches:
            for record in iter_records(batch):
                if record.timestamp >= timestamp:
                    return record.offset, record.timestamp
        return -1, -1


class Topic:
    def __init__(self, partitions):
        self.id = uuid.uuid4().bytes
        self.logs = [Log() for _ in range(partitions)]


class FakeKafka:
    """Use it as a context manager; ``requests`` counts what was asked, by API name."""

    def __init__(self, topics=None, configs=None):
        self.topics = {name: Topic(count) for name, count in (topics or {}).items()}
        self.configs = dict(configs or {})
        self.faults = defaultdict(list)
        self.requests = defaultdict(int)
        self.versions = dict(SERVED)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = []
        self._threads = [threading.Thread(target=self._accept)]
        self.bootstrap = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self):
        self._threads[0].start()
        return self

    def __exit__(self, *_):
        if self._listener.fileno() >= 0:
            self.stop()

    def stop(self):
        """Close the port and every connection, for good."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            connection.close() if connection.fileno() < 0 else _shut(connection)
        for thread in self._threads:
            thread.join()

    def log(self, topic, partition=0):
        return self.topics[topic].logs[partition]

    def hang_up(self):
        """Close every connection."""
        for connection in self._sockets:
            _shut(connection)

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection):
        with connection, connection.makefile("rb") as stream:
            try:
                while head := stream.read(4):
                    body = stream.read(int.from_bytes(head, "big"))
                    answer = self._answer(body)
                    if answer is None:
                        return
                    if answer:
                        connection.sendall(answer)
            except OSError:
                return

    def _answer(self, body):
        header = parse_request_header(body, 0, len(body))
        name = api_name(header.api_key)
        self.requests[name] += 1
        fault = self.faults[name].pop(0) if self.faults[name] else 0
        if fault == HANG_UP:
            return None
        if header.api_key not in self.versions:
            return None
        low, high = self.versions[header.api_key]
        if not low <= header.api_version <= high:
            assert name == "ApiVersions", f"{name} v{header.api_version} was not offered"
            return response_frame(
                ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION), 0, header.correlation_id
            )
        request = decode_request(header.api_key, header.api_version, body, header.body_pos, len(body))
        response = getattr(self, f"_on_{name.lower()}")(request, fault)
        if response is None:
            return b""
        return response_frame(response, header.api_version, header.correlation_id)

    def _on_apiversions(self, request, fault):
        return ApiVersionsResponse(fault, [ApiVersion(key, low, high) for key, (low, high) in self.versions.items()])

    def _on_metadata(self, request, fault):
        host, port = self.bootstrap.split(":")
        names = list(self.topics) if request.topics is None else [topic.name for topic in request.topics]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(1, host, int(port))],
            cluster_id="fake",
            controller_id=1,
            topics=[self._describe(name, fault) for name in names],
        )

    def _describe(self, name, fault):
        topic = self.topics.get(name)
        if topic is None or fault:
            return MetadataResponseTopic(fault or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, name)
        partitions = [MetadataResponsePartition(0, i, 1, log.epoch, [1], [1]) for i, log in enumerate(topic.logs)]
        return MetadataResponseTopic(0, name, topic.id, name.startswith("__"), partitions)

    def _on_listoffsets(self, request, fault):
        topics = []
        for topic in request.topics:
            answers = []
            for item in topic.partitions:
                log = self.topics[topic.name].logs[item.partition_index]
                offset, timestamp = log.offset_at(item.timestamp)
                answers.append(ListOffsetsPartitionResponse(item.partition_index, fault, timestamp, offset, log.epoch))
            topics.append(ListOffsetsTopicResponse(topic.name, answers))
        return ListOffsetsResponse(topics=topics)

    def _on_fetch(self, request, fault):
        topics = [
            FetchableTopicResponse(
                topic.topic, topic.topic_id, [self._fetched(topic, item, fault) for item in topic.partitions]
            )
            for topic in request.topics
        ]
        return FetchResponse(responses=topics)

    def _fetched(self, topic, item, fault):
        by_id = {found.id: found for found in self.topics.values()}
        found = by_id.get(topic.topic_id) if not topic.topic else self.topics.get(topic.topic)
        if found is None:
            fault = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if topic.topic else ErrorCode.UNKNOWN_TOPIC_ID
            log = Log()
        else:
            log = found.logs[item.partition]
        if not fault and not log.start <= item.fetch_offset <= log.end:
            fault = ErrorCode.OFFSET_OUT_OF_RANGE
        return PartitionData(
            item.partition,
            fault,
            log.end,
            log.end,
            log.start,
            aborted_transactions=[AbortedTransaction(*entry) for entry in log.aborted],
            records=b"" if fault else log.read(item.fetch_offset, item.partition_max_bytes),
        )

    def _on_produce(self, request, fault):
        (topic,) = request.topic_data
        answers = []
        for item in topic.partition_data:
            log = self.topics[topic.name].logs[item.index]
            base = log.end
            if not fault:
                log.append(bytes(item.records))
            answers.append(PartitionProduceResponse(item.index, fault, base))
        return ProduceResponse([TopicProduceResponse(topic.name, partition_responses=answers)])

    def _on_describeconfigs(self, request, fault):
        (resource,) = request.resources
        keys = resource.configuration_keys
        configs = [
            DescribeConfigsResourceResult(name, value)
            for name, value in self.configs.items()
            if keys is None or name in keys
        ]
        return DescribeConfigsResponse(
            results=[DescribeConfigsResult(fault, None, resource.resource_type, resource.resource_name, configs)]
        )


def _shut(connection):
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass


assert set(SERVED) <= set(API_VERSIONS)
