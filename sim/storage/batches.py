"""Batches that clients of the storage world write: of records that nothing opens, and of events."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.format.events.batch import Producer as Identity
from millstream.format.events.batch import build_event_batch

if TYPE_CHECKING:
    import random

    from millstream.model.quantities import TimestampMs
    from sim.storage.models import Producer

_COVERED = struct.Struct(">hiqqqhii")
_UNCOVERED = struct.Struct(">qiibI")
_GZIP: Final = 1


def opaque_batch(rng: random.Random, producer: Producer, stamp: int) -> bytes:
    """A batch that says that its records are compressed, and has random bytes in their place."""
    size, count = rng.choice([0, 30, 200, 1000, 3000, 6000]), rng.randint(1, 4)
    covered = _COVERED.pack(
        _GZIP, count - 1, stamp, stamp, producer.id, producer.epoch, producer.sequence, count
    ) + rng.randbytes(size)
    return _UNCOVERED.pack(0, 9 + len(covered), -1, 2, crc32c(covered)) + covered


def events_batch(rng: random.Random, producer: Producer, stamp: TimestampMs) -> bytes:
    """A batch of some events, with and without data."""
    count = rng.randint(1, 4)
    metadata = [rng.randbytes(rng.choice([0, 3, 40])) for _ in range(count)]
    data = [[rng.randbytes(rng.choice([0, 1, 200, 2500]))] for _ in range(count)]
    return b"".join(build_event_batch(metadata, data, now_ms=stamp, producer=Identity(*producer)))
