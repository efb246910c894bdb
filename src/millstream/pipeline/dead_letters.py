"""Dead letters that have been replayed leave their table, after their rows are in the other one.

A replay is two commits: the rows go into the table with a record that names the places of their dead letters, then
those dead letters are removed. A crash in between leaves records that are in both tables; ``finish_replay`` removes
them, and everything that opens the tables calls it first. Both commits have a guard, so twice is once.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from millstream.pipeline.attempt import attempted
from millstream.pipeline.tables.table import CommitRecord, RecordOffsets, Table

REPLAY_SUFFIX: Final = "~replay"
"""After a sink's name it names the writer of replayed rows; a declared name cannot have it."""
REPLAY_QUERY: Final = "replay"
"""All replays of a sink count their commits together."""


def encode_record_offsets(record_offsets: RecordOffsets) -> str:
    """Places as a record's ``offsets``."""
    return msgspec.json.encode(record_offsets).decode()


def finish_replay(table: Table, letters: Table, owner: str, pause: Callable[[float], None]) -> None:
    """Remove the dead letters of the last replay into ``table``, if a crash has left them.

    Args:
        table: has the replayed rows.
        letters: their dead letters; prepared.
        owner: pipeline and sink, without the suffix.
        pause: waits so many seconds between attempts.

    Raises:
        Unavailable: they could not be removed.
        OutcomeUnknown: they may have been removed; the next attempt finds out.
    """
    owner += REPLAY_SUFFIX
    done = table.committed(owner, REPLAY_QUERY)
    removed = letters.committed(owner, REPLAY_QUERY)
    if done is None or (removed is not None and removed >= done):
        return
    record = table.last(owner)
    if record is not None:
        remove_dead_letters(letters, record, pause)


def remove_dead_letters(letters: Table, record: CommitRecord, pause: Callable[[float], None]) -> None:
    """Remove the dead letters that a replay's record names.

    Raises:
        Unavailable, OutcomeUnknown: as ``finish_replay``.
    """
    record_offsets = msgspec.json.decode(record.offsets, type=RecordOffsets)
    attempted(letters, record, lambda: letters.remove(record, record_offsets), pause)
