"""A replica whose files were lost or damaged, while the other replicas of its group have all of it.

A replica that was here before and finds no files, or finds that its durable files contradict each other, begins with an
empty log and a mark that says so: the file ``lost``. With the mark it counts for nothing (``core.raft.rejoining``)
until its leader has filled the log. Then the mark goes, and with it what was put aside:

::

    topics/<id>/3             what the leader sends; the mark until that is all
    topics/<id>/3.damaged     what was found, if something was: for a person, as long as it may be needed

Records that the write-ahead log still holds are no files: a replica counts as one with files only if they start with
the first entry of the log (``check_beginning``), which is a control entry where several replicas elect their leader.

The mark is durable before the log is opened, and goes over when files of the leader take the place of the directory,
so that a crash at any point leaves a replica that knows. Of what is damaged only the vote stays, if it can be read. A
second damage, before the first is made up for, leaves what was put aside first: it is the most.

A log of events is not put aside: it is not sent as files. Nor is that of a partition which several brokers held and
this one alone holds now: no other replica has what was in it. It is refused, and a person has it repaired.

An orderly stop notes where each log ended. A log whose files end before that has lost a segment, or all of them: it is
damaged. The only replica's is fenced (``opening.fence``), since its offsets would be given out again. After a crash
nothing says where the log of a single replica without files ended.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption
from millstream.format.epochs import LogState, StoredVote, decode_log_state, encode_log_state
from millstream.format.names import (
    DAMAGED_SUFFIX,
    DELETED_SUFFIX,
    EPOCHS_FILE,
    FAULT_FILE,
    LOST_FILE,
    PARTITION_LEVELS,
    SEGMENT_SUFFIX,
    staged_directory,
)
from millstream.format.wal import Kind
from millstream.model.quantities import Offset
from millstream.model.replication import RaftPosition
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import exists, read_file, remove_file, replace_file
from millstream.storage.log.opening import StateMissing, fence, load_log
from millstream.storage.segments.files import names_in, remove_deleted
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.wal import WalRecord
    from millstream.storage.disk import Disk
    from millstream.storage.log.opening import LoadedLog

NO_END: Final = Offset(0)
"""No orderly stop has noted where the log ended."""

_SIGNS: Final = (EPOCHS_FILE, LOST_FILE, FAULT_FILE)
_NO_OTHER: Final = "no other broker holds the partition"


def load_replica(
    disk: Disk,
    directory: str,
    now_ms: int,
    note: Callable[[str, str], None],
    *,
    replicated: bool,
    expected: bool,
    aside: bool,
    alone: bool = False,
    archived: bool = False,
    noted_end: Offset = NO_END,
) -> LoadedLog:
    """As ``load_log``, and for one of several replicas as the module says.

    Args:
        disk: where it is.
        directory: of its files.
        now_ms: wall clock.
        note: called with each repair: (kind, what).
        replicated: its group has several voters, or had.
        expected: it is one of several replicas and was here before, so that it must have files.
        aside: its damaged files are put aside.
        alone: several brokers held it, this one alone does now, and it was here before.
        archived: an object store has what its files lack.
        noted_end: where the last orderly stop left it, exclusive; `NO_END` after a crash.

    Raises:
        Corruption: the files contradict each other, and are not put aside.
        OSError: the disk failed.
    """
    mends = replicated and expected
    if mends and not has_log(names_in(disk, directory)):
        note("replica_lost", f"{directory} has no files; the other replicas are asked for what was in it")
        mark_lost(disk, directory, LogState())
    if alone and not has_log(names_in(disk, directory)):
        raise Corruption(f"{directory} has no files, and {_NO_OTHER}")
    try:
        loaded = load_log(disk, directory, now_ms, note, replicated=replicated, archived=archived)
        if alone and loaded.lost:
            raise Corruption(f"{directory}: its files were put aside as damaged, and {_NO_OTHER}")
        if mends and loaded.segments and not loaded.state.controls and not loaded.state.base.position:
            raise Corruption(f"{directory} has batches and not the control entry at the start of its log")
        check_end(disk, directory, loaded.next_offset, noted_end, fences=not (mends and aside))
        return loaded
    except Corruption as error:
        if not (mends and aside):
            raise
        try:
            put_aside(disk, directory, error.message, note)
        except OSError:
            raise error from None
        return load_log(disk, directory, now_ms, note, replicated=True)


def has_log(names: list[str]) -> bool:
    """Whether the files of a directory, by name, are those of a replica."""
    return any(name in _SIGNS or name.endswith(SEGMENT_SUFFIX) for name in names)


def check_beginning(directory: str, record: WalRecord) -> None:
    """Check the first write-ahead record of a replica without files: it must be the first of the whole log, too.

    Otherwise the files existed once and were lost: what the write-ahead log still has would pass for all there ever
    was.

    Raises:
        StateMissing: the log had something before the record.
    """
    before = record.base if record.kind == Kind.BATCH else record.last
    if before > 0 and record.kind != Kind.ADOPT:
        raise StateMissing(
            f"{directory} has no files, and the write-ahead log does not start with the log's first entry"
        )


def mark_lost(disk: Disk, directory: str, state: LogState) -> None:
    """Create an empty log that is marked. ``state`` has the vote, if that is known. Raises OSError."""
    make_directories_durably(disk, directory, PARTITION_LEVELS)
    replace_file(disk, f"{directory}/{LOST_FILE}", b"")
    if state != LogState():
        replace_file(disk, f"{directory}/{EPOCHS_FILE}", encode_log_state(state))


def begin_new(disk: Disk, directory: str) -> None:
    """Make the empty log of a replica that was never here, unless there is one. It has lost nothing. Raises OSError."""
    if has_log(names_in(disk, directory)):
        return
    make_directories_durably(disk, directory, PARTITION_LEVELS)
    replace_file(disk, f"{directory}/{EPOCHS_FILE}", encode_log_state(LogState()))


def put_aside(
    disk: Disk, directory: str, why: str, note: Callable[[str, str], None], vote: StoredVote | None = None
) -> None:
    """Put damaged files aside, and create an empty log with their vote; ``note`` is called. ``vote`` is newer than
    theirs, or `StoredVote` () if the newest is not known. Raises OSError.
    """
    note("replica_lost", f"{why}; the files are put aside, and the other replicas asked for what they had")
    if vote is None:
        try:
            vote = decode_log_state(read_file(disk, f"{directory}/{EPOCHS_FILE}")).vote
        except (OSError, Corruption):
            vote = StoredVote()  # the others are asked for the term, too
    aside = directory + DAMAGED_SUFFIX
    if exists(disk, aside):
        aside = directory + DELETED_SUFFIX
        if exists(disk, aside):
            remove_deleted(disk, aside)
    disk.rename(directory, aside)
    disk.sync_directory(os.path.dirname(directory))
    mark_lost(disk, directory, LogState(vote=vote))


def stage_lost(disk: Disk, directory: str, vote: StoredVote) -> str:
    """Make the empty log that takes the place of a damaged one (``segments.incoming``), and give its directory.

    Raises:
        OSError: it can't be made; what there is of it is removed by the next attempt, or the next start.
    """
    staged = staged_directory(directory, RaftPosition(0))
    if exists(disk, staged):
        remove_deleted(disk, staged)
    mark_lost(disk, staged, LogState(vote=vote))
    return staged


def unmark(disk: Disk, directory: str) -> None:
    """The log is whole again, and stays it after a crash: the next replica that loses its files counts on this one."""
    path = f"{directory}/{LOST_FILE}"
    try:
        remove_file(disk, path)
    except OSError as error:
        operator_log.warning("%s stays, and the next start asks the other replicas again: %s", path, error.strerror)


def check_end(disk: Disk, directory: str, end: Offset, noted_end: Offset, *, fences: bool) -> None:
    """Refuse a log that ends before the offset at which an orderly stop left it. With ``fences`` later starts refuse
    it, too.

    Raises:
        Corruption: it does.
    """
    if end < noted_end:
        reason = f"{directory}: offsets {end} to {noted_end - 1} were in a segment that is missing"
        if fences:
            fence(disk, directory, reason)
        raise Corruption(reason)
