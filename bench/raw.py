"""Kafka's wire format as the load generator needs it: a few requests as ready bytes, their answers at fixed places.

Written apart from the broker's own codec on purpose: the generator is a second witness of the format, and it must cost
little, since it shares the machine with what it measures. A request is built once and sent many times; only the fetch
offset is patched in place. Versions are fixed: Produce 9, Fetch 12, CreateTopics 5, DeleteTopics 4: all of
them flexible and named by topic, and served by every broker from 2.4 on.
An answer that is not as expected raises :class:`UnexpectedAnswer` with what was there: a measurement never goes on
over an error.
"""

import random
import struct
import time
from collections.abc import Sequence
from typing import Self

import crc32c

from bench import doors

PRODUCE, FETCH, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 19, 20
BATCH_HEADER = struct.Struct(">qiibIhiqqqhii")  # base offset … record count: 61 bytes
BATCH_HEADER_BYTES = BATCH_HEADER.size
CLIENT_ID = b"load"
_ERROR_AT = 12
"""Where the error of the only partition stands in an answer to Produce, without the topic's name."""


class UnexpectedAnswer(RuntimeError):
    """A broker answered with an error, or with bytes of another shape."""


class ErrorAnswer(UnexpectedAnswer):
    """A request was refused with Kafka's error ``code``."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what}: error {code}")
        self.code = code


class OffsetOutOfRange(UnexpectedAnswer):
    """The requested offset is no longer in the log, or not yet."""


def uvarint(value: int) -> bytes:
    """Unsigned variable-length integer, seven bits a byte, low bits first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def varint(value: int) -> bytes:
    """Signed (zigzag) variable-length integer."""
    return uvarint((value << 1) ^ (value >> 63))


