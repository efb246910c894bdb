"""Batches for compacted topics: which are refused before anything is appended, and what their producer is told."""

import pytest
from crc32c import crc32c

from millstream.partition.keyless import refusal
from millstream.wire.records import build_batch

MAX = 1 << 20


def batch_of(*keys: bytes | None, codec: int = 0) -> bytearray:
    return bytearray(build_batch([(key, b"v", (), 1) for key in keys], compression=codec))


def summed_anew(batch: bytearray) -> bytearray:
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    return batch


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_records_without_a_key_are_named(codec: int) -> None:
    found = refusal((memoryview(batch_of(b"a", None, b"", None, codec=codec)),), "t", 3, MAX)
    assert found is not None
    assert [index for index, _ in found.records] == [1, 3]
    assert all("t-3" in what for _, what in found.records)
    assert found.message is not None
    assert "2 of its records (1, 3)" in found.message


def test_a_batch_in_pieces_is_looked_at_whole() -> None:
    data = memoryview(batch_of(b"a", None))
    assert refusal((data[:30], data[30:70], data[70:]), "t", 0, MAX) is not None


@pytest.mark.parametrize("codec", [0, 1, 4])
def test_records_that_are_not_what_the_header_claims_are_refused(codec: int) -> None:
    batch = batch_of(*[b"key"] * 20, codec=codec)
    batch[61] ^= 0x5A
    found = refusal((memoryview(summed_anew(batch)),), "t", 0, MAX)
    assert found is not None
    assert found.records == ()


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(b"a", b"b"),
        batch_of(b"a", None)[:-1],
        batch_of(b"a", None)[:40],
        bytearray(b""),
        batch_of(b"a", None) + batch_of(b"a"),
    ],
)
def test_what_appending_tells_better_is_left_to_it(batch: bytearray) -> None:
    assert refusal((memoryview(batch),), "t", 0, MAX) is None


def test_a_wrong_checksum_and_a_batch_that_is_too_large_come_first() -> None:
    batch = batch_of(b"a", None)
    batch[-1] ^= 1
    assert refusal((memoryview(batch),), "t", 0, MAX) is None
    assert refusal((memoryview(batch_of(b"a", None)),), "t", 0, 70) is None
