"""Bent requests for a running broker: every API it serves, at every version, about things that exist.

Random names reach no further than "unknown topic". So requests are made of a small world (topics with their ids,
groups, members, configurations, valid batches), bent as the decoders' samples are, and sent over connections that each
wait a moment for an answer. ``Crowd`` drives them from one thread; what a frame was is named by seed and number.
"""

import contextlib
import selectors
import socket
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "props"))

from fuzz_batches import bend_batch, samples
from fuzz_mutation import bend
from fuzz_spans import Malformed, header_spans, spans

from millstream.kafka.served import SERVED
from millstream.wire.apis import APIS
from millstream.wire.errors import ProtocolError
from millstream.wire.frames import request_frame
from millstream.wire.headers import parse_request_header
from millstream.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.wire.schema import Kind, Message, Type, fields_of
from millstream.wire.stored import encode_versioned

ANSWER_S = 1.0
"""How long a connection waits for an answer before it is given up; a parked fetch or join has none soon."""

FRAME_BYTES_MAX = 256 << 10


class World:
    """Names that mean something to the broker under test."""

    def __init__(self, topics: dict[str, bytes]) -> None:
        self.topics = list(topics)
        self.ids = [*topics.values(), bytes(16), bytes(15) + b"\1", b"\xff" * 16]
        self.texts = [
            *self.topics,
            *("fuzz-group-1", "fuzz-group-2", "member-1", "consumer", "range", "uniform", "cooperative-sticky", ""),
            *("cleanup.policy", "compact", "retention.ms", "-1", "1000", "fuzz.*", "(a+)+$", "with space", "x" * 249),
        ]
        self.batches = samples()
        self.subscription = encode_versioned(ConsumerProtocolSubscription(topics=self.topics), 1)

    def message(self, rng: Random, cls: type[Message], version: int) -> Any:
        """A message of this class that speaks of this world."""
        values: dict[str, Any] = {}
        for field in fields_of(cls, version):
            if not field.present or rng.random() < 0.1:
                continue
            if field.nullable and rng.random() < 0.2:
                values[field.name] = None
            else:
                values[field.name] = self._value(rng, field.type, field.name, version)
        return cls(**values)

    def _value(self, rng: Random, kind: Type, name: str, version: int) -> Any:
        match kind.kind:
            case Kind.STRING:
                return rng.choice(self.topics) if "topic" in name or name == "name" else rng.choice(self.texts)
            case Kind.UUID:
                return rng.choice(self.ids)
            case Kind.BYTES:
                return self.subscription if rng.random() < 0.7 else rng.randbytes(rng.randint(0, 30))
            case Kind.RECORDS:
                batch = rng.choice(self.batches)
                return bend_batch(rng, batch, self.batches) if rng.random() < 0.5 else batch
            case Kind.BOOL:
                return rng.random() < 0.5
            case Kind.FLOAT64:
                return rng.uniform(-1e3, 1e3)
            case Kind.ARRAY:
                assert kind.element is not None
                return [self._value(rng, kind.element, name, version) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
            case Kind.STRUCT:
                assert kind.struct is not None
                return self.message(rng, kind.struct, version)
            case number:
                return _number(rng, number, name)

    def frames(self, seed: object, count: int, keys: Sequence[int] = tuple(SERVED)) -> Iterator[bytes]:
        """``count`` requests with their size in front; one in four is whole, the others are bent."""
        for number in range(count):
            rng = Random(f"{seed}/{number}")
            api = APIS[rng.choice(keys)]
            version = rng.randint(*api.versions)
            client = rng.choice((None, "", "fuzz", "fuzz-ä", "c" * 3000)) if rng.random() < 0.2 else "fuzz"
            frame = bytes(request_frame(self.message(rng, api.request, version), version, number, client))[4:]
            if rng.random() < 0.75:
                frame = self._bent(rng, frame, api.request, version)
            size = len(frame)
            if rng.random() < 0.03:
                size = rng.choice((size + 1, size - 1, -1, 0, 7, 8, (1 << 31) - 1, 100 << 20))
            yield struct.pack(">i", size) + frame[:FRAME_BYTES_MAX]

    def _bent(self, rng: Random, frame: bytes, cls: type[Message], version: int) -> bytes:
        try:
            at = parse_request_header(frame, 0, len(frame)).body_pos
            known = spans(cls, version, frame, at)
            if rng.random() < 0.1:
                known = header_spans(frame)
        except (Malformed, ProtocolError) as error:
            raise AssertionError(f"our own {cls.__name__} v{version} cannot be walked: {error}") from error
        return bend(rng, frame, known)


def _number(rng: Random, kind: Kind, name: str) -> int:
    """Mostly what is sensible under such a name, sometimes a border."""
    bits = {Kind.INT8: 8, Kind.INT16: 16, Kind.UINT16: 16, Kind.INT32: 32, Kind.UINT32: 32, Kind.INT64: 64}[kind]
    low, high = (0, (1 << bits) - 1) if kind in (Kind.UINT16, Kind.UINT32) else (-(1 << bits - 1), (1 << bits - 1) - 1)
    if rng.random() < 0.12:
        return rng.choice((low, high, -1 if low else 0))
    if name.endswith("_ms"):
        return rng.choice((0, 100, 300, 10000))
    if name == "acks":
        return rng.choice((-1, 0, 1))
    if "bytes" in name:
        return rng.choice((0, 1, 100, 1 << 20))
    if name == "session_id":
        return 0
    return rng.choice((-1 if low else 0, 0, 0, 0, 1, 1, 2, 3, rng.randint(0, 100)))


class Crowd:
    """Connections that each send a frame and wait for an answer, the end, or their patience; then the next frame."""

    def __init__(self, bootstrap: str, size: int = 24) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = (host, int(port))
        self._size = size
        self._poll = selectors.DefaultSelector()
        self._waiting: dict[socket.socket, float] = {}
        self._idle: list[socket.socket] = []
        self.answered = self.closed = self.unanswered = 0

    def send(self, frames: Iterator[bytes]) -> None:
        """Send all of them; returns when the last was answered, refused or given up."""
        for frame in frames:
            while len(self._waiting) >= self._size:
                self._look(0.02)
            connection = self._idle.pop() if self._idle else self._connect()
            try:
                connection.sendall(frame)
            except OSError:
                self._end(connection)
                continue
            self._poll.register(connection, selectors.EVENT_READ)
            self._waiting[connection] = time.monotonic() + ANSWER_S
        while self._waiting:
            self._look(0.02)
        for connection in self._idle:
            connection.close()
        self._idle.clear()

    def _connect(self) -> socket.socket:
        connection = socket.create_connection(self._address, timeout=60)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def _look(self, timeout_s: float) -> None:
        for key, _ in self._poll.select(timeout_s):
            connection = key.fileobj
            assert isinstance(connection, socket.socket)
            try:
                data = connection.recv(1 << 20)
            except OSError:
                data = b""
            self._forget(connection)
            if not data:
                self._end(connection)
            else:
                # Part of an answer may still come; the next frame goes to another connection, or to this one later.
                self.answered += 1
                self._idle.append(connection)
        now = time.monotonic()
        for connection in [one for one, until in self._waiting.items() if until < now]:
            self._forget(connection)
            self.unanswered += 1
            connection.close()

    def _forget(self, connection: socket.socket) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(connection)
        self._waiting.pop(connection, None)

    def _end(self, connection: socket.socket) -> None:
        self.closed += 1
        connection.close()
