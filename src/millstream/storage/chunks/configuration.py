"""The configuration of a partition's chunks: the seed's keys, with its defaults and bounds.

::

    {"path": "/fast/disk", "sync": true, "max_chunk_size": 67108864, "max_events_per_chunk": 1000000,
     "fd_cache_capacity": 64,
     "producers": {"metadata_buffer_pool": {…}, "data_buffer_pool": {…}},
     "consumers": {"metadata_buffer_pool": {…}, "desc_buffer_pool": {…}}}

Only ``path`` is required. A pool has ``num_tiers``, ``num_buffers``, ``first_size`` and ``size_multiple``. A key that
the seed does not have is refused by name; Mofka takes it silently, and a misspelled limit then has no effect.
"""

from __future__ import annotations

from typing import Any

import msgspec

from millstream.errors import Rejected
from millstream.format.events.chunk import ChunkLimits
from millstream.model.error_code import ErrorCode
from millstream.storage.chunks.pools import BufferPools, PoolShape

_DATA_FIRST_SIZE = 64 << 20
_DESC_FIRST_SIZE = 4 << 10


class ProducerPools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys under ``producers``."""

    metadata_buffer_pool: PoolShape = PoolShape()
    data_buffer_pool: PoolShape = PoolShape(first_size=_DATA_FIRST_SIZE)


class ConsumerPools(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys under ``consumers``."""

    metadata_buffer_pool: PoolShape = PoolShape()
    desc_buffer_pool: PoolShape = PoolShape(first_size=_DESC_FIRST_SIZE)


class ChunkConfiguration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys of a partition."""

    path: str
    sync: bool = True
    max_chunk_size: int = 64 << 20
    max_events_per_chunk: int = 1_000_000
    fd_cache_capacity: int = 64
    producers: ProducerPools = ProducerPools()
    consumers: ConsumerPools = ConsumerPools()

    @property
    def limits(self) -> ChunkLimits:
        """When a chunk is full."""
        return ChunkLimits(self.max_chunk_size, self.max_events_per_chunk)

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


def read_configuration(values: object) -> ChunkConfiguration:
    """The configuration in a decoded JSON object.

    Raises:
        Rejected: a key is unknown, missing, of another type, or out of its bounds (INVALID_CONFIG).
    """
    try:
        found = msgspec.convert(_with_defaults(values), ChunkConfiguration)
    except msgspec.ValidationError as error:
        raise Rejected(f"no configuration of chunks: {error}", ErrorCode.INVALID_CONFIG) from error
    for key, value in (
        ("max_chunk_size", found.max_chunk_size),
        ("max_events_per_chunk", found.max_events_per_chunk),
        ("fd_cache_capacity", found.fd_cache_capacity),
    ):
        if value < 1:
            raise Rejected(f"{key} is {value}: at least 1 is allowed", ErrorCode.INVALID_CONFIG)
    if not found.path.startswith("/"):
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
