"""The writer process of a shard: appends ticks to the write-ahead log and syncs them.

It is a process because a thread would share the interpreter lock with the reactor: on a saturated reactor a tick then
took 26–95 ms instead of 0.2 ms. It sleeps on an eventfd. The reactor rings it when a slot of ``storage.wal.ticks`` is
filled; the writer rings back when the frame is durable.

Frames bypass the page cache, through aligned memory. They are not read again before a crash, and a sync that must write
a page back costs more than the copy: for 8 KiB, 70–95 µs of CPU and 0.11–0.15 ms instead of 120–150 µs and 0.19–0.25
ms; for 2 MiB, half the CPU. If the file system does not support that, or the disk has larger blocks than frames
(EINVAL), frames go through the page cache.

Slots are used in turn, one at a time: the next frame is written after the sync of the one before. A failed write or
sync is reported in the slot's status word. The reactor then stops the shard, because after a failed sync the kernel may
mark pages clean that are not on disk. A write without space (on a copying file system) has promised nothing, so the
same slot is tried next. While the writer is at the disk, its slab is stamped, so that the supervisor can see a disk
that does not answer (``app.slow_disk``). The writer decides nothing. It ends when the reactor rings it with an empty
slot, or with its parent.
"""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING, Final

from millstream.format.names import wal_name
from millstream.format.wal import (
    FILE_HEADER_BYTES,
    FRAME_HEAD_BYTES,
    PADDING_BYTES_MAX,
    RECORD_BYTES,
    FileHeader,
    encode_file_header,
    pack_heads,
    padding_bytes,
)
from millstream.model.quantities import ShardId
from millstream.storage.disk import write_all
from millstream.storage.staging import Staging
from millstream.storage.wal.ticks import (
    SLOT_COUNT,
    STAGE_SYNC,
    STAGE_WRITE,
    W_DURABLE_SEQUENCE,
    W_FILE,
    W_FILE_BYTES,
    W_GENERATION,
    W_NEEDED_SEQUENCE,
    W_OPENS_FILE,
    W_PAYLOAD_BYTES,
    W_POSITION,
    W_RECORDS,
    W_SEQUENCE,
    W_SPANS,
    W_STATUS,
    W_SYNC_US,
    W_WRITE_US,
    found_no_room,
)
from millstream.telemetry.metrics import ENTERED_CELL

if TYPE_CHECKING:
    from millstream.storage.disk import Buffer, Disk, File
    from millstream.storage.wal.ticks import Slot, TickSlots
    from millstream.telemetry.metrics import StatsSlab

_ZEROS: Final = bytes(PADDING_BYTES_MAX)
_clock_ns = time.perf_counter_ns


class TickWriter:
    """Writes the frames of one shard. ``arena`` is the shard's memory in this process; ``direct`` bypasses the page
    cache if possible.
    """

    def __init__(self, disk: Disk, directory: str, shard_id: ShardId, arena: memoryview, *, direct: bool) -> None:
        self._disk = disk
        self._directory = directory
        self._shard_id = shard_id
        self._arena = arena
        self._files: dict[int, File] = {}
        self._staging = Staging() if direct else None  # None: through the page cache

    def write(self, slot: Slot) -> bool:
        """Make the slot's frame durable, or set its error in the status word. Returns whether the next slot follows."""
        words = slot.words
        begun_ns = _clock_ns()
        stage = STAGE_WRITE
        try:
            buffers = self._buffers(slot)
            position = words[W_POSITION]
            if words[W_OPENS_FILE]:
                buffers.insert(0, self._header(slot))
                position -= FILE_HEADER_BYTES
            file = self._write(words[W_FILE], buffers, position)
            written_ns = _clock_ns()
            stage = STAGE_SYNC
            file.sync()
        except OSError as error:
            words[W_STATUS] = (error.errno or errno.EIO) | stage << 16
            return not found_no_room(words[W_STATUS])
        words[W_WRITE_US] = (written_ns - begun_ns) // 1000
        words[W_SYNC_US] = (_clock_ns() - written_ns) // 1000
        words[W_STATUS] = 0
        return True

    def _write(self, number: int, buffers: list[Buffer], position: int) -> File:
        """Write a frame into a file, which the caller must sync."""
        if self._staging is not None:
            try:
                file = self._file(number)
                written = 0
                for piece in self._staging.pieces(buffers):
                    written += write_all(file, [piece], position + written)
                return file
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
            self._staging = None
            while self._files:
                self._files.popitem()[1].close()
        file = self._file(number)
        write_all(file, buffers, position)
        return file

    def _buffers(self, slot: Slot) -> list[Buffer]:
        """The frame's bytes in order; payload comes directly from the arena."""
        words = slot.words
        count = words[W_RECORDS]
        payload_bytes = words[W_PAYLOAD_BYTES]
        pack_heads(
            slot.frame,
            count,
            payload_bytes,
            words[W_GENERATION],
            words[W_SEQUENCE],
            words[W_DURABLE_SEQUENCE],
            words[W_NEEDED_SEQUENCE],
            words[W_POSITION],
        )
        table_end = FRAME_HEAD_BYTES + RECORD_BYTES * count
        arena = self._arena
        ends = iter(slot.spans[: words[W_SPANS]].tolist())
        buffers: list[Buffer] = [slot.frame[:table_end]]
        buffers += [arena[start:end] for start, end in zip(ends, ends, strict=True)]
        buffers.append(_ZEROS[: padding_bytes(count, payload_bytes, words[W_POSITION])])
        buffers.append(slot.frame[FRAME_HEAD_BYTES : table_end + FRAME_HEAD_BYTES])
        return buffers

    def _header(self, slot: Slot) -> bytes:
        words = slot.words
        header = FileHeader(self._shard_id, words[W_GENERATION], words[W_SEQUENCE], words[W_FILE_BYTES])
        return encode_file_header(header)

    def _file(self, number: int) -> File:
        file = self._files.get(number)
        if file is None:
            path = f"{self._directory}/{wal_name(number)}"
            file = self._disk.open(path) if self._staging is None else self._disk.open_direct(path)
            self._files[number] = file
        return file


def run_writer(writer: TickWriter, slots: TickSlots, go_fd: int, done_fd: int, stats: StatsSlab) -> int:
    """The process: one slot per ring, until an empty one."""
    cells = stats.cells
    turn = 0
    while True:
        os.eventfd_read(go_fd)
        slot = slots.slots[turn]
        if not slot.words[W_RECORDS]:
            return 0
        cells[ENTERED_CELL] = _clock_ns()
        done = writer.write(slot)
        cells[ENTERED_CELL] = 0
        os.eventfd_write(done_fd, 1)
        if done:
            turn = (turn + 1) % SLOT_COUNT
