"""Views select what numpy selects; stacked ones select of the selection before."""

import itertools
import random

import pytest

from millstream.errors import Rejected
from millstream.format.events import (
    DataDescriptor,
    Segment,
    StrideView,
    SubView,
    UnstructuredView,
    coalesce,
    decode_descriptor,
    encode_descriptor,
    flatten,
)
from millstream.format.events.ranges import FileRange

LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def select(views, data=LETTERS):
    return b"".join(data[one.offset : one.end] for one in flatten(len(data), views))


@pytest.mark.parametrize(
    ("views", "selected"),
    [
        ([], LETTERS),
        ([SubView(13, 26)], b"nopqrstuvwxyzABCDEFGHIJKLM"),
        ([StrideView(13, 3, 4, 2)], b"nopqtuvwzABC"),
        ([UnstructuredView((Segment(3, 6), Segment(15, 4), Segment(27, 8)))], b"defghipqrsBCDEFGHI"),
        ([SubView(13, 26), SubView(2, 4)], b"pqrs"),
        ([SubView(50, 10)], b"YZ"),
        ([SubView(60, 10)], b""),
        ([SubView(60, 10), SubView(0, 5)], b""),
        ([StrideView(0, 2, 10, 32)], b"abcdefghijQRSTUVWXYZ"),
    ],
)
def test_golden_selections(views, selected):
    assert select(views) == selected
    descriptor = DataDescriptor(b"", len(LETTERS), tuple(views))
    assert descriptor.size == len(selected)
    assert decode_descriptor(encode_descriptor(descriptor)) == descriptor


def test_a_rectangle_of_a_picture_is_a_sub_view_and_a_stride_view():
    numpy = pytest.importorskip("numpy")
    picture = numpy.arange(40 * 100, dtype=numpy.uint8).reshape(40, 100)
    views = [SubView(10 * 100, 10 * 100), StrideView(30, 10, 10, 90)]
    assert select(views, picture.tobytes()) == picture[10:20, 30:40].tobytes()


def random_view(rng, size):
    match rng.randrange(3):
        case 0:
            return SubView(rng.randrange(size + 3), rng.randrange(size + 3))
        case 1 if size:
            block = rng.randint(1, max(1, size // 3))
            gap = rng.randrange(4)
            count = rng.randint(1, max(1, (size + gap) // (block + gap)))
            room = size - count * block - (count - 1) * gap
            return StrideView(rng.randint(0, room), count, block, gap) if room >= 0 else SubView(0, size)
        case _:
            marks = sorted(rng.randrange(size + 1) for _ in range(2 * rng.randrange(5)))
            pairs = zip(marks[::2], marks[1::2], strict=True)
            return UnstructuredView(tuple(Segment(start, end - start) for start, end in pairs))


def by_numpy(data, view):
    numpy = pytest.importorskip("numpy")
    match view:
        case SubView(offset, size):
            return data[offset : offset + size]
        case StrideView(offset, count, block, gap):
            step = block + gap
            rows = [data[offset + n * step : offset + n * step + block] for n in range(count)]
            return numpy.concatenate(rows)
        case UnstructuredView(segments):
            return numpy.concatenate([data[:0], *(data[one.offset : one.end] for one in segments)])


def test_stacks_of_views_select_what_numpy_selects():
    numpy = pytest.importorskip("numpy")
    for seed in range(1500):
        rng = random.Random(seed)
        whole = numpy.frombuffer(rng.randbytes(rng.randrange(120)), dtype=numpy.uint8)
        views, expected = [], whole
        for _ in range(rng.randint(1, 4)):
            views.append(random_view(rng, len(expected)))
            expected = by_numpy(expected, views[-1])
        assert select(views, whole.tobytes()) == expected.tobytes(), f"seed {seed}: {views}"
        segments = flatten(len(whole), views)
        assert all(one.end < two.offset for one, two in itertools.pairwise(segments)), seed


@pytest.mark.parametrize(
    "view",
    [
        SubView(-1, 5),
        SubView(0, -5),
        StrideView(0, 0, 1, 1),
        StrideView(0, 1, 0, 1),
        StrideView(0, 2, 30, 0),
        StrideView(0, 1 << 60, 1, 1),
        StrideView(0, 1, 1, -1),
        UnstructuredView((Segment(5, 5), Segment(9, 2))),
        UnstructuredView((Segment(50, 3),)),
        UnstructuredView((Segment(-1, 3),)),
    ],
)
def test_a_view_that_does_not_fit_is_refused(view):
    with pytest.raises(Rejected, match="no such selection"):
        flatten(len(LETTERS), [view])
    with pytest.raises(Rejected, match="no such selection"):
        DataDescriptor(b"", len(LETTERS)).narrowed(view)


def test_a_small_view_of_many_ranges_is_refused_before_they_are_made():
    with pytest.raises(Rejected, match="slice it in memory"):
        flatten(1 << 40, [StrideView(0, 1 << 38, 1, 1)])
    assert flatten(1 << 40, [StrideView(0, 1 << 38, 4, 0)]) == [Segment(0, 1 << 40)]
    assert len(flatten(1 << 40, [StrideView(0, 100, 1, 1)], limit=100)) == 100


def test_views_are_stacked_to_a_limit():
    descriptor = DataDescriptor(b"", 100)
    for _ in range(64):
        descriptor = descriptor.narrowed(SubView(0, 100))
    with pytest.raises(Rejected, match="64 stacked"):
        descriptor.narrowed(SubView(0, 1))


@pytest.mark.parametrize(
    "data",
    [b"", b"\0" * 24, b"\0" * 33, bytes(8) + bytes(8) + b"\xff" * 8 + bytes(8), bytes(24) + b"\xff" * 8],
)
def test_bytes_that_are_no_descriptor_are_refused(data):
    with pytest.raises(Rejected):
        decode_descriptor(data)


def test_a_descriptor_that_ends_anywhere_is_refused():
    views = (SubView(1, 50), StrideView(2, 3, 4, 5), UnstructuredView((Segment(0, 1), Segment(4, 2))))
    data = encode_descriptor(DataDescriptor(b"location", 52, views))
    for size in range(len(data)):
        with pytest.raises(Rejected):
            decode_descriptor(data[:size])


def test_reads_cover_every_wanted_range_once_and_little_more():
    for seed in range(400):
        rng = random.Random(seed)
        wanted = []
        for _ in range(rng.randrange(12)):
            start = rng.randrange(5000)
            wanted.append(FileRange(start, start + rng.randrange(300)))
        gap, span = rng.choice((0, 16, 4096)), rng.choice((64, 1000, 1 << 20))
        reads = coalesce(wanted, gap_bytes=gap, span_bytes=span)
        covered = [byte for one in reads for byte in range(one.start, one.end)]
        bytes_wanted = {byte for one in wanted for byte in range(one.start, one.end)}
        assert len(covered) == len(set(covered)), seed
        assert set(covered) >= bytes_wanted, seed
        assert len(covered) <= 1.2 * len(bytes_wanted), seed
        assert all(one.end - one.start <= span for one in reads), seed
        assert reads == sorted(reads), seed


def test_neighbours_are_read_at_once():
    assert coalesce([FileRange(0, 1000), FileRange(1100, 2000), FileRange(9000, 9001)]) == [(0, 2000), (9000, 9001)]
