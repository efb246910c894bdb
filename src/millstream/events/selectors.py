"""Partition selectors: which partition an event goes to.

``{"type": "default"}``: the partition that the producer names, modulo their number; otherwise one after the other.
``{"type": "key", "key": "a.b"}``: by the hash of one field of the metadata, so that events with one value of the field
stay in order. The hash is Kafka's (murmur2 of the field's JSON text without quotes), so an event with key ``k`` goes
where a Kafka producer sends a record with key ``k``. An event without the field goes as by default. A callable gets
metadata, the named partition or None, and the number of partitions, and returns a number, taken modulo their number.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import msgspec

from millstream.errors import Rejected
from millstream.events.descriptions import InvalidDescription, choose

SelectorCallable: TypeAlias = Callable[[Any, int | None, int], object]

_encode = msgspec.json.Encoder().encode


class PartitionSelector(Protocol):
    """Chooses partitions. One object belongs to one producer."""

    @property
    def description(self) -> dict[str, Any]:
        """The JSON object that makes this selector again."""
        ...

    def select(self, metadata: Any, wanted: int | None, partitions_count: int) -> int:
        """A partition from 0 to ``partitions_count`` (exclusive); ``wanted`` is what the producer named."""
        ...


class DefaultSelector:
    """The named partition, or one after the other."""

    def __init__(self, description: Mapping[str, Any] | None = None) -> None:
        self.description = dict(description or {"type": "default"})
        self._next = 0

    def select(self, metadata: Any, wanted: int | None, partitions_count: int) -> int:
        """The named partition modulo their number, or the next one."""
        del metadata
        if wanted is not None:
            return wanted % partitions_count
        chosen = self._next % partitions_count
        self._next = chosen + 1
        return chosen


class KeySelector:
    """By the hash of a field of the metadata."""

    def __init__(self, description: Mapping[str, Any]) -> None:
        key = description.get("key")
        if not isinstance(key, str) or not key:
            raise InvalidDescription("the selector 'key' needs 'key', the name of a field or a dotted path")
        self.description = dict(description)
        self._path = key.split(".")
        self._otherwise = DefaultSelector()

    def select(self, metadata: Any, wanted: int | None, partitions_count: int) -> int:
        """The partition of the field's value; a named partition is respected."""
        value = metadata
        for name in self._path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None or wanted is not None:
            return self._otherwise.select(metadata, wanted, partitions_count)
        text = value.encode() if isinstance(value, str) else _encode(value)
        return (murmur2(text) & 0x7FFFFFFF) % partitions_count


class CallableSelector:
    """Asks a callable of the program."""

    def __init__(self, chooses: SelectorCallable) -> None:
        self.description = {"type": "callable"}
        self._chooses = chooses

    def select(self, metadata: Any, wanted: int | None, partitions_count: int) -> int:
        """What the callable returns, modulo the number of partitions.

        Raises:
            Rejected: the callable raised, or returned no number.
        """
        try:
            chosen: object = self._chooses(metadata, wanted, partitions_count)
        except Exception as error:
            raise Rejected(f"the partition selector failed: {error}") from error
        if not isinstance(chosen, int):
            raise Rejected(f"the partition selector returned {chosen!r}, not a number")
        return chosen % partitions_count


def murmur2(data: bytes) -> int:
    """Kafka's hash of a key (MurmurHash2, 32 bits, seed 0x9747b28c), unsigned."""
    mask, mixer = 0xFFFFFFFF, 0x5BD1E995
    value = 0x9747B28C ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * mixer & mask
        value = (value * mixer & mask) ^ ((word ^ word >> 24) * mixer & mask)
    if whole < len(data):
        value = (value ^ int.from_bytes(data[whole:], "little")) * mixer & mask
    value = (value ^ value >> 13) * mixer & mask
    return value ^ value >> 15


_BY_TYPE: Mapping[str, Callable[[Mapping[str, Any]], PartitionSelector]] = {
    "default": DefaultSelector,
    "key": KeySelector,
}


def make_selector(wanted: Mapping[str, Any] | SelectorCallable | PartitionSelector | None) -> PartitionSelector:
    """The selector of a description, around a callable, or itself.

    Raises:
        InvalidDescription: the description has an unknown type or lacks something.
    """
    if wanted is not None and hasattr(wanted, "select"):
        made: Any = wanted
        return made
    if callable(wanted):
        return CallableSelector(wanted)
    return choose("partition selector", _BY_TYPE, wanted)
