"""Files of a log that another replica sends: written beside the log, checked, and put in its place in one step.

::

    topics/<id>/3                      the log
    topics/<id>/3.1042.staged          what arrives, for the Raft position 1042 at which it ends
    topics/<id>/3.deleted              the log that was, for a moment

``IncomingLog`` writes what arrives: each batch is checked against its checksum before it is written, segments are
synced as they are sealed, and ``finish`` writes what goes beside them. Its segments have a generation of their own,
higher than any of the log, so that a path means the same bytes before and after. ``put_in_place`` is the step: a note
in the write-ahead log comes before it (``Kind.ADOPT``), so that a crash shows the old log until the note is durable,
and recovery takes the step once more after that. The vote of the replica goes over: it is the newest that either says.

A directory that was never put in place can be continued by the next start (``segments.received``); after some minutes
without a leader that sends the rest it is removed. That of an event topic is removed by the next start.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import Corruption
from millstream.format.epochs import StoredVote, decode_log_state, encode_log_state, epoch_at
from millstream.format.index import OFFSETS_PER_SEGMENT
from millstream.format.names import (
    DAMAGED_SUFFIX,
    DELETED_SUFFIX,
    EPOCHS_FILE,
    LOST_FILE,
    PARTITION_LEVELS,
    PRODUCERS_SUFFIX,
    offset_name,
    segment_name,
)
from millstream.format.producers import encode_producers
from millstream.format.segment import BATCH_HEADER_BYTES, WalkEnd, parse_batch
from millstream.model.quantities import Offset
from millstream.model.replication import NO_REPLICA
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import exists, read_file, replace_file, write_all
from millstream.storage.segments.files import remove_deleted
from millstream.storage.segments.index import Growing, SegmentIndex
from millstream.storage.segments.reads import Pieces
from millstream.wire.records import checksum

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.format.epochs import LogState
    from millstream.model.quantities import Offset
    from millstream.storage.disk import Disk, File
    from millstream.storage.segments.received import Received

_FIRST_GENERATION: Final = 1


class IncomingLog:
    """One log that is being received. For one thread at a time.

    Lifecycle: made when the first bytes are there, ``finish`` or ``close`` once.
    Invariant: everything before ``end_offset`` is written; what is sealed is synced.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        start: Offset,
        generation_min: int,
        segment_bytes: int,
        index_interval_bytes: int,
        chunk_is_full: Callable[[str], bool] | None = None,
        received: Received | None = None,
    ) -> None:
        """``start`` is the first offset of the files, ``generation_min`` larger than any generation of the log here.
        With ``chunk_is_full``, which takes a path, the segments are chunks, which have no generations. ``received`` is
        what is there already, to be continued; its own start and generation count then.

        Raises:
            OSError: the directory can't be made, or the last segment not be opened.
        """
        self._disk = disk
        self._directory = directory
        self._generation = 0 if chunk_is_full is not None else max(_FIRST_GENERATION, generation_min)
        self._chunk_is_full = chunk_is_full
        self._segment_bytes = segment_bytes
        self._index_interval = index_interval_bytes
        self._file: File | None = None
        self._epochs: list[tuple[int, Offset]] = []
        """Where the leader epoch of what was sent changes; it stands outside of the batches' checksums."""

        self._start = int(start)
        if received is not None:
            self._start, self._generation = int(received.start), received.generation
            self._index, self._growing = received.last_index, received.growing
            if self._growing.size_bytes:
                self._file = disk.open(self._path)
            return
        self._begin(self._start)
        if exists(disk, directory):
            remove_deleted(disk, directory)  # of an earlier attempt
        make_directories_durably(disk, directory, PARTITION_LEVELS)

    def _begin(self, base: int) -> None:
        self._index = SegmentIndex(Offset(base), self._generation)
        self._growing = Growing(self._index, 0, self._index_interval)

    @property
    def end_offset(self) -> int:
        """End (exclusive) of what was received."""
        return self._growing.end_offset

    def add(self, views: Sequence[memoryview], now_ms: int) -> None:
        """Write whole batches that follow.

        Raises:
            Corruption: they are no whole batches, do not follow, or do not match their checksums.
            OSError: they can't be written.
        """
        pieces = Pieces(list(views))
        limit = sum(map(len, views))
        at = 0
        while at < limit:
            try:
                batch = parse_batch(pieces.peek(at, BATCH_HEADER_BYTES), 0, at, limit)
            except WalkEnd as end:
                raise Corruption(f"byte {at} of what was sent: {end.reason}") from end
            data = pieces.views(at, batch.size)
            if checksum(data) != batch.crc:
                raise Corruption(f"the batch at offset {batch.base_offset} that was sent does not match its checksum")
            self._make_place(batch.base_offset, batch.last_offset, batch.size, now_ms)
            assert self._file is not None
            write_all(self._file, [*data], self._growing.size_bytes)
            self._growing.add(batch, data)
            if not self._epochs or batch.leader_epoch != self._epochs[-1][0]:
                self._epochs.append((batch.leader_epoch, Offset(batch.base_offset)))
            at += batch.size

    def _make_place(self, base_offset: int, last_offset: int, size: int, now_ms: int) -> None:
        growing = self._growing
        if base_offset < growing.end_offset and growing.size_bytes:
            raise Corruption(f"offset {base_offset} was sent, where offset {growing.end_offset} follows")
        if growing.size_bytes and (
            growing.size_bytes + size > self._segment_bytes
            or (self._chunk_is_full is not None and self._chunk_is_full(self._path))
            or last_offset - self._index.base_offset > OFFSETS_PER_SEGMENT
        ):
            self._seal()
        if self._file is None:
            if not growing.size_bytes and base_offset < self._index.base_offset:
                if self._index.base_offset != self._start:
                    raise Corruption(f"offset {base_offset} was sent, where offset {growing.end_offset} follows")
                self._begin(base_offset)  # the first batch holds the log's start
            self._growing.created_ms = now_ms
            self._file = self._disk.open(self._path, create=True)

    @property
    def _path(self) -> str:
        return f"{self._directory}/{segment_name(self._index.base_offset, self._generation)}"

    def _seal(self) -> None:
        if self._file is not None:
            self._file.sync()
            self._file.close()
            self._file = None
            self._index.replace(self._disk, self._path, self._growing.summary(sealed=True))
        self._begin(self._growing.end_offset)

    def finish(self, end: Offset, state: LogState, producers: tuple[int, bytes] | None) -> None:
        """Everything was sent: write what goes beside the segments, all of it durably.

        Raises:
            Corruption: the batches do not end at ``end``, or have other leader epochs than ``state`` says.
            OSError: it can't be written.
        """
        if self.end_offset != end:
            raise Corruption(f"what was sent ends at offset {self.end_offset}, the log at {end}")
        for epoch, offset in self._epochs:
            if epoch_at(state.epochs, offset) not in {-1, epoch}:
                raise Corruption(f"the batch at offset {offset} that was sent has leader epoch {epoch}")
        self._seal()
        if producers is not None:
            offset, data = producers
            path = f"{self._directory}/{offset_name(Offset(offset), PRODUCERS_SUFFIX)}"
            replace_file(self._disk, path, encode_producers(Offset(offset), data))
        replace_file(self._disk, f"{self._directory}/{EPOCHS_FILE}", encode_log_state(state))
        self._disk.sync_directory(self._directory)

    def close(self) -> None:
        """Give it up; the directory stays."""
        if self._file is not None:
            self._file.close()
            self._file = None


