"""A log's files as its shard knows them: segments, the ``epochs`` file, producer snapshots, what is archived."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.model.quantities import BytePosition
from millstream.storage.log.segment_list import Segment, SegmentList
from millstream.storage.log.snapshots import Snapshots

if TYPE_CHECKING:
    from millstream.model.quantities import Offset
    from millstream.storage.log.opening import LoadedLog


class LogFiles:
    """The files of one log. Each field is written only by those that its law names."""

    __slots__ = (
        "clean_offset",
        "dirty",
        "local_start",
        "local_wanted",
        "lost",
        "replacing",
        "retained_elsewhere",
        "rolled",
        "segments",
        "snapshots",
        "state_dirty",
    )

    def __init__(self, directory: str, loaded: LoadedLog, index_interval: int, now_ms: int) -> None:
        segments = _open_segments(directory, loaded, index_interval, now_ms)
        self.segments = SegmentList(segments)
        self.rolled: list[Segment] = []
        """Sealed since the last checkpoint. Written by ``OpenLog.roll``, checkpoints and cuts."""
        self.replacing = False
        """Compaction replaces segments by another: none may be dropped now. Written by ``Compaction``."""
        self.clean_offset: Offset = loaded.state.clean_offset
        """End (exclusive) of what compaction has rewritten. Written by ``Compaction``."""
        self.state_dirty = False
        """The ``epochs`` file is out of date."""
        self.dirty = False
        """The log is in its shard's list of logs that the next checkpoint covers."""
        self.snapshots = Snapshots(loaded.producers, loaded.snapshot_files, segments[-1].end)
        self.lost = loaded.lost
        """Durable data of this log was lost, and the leader has not replaced it yet. Written by ``Log.found_again``."""
        self.local_start: Offset = loaded.state.local_start
        """Segments that end at or before it are archived and no longer local. Moved by ``cutting.trim_local``."""
        self.local_wanted: Offset = self.local_start
        """Value of ``local_start`` after the next checkpoint."""
        self.retained_elsewhere = False
        """The owner of the archive applies retention, to both parts of the log."""

    @property
    def first_local_offset(self) -> Offset:
        """The segments here have every offset of the log from it on; earlier ones are archived."""
        return self.segments.first.base_offset

    def forget_dead(self, active: Segment | None = None) -> None:
        """Segments were dropped, or ``active`` takes batches again: no checkpoint seals them."""
        self.rolled = [segment for segment in self.rolled if not segment.dead and segment is not active]


def _open_segments(directory: str, loaded: LoadedLog, index_interval_bytes: int, now_ms: int) -> list[Segment]:
    """The segments in the files of a log, and a new active one if the last of them is sealed."""
    stream = BytePosition(0)
    segments: list[Segment] = []
    for summary in loaded.segments:
        segments.append(Segment.of(directory, summary, stream, index_interval_bytes))
        stream = BytePosition(stream + summary.size_bytes)
    if not segments or segments[-1].sealed:
        segments.append(Segment(directory, loaded.next_offset, stream, now_ms))
    return segments
