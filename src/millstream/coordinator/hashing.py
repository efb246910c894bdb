"""The partition of ``__consumer_offsets`` that stores a group: Kafka's hash, so that any client can compute it."""

from functools import lru_cache
from typing import Final

OFFSETS_TOPIC: Final = "__consumer_offsets"
_KEPT_LENGTH_MAX: Final = 256
"""Maximum length of a name whose partition is cached, in characters. Names may have 32,767, and thousands are
cached.
"""


def java_string_hash(text: str) -> int:
    """``String.hashCode`` of Java: over UTF-16 units, as a signed 32-bit number."""
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFF_FFFF
    return value - (1 << 32) if value >> 31 else value


def partition_of(group_id: str, partitions: int) -> int:
    """The partition that stores ``group_id``. The most negative hash counts as 0, as in Kafka."""
    return (_kept if len(group_id) <= _KEPT_LENGTH_MAX else _computed)(group_id, partitions)


def _computed(group_id: str, partitions: int) -> int:
    value = java_string_hash(group_id)
    return 0 if value == -(1 << 31) else abs(value) % partitions


_kept = lru_cache(maxsize=4096)(_computed)
