"""What the worker does with segment files: write, cut, remove, sync, and the files beside them.

A file is *dirty* from its first write until a checkpoint has synced it; a directory from the moment a name in it
changed. The checkpoint works in an order in which every crash leaves a state that recovery can explain: it syncs the
segments, appends the index blocks that describe them, writes small files under temporary names, renames these, syncs
the directories, and last of all replaces the ``state`` files that make the write-ahead log's frames void. Many files
are synced with one ``syncfs``, few with a call each.

Nothing waits for most checkpoints; those pause between two files, and sync segments one after the other,
because a ``syncfs`` of hundreds keeps the write-ahead log from the disk for 12–40 ms. One ``syncfs`` follows,
because a descriptor that was opened again may not report an earlier error.

An index is derived from its segment. While an index is damaged or cannot be read, look-ups walk through more of the
segment and new entries wait in memory; the next checkpoint rebuilds the index from the segment. If the segment cannot
be read either, a later checkpoint or the next start tries again.

Every method runs to its end before it answers and raises OSError for what the disk says; ``worker`` turns that into
replies. Writing, cutting and removing happen on one thread, checkpoints on another, reads on others: the sets shared
between them have a lock. A second lock keeps a partition from being deleted while a checkpoint makes a file in it; a
checkpoint skips what is already removed: the shards that share a topic delete their partitions
at the same time, and the last of them its directory.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption
from millstream.format.names import DELETED_SUFFIX, SEGMENT_SUFFIX, TEMPORARY_SUFFIX, TOPIC_FILE, quarantine_elsewhere
from millstream.model.quantities import FilePosition, Offset, TimestampMs
from millstream.storage.disk import FileCache, exists, make_directories, read_text, remove_file, write_all
from millstream.storage.segments.bulk_writes import BulkWriter
from millstream.storage.segments.index import SegmentIndex, grow_index, index_path
from millstream.storage.throttle import Throttle
from millstream.storage.wal.state import write_wal_state
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.index import SegmentSummary
    from millstream.storage.disk import Disk
    from millstream.storage.messages.commands import Checkpoint, Cut, Write
    from millstream.storage.segments.broken_logs import BrokenLogs
    from millstream.storage.segments.read_faults import ReadFaults

SYNC_ALL_FILES: Final = 16
"""From so many files on, one syncfs is cheaper than a sync each (measured: a sync is about 0.15 ms, each waits)."""

_INDEXES_MAX: Final = 2000
_REMOVED_MAX: Final = 10_000


def label_topic(disk: Disk, directory: str, topic: str) -> bool:
    """Write the name of a topic into its directory unless it is there. True: a file was written and is to be synced."""
    label, text = f"{directory}/{TOPIC_FILE}", topic.encode() + b"\n"
    try:
        if disk.size(label) == len(text):  # not what a full disk took of it
            return False
    except FileNotFoundError:
        pass
    file = disk.open(label, create=True)
    try:
        write_all(file, [text], 0)
    finally:
        file.close()
    return True


class SyncFailed(OSError):
    """A sync of the whole file system failed. Any segment may be affected. The kernel counts its pages as clean
    now, so no later sync can be trusted to write them.
    """


class SegmentFiles:
    """Files of one shard's logs.

    Args:
        disk: where they are.
        data_dir: its path.
        arena: where payload lies.
        direct_bytes_min: see ``bulk_writes.BulkWriter``.
        faults: counts indexes that cannot be read.
    """

    def __init__(
        self, disk: Disk, data_dir: str, arena: memoryview, direct_bytes_min: int | None, faults: ReadFaults
    ) -> None:
        disk.watch(data_dir)
        self.throttle = Throttle()  # of checkpoints
        self.disk = disk
        self.files = FileCache(disk)
        self._data_dir = data_dir
        self._faults = faults
        self._bulk = BulkWriter(arena, direct_bytes_min)
        self._lock = threading.Lock()
        self._names = threading.Lock()  # taken before the other; held while a checkpoint makes one file, or one goes
        self._dirty: set[str] = set()
        self._dirty_directories: set[str] = set()
        self._indexes: OrderedDict[str, SegmentIndex] = OrderedDict()
        self._removed: OrderedDict[str, None] = OrderedDict()  # the latest; a running checkpoint may still name them

    # -- segments ------------------------------------------------------------------------------------------------------

    def write(self, command: Write) -> int:
        """Put the bytes in their place; returns how many."""
        path = command.path
        known = self._bulk.sums.take(path)
        try:
            file = self.files.acquire(path)
        except FileNotFoundError:
            if command.position:
                raise
            try:
                self._make_home(path, command.topic)
                file = self.files.acquire(path, create=True)
            finally:
                self._names_changed(os.path.dirname(path))
            with self._lock:
                self._removed.pop(path, None)
        try:
            written = self._bulk.write(file, command.spans, command.position)
        finally:
            self.files.release(file)
            # Not before: a checkpoint that took the path off in between would have synced nothing.
            with self._lock:
                self._dirty.add(path)
                if not command.position:
                    # A chunk has names made again that a crash had lost.
                    self._dirty_directories.add(os.path.dirname(path))
        entries = command.entries
        sums = self._bulk.sums.written(path, known, FilePosition(command.position), command.spans, entries[1::3])
        if entries:
            index = self.index(path, _base(path))
            with self._lock:
                for at, run_sum in zip(range(0, len(entries), 3), sums, strict=True):
                    offset, position, timestamp = entries[at : at + 3]
                    index.add(Offset(offset), position, TimestampMs(timestamp), run_sum)
        return written

    def _make_home(self, path: str, topic: str) -> None:
        """Create the partition's directory, and in the one above the file with the topic's name."""
        directory = os.path.dirname(path)
        parent = os.path.dirname(directory)
        make_directories(self.disk, directory)
        if topic and label_topic(self.disk, parent, topic):
            with self._lock:
                self._dirty.add(f"{parent}/{TOPIC_FILE}")

    def _names_changed(self, directory: str) -> None:
        """Have every name on the way to the files of ``directory`` synced by the next checkpoint, also one that is not
        its own: another shard may have made the upper ones a moment ago, or an attempt that then found the disk full.
        Not before they are made: a checkpoint that took the directories off in between would have synced nothing.
        """
        names = [directory]
        while len(names[-1]) > len(self._data_dir):
            names.append(os.path.dirname(names[-1]))
        with self._lock:
            self._dirty_directories.update(names)

    def cut(self, command: Cut) -> None:
        """Shorten a segment and its index."""
        self._bulk.sums.take(command.path)
        try:
            file = self.files.acquire(command.path)
        except FileNotFoundError:
            return  # nothing of it was written yet
        try:
            if file.size() > command.size_bytes:
                file.truncate(command.size_bytes)
                with self._lock:
                    self._dirty.add(command.path)
        finally:
            self.files.release(file)
        index = self.index(command.path, command.base_offset)
        self._unlink(index_path(command.path))  # it describes bytes that will be replaced
        with self._lock:
            index.cut(command.size_bytes)
            self._dirty_directories.add(os.path.dirname(command.path))

    def remove(self, path: str) -> None:
        """Delete a segment and its index; neither needs to exist."""
        self._bulk.sums.take(path)
        with self._names:
            self._unlink(path)
            self._unlink(index_path(path))
            # Not before: a read up to the last moment would leave it open for ever, and a checkpoint that took
            # the directory off in between would have synced nothing.
            self.files.forget(path)
            with self._lock:
                self._note_removed(path)
                self._dirty.discard(path)
                self._indexes.pop(path, None)
                self._dirty_directories.add(os.path.dirname(path))

    def _note_removed(self, path: str) -> None:
        self._removed[path] = None
        if len(self._removed) > _REMOVED_MAX:
            self._removed.popitem(last=False)

    def _unlink(self, path: str) -> None:
        try:
            self.disk.unlink(path)
        except FileNotFoundError:
            return

    def remove_directory(self, directory: str) -> None:
        """Delete a partition: first its name, durably, then its files; the topic's directory with the last
        partition. After an error of the disk it can be called again, and continues.
        """
        gone = directory + DELETED_SUFFIX
        with self._names:
            self._forget_directory(directory)
            names = None  # nothing was ever written, or it has the other name
            if exists(self.disk, directory):
                names = names_in(self.disk, directory, damaged=True)
                self.disk.rename(directory, gone)
                for name in names:
                    self.files.forget(f"{directory}/{name}")
        remove_file(self.disk, quarantine_elsewhere(directory))
        parent = os.path.dirname(directory)
        if names is not None or exists(self.disk, gone):
            self.disk.sync_directory(parent)
            remove_deleted(self.disk, gone)
        try:
            if self.disk.list(parent) != [TOPIC_FILE]:
                return
            self.disk.unlink(f"{parent}/{TOPIC_FILE}")
            self.disk.remove_directory(parent)
        except FileNotFoundError:
            pass  # another shard deleted the last partition at the same time, and was quicker
        with self._lock:
            self._dirty_directories.discard(parent)
            self._dirty.discard(f"{parent}/{TOPIC_FILE}")

    def swap_directory(self, directory: str, staged: str, swap: Callable[[], None]) -> None:
        """Let ``swap`` put the staged files of a log in the place of ``directory``. No running checkpoint names a
        file in it.
        """
        with self._names:
            names = names_in(self.disk, directory, damaged=True)
            self._forget_directory(directory)
            self._forget_directory(staged)
            swap()
            for name in names:
                self.files.forget(f"{directory}/{name}")
            with self._lock:
                self._removed.pop(directory, None)

    def _forget_directory(self, directory: str) -> None:
        """Let checkpoints skip the directory from now on."""
        inside = directory + "/"
        with self._lock:
            self._dirty.difference_update([path for path in self._dirty if path.startswith(inside)])
            for path in [path for path in self._indexes if path.startswith(inside)]:
                del self._indexes[path]
            self._dirty_directories.discard(directory)
            self._note_removed(directory)

    def forget_files(self, directory: str) -> list[str]:
        """Close the files of a log and drop its indexes, because they are about to change. Returns its segments."""
        with self._names:
            names = [name for name in names_in(self.disk, directory, damaged=True) if name.endswith(SEGMENT_SUFFIX)]
            paths = {f"{directory}/{name}" for name in names}
            with self._lock:
                known = [path for path in self._indexes if os.path.dirname(path) == directory]
                for path in known:
                    del self._indexes[path]
            paths.update(known)
            for path in paths:
                self.files.forget(path)
            return sorted(paths)

    def removed_directories(self) -> list[str]:
        """Directories of deleted partitions of which a checkpoint that was asked for may still name files."""
        with self._lock:
            return [path for path in self._removed if not path.endswith(SEGMENT_SUFFIX)]

    def forget_removed(self, directories: list[str]) -> None:
        """No checkpoint that was asked for names files in them: the partitions may come back."""
        with self._lock:
            for directory in directories:
                self._removed.pop(directory, None)

    def is_removed(self, directory: str) -> bool:
        """Whether a partition was deleted."""
        return directory in self._removed

    def _is_removed(self, path: str) -> bool:
        """Whether a file was deleted, or the partition that it belonged to."""
        return path in self._removed or os.path.dirname(path) in self._removed

    # -- indexes -------------------------------------------------------------------------------------------------------

    def index(self, path: str, base_offset: Offset) -> SegmentIndex:
        """The index of a segment, from memory or its file."""
        with self._lock:
            index = self._indexes.get(path)
            if index is not None:
                self._indexes.move_to_end(path)
                return index
        loaded = SegmentIndex.load(self.disk, path, base_offset)
        if loaded.errno:
            self._faults.failed(self._log_name(path), index_path(path), loaded.errno)
        with self._lock:
            index = self._indexes.setdefault(path, loaded)
            if len(self._indexes) > _INDEXES_MAX:
                for old, one in self._indexes.items():
                    if not one.pending and old != path:
                        del self._indexes[old]
                        break
            return index

    def _complete(self, index: SegmentIndex, path: str, size_bytes: int) -> bool:
        """Read from the segment what its index lacks. Returns whether that was possible."""
        read = SegmentIndex(index.base_offset, index.generation)
        try:
            grow_index(self.disk, path, read, size_bytes, 0)
        except (OSError, Corruption):
            return False  # a read of the segment fails with it, and it is logged
        with self._lock:
            index.complete(read, size_bytes)
        operator_log.at(self._log_name(path)).warning(
            "repaired: %s was damaged or could not be read and is rebuilt from the segment", index_path(path)
        )
        return True

    def _log_name(self, path: str) -> str:
        """The name of the log that a segment belongs to; its directory where the name is unknown."""
        directory = os.path.dirname(path)
        topic, partition = os.path.split(directory)
        try:
            return f"{read_text(self.disk, f'{topic}/{TOPIC_FILE}')}/{partition}"
        except OSError:
            return directory

    # -- checkpoint ----------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Make every write so far durable.

        Raises:
            OSError: a sync failed; the content of the disk is unknown, the process has to stop.
        """
        with self._lock:
            dirty, self._dirty = self._dirty, set()
        for done, path in enumerate(sorted(dirty)):
            if len(dirty) - done >= SYNC_ALL_FILES and not self.throttle.is_throttled:
                self._sync_all()
                return
            self.throttle.pause()
            try:
                file = self.files.acquire(path)
            except FileNotFoundError:
                continue  # deleted in the meantime
            try:
                file.sync()
            finally:
                self.files.release(file)
        if len(dirty) >= SYNC_ALL_FILES:
            self._sync_all()

    def _sync_all(self) -> None:
        try:
            self.disk.sync_all(self._data_dir)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror, error.filename) from error

    def write_index(self, path: str, summary: SegmentSummary) -> None:
        """Note in a segment's index how far it is durable. FileNotFoundError: another program has removed the segment,
        of which a descriptor that is still open says nothing.
        """
        with self._names:
            if self._is_removed(path) or not summary.size_bytes:
                return
            self.disk.size(path)
            index = self.index(path, summary.base_offset)
            if index.lacking and not self._complete(index, path, summary.size_bytes):
                return
            with self._lock:
                made = index.file_bytes == 0
                index.append_block(self.disk, path, summary)
                if made:
                    self._dirty_directories.add(os.path.dirname(path))
            if summary.sealed:
                file = self.disk.open(index_path(path))
                try:
                    file.sync()
                finally:
                    file.close()

    def replace_files(self, files: list[tuple[str, bytes]], broken: BrokenLogs) -> None:
        """Replace small files so that a crash leaves the old or the new; ``sync_directories`` makes it durable."""
        many = len(files) >= SYNC_ALL_FILES
        aside: list[str] = []
        for path, data in files:
            self.throttle.pause()
            if broken.run(path, self._write_aside, path, data, not many):
                aside.append(path)
        if many:
            self._sync_all()
        for path in aside:
            self.throttle.pause()
            broken.run(path, self._put_in_place, path)

    def _write_aside(self, path: str, data: bytes, sync: bool) -> None:
        """Write what is to replace a small file."""
        with self._names:
            if self._is_removed(path):
                return
            self._make_home(path, "")
            file = self.disk.open(path + TEMPORARY_SUFFIX, create=True)
            self._names_changed(os.path.dirname(path))
            try:
                file.truncate(0)
                write_all(file, [data], 0)
                if sync:
                    file.sync()
            finally:
                file.close()

    def _put_in_place(self, path: str) -> None:
        """Rename what `_write_aside` wrote: it replaces the file."""
        with self._names:
            if self._is_removed(path):
                return
            self.disk.rename(path + TEMPORARY_SUFFIX, path)
            with self._lock:
                self._dirty_directories.add(os.path.dirname(path))

    def sync_directories(self) -> None:
        """Make every name so far durable. A full disk may refuse that. Other than bytes, names survive a failed
        sync, so the next checkpoint tries again.
        """
        with self._lock:
            changed, self._dirty_directories = self._dirty_directories, set()
        if len(changed) >= SYNC_ALL_FILES:
            self._sync_all()
            return
        try:
            for directory in sorted(changed):
                try:
                    self.disk.sync_directory(directory)
                except (FileNotFoundError, NotADirectoryError):
                    continue  # deleted in the meantime
        except OSError:
            with self._lock:
                self._dirty_directories |= changed
            raise

    def finish(self, command: Checkpoint, broken: BrokenLogs) -> None:
        """What comes after ``sync``: indexes, small files, names, removals, and if no log is ``broken`` the state of
        the write-ahead log.
        """
        for path, summary in command.segments:
            self.throttle.pause()
            broken.run(path, self.write_index, path, summary)
        self.replace_files(command.files, broken)
        self.sync_directories()
        for path in command.remove:
            self.throttle.pause()
            broken.run(path, self._unlink, path)
        if command.state is not None and not broken.found:
            write_wal_state(self.disk, *command.state)


def names_in(disk: Disk, directory: str, *, damaged: bool = False) -> list[str]:
    """The names in a directory; none if it is not there. With ``damaged`` none either if its chunks are damaged.

    Raises:
        Corruption: chunks do not tell which segments they are.
        OSError: the disk failed.
    """
    try:
        return disk.list(directory)
    except FileNotFoundError:
        return []
    except Corruption:
        if damaged:
            return []
        raise


def remove_deleted(disk: Disk, directory: str) -> None:
    """Remove a directory that was renamed to be deleted, and the files in it."""
    for name in disk.list(directory):
        disk.unlink(f"{directory}/{name}")
    disk.remove_directory(directory)


def _base(path: str) -> Offset:
    return Offset(int(os.path.basename(path).partition(".")[0]))
