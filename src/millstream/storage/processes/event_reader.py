"""The worker's reads for event topics: metadata and descriptors without data, and selected ranges of data.

Results are written into the arena, as many as fit the command's spans. If the first event does not fit, the reply has
its size (``need``), and the shard repeats the command with more memory.
"""

from __future__ import annotations

import errno
import os
import threading
from array import array
from typing import TYPE_CHECKING

from millstream.errors import Corruption, MillstreamError
from millstream.format.events.batch import little_endian
from millstream.model.quantities import Offset
from millstream.storage.chunks import ChunkReads, WantedData, is_chunk_disk
from millstream.storage.messages.commands import DataFetched, EventsFed, Feed, FetchData

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.storage.chunks.open_files import ChunkFileCache
    from millstream.storage.disk import Buffer, Disk
    from millstream.telemetry.metrics import StatsSlab

_EVENT_BYTES = 8
"""Bytes per event in a feed's reply for the sizes of its metadata and its descriptor (u32 each)."""


class EventReader:
    """Reads of one shard's chunks; every method may run on several threads at once."""

    def __init__(self, disk: Disk, arena: memoryview, stats: StatsSlab | None) -> None:
        self._disk = disk
        self._arena = arena
        self._lock = threading.Lock()
        self._counted = [0, 0, 0]
        names = ("event_files_opened", "event_files_reused", "event_files_overshot")
        self._counters = [] if stats is None else [stats.counter(name) for name in names]

    def feed(self, command: Feed) -> EventsFed:
        """Read into the arena: metadata, sizes of metadata, sizes of descriptors, descriptors."""
        room = _room(command.spans)
        try:
            fed = self._reads(command.path, command.open_files_max).feed(
                Offset(command.offset), Offset(command.end_offset), command.events_max, command.max_bytes
            )
            if fed is None:
                return EventsFed(command.id, 0, f"{command.path}: event {command.offset} is not in its files")
            count = len(fed.metadata_sizes)
            while count > 1 and _fed_bytes(fed.metadata_sizes[:count], fed.descriptor_sizes[:count]) > room:
                count //= 2
            need = _fed_bytes(fed.metadata_sizes[:count], fed.descriptor_sizes[:count])
            if need > room:
                return EventsFed(command.id, 0, "", need=need)
            meta_bytes, desc_bytes = sum(fed.metadata_sizes[:count]), sum(fed.descriptor_sizes[:count])
            sizes = [little_endian(array("I", one[:count])) for one in (fed.metadata_sizes, fed.descriptor_sizes)]
            pieces = [fed.metadata[:meta_bytes], *sizes, fed.descriptors[:desc_bytes]]
            self._fill(command.spans, pieces)
            return EventsFed(
                command.id, 0, "", count=count, meta_bytes=meta_bytes, bytes=need, times=_times(fed.times, count)
            )
        except Corruption as fault:
            return EventsFed(command.id, 0, fault.message)
        except OSError as error:
            return EventsFed(command.id, error.errno or errno.EIO, "")

    def fetch(self, command: FetchData) -> DataFetched:
        """Read the selected data of events into the arena, one after the other without gaps."""
        room = _room(command.spans)
        wanted = [WantedData(Offset(offset), descriptor) for offset, descriptor in command.wanted]
        try:
            found = self._reads(command.path, command.open_files_max).fetch_data(wanted, min(command.max_bytes, room))
        except Corruption as fault:
            return DataFetched(command.id, 0, fault.message)
        except OSError as error:
            return DataFetched(command.id, error.errno or errno.EIO, "")
        results: list[tuple[int, int]] = []
        pieces: list[Buffer] = []
        taken = 0
        for one in found:
            if isinstance(one, MillstreamError):
                results.append((int(one.code), 0))
                continue
            size = sum(map(len, one))
            if taken + size > room:
                if not results:
                    return DataFetched(command.id, 0, "", need=size)
                break
            taken += size
            results.append((0, size))
            pieces += one
        self._fill(command.spans, pieces)
        return DataFetched(command.id, 0, "", results=results, bytes=taken)

    def _reads(self, path: str, open_files_max: int) -> ChunkReads:
        assert is_chunk_disk(self._disk), "events without a disk that keeps chunks"
        self._disk.files.set_capacity(os.path.dirname(path), open_files_max)
        self._count(self._disk.files)
        return ChunkReads(self._disk.files, [self._disk.segment(path).chunk])

    def _count(self, files: ChunkFileCache) -> None:
        """Add what the cache of file descriptors did since the last call, for reads and writes, to the metrics."""
        with self._lock:
            for place, now in enumerate((files.opened, files.reused, files.overshot)[: len(self._counters)]):
                self._counters[place].inc(now - self._counted[place])
                self._counted[place] = now

    def _fill(self, spans: Sequence[int], pieces: Sequence[Buffer]) -> None:
        ends = iter(spans)
        views = [self._arena[start:end] for start, end in zip(ends, ends, strict=True)]
        place = at = 0
        for piece in pieces:
            source = memoryview(piece)
            while len(source):
                if at == len(views[place]):
                    place, at = place + 1, 0
                count = min(len(views[place]) - at, len(source))
                views[place][at : at + count] = source[:count]
                source = source[count:]
                at += count


def _room(spans: Sequence[int]) -> int:
    return sum(spans[1::2]) - sum(spans[::2])


def _fed_bytes(metadata: Sequence[int], descriptors: Sequence[int]) -> int:
    return sum(metadata) + sum(descriptors) + _EVENT_BYTES * len(metadata)


def _times(times: Sequence[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """The timestamps of the first ``count`` events as (events, timestamp in ms)."""
    kept: list[tuple[int, int]] = []
    for events, timestamp in times:
        if count <= 0:
            break
        kept.append((min(events, count), timestamp))
        count -= events
    return kept
