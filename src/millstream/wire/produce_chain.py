"""Decodes a Produce request that was received into a chain of fragments, without joining them.

Large requests arrive in several fragments. Everything but the records is a few dozen bytes, which the chain's cursor
copies out; each run of records becomes a share of the chain, so that no payload byte moves. The result is the same
``ProduceRequest`` that ``decode_request`` gives, with chains where that has views. Requests in one piece of memory do
not come this way: the generated decoder is faster.

Ownership: the caller owns every chain in the result and releases each. When the bytes turn out to be garbage, the
shares taken so far are released here, and ``ProtocolError`` is raised.
"""

from typing import Protocol

from millstream.errors import Rejected
from millstream.wire.decoding import check_count, null_error
from millstream.wire.errors import ProtocolError, UnsupportedVersion
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.schema import ZERO_UUID

_TOPIC_ID_FROM = 13


class Chain(Protocol):
    """The part of ``iobuf.IoBuf`` that a records field needs."""

    def views(self) -> list[memoryview]: ...
    def release(self) -> None: ...


class ChainReader(Protocol):
    """The part of ``iobuf.Reader`` that is used here; it raises ``Rejected`` at the end of the chain."""

    @property
    def remaining(self) -> int: ...
    def uint8(self) -> int: ...
    def int16(self) -> int: ...
    def int32(self) -> int: ...
    def uvarint(self) -> int: ...
    def bytes_(self, size: int, /) -> bytes: ...
    def skip(self, size: int, /) -> None: ...
    def share(self, size: int, /) -> Chain: ...


def decode_produce_chain(reader: ChainReader, version: int) -> ProduceRequest:
    """Decode the body that ``reader`` stands in front of and that ends with its chain.

    Raises:
        UnsupportedVersion: the version is not declared.
        ProtocolError: the bytes are not a Produce request; nothing stays shared.
    """
    low, high = ProduceRequest.VERSIONS
    if not low <= version <= high:
        raise UnsupportedVersion(f"ProduceRequest v{version} is not declared, {low} to {high} are")
    walk = _Walk(reader, version)
    try:
        return walk.request()
    except Rejected as error:
        for chain in walk.taken:
            chain.release()
        raise ProtocolError(f"ProduceRequest v{version}: {error.message}") from error


class _Walk:
    __slots__ = ("by_id", "flexible", "reader", "taken")

    def __init__(self, reader: ChainReader, version: int) -> None:
        self.reader = reader
        self.flexible = version >= ProduceRequest.FLEXIBLE
        self.by_id = version >= _TOPIC_ID_FROM
        self.taken: list[Chain] = []

    def request(self) -> ProduceRequest:
        reader = self.reader
        transactional_id = self.text()
        acks = reader.int16()
        timeout_ms = reader.int32()
        topics = [self.topic() for _ in range(self.count("topic_data", 3 if self.flexible else 6))]
        self.tags()
        if reader.remaining:
            raise ProtocolError(f"{reader.remaining} bytes too many")
        return ProduceRequest(transactional_id, acks, timeout_ms, topics)

    def topic(self) -> TopicProduceData:
        name: str | None = ""
        topic_id = ZERO_UUID
        if self.by_id:
            topic_id = self.reader.bytes_(16)
        else:
            name = self.text()
        if name is None:
            raise null_error("name")
        data = [self.partition() for _ in range(self.count("partition_data", 6 if self.flexible else 8))]
        self.tags()
        return TopicProduceData(name, topic_id, data)

    def partition(self) -> PartitionProduceData:
        index = self.reader.int32()
        size = self.size()
        records: Chain | None = None
        if size >= 0:
            records = self.reader.share(size)
            self.taken.append(records)
        self.tags()
        return PartitionProduceData(index, records)

    def count(self, name: str, least: int) -> int:
        count = self.size()
        if count < 0:
            raise null_error(name)
        check_count(count, least, self.reader.remaining)
        return count

    def size(self) -> int:
        """A length; negative for null."""
        reader = self.reader
        if not self.flexible:
            return reader.int32()
        before = reader.remaining
        size = reader.uvarint() - 1
        if size < 0 and before - reader.remaining > 1:
            raise ProtocolError("over-long null")
        return size

    def text(self) -> str | None:
        """A nullable text."""
        size = self.size() if self.flexible else self.reader.int16()
        if size < 0:
            return None
        try:
            return self.reader.bytes_(size).decode()
        except UnicodeDecodeError as error:
            raise ProtocolError("text is not UTF-8") from error

    def tags(self) -> None:
        if self.flexible:
            reader = self.reader
            count = reader.uvarint()
            check_count(count, 2, reader.remaining)
            for _ in range(count):
                reader.uvarint()
                reader.skip(reader.uvarint())
