"""What a case holds: one conversation with one broker, and what was seen in it.

``ask`` sends a request at the version under test and notes the answer; ``look`` asks at a fixed version for the effect;
``raw`` sends bytes that are no request. What is noted is compared, so a case never decides what is right. The helpers
that bring about a state to begin with (``topic``, ``produce``, ``commit``) note nothing and insist that they worked.

Kafka answers before its own metadata have caught up: ``topic`` waits until leaders are known, ``fence`` until
everything that was answered before is seen. Both do the same to either broker.
"""

import itertools
import random
import struct
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from differential import odd
from differential.line import Line
from differential.plain import Names, plain
from millstream.wire.apis import APIS
from millstream.wire.codec import decode_message, response_header_version
from millstream.wire.errors import ProtocolError
from millstream.wire.headers import encode_request_header
from millstream.wire.messages.api_versions import ApiVersionsRequest
from millstream.wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records import build_batch
from millstream.wire.schema import Request
from waits import until

CLIENT_ID = "differential"
T0 = 1_700_000_000_000
"""Timestamps of records are fixed, so that they can be compared."""

ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
TAG_BYTES = 10
NO_ID = bytes(16)
_numbers = itertools.count()
_run = "".join(random.choices(ALPHABET, k=4))


def fresh_tag() -> str:
    """Ten characters that no other talk of this machine has."""
    return f"{_run}Z{next(_numbers):05d}"


class Peer(NamedTuple):
    """A broker to talk to."""

    name: str
    host: str
    port: int
    group_partitions: int = 0


class Topic(NamedTuple):
    """A topic that a case made."""

    name: str
    id: bytes


