"""A fast decoder for Produce requests that repeat the previous request of their connection.

A producer repeats itself: the same transactional id, acks, timeout, topic and partition precede every batch, byte for
byte. ``ProduceAgain`` keeps these bytes and their decoded values. A request that starts with them, holds one batch
after them and ends there is built from the known values. Any other request goes to the generated decoder, which alone
decides what is invalid. The result equals the generated decoder's.

Only requests for one partition in a flexible version can repeat. A producer that changes its partition with every
request is learnt at most once in ``LEARN_EVERY`` requests, which costs next to nothing.
"""

from collections.abc import Callable
from typing import Final

from millstream.wire.codec import encode_message
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

LEARN_EVERY: Final = 16
_SIZES: Final = (127, 16_382)
"""Sizes of batches whose length takes two bytes. For larger batches the cost of decoding hardly matters."""

_FRONT_MAX: Final = 1024
"""Maximum number of bytes in front of a batch that are kept. Thousands of connections may each name 64 KiB."""

_NO_TAGS: Final = 3
"""One byte each for the empty tagged sections of partition, topic and request."""

Decode = Callable[[memoryview, int, int], ProduceRequest]


class ProduceAgain:
    """The repeated part of one connection's requests.

    Lifecycle: belongs to a connection, from its first Produce on.
    """

    __slots__ = (
        "_acks",
        "_index",
        "_misses",
        "_shape",
        "_size",
        "_timeout_ms",
        "_topic",
        "_topic_id",
        "_txn",
        "version",
    )

    def __init__(self) -> None:
        self._shape = memoryview(b"")
        self._size = 0
        self._misses = 0
        self._txn: str | None = None
        self._acks = 0
        self._timeout_ms = 0
        self._topic = ""
        self._topic_id = b""
        self._index = 0
        self.version = -1
        """Version of the learnt request. Another version has another layout."""

    def decode(self, decode: Decode, frame: memoryview, position: int, end: int, version: int) -> ProduceRequest:
        """Decode the body in ``frame[position:end]``. ``decode`` is the generated decoder of the version.

        Raises:
            ProtocolError: the bytes are not a Produce request.
        """
        at = position + self._size
        if version == self.version and at + 1 < end and frame[position:at] == self._shape:
            low = frame[at]
            high = frame[at + 1]
            if low >= 0x80 > high > 0:
                start = at + 2
                stop = start + (low & 0x7F | high << 7) - 1
                if stop + _NO_TAGS == end and not (frame[stop] or frame[stop + 1] or frame[stop + 2]):
                    records = PartitionProduceData(self._index, frame[start:stop])
                    topic = TopicProduceData(self._topic, self._topic_id, [records])
                    return ProduceRequest(self._txn, self._acks, self._timeout_ms, [topic])
        request = decode(frame, position, end)
        if self._misses:
            self._misses -= 1
        else:
            self._learn(request, frame, position, end, version)
        return request

    def _learn(self, request: ProduceRequest, frame: memoryview, position: int, end: int, version: int) -> None:
        """Learn the bytes in front of the batch, if the request can repeat."""
        self._misses = LEARN_EVERY
        self.version = -1
        if version < ProduceRequest.FLEXIBLE or len(request.topic_data) != 1:
            return
        topic = request.topic_data[0]
        records = topic.partition_data[0].records if len(topic.partition_data) == 1 else None
        if not isinstance(records, memoryview):
            return
        size = len(records)
        if not _SIZES[0] <= size <= _SIZES[1]:
            return
        front = end - position - _NO_TAGS - size - 2
        if not 0 < front <= _FRONT_MAX or bytes(encode_message(request, version)) != bytes(frame[position:end]):
            return  # an over-long length, or trailing bytes: such a request does not repeat
        self._shape = memoryview(bytes(frame[position : position + front]))
        self._size = front
        self._txn = request.transactional_id
        self._acks = request.acks
        self._timeout_ms = request.timeout_ms
        self._topic = topic.name
        self._topic_id = topic.topic_id
        self._index = topic.partition_data[0].index
        self.version = version
