"""Batches of events, made by the production encoders."""

from millstream.format.events import build_event_batch
from millstream.format.events.batch import Producer
from millstream.wire.batch import HEADER

UUID = bytes(range(16))
EVENT_BYTES_MAX = 1 << 24


def batch_bytes(events, *, base_offset=0, leader_epoch=0, now_ms=1000, producer=None):
    """One batch as it stands in a log: (metadata, data) each."""
    pieces = build_event_batch(
        [meta for meta, _ in events], [[data] for _, data in events], now_ms=now_ms, producer=producer or Producer()
    )
    batch = bytearray(b"".join(pieces))
    HEADER.pack_into(
        batch, 0, base_offset, *HEADER.unpack_from(batch)[1:2], leader_epoch, *HEADER.unpack_from(batch)[3:]
    )
    return bytes(batch)
