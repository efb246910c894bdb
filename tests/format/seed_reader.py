"""Reads a partition by the text of the seed alone: no line of the product is used here.

The seed says: a directory of chunks, ``chunk-NNNNNN`` with six digits; ``.meta`` and ``.data`` are metadata and data
back to back; ``.desc`` is one serialized descriptor an event; ``.idx`` is 36 bytes an event, the position and size of
its metadata, its data and its descriptor. Positions take eight bytes, sizes four, packed, as a program on a
little-endian machine writes them. A descriptor names chunk, position and size.
"""

import re
import struct
from pathlib import Path

RECORD = struct.Struct("<QIQIQI")


def read_partition(directory: Path) -> list[tuple[bytes, bytes]]:
    """(metadata, data) of every event, by the index."""
    events = []
    for index in sorted(directory.glob("chunk-*.idx"), key=lambda one: int(one.stem.split("-")[1])):
        assert re.fullmatch(r"chunk-\d{6}", index.stem)
        events += read_chunk(index)
    return events


def read_chunk(index: Path) -> list[tuple[bytes, bytes]]:
    records = index.read_bytes()
    assert len(records) % RECORD.size == 0
    meta, data, desc = (index.with_suffix(suffix).read_bytes() for suffix in (".meta", ".data", ".desc"))
    events = []
    for meta_at, meta_size, data_at, data_size, desc_at, desc_size in RECORD.iter_unpack(records):
        descriptor = desc[desc_at : desc_at + desc_size]
        assert data_of(index.parent, descriptor) == data[data_at : data_at + data_size]
        events.append((meta[meta_at : meta_at + meta_size], data[data_at : data_at + data_size]))
    return events


def data_of(directory: Path, descriptor: bytes) -> bytes:
    """The data of an event that is known by its descriptor only."""
    size, base_size, location_size = struct.unpack_from("<QQQ", descriptor)
    assert size == base_size
    assert location_size == 16
    chunk, position, length = struct.unpack_from("<IQI", descriptor, 24)
    assert length == size
    with (directory / f"chunk-{chunk:06d}.data").open("rb") as file:
        file.seek(position)
        return file.read(length)