class Talk:
    """One conversation. ``steps`` is what was noted, in order; the last is whether the connection was kept."""

    def __init__(self, peer: Peer, version: int, api_key: int, texts: bool = False) -> None:
        self.peer = peer
        self.version = version
        self.api_key = api_key
        self.names = Names(fresh_tag(), peer.port, texts)
        self.name = self.names.fresh
        self.steps: list[tuple[str, Any]] = []
        self.checks: list[str] = []
        self.lines: list[Line] = []
        self.line = self.open()
        self._aside: Line | None = None

    def open(self) -> Line:
        """A further connection."""
        line = Line(self.peer.host, self.peer.port)
        self.lines.append(line)
        return line

    def close(self) -> None:
        for line in self.lines:
            line.close()

    # What is compared

    def ask(
        self,
        request: Request,
        version: int | None = None,
        *,
        poison: Mapping[str, bytes] | None = None,
        line: Line | None = None,
        note: bool = True,
    ) -> Any:
        """Sends a request and notes the answer; the decoded answer, None if there was none."""
        line = line or self.line
        self.send(request, version, poison=poison, line=line)
        return self.receive(request, version, line=line, note=note)

    def send(
        self,
        request: Request,
        version: int | None = None,
        *,
        poison: Mapping[str, bytes] | None = None,
        line: Line | None = None,
    ) -> None:
        """Sends and does not wait."""
        line = line or self.line
        version = self.version_for(request, version)
        line.correlation_id += 1
        head = encode_request_header(request.API_KEY, version, line.correlation_id, CLIENT_ID)
        line.send(framed(head + odd.encode(request, version, poison)))

    def receive(self, request: Request, version: int | None = None, *, line: Line | None = None, note: bool = True):
        """Notes the answer to a request that was sent."""
        line = line or self.line
        version = self.version_for(request, version)
        frame = line.receive()
        answer, seen = self._decoded(request.API_KEY, version, frame, line.correlation_id)
        if note:
            self.note(APIS[request.API_KEY].name, seen)
        return answer

    def look(self, request: Request, version: int | None = None) -> Any:
        """Asks on a connection of its own, at the newest version, and notes the answer: an effect."""
        highest = APIS[request.API_KEY].versions[1]
        return self.ask(request, highest if version is None else version, line=self.aside)

    def quiet(self, request: Request, version: int | None = None) -> Any:
        """Like ``look``, noting nothing; the answer must be one."""
        highest = APIS[request.API_KEY].versions[1]
        answer = self.ask(request, highest if version is None else version, line=self.aside, note=False)
        assert answer is not None, f"{self.peer.name} does not answer {request}"
        return answer

    def unanswered(self, request: Request, version: int | None = None) -> None:
        """Sends what has no answer, and notes what a request behind it tells."""
        self.send(request, version)
        self.probe("behind it")

    def raw(self, data: bytes, api_key: int = -1, version: int = 0, label: str = "raw") -> None:
        """Sends bytes as they are and notes what comes back, decoded if ``api_key`` says as what."""
        self.line.send(data)
        frame = self.line.receive()
        if isinstance(frame, str) or api_key < 0:
            self.note(label, frame if isinstance(frame, str) else "an answer")
        else:
            self.note(label, self._decoded(api_key, version, frame, None)[1])

    def probe(self, label: str = "connection") -> None:
        """Notes whether the connection still serves."""
        line = self.line
        line.correlation_id += 1
        line.send(framed(encode_request_header(18, 0, line.correlation_id, CLIENT_ID)))
        frame = line.receive()
        if isinstance(frame, bytes):
            (correlation_id,) = struct.unpack_from(">i", frame)
            self.note(label, "kept" if correlation_id == line.correlation_id else "out of step")
        else:
            self.note(label, frame)

    def note(self, label: str, seen: Any) -> None:
        self.steps.append((f"{len(self.steps) + 1} {label}", seen))

    def seen(self) -> dict[str, Any]:
        """Everything that was noted."""
        return dict(self.steps)

    # States to begin with

    def topic(self, label: str = "a", partitions: int = 1, **configs: object) -> Topic:
        """A new topic with leaders; ``retention_ms=5`` sets retention.ms."""
        name = self.name(label)
        settings = [CreatableTopicConfig(key.replace("_", "."), str(value)) for key, value in configs.items()]
        wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1, configs=settings)
        made = self.quiet(CreateTopicsRequest([wanted], 30_000)).topics[0]
        assert made.error_code == 0, f"{self.peer.name}: {made}"
        self.names.topics[made.topic_id] = label
        self.await_topic(name, partitions)
        return Topic(name, made.topic_id)

    def await_topic(self, name: str, partitions: int = 1) -> None:
        """Waits until the topic's leaders answer."""
        parts = [ListOffsetsPartition(index, -1, -1) for index in range(partitions)]
        request = ListOffsetsRequest(-1, 0, [ListOffsetsTopic(name, parts)])
        self.until(request, lambda answer: all(not part.error_code for part in answer.topics[0].partitions), 7)

    def until(self, request: Request, good: Callable[[Any], bool], version: int | None = None) -> Any:
        """Asks again until the answer is as it will be."""
        answers: list[Any] = []

        def is_good() -> bool:
            answers.append(self.quiet(request, version))
            return good(answers[-1])

        # Kafka tells nobody when its metadata have caught up.
        until(is_good, lambda: f"{self.peer.name}: never as expected: {answers[-1]}", every_s=0.005)
        return answers[-1]

    def fence(self) -> None:
        """Waits until what was answered before is seen by every request."""
        self.topic(f"fence{len(self.names.topics)}")

    def learn(self, *names: str) -> None:
        """Takes the ids of topics that the case itself created; those that are not there are left out."""
        request = MetadataRequest([MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)
        for topic in self.quiet(request, 12).topics:
            if not topic.error_code and topic.name:
                self.names.topics[topic.topic_id] = self.names.text(topic.name)

    def produce(self, topic: Topic, partition: int = 0, count: int = 1, **options: Any) -> None:
        """Appends a batch, which must be taken."""
        part = self.quiet(produce_request(topic, batch(count, **options), partition), 9).responses[0]
        assert part.partition_responses[0].error_code == 0, f"{self.peer.name}: {part}"

    def filled(self, *counts: int, label: str = "a", partitions: int = 1, **configs: object) -> Topic:
        """A topic whose partitions have batches of so many records each."""
        topic = self.topic(label, partitions, **configs)
        for partition in range(partitions):
            at = 0
            for count in counts:
                self.produce(topic, partition, count, first=at)
                at += count
        return topic

    # Inside

    @property
    def aside(self) -> Line:
        """The connection of helpers and looks."""
        if self._aside is None:
            self._aside = self.open()
        return self._aside

    def version_for(self, request: Request, version: int | None) -> int:
        if version is not None:
            return version
        return self.version if self.api_key == request.API_KEY else APIS[request.API_KEY].versions[1]

    def _decoded(self, api_key: int, version: int, frame: bytes | str, correlation_id: int | None) -> tuple[Any, Any]:
        if isinstance(frame, str):
            return None, frame
        if correlation_id is not None and struct.unpack_from(">i", frame)[0] != correlation_id:
            return None, "an answer out of step"
        if api_key == ApiVersionsRequest.API_KEY and frame[4:6] == b"\0\x23":
            version = 0
        start = 5 if response_header_version(api_key, version) else 4
        try:
            answer = decode_message(APIS[api_key].response, version, frame, start)
        except ProtocolError as error:
            return None, f"an answer that does not decode: {error}"
        if odd.encode(answer, version) != frame[start:]:
            self.checks.append(f"{APIS[api_key].name} v{version}: written again, the answer is not the same bytes")
        return answer, plain(answer, version, self.names)


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def batch(
    count: int = 1, *, first: int = 0, value: bytes | None = b"", key: bytes | None = b"", **options: Any
) -> bytes:
    """Records that say their number: keys ``k0``, values ``v0``, a millisecond apart."""
    records = [
        (
            f"k{number}".encode() if key == b"" else key,
            f"v{number}".encode() if value == b"" else value,
            [],
            T0 + number,
        )
        for number in range(first, first + count)
    ]
    return build_batch(records, **options)


def produce_request(
    topic: Topic, records: Any, partition: int = 0, *, acks: int = -1, timeout_ms: int = 10_000
) -> ProduceRequest:
    """One batch for one partition; carries name and id, so it fits every version."""
    return ProduceRequest(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[TopicProduceData(topic.name, topic.id, [PartitionProduceData(partition, records)])],
    )
