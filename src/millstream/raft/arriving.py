"""An append that has arrived: parsed, held against this log, and cut to what the log has room for, before the core sees
it.

A core that has taken an append can't take it back, so everything that may be wrong with one is found here. Bad input is
``Rejected`` or ``Corruption``, and nothing has happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millstream.core.raft.messages import TermRun
from millstream.errors import Rejected
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.raft.stored import encoded
from millstream.storage.log.entries import SentEntries, check_place, parse_entries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.core.raft.messages import Append
    from millstream.core.raft.raft import Raft
    from millstream.model.replication import RaftPosition
    from millstream.storage.log.log import Log


def arrived(
    log: Log, core: Raft, append: Append, views: Sequence[memoryview]
) -> tuple[Append, SentEntries | None] | None:
    """What is to be stepped of an append whose record batches are ``views``; None if there is no room for any of it.

    Raises:
        Rejected, Corruption: it does not add up, or does not continue this log.
    """
    if not append.runs:
        return append, None
    entries = parse_entries(append.prev.position, append.runs, [encoded(one) for one in append.controls], views)
    _check_place(log, core, append, entries)
    while True:
        try:
            log.check_room(entries)
        except ArenaFull:
            if len(entries.entries) == 1:
                return None
            cut = entries.entries[len(entries.entries) // 2].position
            entries = entries.up_to(cut)
            append = _shortened(append, cut)
        else:
            return append, entries


def _check_place(log: Log, core: Raft, append: Append, entries: SentEntries) -> None:
    """Whether what this log lacks of an append continues it."""
    term = append.prev.term
    for following in (*[run.term for run in append.runs], append.term):
        if following < term:
            raise Rejected(f"the terms of an append fall from {term} to {following}", ErrorCode.CORRUPT_MESSAGE)
        term = following
    start = core.lacks_from(append)
    if start is not None:
        check_place(log, entries, start)


def _shortened(append: Append, end: RaftPosition) -> Append:
    """The append with the entries up to ``end``, which lies between two of them and after ``prev``."""
    runs: list[TermRun] = []
    for run in append.runs:
        if run.end_position >= end:
            runs.append(TermRun(end, run.term))
            break
        runs.append(run)
    controls = tuple(entry for entry in append.controls if entry.position < end)
    return msgspec.structs.replace(append, runs=tuple(runs), controls=controls)
