"""Bytes that lie anywhere, in page-aligned pieces."""

import ctypes
import random

import pytest

from millstream.storage.staging import STAGING_BYTES, Staging


@pytest.mark.parametrize("seed", range(6))
def test_pieces_hold_all_bytes_in_order_and_only_the_last_is_short(seed: int) -> None:
    rng = random.Random(seed)
    staging = Staging()
    for _ in range(3):
        sizes = rng.choices([0, 1, 61, 4096, STAGING_BYTES - 1, STAGING_BYTES, 2 * STAGING_BYTES + 7], k=5)
        buffers = [rng.randbytes(size) for size in sizes]
        pieces = [bytes(piece) for piece in staging.pieces(buffers)]
        assert b"".join(pieces) == b"".join(buffers)
        assert all(len(piece) == STAGING_BYTES for piece in pieces[:-1])


def test_a_piece_begins_on_a_page() -> None:
    (piece,) = Staging().pieces([b"abc", memoryview(b"defg")])
    assert bytes(piece) == b"abcdefg"
    assert ctypes.addressof(ctypes.c_char.from_buffer(piece)) % 4096 == 0


def test_of_nothing_there_is_no_piece() -> None:
    assert list(Staging().pieces([b"", b""])) == []