def read_uvarint(data: memoryview | bytes | bytearray, position: int) -> tuple[int, int]:
    """Value and the position behind it."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def compact_string(text: str) -> bytes:
    """Compact (flexible) string."""
    data = text.encode()
    return uvarint(len(data) + 1) + data


def frame(api_key: int, version: int, body: bytes, correlation_id: int = 0) -> bytes:
    """Size, request header version 2, body."""
    header = struct.pack(">hhih", api_key, version, correlation_id, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def batch(values: Sequence[bytes], timestamp_ms: int | None = None) -> bytes:
    """Uncompressed record batch (format 2) of records without key, base offset 0, CRC-32C set."""
    now = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
    records = bytearray()
    for delta, value in enumerate(values):
        body = b"\0\0" + varint(delta) + varint(-1) + varint(len(value)) + value + b"\0"
        records += varint(len(body)) + body
    tail = struct.pack(">hiqqqhii", 0, len(values) - 1, now, now, -1, -1, -1, len(values)) + records
    return struct.pack(">qiibI", 0, 9 + len(tail), -1, 2, crc32c.crc32c(tail)) + tail


def batches(count: int, records: int, record_bytes: int, seed: int = 1) -> list[bytes]:
    """``count`` different batches of ``records`` values of ``record_bytes`` incompressible bytes."""
    rng = random.Random(seed)
    return [batch([rng.randbytes(record_bytes) for _ in range(records)]) for _ in range(count)]


def produce(topic: str, partition: int, records: bytes, acks: int = -1) -> bytes:
    """Produce request, version 9, with one batch for one partition."""
    part = struct.pack(">i", partition) + uvarint(len(records) + 1) + records + b"\0"
    body = b"\0" + struct.pack(">hi", acks, 30_000) + b"\2" + compact_string(topic) + b"\2" + part + b"\0\0"
    return frame(PRODUCE, 9, body)


def produce_answer(topic: str) -> struct.Struct:
    """Layout of a good answer to :func:`produce`: (size, correlation, partition, error, base offset, append time, log
    start offset, throttle). An error with a message in it is longer, which shows in ``size``.
    """
    return struct.Struct(f">ii{3 + len(topic)}xxihqqqxxxxix")


def fetch(
    topic: str, partition: int, max_bytes: int, max_wait_ms: int = 500, min_bytes: int = 1
) -> tuple[bytearray, int]:
    """Fetch request, version 12, without session, from offset 0; and where its offset stands, to patch it."""
    body = bytearray(struct.pack(">iiiibii", -1, max_wait_ms, min_bytes, max_bytes, 0, 0, -1))
    body += b"\2" + compact_string(topic) + b"\2" + struct.pack(">ii", partition, -1)
    place = len(body)
    body += struct.pack(">qiqi", 0, -1, -1, max_bytes) + b"\0\0\1\1\0"
    request = bytearray(frame(FETCH, 12, bytes(body)))
    return request, len(request) - len(body) + place


class FetchAnswer:
    """One partition of a Fetch answer: where its records lie in the frame, and what was said beside them."""

    __slots__ = ("error", "high_watermark", "log_start_offset", "records_end", "records_start")

    def __init__(self, data: memoryview | bytearray, topic: str) -> None:
        """``data`` begins behind the size field and needs to hold only the part before the records."""
        error = struct.unpack_from(">h", data, 9)[0]
        if error:
            raise UnexpectedAnswer(f"fetch of {topic}: error {error}")
        position = 4 + 1 + 4 + 2 + 4
        topics, position = read_uvarint(data, position)
        if topics != 2:
            raise UnexpectedAnswer(f"fetch of {topic}: {topics - 1} topics in the answer")
        length, position = read_uvarint(data, position)
        position += length - 1
        _, position = read_uvarint(data, position)
        _, self.error, self.high_watermark, _, self.log_start_offset = struct.unpack_from(">ihqqq", data, position)
        if self.error:
            kind = OffsetOutOfRange if self.error == 1 else UnexpectedAnswer
            raise kind(f"fetch of {topic}: partition error {self.error}")
        aborted, position = read_uvarint(data, position + 30)
        if aborted > 1:
            raise UnexpectedAnswer(f"fetch of {topic}: aborted transactions in a log that has none")
        length, position = read_uvarint(data, position + 4)
        self.records_start = position
        self.records_end = position + max(0, length - 1)


def create_topics(topics: dict[str, int], configs: dict[str, str] | None = None) -> bytes:
    """CreateTopics request, version 5: name → partitions, replication factor 1, the same configuration for all."""
    settings = b"".join(compact_string(k) + compact_string(v) + b"\0" for k, v in (configs or {}).items())
    settings = uvarint(len(configs or {}) + 1) + settings
    body = uvarint(len(topics) + 1)
    for name, partitions in topics.items():
        body += compact_string(name) + struct.pack(">ih", partitions, 1) + b"\1" + settings + b"\0"
    return frame(CREATE_TOPICS, 5, body + struct.pack(">ib", 60_000, 0) + b"\0")


def delete_topics(names: Sequence[str]) -> bytes:
    """DeleteTopics request, version 4."""
    body = uvarint(len(names) + 1) + b"".join(compact_string(name) for name in names)
    return frame(DELETE_TOPICS, 4, body + struct.pack(">i", 60_000) + b"\0")


class Caller:
    """Blocking connection for the few calls around a load; one request at a time. Close it after use."""

    def __init__(self, bootstrap: str, timeout_s: float = 60.0) -> None:
        self._socket = doors.connect(bootstrap, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection."""
        self._socket.close()

    def _receive(self, count: int) -> bytearray:
        data = bytearray(count)
        view = memoryview(data)
        got = 0
        while got < count:
            n = self._socket.recv_into(view[got:])
            if n == 0:
                raise UnexpectedAnswer("the broker closed the connection")
            got += n
        return data

    def call(self, request: bytes | bytearray) -> bytearray:
        """Answer without its size field."""
        self.send(request)
        return self.receive()

    def send(self, requests: bytes | bytearray) -> None:
        """Send one request or several; each has an answer to ``receive``."""
        self._socket.sendall(requests)

    def receive(self) -> bytearray:
        """The next answer, without its size field."""
        return self._receive(struct.unpack(">i", self._receive(4))[0])

    def create_topics(self, topics: dict[str, int], configs: dict[str, str] | None = None) -> None:
        """Creates topics and waits until every partition of them has a leader."""
        answer = self.call(create_topics(topics, configs))
        length, position = read_uvarint(answer, 9)
        for _ in range(length - 1):
            name_length, position = read_uvarint(answer, position)
            name = bytes(answer[position : position + name_length - 1]).decode()
            position += name_length - 1
            error = struct.unpack_from(">h", answer, position)[0]
            if error:
                raise UnexpectedAnswer(f"creating {name}: error {error}")
            break  # what follows a topic is of varying length; its leader is asked for below
        for name, partitions in topics.items():
            self.wait_leaders(name, partitions)

    def wait_leaders(self, topic: str, partitions: int, timeout_s: float = 60.0) -> None:
        """Returns when each of the partitions can be fetched from: Metadata may name a leader that does not yet know
        it.
        """
        deadline = time.monotonic() + timeout_s
        for partition in range(partitions):
            request, _ = fetch(topic, partition, 1024, max_wait_ms=0, min_bytes=0)
            while True:
                try:
                    FetchAnswer(self.call(request), topic)
                    break
                except UnexpectedAnswer:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)

    def delete_topics(self, names: Sequence[str]) -> None:
        """Deletes topics; an error in the first answer is raised."""
        answer = self.call(delete_topics(names))
        _, position = read_uvarint(answer, 9)
        length, position = read_uvarint(answer, position)
        error = struct.unpack_from(">h", answer, position + length - 1)[0]
        if error:
            raise UnexpectedAnswer(f"deleting {list(names)}: error {error}")

    def produce_one(self, topic: str, partition: int, records: bytes) -> int:
        """Base offset of one acknowledged batch."""
        answer = self.call(produce(topic, partition, records))
        layout = produce_answer(topic)
        if len(answer) + 4 != layout.size:
            code = struct.unpack_from(">h", answer, _ERROR_AT + len(topic))[0] if len(answer) >= layout.size - 4 else 0
            if code:
                raise ErrorAnswer(f"produce to {topic}", code)
            raise UnexpectedAnswer(f"produce to {topic}: {bytes(answer[:80])!r}")
        _, _, _, error, base_offset, _, _, _ = layout.unpack(struct.pack(">i", len(answer)) + answer)
        if error:
            raise ErrorAnswer(f"produce to {topic}", error)
        return int(base_offset)
