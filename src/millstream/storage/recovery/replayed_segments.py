"""The segments of a log during its replay: the files that are there, and the one that batches are written to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.format.names import segment_name
from millstream.model.quantities import Offset
from millstream.storage.disk import write_all
from millstream.storage.log.opening import remove_segment
from millstream.storage.segments.index import Growing, SegmentIndex

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millstream.format.segment import Batch
    from millstream.storage.disk import Buffer, Disk, File


class SegmentNames:
    """The segment files of one log, by base offset. ``visited`` are those that the replay has been in, rising."""

    def __init__(self, disk: Disk, directory: str, files: Mapping[int, str]) -> None:
        self._disk = disk
        self._directory = directory
        self.files = {Offset(base): name for base, name in files.items()}
        self.bases = sorted(self.files)
        self.visited: list[Offset] = []

    def path(self, base: Offset) -> str:
        """Path of the segment with a base offset."""
        return f"{self._directory}/{self.files.get(base) or segment_name(base)}"

    def visit(self, base: Offset) -> None:
        """The replay continues in this segment, which may be new."""
        if base not in self.bases:
            self.bases = sorted([*self.bases, base])
        self.visited = [one for one in self.visited if one < base] + [base]

    def unlink(self, base: Offset) -> None:
        """Remove a segment with all that belongs to it."""
        self.bases.remove(base)
        remove_segment(self._disk, self.path(base))
        self.files.pop(base, None)


class SegmentFill:
    """The segment that a replay writes to. Batches are gathered and written in large pieces; no file is open between
    ``flush`` and the next use.
    """

    def __init__(self, disk: Disk, now_ms: int) -> None:
        self._disk = disk
        self._now_ms = now_ms
        self.path = ""
        self.base = Offset(0)
        self.index = SegmentIndex(Offset(0))
        self.growing = Growing(self.index, now_ms)
        """What the segment has, with the gathered batches."""
        self._file: File | None = None
        self._pending: list[Buffer] = []
        self._pending_at = 0
        self.pending_bytes = 0

    def open(self, path: str, base: Offset, index: SegmentIndex, *, create: bool) -> None:
        """Continue in another segment, at the end of what its index covers."""
        self.close()
        self.path, self.base, self.index = path, base, index
        self._file = self._disk.open(path, create=create)
        self.growing = Growing(index, self._now_ms)

    def file(self) -> File:
        """The open file."""
        if self._file is None:
            self._file = self._disk.open(self.path)
        return self._file

    def add(self, batch: Batch, payload: memoryview) -> None:
        """Gather a batch, the next one of the segment."""
        if not self._pending:
            self._pending_at = self.growing.size_bytes
        self._pending.append(payload)
        self.pending_bytes += len(payload)
        self.growing.add(batch, (payload,))

    def flush(self) -> None:
        """Write what was gathered, and close the file."""
        if self._pending:
            write_all(self.file(), self._pending, self._pending_at)
            self._pending = []
            self.pending_bytes = 0
        self.close()

    def truncate(self) -> File:
        """Write what was gathered, and cut what is after it."""
        self.flush()
        file = self.file()
        file.truncate(self.growing.size_bytes)
        return file

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
