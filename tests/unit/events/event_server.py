"""A server of event topics for the client's tests: the wire's messages over production chunks.

It has no write-ahead log and no replication: a batch is answered when its chunk files are synced. Requests of a
connection start in order and are answered in order. ``before`` is called with each request and may sleep, raise
``ConnectionError`` to drop the connection, or return an error code to answer.
"""

import asyncio
import re
import struct
import threading
import uuid
from array import array
from collections import defaultdict

from chunk_log import ChunkLog

from millstream.errors import MillstreamError
from millstream.format.events import decode_event_batch, partition_directory_name, partition_uuid
from millstream.model.error_code import ErrorCode
from millstream.storage.chunks import WantedData
from millstream.storage.disk import SystemDisk
from millstream.wire.apis import APIS
from millstream.wire.codec import decode_request
from millstream.wire.errors import BatchError
from millstream.wire.frames import response_frame
from millstream.wire.headers import parse_request_header
from millstream.wire.messages.acknowledge_events import AcknowledgedPartitionResult, AcknowledgeEventsResponse
from millstream.wire.messages.alter_configs import AlterConfigsResourceResponse
from millstream.wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from millstream.wire.messages.consumer_group_heartbeat import (
    AssignedTopicPartitions,
    ConsumerGroupHeartbeatResponse,
    MemberAssignment,
)
from millstream.wire.messages.create_topics import CreatableTopicResult, CreateTopicsResponse
from millstream.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsResponse
from millstream.wire.messages.events_metadata import (
    EventsMetadataBroker,
    EventsMetadataPartition,
    EventsMetadataResponse,
    EventsMetadataTopic,
)
from millstream.wire.messages.feed_events import EventTimes, FeedEventsResponse
from millstream.wire.messages.fetch_event_data import FetchEventDataResponse, FoundEventData
from millstream.wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsResponse
from millstream.wire.messages.init_producer_id import InitProducerIdResponse
from millstream.wire.messages.push_events import PushEventsResponse


def _method(name):
    return "answer_" + re.sub("(?<!^)([A-Z])", r"_\1", name).lower()


class Partition:
    def __init__(self, directory, topic_id, index):
        self.uuid = partition_uuid(topic_id, index).bytes
        self.store = ChunkLog(SystemDisk(), directory)
        self.appended = asyncio.Event()
        self.sequences = {}  # producer id → (base sequence, first event id) of its last batch

    def append(self, data):
        batch = decode_event_batch(data, event_bytes_max=1 << 24)
        head = batch.header
        first = self.store.next_offset
        if head.producer_id >= 0:
            known = self.sequences.get(head.producer_id)
            if known is not None and known[0] == head.base_sequence:
                return known[1]
            self.sequences[head.producer_id] = (head.base_sequence, first)
        stored = bytearray(data)
        struct.pack_into(">q", stored, 0, first)
        struct.pack_into(">i", stored, 12, 1)
        self.store.append(stored)
        self.store.sync()
        self.wake()
        return first

    def wake(self):
        self.appended.set()
        self.appended = asyncio.Event()


class Topic:
    def __init__(self, directory, name, count, configs):
        self.name, self.configs, self.id = name, configs, uuid.uuid4().bytes
        self.complete = False
        self.event_bytes_max = int(configs.get("events.max.bytes", 1 << 24))
        self.partitions = [
            Partition(f"{directory}/{partition_directory_name(name, self.id, n)}", self.id, n) for n in range(count)
        ]


