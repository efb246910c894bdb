"""Chains of fragments hold the bytes that went in, however they are cut and shared."""

import pytest

from millstream.iobuf import Arena, EndOfBuffer, ForeignFragment, IoBuf


@pytest.fixture
def arena():
    arena = Arena.create(0, 1 << 20, poison=True)
    yield arena
    assert arena.live_fragments == 0, arena.leaks()


def chain(arena, *pieces):
    """A chain with one fragment per piece, each piece somewhere inside its fragment."""
    buf = IoBuf()
    for at, piece in enumerate(pieces):
        fragment = arena.allocate(len(piece) + at)
        fragment.view[at : at + len(piece)] = piece
        buf.append(fragment, at, at + len(piece))
    return buf


def test_a_chain_reads_as_one_run_of_bytes(arena):
    buf = chain(arena, b"hello ", b"wor", b"ld")
    assert len(buf) == 11
    assert bytes(buf) == b"hello world"
    assert [bytes(view) for view in buf.views()] == [b"hello ", b"wor", b"ld"]
    buf.release()
    assert len(buf) == 0


def test_sharing_copies_nothing_and_outlives_the_original(arena):
    buf = chain(arena, b"hello ", b"world")
    shared = buf.share(4, 4)
    assert [(piece.offset, end - start) for piece, start, end in shared.parts] == [
        (piece.offset, n) for (piece, _, _), n in zip(buf.parts, (2, 2), strict=True)
    ]
    buf.release()
    assert bytes(shared) == b"o wo"
    shared.release()


def test_an_empty_part_is_given_back_at_once(arena):
    buf = IoBuf()
    buf.append(arena.allocate(10), 5, 5)
    assert buf.views() == []
    assert arena.live_fragments == 0


def test_trimming_releases_what_was_passed(arena):
    buf = chain(arena, b"abc", b"defg", b"h")
    buf.trim_front(4)
    assert bytes(buf) == b"efgh"
    assert arena.live_fragments == 2
    buf.trim_front(4)
    assert arena.live_fragments == 0
    with pytest.raises(EndOfBuffer):
        buf.trim_front(1)


def test_appending_a_chain_moves_its_references(arena):
    first, second = chain(arena, b"ab"), chain(arena, b"cd", b"e")
    first.append_buf(second)
    assert bytes(first) == b"abcde"
    assert len(second) == 0
    second.release()
    assert bytes(first) == b"abcde"
    first.release()


@pytest.mark.parametrize(("position", "size"), [(0, 6), (5, 1), (-1, 1), (0, -1)])
def test_ranges_outside_the_chain_are_refused(arena, position, size):
    buf = chain(arena, b"abc", b"de")
    with pytest.raises(EndOfBuffer):
        buf.share(position, size)
    with pytest.raises(EndOfBuffer):
        buf.copy(position, size)
    buf.release()


def test_a_foreign_fragment_goes_home_with_its_last_release(arena):
    own = arena.allocate(100)
    own.view[:5] = b"hello"
    home = []
    foreign = ForeignFragment(0, own.offset + 1, 4, 77, arena.view, home.append)
    buf = IoBuf()
    buf.append(foreign, 0, 4)
    shared = buf.share(1, 2)
    buf.release()
    assert (bytes(shared), home) == (b"ll", [])
    shared.release()
    assert home == [77]
    with pytest.raises(AssertionError):
        foreign.release()
    own.release()
