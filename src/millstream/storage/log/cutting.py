"""Taking entries out of a log at either end, control entries, votes: changes that are notes in the write-ahead log.

A note is a record like any other: it is durable with its tick, replayed by recovery, and void after the checkpoint
that put its effect into the ``epochs`` file and the segments. Files go only after the note is durable, so a crash
shows the log before or after the change, and a start offset never moves back; readers see it when it is durable.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.errors import Rejected
from millstream.format.names import PRODUCERS_SUFFIX, offset_name
from millstream.format.wal import Kind
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import BytePosition, Offset
from millstream.storage.log.opening import position_of
from millstream.storage.messages.commands import Cut, Remove

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.epochs import StoredControl, StoredVote
    from millstream.iobuf import Fragment
    from millstream.model.quantities import Offset
    from millstream.model.replication import RaftPosition, Term
    from millstream.storage.log.open_log import OpenLog

_NO_PAYLOAD: Final = (0, 0, 0)
CONTROL_BYTES_MAX: Final = 65 * 1024
"""Of a control entry's payload: 64 KiB and what its encoding adds."""


def trim_prefix(log: OpenLog, offset: Offset, done: Callable[[], None] | None) -> None:
    """See ``Log.trim_prefix``."""
    if offset > log.next_offset:
        raise Rejected(f"{log.name}: offset {offset} is after the end {log.next_offset}", ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset <= log.start_offset:
        if done is not None:
            log.host.wal.when_durable(partial(log.guard, "trim", done))
        return

    def durable() -> None:
        log.ends.trim(offset)
        log.files.state_dirty = True
        drop_segments(log)
        if log.owner.on_trimmed is not None:
            log.owner.on_trimmed()
        if done is not None:
            done()

    log.host.wal.add_note(log, Kind.TRIM, offset, log.next_offset, _NO_PAYLOAD, durable)


def trim_local(log: OpenLog, offset: Offset) -> Callable[[], None]:
    """What ``Log.trim_local`` does."""
    log.files.local_wanted = max(log.files.local_wanted, offset)
    log.files.snapshots.wanted = True  # what the producers are is rebuilt from what is left
    log.files.state_dirty = True
    log.host.changed(log)

    def checkpointed() -> None:
        if not log.closed:
            log.files.local_start = max(log.files.local_start, offset)
            drop_segments(log)

    return checkpointed


def drop_segments(log: OpenLog) -> None:
    """Remove the segments in which no offset is left."""
    if log.closed or log.files.replacing:
        return  # compaction calls this when it has put a segment in the place of others
    active = log.refresh()
    start = max(
        log.ends.durable_start, log.files.local_start
    )  # a later one may have been asked for and not be durable yet
    if start >= log.next_offset and active.size_bytes:
        log.roll()
    dropped = log.files.segments.drop_front(start)
    for segment in dropped:
        segment.dead = True
    if dropped:
        log.files.forget_dead()
        log.host.change_files(log, lambda number: Remove(number, [segment.path for segment in dropped]))
        log.host.meters.deleted.inc(len(dropped))


def truncate_suffix(log: OpenLog, offset: Offset, done: Callable[[], None] | None) -> None:
    """What ``Log.truncate_suffix`` does: control entries in front of ``offset`` stay."""
    end = log.next_raft_position if offset >= log.next_offset else log.raft.controls.position_of(offset)
    truncate_to(log, end, done)


def truncate_to(log: OpenLog, end: RaftPosition, done: Callable[[], None] | None) -> None:
    """What ``Log.truncate_to`` does."""
    if end >= log.next_raft_position:
        if done is not None:
            log.host.wal.when_durable(partial(log.guard, "truncation", done))
        return
    offset = log.raft.controls.offset_at(end)
    if offset < log.start_offset or log.ends.cutting:
        raise AssertionError(
            f"{log.name}: cut to {offset}; it starts at {log.start_offset}, cutting: {log.ends.cutting}"
        )

    def durable() -> None:
        log.host.when_files_rest(log, partial(log.guard, "truncation", cut))

    def cut() -> None:
        log.ends.cutting = False
        if not log.closed:
            _cut(log, offset, end)
        if done is not None:
            done()

    log.host.wal.add_note(log, Kind.TRUNCATE, offset, end, _NO_PAYLOAD, durable, max(0, log.raft.term_before(end)))
    log.host.keep_note(log, keep=True)
    log.ends.cutting = True
    log.cache.close_open()


def _cut(log: OpenLog, offset: Offset, end: RaftPosition) -> None:
    """The note is durable: cut what is in memory, have the files cut."""
    host = log.host
    if offset >= log.next_offset:  # control entries after the last batch go, no byte of a segment does
        log.cut_to(offset, log.next_position, end)
        host.changed(log)
        host.keep_note(log, keep=False)
        return
    position = log.cache.position_of(offset)
    if position is None:
        # A cut that deep follows a change of leaders after a long absence: reading a few pages is no stall that counts.
        segment = log.files.segments.find(offset)
        assert segment is not None
        position = BytePosition(segment.stream + position_of(host.disk, segment.path, segment.base_offset, offset))
    _cut_memory(log, position)
    dropped = log.files.segments.drop_back(offset)
    for segment in dropped:
        segment.dead = True
    active = log.files.segments.active
    active.sealed = False
    active.entries = [value for entry in _triples(active.entries) if entry[0] < offset for value in entry]
    active.next_index = min(active.next_index, position - active.stream)
    log.files.forget_dead(active)
    log.cut_to(offset, position, end)
    gone = [segment.path for segment in dropped]
    gone += [
        f"{log.directory}/{offset_name(Offset(one), PRODUCERS_SUFFIX)}" for one in log.files.snapshots.drop(offset)
    ]
    log.behind.hold(position)

    def cut_files() -> None:
        log.host.change_files(log, lambda number: Remove(number, gone))
        log.host.change_files(
            log, lambda number: Cut(number, active.path, active.base_offset, position - active.stream)
        )
        host.keep_note(log, keep=False)
        log.behind.go_on(position)

    # Not while a checkpoint is about to say how long the segments are.
    host.when_no_checkpoint(partial(log.guard, "truncation", cut_files))


def _cut_memory(log: OpenLog, position: BytePosition) -> None:
    """Forget cached bytes after stream ``position``. They stay in place for the writer and running sends."""
    memory = log.host.memory
    for one in log.cache.cut(position):
        # The spans of a submitted tick may point here; what is appended later must not overwrite them.
        log.host.wal.when_durable(partial(memory.give_back, one))


def _triples(flat: list[int]) -> list[list[int]]:
    return [flat[i : i + 3] for i in range(0, len(flat), 3)]


def save_vote(log: OpenLog, vote: StoredVote, done: Callable[[], None]) -> None:
    """What ``Log.save_vote`` does."""

    def durable() -> None:
        log.raft.durable_vote = vote
        log.files.state_dirty = True
        done()

    log.host.wal.add_note(log, Kind.VOTE, vote.voted_for, log.next_raft_position, _NO_PAYLOAD, durable, vote.term)
    log.raft.vote = vote


def append_control(log: OpenLog, term: Term, payload: bytes, fragment: Fragment | None = None) -> StoredControl:
    """What ``Log.append_control`` does; ``fragment`` is memory for the payload, if the caller has it already."""
    if not len(payload) <= CONTROL_BYTES_MAX or term < log.raft.epoch or log.ends.cutting or log.closed:
        raise AssertionError(
            f"{log.name}: control entry of {len(payload)} bytes in term {term} after {log.raft.epoch},"
            f" cutting: {log.ends.cutting}, closed: {log.closed}"
        )
    position = log.next_raft_position
    offset = log.next_offset
    if not payload:
        log.host.wal.add_note(log, Kind.CONTROL, offset, position, _NO_PAYLOAD, None, term)
    else:
        fragment = fragment or log.host.arena.allocate(len(payload))
        fragment.view[: len(payload)] = payload
        start = fragment.offset
        place = (start, start + len(payload), crc32c(payload))
        try:
            log.host.wal.add_note(log, Kind.CONTROL, offset, position, place, fragment.release, term)
        except Exception:
            fragment.release()
            raise
    entry = log.raft.controls.add(offset, term, payload)
    if term > log.raft.epoch:
        log.begin_epoch(term, offset)
    log.files.state_dirty = True
    return entry
