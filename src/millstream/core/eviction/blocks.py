"""The values that policies speak of."""

from __future__ import annotations

from typing import NamedTuple, NewType

import msgspec

from millstream.model.quantities import Offset, TimestampMs

PartitionKey = NewType("PartitionKey", int)
"""A partition whose blocks are cached. The cache numbers them."""

ReaderId = NewType("ReaderId", int)
"""A sequential reader of a partition: a consumer group, or a connection without one."""


class BlockKey(NamedTuple):
    """A block. Never an object's name: merged objects hold the same blocks."""

    partition: PartitionKey
    base_offset: Offset


class Block(msgspec.Struct, frozen=True):
    """What a policy knows of a block."""

    key: BlockKey
    appended_ms: TimestampMs
    """When its last batch was appended to the log: the age of the data, not of the cache's copy."""

    slots: int = 1
    """Slots of the cache that it takes."""
