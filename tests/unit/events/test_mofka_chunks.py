"""Partitions of the real Mofka: padded records with garbage between the fields, and a length before each metadata."""

import struct

import pytest

from millstream.errors import Corruption
from millstream.format.events import read_mofka_chunk

META = [b'{"a":1}', b"{}", b'{"long":"' + b"x" * 40 + b'"}']
DATA = [b"one", b"", b"three" * 5]


def written_by_mofka(padding=b"\xff\x7f\x00\xfe", prefix=True):
    """(.idx, .meta, .data) as the program writes them."""
    index, meta, data, desc_at = b"", b"", b"", 0
    for text, payload in zip(META, DATA, strict=True):
        stored = (struct.pack("<Q", len(text)) if prefix else b"") + text
        index += struct.pack("<QI4s", len(meta), len(stored), padding)
        index += struct.pack("<QI4s", len(data), len(payload), padding)
        index += struct.pack("<QI4s", desc_at, 56, padding)
        meta, data, desc_at = meta + stored, data + payload, desc_at + 56
    return index, meta, data


@pytest.mark.parametrize("padding", [b"\0\0\0\0", b"\xff\xff\xff\xff", b"\1\0\0\0"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_padded_layout_is_recognised(padding, count):
    index, meta, data = written_by_mofka(padding)
    chunk = read_mofka_chunk(index[: 48 * count], meta, len(data))
    assert (chunk.record_bytes, chunk.prefixed, chunk.lost_records) == (48, True, 0)
    assert [bytes(one) for one in chunk.metadata(meta)] == META[:count]
    assert [data[one.data_position :][: one.data_size] for one in chunk.records] == DATA[:count]


def test_the_documented_layout_is_recognised():
    index = struct.pack("<QIQIQI", 0, 7, 0, 3, 0, 48) + struct.pack("<QIQIQI", 7, 2, 3, 0, 48, 48)
    chunk = read_mofka_chunk(index, b'{"a":1}{}', 3)
    assert (chunk.record_bytes, chunk.prefixed) == (36, False)
    assert [bytes(one) for one in chunk.metadata(b'{"a":1}{}')] == META[:2]


def test_events_without_all_of_their_bytes_are_left_out():
    index, meta, data = written_by_mofka()
    assert read_mofka_chunk(index, meta, len(data) - 1).lost_records == 1
    assert read_mofka_chunk(index, meta[:-1], len(data)).lost_records == 1
    assert len(read_mofka_chunk(index[:-1], meta, len(data)).records) == 2


def test_an_index_of_neither_layout_is_refused():
    with pytest.raises(Corruption, match="neither"):
        read_mofka_chunk(b"\1" * 480, b"", 0)
