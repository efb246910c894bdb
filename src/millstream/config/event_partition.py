"""The partitions of an event topic: Mofka's configuration keys, with their defaults and bounds.

::

    {"path": "/fast/disk", "sync": true, "max_chunk_size": 67108864, "max_events_per_chunk": 1000000,
     "fd_cache_capacity": 64,
     "producers": {"metadata_buffer_pool": {…}, "data_buffer_pool": {…}},
     "consumers": {"metadata_buffer_pool": {…}, "desc_buffer_pool": {…}}}

Without ``path`` the chunks lie in the data directory. A pool has ``num_tiers``, ``num_buffers``, ``first_size`` and
``size_multiple`` (``partition.events.pools``). A key that Mofka does not have is refused by name; Mofka takes it
silently, and a misspelled limit then has no effect.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

TIERS_MAX = 64
"""Tiers of a pool. Mofka has no limit; the 64th of any that double is larger than memory."""

_DATA_FIRST_SIZE = 64 << 20
_DESC_FIRST_SIZE = 4 << 10


class PoolShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of one pool."""

    num_tiers: int = 1
    num_buffers: int = 0
    first_size: int = 64 << 10
    size_multiple: float = 4.0

    def check(self, pool: str) -> None:
        """Refuse values that Mofka's schema does not allow.

        Raises:
            Rejected: with the key and what is allowed.
        """
        for key, value, holds, allowed in (
            ("num_tiers", self.num_tiers, 1 <= self.num_tiers <= TIERS_MAX, f"1 to {TIERS_MAX}"),
            ("num_buffers", self.num_buffers, self.num_buffers >= 0, "at least 0"),
            ("first_size", self.first_size, self.first_size >= 1, "at least 1"),
            ("size_multiple", self.size_multiple, self.size_multiple > 1, "more than 1"),
        ):
            if not holds:
                raise Rejected(f"{pool}.{key} is {value}: {allowed} is allowed", ErrorCode.INVALID_CONFIG)


class BufferPools(msgspec.Struct, frozen=True):
    """The four pools of a partition, by their keys in Mofka's configuration."""

    producers_metadata: PoolShape = PoolShape()
    producers_data: PoolShape = PoolShape(first_size=64 << 20)
    consumers_metadata: PoolShape = PoolShape()
    consumers_desc: PoolShape = PoolShape(first_size=4 << 10)

    def check(self) -> None:
        """Refuse values that Mofka's schema does not allow."""
        self.producers_metadata.check("producers.metadata_buffer_pool")
        self.producers_data.check("producers.data_buffer_pool")
        self.consumers_metadata.check("consumers.metadata_buffer_pool")
        self.consumers_desc.check("consumers.desc_buffer_pool")


class ProducerPools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys under ``producers``."""

    metadata_buffer_pool: PoolShape = PoolShape()
    data_buffer_pool: PoolShape = PoolShape(first_size=_DATA_FIRST_SIZE)


class ConsumerPools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys under ``consumers``."""

    metadata_buffer_pool: PoolShape = PoolShape()
    desc_buffer_pool: PoolShape = PoolShape(first_size=_DESC_FIRST_SIZE)


class EventPartition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a partition."""

    path: str = ""
    sync: bool = True
    max_chunk_size: int = 64 << 20
    max_events_per_chunk: int = 1_000_000
    fd_cache_capacity: int = 64
    producers: ProducerPools = ProducerPools()
    consumers: ConsumerPools = ConsumerPools()

    @property
    def pools(self) -> BufferPools:
        """The four pools."""
        producers, consumers = self.producers, self.consumers
        return BufferPools(
            producers.metadata_buffer_pool,
            producers.data_buffer_pool,
            consumers.metadata_buffer_pool,
            consumers.desc_buffer_pool,
        )


def read_configuration(values: object) -> EventPartition:
    """The configuration in a decoded JSON object.

    Raises:
        Rejected: a key is unknown, missing, of another type, or out of its bounds (INVALID_CONFIG).
    """
    try:
        found = msgspec.convert(_with_defaults(values), EventPartition)
    except msgspec.ValidationError as error:
        raise Rejected(f"no configuration of event partitions: {error}", ErrorCode.INVALID_CONFIG) from error
    for key, value in (
        ("max_chunk_size", found.max_chunk_size),
        ("max_events_per_chunk", found.max_events_per_chunk),
        ("fd_cache_capacity", found.fd_cache_capacity),
    ):
        if value < 1:
            raise Rejected(f"{key} is {value}: at least 1 is allowed", ErrorCode.INVALID_CONFIG)
    if found.path and not found.path.startswith("/"):
        raise Rejected(f"path is {found.path!r}: an absolute path is due", ErrorCode.INVALID_CONFIG)
    found.pools.check()
    return found


def _with_defaults(values: object) -> object:
    """The values, where a pool that is given in part has the rest of its own defaults."""
    if not isinstance(values, dict):
        return values
    filled: dict[Any, Any] = dict(values)
    for side, pool, first_size in (
        ("producers", "data_buffer_pool", _DATA_FIRST_SIZE),
        ("consumers", "desc_buffer_pool", _DESC_FIRST_SIZE),
    ):
        pools = filled.get(side)
        if isinstance(pools, dict) and isinstance(pools.get(pool), dict):
            filled[side] = {**pools, pool: {"first_size": first_size, **pools[pool]}}
    return filled


def read_event_partition(text: str) -> EventPartition:
    """The configuration in JSON text; Rejected as by ``read_configuration``."""
    try:
        values = msgspec.json.decode(text) if text.strip() else {}
    except msgspec.DecodeError as error:
        raise Rejected(f"no JSON: {error}", ErrorCode.INVALID_CONFIG) from error
    return read_configuration(values)
