"""Few reads for many selections: which ranges of one file to read, and where each wanted range lies in them.

Ranges that touch or overlap are read once. Ranges with a small gap between them are read in one call, because a call
costs as much as some kilobytes; but all gaps together stay below a fifth of what was asked for, so that a selection
never reads much more than it selects. A read has an upper size; a longer range is cut.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.model.quantities import FilePosition

GAP_BYTES_MAX: Final = 4096
SPAN_BYTES_MAX: Final = 1 << 20
_GAP_SHARE: Final = 5
"""Gaps are at most one part in this many of the wanted bytes."""


class FileRange(NamedTuple):
    """A wanted range of a file; the end is exclusive."""

    start: FilePosition
    end: FilePosition


class ReadSpan(NamedTuple):
    """One read of a file; the end is exclusive."""

    start: FilePosition
    end: FilePosition


def coalesce(
    wanted: Sequence[FileRange], *, gap_bytes: int = GAP_BYTES_MAX, span_bytes: int = SPAN_BYTES_MAX
) -> list[ReadSpan]:
    """The reads that cover all wanted ranges, in order of position. They do not overlap; empty ranges need none."""
    joined: list[ReadSpan] = []
    for start, end in sorted(one for one in wanted if one.end > one.start):
        if joined and start <= joined[-1].end:
            joined[-1] = ReadSpan(joined[-1].start, max(joined[-1].end, end))
        else:
            joined.append(ReadSpan(start, end))
    spare = sum(end - start for start, end in joined) // _GAP_SHARE
    spans: list[ReadSpan] = []
    for one in joined:
        gap = one.start - spans[-1].end if spans else 0
        if spans and gap <= min(gap_bytes, spare) and one.end - spans[-1].start <= span_bytes:
            spare -= gap
            spans[-1] = ReadSpan(spans[-1].start, one.end)
        else:
            spans.append(one)
    return [piece for span in spans for piece in _pieces(span, span_bytes)]


def _pieces(span: ReadSpan, span_bytes: int) -> list[ReadSpan]:
    return [
        ReadSpan(FilePosition(start), FilePosition(min(start + span_bytes, span.end)))
        for start in range(span.start, span.end, span_bytes)
    ]