class EventServer:
    """Started and stopped as a context manager; ``address`` is where it listens."""

    def __init__(self, directory):
        self.directory = str(directory)
        self.topics = {}
        self.positions = defaultdict(lambda: -1)
        self.requests = defaultdict(int)
        self.before = None
        self.chunks_are_cut_elsewhere = False
        self.producer_ids = 0
        self.loop = asyncio.new_event_loop()
        self.writers = set()

    def __enter__(self):
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.call(self._start())
        return self

    def __exit__(self, *_):
        self.call(self._stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def call(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    def drop_connections(self):
        async def drop():
            for writer in self.writers:
                writer.transport.abort()

        self.call(drop())

    async def _start(self):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def _stop(self):
        self.server.close()
        for writer in list(self.writers):
            writer.transport.abort()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for topic in self.topics.values():
            for partition in topic.partitions:
                partition.store.close()

    async def _serve(self, reader, writer):
        self.writers.add(writer)
        answers = asyncio.Queue()
        sending = asyncio.ensure_future(self._answer(answers, writer))
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                header = parse_request_header(frame, 0, size)
                request = decode_request(header.api_key, header.api_version, frame, header.body_pos, size)
                answers.put_nowait((header, asyncio.ensure_future(self._handle(request))))
        except (EOFError, OSError):
            pass
        finally:
            sending.cancel()
            writer.transport.abort()
            self.writers.discard(writer)

    async def _answer(self, answers, writer):
        while True:
            header, task = await answers.get()
            try:
                response = await task
            except ConnectionError:
                writer.transport.abort()
                return
            writer.write(response_frame(response, header.api_version, header.correlation_id))
            await writer.drain()

    async def _handle(self, request):
        name = APIS[request.API_KEY].name
        self.requests[name] += 1
        code = self.before(name, request) if self.before else None
        if code:
            return APIS[request.API_KEY].response(error_code=code, error_message="on purpose")
        return await getattr(self, _method(name))(request)

    def _partition(self, request):
        for topic in self.topics.values():
            if topic.id == request.topic_id:
                return topic, topic.partitions[request.partition_index]
        return None, None

    async def answer_api_versions(self, _):
        keys = [key for key, api in APIS.items() if hasattr(self, _method(api.name))]
        return ApiVersionsResponse(0, [ApiVersion(key, *APIS[key].versions) for key in keys])

    async def answer_create_topics(self, request):
        results = []
        for one in request.topics:
            configs = {config.name: config.value for config in one.configs}
            assert configs["topic.kind"] == "events"
            code = ErrorCode.TOPIC_ALREADY_EXISTS if one.name in self.topics else 0
            if not code:
                self.topics[one.name] = Topic(self.directory, one.name, one.num_partitions, configs)
            results.append(CreatableTopicResult(one.name, error_code=code, error_message=None))
        return CreateTopicsResponse(0, results)

    async def answer_delete_topics(self, request):
        results = []
        for one in request.topics:
            topic = self.topics.pop(one.name, None)
            for partition in topic.partitions if topic else ():
                partition.wake()
            results.append(DeletableTopicResult(one.name, error_code=0 if topic else 3))
        return DeleteTopicsResponse(0, results)

    async def answer_incremental_alter_configs(self, request):
        (change,) = request.resources
        assert [(one.name, one.value) for one in change.configs] == [("events.complete", "true")]
        topic = self.topics[change.resource_name]
        topic.complete = True
        for partition in topic.partitions:
            partition.wake()
        return IncrementalAlterConfigsResponse(0, [AlterConfigsResourceResponse(0, None, 2, change.resource_name)])

    async def answer_init_producer_id(self, _):
        self.producer_ids += 1
        return InitProducerIdResponse(0, 0, self.producer_ids, 0)

    async def answer_events_metadata(self, request):
        names = list(self.topics) if request.topics is None else request.topics
        return EventsMetadataResponse(
            0, [EventsMetadataBroker(1, "127.0.0.1", self.port)], [self._described(n) for n in names]
        )

    def _described(self, name):
        topic = self.topics.get(name)
        if topic is None:
            return EventsMetadataTopic(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None, name)
        config = topic.configs.get
        partitions = [
            EventsMetadataPartition(0, n, 1, 1, one.uuid, one.store.start_offset, one.store.next_offset)
            for n, one in enumerate(topic.partitions)
        ]
        described = [config(f"events.{what}", "") for what in ("validator", "selector", "serializer")]
        return EventsMetadataTopic(
            0, None, name, topic.id, *described, topic.event_bytes_max, topic.complete, partitions
        )

    async def answer_push_events(self, request):
        topic, partition = self._partition(request)
        if topic is None:
            return PushEventsResponse(0, ErrorCode.UNKNOWN_TOPIC_ID)
        try:
            return PushEventsResponse(0, 0, None, partition.append(bytes(request.batch)))
        except (BatchError, MillstreamError) as error:
            return PushEventsResponse(0, error.code, error.message)

    async def answer_feed_events(self, request):
        topic, partition = self._partition(request)
        deadline = self.loop.time() + request.max_wait_ms / 1000
        while topic is not None and topic.name in self.topics:
            store = partition.store
            common = {"high_watermark": store.next_offset, "log_start_offset": store.start_offset}
            try:
                fed = store.reads.feed(request.next_event_id, store.next_offset, request.max_events, request.max_bytes)
            except MillstreamError as error:
                return FeedEventsResponse(0, error.code, error.message, **common)
            if fed is not None:
                return FeedEventsResponse(
                    first_event_id=fed.first_offset,
                    times=[EventTimes(*one) for one in fed.times],
                    metadata_sizes=array("I", fed.metadata_sizes).tobytes(),
                    metadata=fed.metadata,
                    descriptor_sizes=array("I", fed.descriptor_sizes).tobytes(),
                    descriptors=fed.descriptors,
                    **common,
                )
            left = deadline - self.loop.time()
            if topic.complete or request.stop or left <= 0:
                return FeedEventsResponse(no_more_events=topic.complete or request.stop, **common)
            try:
                await asyncio.wait_for(partition.appended.wait(), left)
            except TimeoutError:
                pass
        return FeedEventsResponse(0, ErrorCode.INVALID_TOPIC_EXCEPTION, "the topic is gone")

    async def answer_fetch_event_data(self, request):
        _, partition = self._partition(request)
        wanted = [WantedData(one.event_id, one.descriptor) for one in request.events]
        found = partition.store.reads.fetch_data(wanted, request.max_bytes)
        events, data = [], []
        for asked, one in zip(wanted, found, strict=False):
            if self.chunks_are_cut_elsewhere and asked.descriptor[24:28] != b"\xff" * 4:
                events.append(FoundEventData(ErrorCode.INVALID_REQUEST, 0))
            elif isinstance(one, MillstreamError):
                events.append(FoundEventData(one.code, 0))
            else:
                events.append(FoundEventData(0, sum(map(len, one))))
                data += one
        return FetchEventDataResponse(events=events, data=data)

    async def answer_find_coordinator(self, request):
        keys = [Coordinator(key, 1, "127.0.0.1", self.port) for key in request.coordinator_keys]
        return FindCoordinatorResponse(coordinators=keys)

    async def answer_consumer_group_heartbeat(self, request):
        """Each member gets all partitions."""
        if request.member_epoch < 0:
            return ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=-1)
        name = request.subscribed_topic_names
        assigned = None
        if name is not None:
            topic = self.topics.get(name[0])
            all_of_it = [AssignedTopicPartitions(topic.id, [*range(len(topic.partitions))])] if topic else []
            assigned = MemberAssignment(all_of_it)
        return ConsumerGroupHeartbeatResponse(
            member_id=request.member_id, member_epoch=1, heartbeat_interval_ms=1000, assignment=assigned
        )

    async def answer_acknowledge_events(self, request):
        results = []
        for one in request.partitions:
            key = request.consumer, request.topic_id, one.partition_index
            if one.next_event_id >= 0:
                self.positions[key] = one.next_event_id if request.seek else max(self.positions[key], one.next_event_id)
            results.append(AcknowledgedPartitionResult(one.partition_index, 0, self.positions[key]))
        return AcknowledgeEventsResponse(0, 0, None, results)
