"""Files of a replica when a person has decided whose log the partition continues from (`core.controller.cutting`).

::

    the replica that is named    3.damaged ──take_back──► 3 ──look, cut_back──► settle ──► opened, leads alone
    every other one              3 ──begin_empty──► 3.damaged, and an empty 3 that is marked lost: it is filled

``3.damaged`` is what a start has put aside (``storage.log.lost``); of the others it is what they had before the cut. It
stays until the replica is filled.

**Promises.** Each step may be repeated, and leaves what there is under one of the two names. A replica starts empty
once for a cut: its vote has the term of the cut from then on. **Crash.** At any point the next start finds the log, or
what was put aside and an empty log that is marked; the step is repeated. **Bad input.** What cannot be brought in order
is `Corruption`; the files stay.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from millstream.errors import Corruption
from millstream.format.epochs import LogState, RaftBase, StoredVote, decode_log_state, encode_log_state, epoch_at
from millstream.format.names import (
    DAMAGED_SUFFIX,
    DELETED_SUFFIX,
    EPOCHS_FILE,
    LOST_FILE,
    PARTITION_LEVELS,
    PRODUCERS_SUFFIX,
    QUARANTINE_FILE,
    SEGMENT_SUFFIX,
)
from millstream.model.quantities import Offset
from millstream.model.replication import NO_REPLICA, RaftPosition, Term
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import exists, read_file, replace_file
from millstream.storage.log.lost import has_log, mark_lost
from millstream.storage.log.opening import derive_state, live_segments, remove_segment
from millstream.storage.recovery.set_aside import bring_home, vote_set_aside
from millstream.storage.segments.files import names_in, remove_deleted
from millstream.storage.segments.incoming import newest_vote

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.controller.cuts import Cut
    from millstream.format.epochs import Epochs
    from millstream.storage.disk import Disk
    from millstream.storage.recovery.cut_back import Kept


def lost_with_copy(disk: Disk, directory: str) -> bool:
    """Whether the log was put aside, and what was put aside is there."""
    is_away = not exists(disk, directory) or exists(disk, f"{directory}/{LOST_FILE}")
    return is_away and exists(disk, directory + DAMAGED_SUFFIX)


def take_back(disk: Disk, directory: str) -> bool:
    """Let what was put aside be the log again; whether there was something. The log is not open. Raises OSError."""
    if not lost_with_copy(disk, directory):
        return False
    if exists(disk, directory):
        _out_of_the_way(disk, directory, directory + DELETED_SUFFIX)
    disk.rename(directory + DAMAGED_SUFFIX, directory)
    disk.sync_directory(os.path.dirname(directory))
    return True


def gives_way(disk: Disk, directory: str) -> bool:
    """Whether a partition has no log here, so that one from the object store may take its place. What was set aside of
    the write-ahead log is put aside, because the store has what of it was acknowledged. Raises OSError.
    """
    try:
        if has_log(names_in(disk, directory)):
            return False
    except Corruption:
        return False
    bring_home(disk, directory)
    if exists(disk, directory):
        aside = directory + DAMAGED_SUFFIX
        _out_of_the_way(disk, directory, directory + DELETED_SUFFIX if exists(disk, aside) else aside)
    return True


def begin_empty(disk: Disk, directory: str, cut: Cut, note: Callable[[str, str], None], *, learns: bool) -> bool:
    """Put the log of a replica aside that the cut does not name, and make an empty one that is marked lost; whether it
    was done now. No effect on one that has taken the cut, nor on one without files. ``learns``: it joined later.

    The log is not open, and the write-ahead log has nothing of it. Raises OSError.
    """
    bring_home(disk, directory)
    try:
        names = names_in(disk, directory)
        if not has_log(names) and QUARANTINE_FILE not in names:
            return False
    except Corruption:
        names = [SEGMENT_SUFFIX]  # its chunks are damaged: there is something to put aside
    state = stored_state(disk, directory)
    vote = newest_vote(StoredVote() if state is None else state.vote, vote_set_aside(disk, directory) or StoredVote())
    if vote.term >= cut.others_term:
        return False
    is_lost = LOST_FILE in names
    is_empty = QUARANTINE_FILE not in names and not any(name.endswith(SEGMENT_SUFFIX) for name in names)
    if state is not None:
        is_empty = is_empty and not (state.controls or state.base.position or state.start_offset)
    if learns and is_empty and not is_lost:
        return False
    if cut.done and vote == StoredVote():
        marked = LogState()  # it may have voted since the cut: all others are asked for the term
    else:
        marked = LogState(vote=StoredVote(cut.others_term, NO_REPLICA))
    note("replica_lost", f"{directory} is put aside: another replica was chosen to be the partition's log")
    if not is_empty:
        aside = directory + DAMAGED_SUFFIX
        if exists(disk, aside):
            aside = directory + DELETED_SUFFIX  # what was put aside first is the most
        _out_of_the_way(disk, directory, aside)
    mark_lost(disk, directory, marked)
    return True


def settle(
    disk: Disk,
    directory: str,
    kept: Kept,
    term: Term,
    stored: LogState | None,
    *,
    alone: bool = False,
) -> Offset:
    """After ``cut_back``: let what the log remembers beside its segments end where they do, and say where that is. The
    log counts as a replica again.

    Args:
        disk: where it is.
        directory: of its files.
        kept: what ``look`` has found.
        term: of a cut, below its term; no replica has led in it. With ``alone`` the log is led in a later term than
            this one and than each that its files know.
        stored: what the object store has of it, as the state of a log that ends there; None if nothing of the topic is
            archived.
        alone: no other broker holds the partition.

    What the store has counts, because it was committed. Files that end before it, or that an older leader wrote than
    what it has at their place, are removed.

    Raises:
        Corruption: it starts after its end, or there is a gap between what is archived and its files.
        OSError: the disk failed.
    """
    files = live_segments(disk, directory, names_in(disk, directory))
    state = stored_state(disk, directory)
    if state is not None and _was_derived(state):  # batches were replayed since
        state = msgspec.structs.replace(state, epochs=derive_state(disk, directory, files, kept.end_offset).epochs)
    if stored is not None:
        settled = _with_stored(disk, directory, files, kept, state, stored, term)
    elif state is None:
        settled = _derived(disk, directory, files, kept, term)
    else:
        settled = _ended(directory, state, files, kept)
    end = settled.base.offset if stored is not None else max(kept.end_offset, settled.files_start)
    if alone:
        settled = _in_newer_term(settled, state or settled, end, term)
    if settled != state:
        make_directories_durably(disk, directory, PARTITION_LEVELS)
        replace_file(disk, f"{directory}/{EPOCHS_FILE}", encode_log_state(settled))
    if stored is not None and settled.local_start == settled.base.offset:
        _remove_files(disk, directory)
    if exists(disk, f"{directory}/{LOST_FILE}"):
        disk.unlink(f"{directory}/{LOST_FILE}")
    disk.sync_directory(directory)
    return end


def _in_newer_term(settled: LogState, before: LogState, end: Offset, term: Term) -> LogState:
    """The state of a log that is led in a later term than ``term`` and all terms before it was cut. The term is noted
    at the end of the log, so that a start without a write after it knows the term, too.
    """
    epochs = tuple(one for one in settled.epochs if one[1] <= end)
    known = (term, before.vote.term, before.base.term, *(one[0] for one in (*before.epochs, *epochs)))
    newest = Term(max(known) + 1)
    base = settled.base
    if base.offset == end and base != before.base:
        base = RaftBase(end, base.position, newest, base.payload)
    vote = StoredVote(newest, NO_REPLICA)
    return msgspec.structs.replace(settled, epochs=(*epochs, (newest, end)), vote=vote, base=base)


def _with_stored(
    disk: Disk,
    directory: str,
    files: dict[int, str],
    kept: Kept,
    state: LogState | None,
    stored: LogState,
    term: Term,
) -> LogState:
    """What is archived, and after it what the files have. It ends in a term that no other log has, as `_derived`."""
    archived, payload = stored.local_start, stored.base.payload
    own = derive_state(disk, directory, files, kept.end_offset) if state is None else state
    vote = StoredVote() if state is None else state.vote
    first = max(own.local_start, Offset(min(files, default=kept.end_offset)))
    is_behind = kept.end_offset <= max(archived, stored.start_offset)
    if not files or is_behind or is_superseded(own.epochs, first, stored):
        end = max(archived, stored.start_offset)
        base = RaftBase(end, RaftPosition(end), term, payload)
        return LogState(stored.start_offset, stored.epochs, vote=vote, base=base, local_start=end)
    if first > max(archived, stored.start_offset):
        raise Corruption(f"{directory}: the object store ends at offset {archived}, and the files start at {first}")
    later = tuple(one for one in own.epochs if one[1] >= archived and one[1] <= kept.end_offset)
    epochs = (*stored.epochs, *(one for one in later if not stored.epochs or one[0] > stored.epochs[-1][0]))
    base = RaftBase(kept.end_offset, RaftPosition(kept.end_offset), term, payload)
    clean = Offset(min(own.clean_offset, kept.end_offset))
    return LogState(stored.start_offset, epochs, clean_offset=clean, vote=vote, base=base, local_start=first)


def is_superseded(epochs: Epochs, first: Offset, stored: LogState) -> bool:
    """Whether what the store has was written by a newer leader than the same offsets in a log with these epochs, whose
    files start at ``first``: then no batch in its files from there on was committed.
    """
    last = Offset(stored.local_start - 1)
    return first <= last and epoch_at(epochs, last) < epoch_at(stored.epochs, last)


def _remove_files(disk: Disk, directory: str) -> None:
    """Remove the segments of a log that is archived as a whole, and what it knew of producers where they ended."""
    for name in names_in(disk, directory):
        if name.endswith(SEGMENT_SUFFIX):
            remove_segment(disk, f"{directory}/{name}")
        elif name.endswith(PRODUCERS_SUFFIX):
            disk.unlink(f"{directory}/{name}")


def _derived(disk: Disk, directory: str, files: dict[int, str], kept: Kept, term: Term) -> LogState:
    """What the batches tell. Nothing tells where control entries were, so positions are not those of other replicas.
    The log ends in a term that no other log has: a replica that was not emptied does not match, and is filled.
    """
    state = derive_state(disk, directory, files, kept.end_offset)
    start = state.start_offset if files else kept.end_offset
    base = RaftBase(kept.end_offset, RaftPosition(kept.end_offset), term)
    return msgspec.structs.replace(state, start_offset=start, base=base)


def _was_derived(state: LogState) -> bool:
    """Whether a state may be of `_derived`: no elected log has as many positions as offsets."""
    return state.base.position == state.base.offset > 0 and not state.controls


def _ended(directory: str, state: LogState, files: dict[int, str], kept: Kept) -> LogState:
    end = kept.end_offset if files else state.files_start
    if state.files_start > end:
        raise Corruption(f"{directory}: the log starts at {state.files_start}, and nothing after it is sound")
    base = state.base
    if base.offset > end or _was_derived(state):
        base = RaftBase(end, RaftPosition(end + base.position - base.offset), base.term, base.payload)
    return msgspec.structs.replace(
        state,
        epochs=tuple(one for one in state.epochs if one[1] <= end),
        clean_offset=Offset(min(state.clean_offset, end)),
        base=base,
        controls=tuple(one for one in state.controls if one.offset <= end and base is state.base),
    )


def stored_state(disk: Disk, directory: str) -> LogState | None:
    """The ``epochs`` file of a log that is not open; None without one that can be read."""
    try:
        return decode_log_state(read_file(disk, f"{directory}/{EPOCHS_FILE}"))
    except (OSError, Corruption):
        return None


def _out_of_the_way(disk: Disk, directory: str, place: str) -> None:
    if exists(disk, place):
        remove_deleted(disk, place)
    disk.rename(directory, place)
    disk.sync_directory(os.path.dirname(directory))
