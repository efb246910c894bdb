"""The cleaner's input for a log: its segments, its aborted transactions, and the name of the new file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from millstream.core.compaction import SegmentFacts
from millstream.format.names import segment_name
from millstream.storage.messages.commands import Source

if TYPE_CHECKING:
    from millstream.model.quantities import Offset
    from millstream.storage.log.log import Log
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment


def facts_of(log: Log, now_ms: int) -> list[SegmentFacts]:
    """The segments of a log, the active one last."""
    log.refresh()
    return [
        SegmentFacts(
            one.base_offset,
            one.end_offset,
            one.size_bytes,
            one.summary().min_timestamp,
            one.max_timestamp if one.max_timestamp >= 0 else changed_ms,
        )
        for one, changed_ms in zip(log.files.segments, log.files.segments.changed_ms(now_ms), strict=True)
    ]


def aborted_in(log: OpenLog, end_offset: Offset) -> list[tuple[int, int, int]]:
    """The aborted transactions below ``end_offset``, which is stable."""
    producers = log.owner.producers
    return [] if producers is None else producers.transactions.aborted_between(log.ends.durable_start, end_offset)


def source_of(segment: Segment) -> Source:
    """A segment as the cleaner reads it."""
    return Source(segment.path, segment.end_offset, segment.size_bytes)


def target_of(merge: list[Segment]) -> tuple[str, int]:
    """Path and generation of the file that some segments become."""
    generation = 1 + max(one.generation for one in merge)
    first = merge[0]
    return f"{os.path.dirname(first.path)}/{segment_name(first.base_offset, generation)}", generation
