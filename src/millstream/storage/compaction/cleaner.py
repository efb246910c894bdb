"""The work of compaction: reads sealed segments, gathers keys, writes the surviving records into one file beside them,
and renames it.

::

    GatherKeys     the dirty part's keys, in a buffer of fixed size     → how far it got
    Rewrite        some segments → <base>.<generation>.log.cleaned, .index.cleaned, both synced
    PutRewritten   index renamed, segment renamed, directory synced     the one moment at which anything changes

Nothing that exists is written to or removed here. The shard removes the old files some time after it reads the new one,
so that running readers can finish. A crash before the rename leaves a ``.cleaned`` file, which the next opening
removes. After the rename there is a segment of a higher generation, and the next opening removes the ones that it
replaces. ``core.compaction`` decides which record survives, ``format.compacted`` rewrites batches.

Every batch that is read must match its checksum and follow the one before. A batch that does not ends the pass with a
fault that names file, byte and offset; nothing was changed.

It runs in its own process at the lowest priority, limited to a share of a core and to
``log.cleaner.io.max.bytes.per.second`` (``Pace``).
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.core.compaction import OngoingTransactions, Pass, header_stays, horizon_to_note, marker_goes, survives
from millstream.core.key_map import KeyMap
from millstream.format.compacted import delete_horizon_ms, emptied, filtered, records_of, walk_records
from millstream.format.epochs import epoch_at
from millstream.format.names import CLEANED_SUFFIX
from millstream.format.segment import BATCH_HEADER_BYTES, parse_batch
from millstream.model.quantities import Offset, ProducerId
from millstream.storage.disk import read_at, write_all
from millstream.storage.messages.commands import (
    Command,
    EndPass,
    GatherKeys,
    Interrupt,
    KeysGathered,
    PutRewritten,
    Reply,
    Rewrite,
    Rewritten,
    RewrittenPut,
    Source,
)
from millstream.storage.no_room import once_there_is_room
from millstream.storage.segments.index import Growing, SegmentIndex, index_path
from millstream.telemetry.log import log as operator_log
from millstream.wire.errors import BatchError
from millstream.wire.records import batch_crc_ok, parse_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from millstream.format.compacted import RawRecord
    from millstream.format.index import SegmentSummary
    from millstream.storage.disk import Buffer, Disk
    from millstream.wire.records import BatchHeader

_CHUNK_BYTES: Final = 1024 * 1024
_SALT_BYTES: Final = 32
_LASTING: Final = frozenset({errno.EIO, errno.ENOENT, errno.EBADMSG, errno.EUCLEAN})
"""Errors of a file that a retry will not read either."""


class DamagedSegment(Exception):
    """An invalid batch in a segment."""


class Pace:
    """The speed limit of the cleaner. ``wait`` sleeps for the given seconds and returns whether the work is
    cancelled.
    """

    def __init__(self, wait: Callable[[float], bool]) -> None:
        self.wait = wait
        self._busy_s = time.thread_time()
        self.limit(float("inf"), 100)

    def limit(self, bytes_per_second: float, cpu_percent: int) -> None:
        """Set the limits; they apply until the next call."""
        self._bytes_per_second = bytes_per_second
        self._idle_per_busy = 100 / cpu_percent - 1

    def spent(self, size_bytes: int) -> None:
        """Bytes were read or written: pause according to bytes and CPU time.

        Raises:
            OSError: ECANCELED, the work is cancelled.
        """
        busy_s = time.thread_time()
        rest_s = max((busy_s - self._busy_s) * self._idle_per_busy, size_bytes / self._bytes_per_second)
        self._busy_s = busy_s
        if self.wait(rest_s):
            raise OSError(errno.ECANCELED, "compaction is given up")


class Cleaner:
    """Executes one command at a time. It knows no process and no socket, so that tests can call it directly."""

    def __init__(self, disk: Disk, pace: Pace) -> None:
        self._disk = disk
        self._pace = pace
        self._keys: KeyMap | None = None
        self._buffer: mmap.mmap | None = None
        self._end_offset = 0
        self._aborted = _Aborted(())
        self._ongoing = OngoingTransactions()

    def carry_out(self, command: Command) -> Reply | None:
        """Execute the command. Returns its reply, if it has one. What raises in a pass over one log ends that pass: the
        log is served and not compacted. If it raises while a file gets its name, it ends that log. What is left over of
        a pass is removed by the next opening.
        """
        try:
            return self._carry_out(command)
        except Exception as error:
            operator_log.exception("compaction has met what no pass meets")
            fault = f"{type(error).__name__}: {error}"
            if isinstance(command, GatherKeys):
                return KeysGathered(command.id, 0, Offset(0), 0, 0, fault)
            if isinstance(command, Rewrite):
                return Rewritten(command.id, 0, None, 0, 0, 0, fault)
            if isinstance(command, PutRewritten):
                return RewrittenPut(command.id, 0, named=False, fault=fault)
            if isinstance(command, EndPass):
                return None
            raise

    def _carry_out(self, command: Command) -> Reply | None:
        match command:
            case GatherKeys():
                return self._gather(command)
            case Rewrite():
                return self._rewrite(command)
            case PutRewritten():
                return self._put(command)
            case EndPass():
                self.forget()
                if command.path:
                    self._remove(command.path)
                return None
            case Interrupt():
                return None  # it came too late: nothing is in progress
            case _:
                raise AssertionError(f"the cleaner was sent {command}")

    def forget(self) -> None:
        """Release the memory for keys."""
        if self._keys is not None and self._buffer is not None:
            self._keys.release()
            self._buffer.close()
        self._keys = self._buffer = None

    # -- keys ----------------------------------------------------------------------------------------------------------

    def _gather(self, command: GatherKeys) -> KeysGathered:
        self.forget()
        self._pace.limit(command.bytes_per_second, command.cpu_percent)
        self._buffer = mmap.mmap(-1, command.buffer_bytes)
        self._keys = KeyMap(memoryview(self._buffer), command.load_percent / 100, os.urandom(_SALT_BYTES))
        self._end_offset = command.first_offset
        self._aborted = _Aborted(command.aborted)
        self._ongoing = OngoingTransactions()
        size = 0
        try:
            for source in command.sources:
                size += source.size_bytes
                if not self._gather_from(source, command.first_offset):
                    break
                self._end_offset = source.end_offset
        except OSError as error:
            number, fault = _failure_of(error)
            return KeysGathered(command.id, number, Offset(0), 0, size, fault)
        except DamagedSegment as damage:
            return KeysGathered(command.id, 0, Offset(0), 0, size, str(damage))
        return KeysGathered(command.id, 0, self._end_offset, self._keys.count, size, "")

    def _gather_from(self, source: Source, first_offset: int) -> bool:
        """Gather the keys of one segment, in whole batches. False if there is no room for more."""
        assert self._keys is not None
        put = self._keys.put
        for header, batch in self._batches(source):
            base = header.base_offset
            if base + header.last_offset_delta < first_offset:
                continue
            if not header.is_control and not self._aborted.holds(header):
                for record in _records(source, header, batch):
                    offset = base + record.offset_delta
                    if record.key is not None and offset >= first_offset and not put(record.key, offset):
                        return False
            self._end_offset = header.next_offset
        return True

    # -- rewriting -----------------------------------------------------------------------------------------------------

    def _rewrite(self, command: Rewrite) -> Rewritten:
        try:
            output = _Output(self._disk, command, self._pace)
            try:
                for place, source in enumerate(command.sources):
                    self._rewrite_one(source, output, last=place == len(command.sources) - 1)
                summary = output.finish(command.sources[-1].end_offset)
            finally:
                output.close()
        except (OSError, DamagedSegment) as error:
            self._remove(command.path)
            number, fault = _failure_of(error) if isinstance(error, OSError) else (0, str(error))
            return Rewritten(command.id, number, None, 0, 0, 0, fault)
        size = sum(source.size_bytes for source in command.sources)
        return Rewritten(command.id, 0, summary, size, output.records, output.gone, "", output.emptied)

    def _rewrite_one(self, source: Source, output: _Output, *, last: bool) -> None:
        """Append the surviving records of one segment to the output."""
        assert self._keys is not None
        command = output.command
        one = Pass(self._end_offset, command.now_ms, command.delete_retention_ms)
        aborted = _Aborted(command.aborted)
        left = source.size_bytes
        for header, batch in self._batches(source):
            left -= header.size
            epoch = epoch_at(command.epochs, Offset(header.base_offset))
            if epoch not in (-1, header.leader_epoch):
                what = f"has leader epoch {header.leader_epoch} where {epoch} was written"
                raise _damaged(source, header, what)
            if header.base_offset >= one.end_offset or (header.is_control and not header.is_transactional):
                output.add(batch, header.record_count)
                continue
            if header.is_control:
                try:
                    self._rewrite_marker(
                        header, batch, output, one, listed=aborted.ends_at(header), end=last and not left
                    )
                except BatchError as error:
                    raise _damaged(source, header, error.message) from error
                continue
            if header.is_transactional:
                self._ongoing.batch(ProducerId(header.producer_id))
            kept, count = None, 0
            if not aborted.holds(header):
                try:
                    kept, count = _filter(header, batch, self._keys, one)
                except BatchError as error:
                    raise _damaged(source, header, error.message) from error
            output.gone += header.record_count - count
            if kept is not None:
                output.add(kept, count)
            elif header_stays(
                Offset(header.last_offset), command.producers.get(header.producer_id), last_of_segment=last and not left
            ):
                output.add(emptied(header), 0)

    def _rewrite_marker(
        self, header: BatchHeader, batch: memoryview, output: _Output, one: Pass, *, listed: bool, end: bool
    ) -> None:
        """Append a transaction's marker to the output, unless it goes. ``end``: the segment ends with it, so it stays.
        Once nothing else is left of the transaction, its batch notes a delete horizon.
        """
        if not self._ongoing.marker(ProducerId(header.producer_id)):
            output.add(batch, header.record_count)
            return
        if listed:
            output.emptied.append(header.base_offset)
        horizon_ms = delete_horizon_ms(header)
        fences = output.command.marked.get(header.producer_id) == header.producer_epoch
        if not end and marker_goes(horizon_ms, listed=listed, fences=fences, one=one):
            output.gone += header.record_count
            return
        kept, count = filtered(
            header,
            batch,
            lambda _: True,
            lambda _: horizon_to_note(tombstones=True, delete_horizon_ms=horizon_ms, one=one),
        )
        assert kept is not None
        output.add(kept, count)

    def _batches(self, source: Source) -> Iterator[tuple[BatchHeader, memoryview]]:
        """The valid batches of a segment."""
        file = self._disk.open(source.path)
        try:
            position = 0
            expected = 0
            wanted = _CHUNK_BYTES
            while position < source.size_bytes:
                size = min(wanted, source.size_bytes - position)
                chunk = memoryview(read_at(file, position, size))
                self._pace.spent(len(chunk))
                if len(chunk) < size:
                    what = f"the file ends at byte {position + len(chunk)}, {source.size_bytes} were written"
                    raise DamagedSegment(f"{source.path}: {what}")
                at = 0
                while len(chunk) - at >= BATCH_HEADER_BYTES:
                    header = _header(source, chunk, at, position + at, expected)
                    if at + header.size > len(chunk):
                        break
                    batch = chunk[at : at + header.size]
                    if not batch_crc_ok(batch):
                        raise _damaged(source, header, f"the batch at byte {position + at} fails its checksum")
                    yield header, batch
                    expected = header.next_offset
                    at += header.size
                if not at:
                    if len(chunk) == source.size_bytes - position:
                        raise DamagedSegment(f"{source.path}: byte {position}: the last batch is not whole")
                    wanted *= 2
                else:
                    wanted = _CHUNK_BYTES
                position += at
        finally:
            file.close()

    # -- names ---------------------------------------------------------------------------------------------------------

    def _put(self, command: PutRewritten) -> RewrittenPut:
        path = command.path
        named = False
        try:
            self._disk.rename(index_path(path) + CLEANED_SUFFIX, index_path(path))
            self._disk.rename(path + CLEANED_SUFFIX, path)
            named = True
            # The name is taken, so the rename cannot be undone.
            sync = partial(self._disk.sync_directory, os.path.dirname(path))
            once_there_is_room(sync, f"{path} could not be synced", self._pace.wait)
        except OSError as error:
            return RewrittenPut(command.id, error.errno or errno.EIO, named)
        return RewrittenPut(command.id, 0, named)

    def _remove(self, path: str) -> None:
        """Remove a file that was not put in place. If that fails, the next opening removes it."""
        for name in (path, index_path(path)):
            try:
                self._disk.unlink(name + CLEANED_SUFFIX)
            except OSError:
                continue


class _Aborted:
    """Which batches belong to aborted transactions."""

    __slots__ = ("_markers", "_spans")

    def __init__(self, aborted: Iterable[tuple[int, int, int]]) -> None:
        self._spans: dict[int, list[tuple[int, int]]] = {}
        self._markers: set[int] = set()
        for producer_id, first, marker in aborted:
            self._markers.add(marker)
            self._spans.setdefault(producer_id, []).append((first, marker))

    def holds(self, header: BatchHeader) -> bool:
        spans = self._spans.get(header.producer_id) if self._spans and header.is_transactional else None
        return spans is not None and any(first <= header.base_offset < marker for first, marker in spans)

    def ends_at(self, header: BatchHeader) -> bool:
        """Whether the batch is the marker of an aborted transaction."""
        return header.base_offset in self._markers


class _Output:
    """The segment that is being written beside the others, with its index."""

    def __init__(self, disk: Disk, command: Rewrite, pace: Pace) -> None:
        self.command = command
        self.records = self.gone = 0
        self.emptied: list[int] = []
        """Markers of aborted transactions of which nothing else is left."""
        self._disk = disk
        self._pace = pace
        self._index = SegmentIndex(command.base_offset, command.generation)
        self._growing = Growing(self._index, command.created_ms, command.index_interval)
        self._pending: list[Buffer] = []
        self._pending_bytes = self._written = 0
        self._file = disk.open(command.path + CLEANED_SUFFIX, create=True)
        self._file.truncate(0)

    def add(self, batch: memoryview | bytes, records: int) -> None:
        """Append a batch."""
        self.records += records
        size = len(batch)
        self._growing.add(parse_batch(batch, 0, 0, size), (batch,))
        self._pending.append(batch)
        self._pending_bytes += size
        if self._pending_bytes >= _CHUNK_BYTES:
            self._flush()

    def _flush(self) -> None:
        write_all(self._file, self._pending, self._written)
        self._written += self._pending_bytes
        self._pace.spent(self._pending_bytes)
        self._pending, self._pending_bytes = [], 0

    def finish(self, end_offset: int) -> SegmentSummary:
        """Make the file durable under its temporary name."""
        self._flush()
        self._file.sync()
        if self._growing.end_offset != end_offset:
            raise AssertionError(f"{self._file.path} ends at {self._growing.end_offset}, not at {end_offset}")
        summary = self._growing.summary(sealed=True)
        file = self._disk.open(index_path(self.command.path) + CLEANED_SUFFIX, create=True)
        try:
            file.truncate(0)
            write_all(file, [self._index.encode(summary)], 0)
            file.sync()
        finally:
            file.close()
        return summary

    def close(self) -> None:
        self._file.close()


def _filter(header: BatchHeader, batch: memoryview, keys: KeyMap, one: Pass) -> tuple[memoryview | bytes | None, int]:
    """The surviving part of a batch."""
    horizon_ms = delete_horizon_ms(header)
    base = header.base_offset

    def stays(record: RawRecord) -> bool:
        # A record without a key was written before its topic was compacted. No record can ever replace it.
        return (record.key is not None or base + record.offset_delta >= one.end_offset) and survives(
            base + record.offset_delta,
            -1 if record.key is None else keys.get(record.key),
            has_value=record.has_value,
            delete_horizon_ms=horizon_ms,
            one=one,
        )

    return filtered(
        header,
        batch,
        stays,
        lambda tombstones: horizon_to_note(tombstones=tombstones, delete_horizon_ms=horizon_ms, one=one),
    )


def _records(source: Source, header: BatchHeader, batch: memoryview) -> Iterator[RawRecord]:
    try:
        yield from walk_records(records_of(header, batch), header)
    except BatchError as error:
        raise _damaged(source, header, error.message) from error


def _header(source: Source, chunk: memoryview, at: int, position: int, expected: int) -> BatchHeader:
    try:
        header = parse_header(chunk, at)
    except BatchError as error:
        raise DamagedSegment(f"{source.path}: byte {position}: {error.message}") from error
    if header.base_offset < expected or header.last_offset_delta < 0 or position + header.size > source.size_bytes:
        raise DamagedSegment(f"{source.path}: byte {position}: no batch with an offset from {expected} on")
    return header


def _failure_of(error: OSError) -> tuple[int, str]:
    """The errno of a reply, and the fault of the file if a retry is useless."""
    number = error.errno or errno.EIO
    return number, f"{error.filename}: {os.strerror(number)}" if number in _LASTING else ""


def _damaged(source: Source, header: BatchHeader, what: str) -> DamagedSegment:
    return DamagedSegment(f"{source.path}: offset {header.base_offset}: {what}")