def newest_vote(*votes: StoredVote) -> StoredVote:
    """The newest of what a replica has promised: within a term it goes from no vote to one."""
    return max(votes, key=lambda vote: (vote.term, vote.voted_for != NO_REPLICA))


def put_in_place(disk: Disk, directory: str, staged: str, vote: StoredVote) -> None:
    """Put a staged log in the place of ``directory``, durably. After a crash or an error of the disk it continues when
    it is called again. ``vote`` is the replica's, as far as the caller knows.

    Raises:
        OSError: the disk does not do it.
    """
    aside = directory + DAMAGED_SUFFIX
    gone = directory + DELETED_SUFFIX
    parent = os.path.dirname(directory)
    if exists(disk, staged):
        path = f"{staged}/{EPOCHS_FILE}"
        state = _state(disk, staged)
        before = _state(disk, directory)
        if state is not None:
            newest = newest_vote(vote, state.vote, StoredVote() if before is None else before.vote)
            if newest != state.vote:
                replace_file(disk, path, encode_log_state(msgspec.structs.replace(state, vote=newest)))
        lost = exists(disk, f"{directory}/{LOST_FILE}")
        if lost:
            replace_file(disk, f"{staged}/{LOST_FILE}", b"")  # until the leader's whole log is here
        if not lost and exists(disk, f"{staged}/{LOST_FILE}") and exists(disk, directory) and not exists(disk, aside):
            disk.rename(directory, aside)  # damaged: kept until the leader has made up for it
        elif exists(disk, directory):
            if exists(disk, gone):
                remove_deleted(disk, gone)
            disk.rename(directory, gone)
            disk.sync_directory(parent)
        disk.rename(staged, directory)
    disk.sync_directory(parent)
    if exists(disk, gone):
        remove_deleted(disk, gone)


def _state(disk: Disk, directory: str) -> LogState | None:
    """What an ``epochs`` file says; None if it is missing or damaged, which the opening of the log finds."""
    try:
        return decode_log_state(read_file(disk, f"{directory}/{EPOCHS_FILE}"))
    except (FileNotFoundError, Corruption):
        return None
