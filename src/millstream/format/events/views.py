"""Views: selections of the data of one event, each relative to the selection before it.

A *sub view* is a range, a *stride view* is blocks at equal distances, an *unstructured view* is a list of ranges. Views
stack: the bytes that one selects are numbered from 0, and the next view selects among these. Rows 10 to 19 of a
picture of 100 columns, and of each of them columns 30 to 39, are a sub view of 1000 bytes from byte 1000 on and a
stride view of 10 blocks of 10 bytes with gaps of 90 from byte 30 on.

``flatten`` turns a stack into ranges of the data. The bounds:

- A sub view that passes the end is cut there; one that starts after the end selects nothing.
- Every block of a stride view and every range of an unstructured view lies inside the selection. The gap after the
  last block need not. Ranges are in order and do not overlap.
- A stack comes to at most ``limit`` ranges. A stride view takes 33 bytes for any selection, so a reader that
  expands views from outside must bound the result and not the input.

What breaks a bound is ``Rejected``. The source is the data model of Mofka (seed, ``flatten()``), where views that
stack are relative to the data and not to each other; there the rectangle above selects the wrong bytes.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple, TypeAlias

from millstream.errors import Rejected
from millstream.model.events import DataPosition

RANGES_MAX: Final = 1 << 16
"""Default limit of ranges in a flattened stack: about 5 MiB of objects."""


class Segment(NamedTuple):
    """A range of bytes: its first byte, and how many there are."""

    offset: DataPosition
    size: int

    @property
    def end(self) -> DataPosition:
        """The first byte after the range."""
        return DataPosition(self.offset + self.size)


class SubView(NamedTuple):
    """``size`` bytes from ``offset`` on, or fewer at the end."""

    offset: DataPosition
    size: int


class StrideView(NamedTuple):
    """``block_count`` blocks of ``block_size`` bytes, the first at ``offset``, each ``gap_size`` after the last."""

    offset: DataPosition
    block_count: int
    block_size: int
    gap_size: int


class UnstructuredView(NamedTuple):
    """Ranges in order that do not overlap."""

    segments: tuple[Segment, ...]


View: TypeAlias = SubView | StrideView | UnstructuredView


def flatten(base_size: int, views: Sequence[View], limit: int = RANGES_MAX) -> list[Segment]:
    """The ranges of ``base_size`` bytes that the stack selects, in order; adjacent ones are one, empty ones are left
    out.

    Raises:
        Rejected: a view passes the selection it is made on, its ranges overlap, or there would be more than ``limit``.
    """
    selected = [Segment(DataPosition(0), base_size)] if base_size else []
    for view in views:
        selected = _narrow(selected, view, limit)
    return selected


def view_size(parent_size: int, view: View) -> int:
    """How many bytes a view selects of a selection of ``parent_size`` bytes. Errors as in ``flatten``."""
    match view:
        case SubView(offset, size):
            _require(offset >= 0 and size >= 0, f"a sub view of {size} bytes from {offset} on")
            return min(size, max(0, parent_size - offset))
        case StrideView(offset, count, block, gap):
            _require(offset >= 0 and count > 0 and block > 0 and gap >= 0, f"{count} blocks of {block} with gaps {gap}")
            end = offset + count * block + (count - 1) * gap
            _require(end <= parent_size, f"a stride view that ends at {end} of {parent_size} bytes")
            return count * block
        case UnstructuredView(segments):
            end = 0
            for one in segments:
                _require(one.size >= 0 and one.offset >= end, f"a range at {one.offset} where {end} bytes are taken")
                end = one.end
            _require(end <= parent_size, f"an unstructured view that ends at {end} of {parent_size} bytes")
            return sum(one.size for one in segments)


def merged(segments: Iterable[Segment]) -> Iterator[Segment]:
    """The ranges without the empty ones, adjacent ones joined. They come in order."""
    last: Segment | None = None
    for one in segments:
        if not one.size:
            continue
        if last is not None and last.end == one.offset:
            last = Segment(last.offset, last.size + one.size)
            continue
        if last is not None:
            yield last
        last = one
    if last is not None:
        yield last


def _narrow(selected: Sequence[Segment], view: View, limit: int) -> list[Segment]:
    """What a view selects of ``selected``, in coordinates of the data."""
    ends = list(accumulate(one.size for one in selected))
    view_size(ends[-1] if ends else 0, view)
    narrowed: list[Segment] = []
    for one in merged(mapped for wanted in _segments(view) for mapped in _mapped(selected, ends, wanted)):
        if len(narrowed) == limit:
            raise Rejected(f"a view of more than {limit} ranges: select the part around them and slice it in memory")
        narrowed.append(one)
    return narrowed


def _segments(view: View) -> Iterator[Segment]:
    match view:
        case SubView(offset, size):
            yield Segment(offset, size)
        case StrideView(offset, count, block, 0):
            yield Segment(offset, count * block)
        case StrideView(offset, count, block, gap):
            for start in range(offset, offset + count * (block + gap), block + gap):
                yield Segment(DataPosition(start), block)
        case UnstructuredView(segments):
            yield from segments


def _mapped(selected: Sequence[Segment], ends: Sequence[int], wanted: Segment) -> Iterator[Segment]:
    """The pieces of ``selected`` under a range of its bytes. ``ends`` are the running ends of its pieces."""
    at = wanted.offset
    place = bisect_right(ends, at)
    while place < len(selected) and at < wanted.end:
        piece = selected[place]
        skip = at - (ends[place] - piece.size)
        size = min(piece.size - skip, wanted.end - at)
        yield Segment(DataPosition(piece.offset + skip), size)
        at = DataPosition(at + size)
        place += 1


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise Rejected(f"no such selection of the data: {what}")
