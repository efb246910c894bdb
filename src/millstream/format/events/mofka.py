"""Partitions that Mofka itself wrote, which are not what its documentation says.

The documentation has index records of 36 bytes and locations of 16. The program (0.9) writes its structures with the
compiler's padding: records of 48 bytes and locations of 24, with undefined bytes between the fields. Its
default serializer puts a length of 8 bytes before each metadata text. This module reads both layouts and finds out
which one it is: a record starts where the previous one ends, which no other record size satisfies.

Mofka checks nothing at its own restart, so a chunk may end in records without bytes after them. The chunk is read up
to the first event that is not whole.
"""

import struct
from collections.abc import Iterator
from typing import Final

import msgspec

from millstream.errors import Corruption
from millstream.format.events.chunk import INDEX_RECORD, IndexRecord

PADDED_RECORD: Final = struct.Struct("<QI4xQI4xQI4x")
_LENGTH: Final = struct.Struct("<Q")


class MofkaChunk(msgspec.Struct, frozen=True):
    """The whole events of one chunk."""

    records: tuple[IndexRecord, ...]
    record_bytes: int
    """36 or 48: which layout it is."""
    lost_records: int
    """Records at the end without all of their bytes."""
    prefixed: bool
    """Whether each metadata text stands after its length."""

    def metadata(self, meta: bytes | bytearray | memoryview) -> Iterator[memoryview]:
        """The metadata of each event, without a length before it."""
        view = memoryview(meta)
        skip = _LENGTH.size if self.prefixed else 0
        for one in self.records:
            yield view[one.meta_position + skip : one.meta_position + one.meta_size]


def read_mofka_chunk(index: bytes | bytearray, meta: bytes | bytearray, data_bytes: int) -> MofkaChunk:
    """The events of a chunk, from its ``.idx`` and ``.meta`` and the size of its ``.data``.

    Raises:
        Corruption: the records lead from end to end in neither layout.
    """
    for layout in (INDEX_RECORD, PADDED_RECORD):
        records = _chained(index, layout)
        if records is None:
            continue
        whole = [
            one
            for one in records
            if one.meta_position + one.meta_size <= len(meta) and one.data_position + one.data_size <= data_bytes
        ]
        return MofkaChunk(tuple(whole), layout.size, len(records) - len(whole), _prefixed(whole, meta))
    raise Corruption(f"an index of {len(index)} bytes is of neither Mofka's documented nor its written layout")


def _chained(index: bytes | bytearray, layout: struct.Struct) -> list[IndexRecord] | None:
    """The whole records in a layout; None if one does not start where the previous one ends, or has no descriptor."""
    records: list[IndexRecord] = []
    meta = position = desc = 0
    for values in layout.iter_unpack(index[: len(index) // layout.size * layout.size]):
        one = IndexRecord(*values)
        if (one.meta_position, one.data_position, one.desc_position) != (meta, position, desc) or not one.desc_size:
            return None
        meta, position, desc = meta + one.meta_size, position + one.data_size, desc + one.desc_size
        records.append(one)
    return records


def _prefixed(records: list[IndexRecord], meta: bytes | bytearray) -> bool:
    """Whether the metadata of every event starts with the length of the rest."""
    return bool(records) and all(
        one.meta_size >= _LENGTH.size
        and _LENGTH.unpack_from(meta, one.meta_position)[0] == one.meta_size - _LENGTH.size
        for one in records
    )
