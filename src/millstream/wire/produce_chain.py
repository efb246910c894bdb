"""Decodes a Produce request that was received into a chain of fragments, without joining them.

Large requests arrive in several fragments. Everything but the records is a few dozen bytes, which are read from a small
window copied out of the chain. Each run of records becomes a share of the chain, so that no payload byte moves. The
result is the ``ProduceRequest`` of ``decode_request``, with chains in the place of views. Requests in one piece of
memory do not come here: the generated decoder is faster.

Ownership: the caller owns every chain in the result and releases each. The chain that was read stays the caller's. If
the bytes are invalid, the shares taken so far are released here, and ``ProtocolError`` is raised.
"""

import struct
from typing import Protocol

from millstream.errors import Rejected
from millstream.wire.decoding import (
    ELEMENT_BYTES_MIN,
    OBJECT_BYTES_MAX,
    TEXT_BYTES_MAX,
    check_count,
    null_error,
    text_error,
)
from millstream.wire.errors import ProtocolError, UnsupportedVersion
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.schema import ZERO_UUID
from millstream.wire.varint import read_uvarint

_TOPIC_ID_FROM = 13

_WINDOW_BYTES = 256
_ROOM_BYTES = 32
"""Upper bound of the fields that are read without checking the window's end: an id or an int32, and two lengths."""

_ELEMENT_BYTES = 4 * ELEMENT_BYTES_MIN
"""Charge of one element. An element takes about four times as long here as in a generated decoder, so a request may
have a quarter of their number.
"""

_unpack_int16 = struct.Struct(">h").unpack_from
_unpack_int32 = struct.Struct(">i").unpack_from
_unpack_acks_and_timeout = struct.Struct(">hi").unpack_from


class Chain(Protocol):
    """The part of ``iobuf.IoBuf`` that is used here. Reading beyond its end raises ``Rejected``."""

    def __len__(self) -> int: ...
    def views(self) -> list[memoryview]: ...
    def copy(self, position: int, size: int, /) -> bytes: ...
    def share(self, position: int, size: int, /) -> "Chain": ...
    def trim_front(self, size: int, /) -> None: ...
    def release(self) -> None: ...


def decode_produce_at(chain: Chain, pos: int, version: int) -> ProduceRequest:
    """Decode the body from byte ``pos`` of the chain to its end.

    Raises:
        UnsupportedVersion: the version is not declared.
        ProtocolError: the bytes are not a Produce request; nothing stays shared.
    """
    low, high = ProduceRequest.VERSIONS
    if not low <= version <= high:
        raise UnsupportedVersion(f"ProduceRequest v{version} is not declared, {low} to {high} are")
    taken: list[Chain] = []
    rest: Chain | None = None
    try:
        rest = chain.share(pos, len(chain) - pos)
        return _Walk(rest, version, taken).request()
    except (Rejected, IndexError, struct.error, UnicodeDecodeError) as error:
        for records in taken:
            records.release()
        reason = error.message if isinstance(error, Rejected) else "ends early, or text is not UTF-8"
        raise ProtocolError(f"ProduceRequest v{version}: {reason}") from error
    finally:
        if rest is not None:
            rest.release()


class _Walk:
    """A read position in the chain, with a window of bytes around it.

    Bytes that were read are trimmed off the chain, so that the next ones are always in its first fragments.
    """

    __slots__ = ("at", "by_id", "chain", "charge_left", "flexible", "taken", "window")

    def __init__(self, chain: Chain, version: int, taken: list[Chain]) -> None:
        self.chain = chain  # starts with the window
        self.charge_left = OBJECT_BYTES_MAX
        self.flexible = version >= ProduceRequest.FLEXIBLE
        self.by_id = version >= _TOPIC_ID_FROM
        self.taken = taken
        self.window = b""
        self.at = 0  # position in the window
        self.room(_ROOM_BYTES)

    def room(self, size: int) -> None:
        """Load the next ``size`` bytes into the window, or as many as remain."""
        if self.at + size > len(self.window) and len(self.window) < len(self.chain):
            self.skip(0)
            self.window = self.chain.copy(0, min(max(size, _WINDOW_BYTES), len(self.chain)))

    def skip(self, size: int) -> None:
        """Continue after the next ``size`` bytes, with an empty window."""
        self.chain.trim_front(self.at + size)
        self.at = 0
        self.window = b""

    def request(self) -> ProduceRequest:
        transactional_id = self.text()
        acks, timeout_ms = _unpack_acks_and_timeout(self.window, self.at)
        self.at += 6
        topics = [self.topic() for _ in range(self.count("topic_data", 3 if self.flexible else 6))]
        self.tags()
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)

    def topic(self) -> TopicProduceData:
        self.room(_ROOM_BYTES)
        name: str | None = ""
        topic_id = ZERO_UUID
        if self.by_id:
            topic_id = self.window[self.at : self.at + 16]
            self.at += 16
        else:
            name = self.text()
            if name is None:
                raise null_error("name")
        data = [self.partition() for _ in range(self.count("partition_data", 6 if self.flexible else 8))]
        self.tags()
        return TopicProduceData(name, topic_id, data)

    def partition(self) -> PartitionProduceData:
        self.room(_ROOM_BYTES)
        (index,) = _unpack_int32(self.window, self.at)
        self.at += 4
        size = self.length()
        records: Chain | None = None
        if size >= 0:
            records = self.chain.share(self.at, size)
            self.taken.append(records)
            if self.at + size <= len(self.window):
                self.at += size
            else:
                self.skip(size)
        self.tags()
        return PartitionProduceData(index, records)

    def text(self) -> str | None:
        """A nullable string. The window then holds the fields after it."""
        if self.flexible:
            size = self.length()
        else:
            (size,) = _unpack_int16(self.window, self.at)
            self.at += 2
        if size < 0:
            return None
        if size > TEXT_BYTES_MAX:
            raise text_error(size)
        self.room(size + _ROOM_BYTES)
        stop = self.at + size
        text = self.window[self.at : stop].decode()
        self.at = stop
        return text

    def count(self, name: str, least: int) -> int:
        count = self.length()
        if count < 0:
            raise null_error(name)
        self.charge(count, least)
        return count

    def charge(self, count: int, least: int) -> None:
        """Refuse a count that the rest of the chain cannot hold, or that exceeds the charge."""
        self.charge_left -= _ELEMENT_BYTES * count
        check_count(count, least, len(self.chain) - self.at, self.charge_left)

    def length(self) -> int:
        """A compact or int16 length; negative for null."""
        if not self.flexible:
            (size,) = _unpack_int32(self.window, self.at)
            self.at += 4
            return size
        before = self.at
        value, self.at = read_uvarint(self.window, before)
        if not value and self.at > before + 1:
            raise ProtocolError("over-long encoding of null")
        return value - 1

    def tags(self) -> None:
        if not self.flexible:
            return
        self.room(_ROOM_BYTES)
        count, self.at = read_uvarint(self.window, self.at)
        self.charge(count, 2)
        for _ in range(count):
            self.room(_ROOM_BYTES)
            _, self.at = read_uvarint(self.window, self.at)
            size, self.at = read_uvarint(self.window, self.at)
            check_count(size, 1, len(self.chain) - self.at)
            self.skip(size)
