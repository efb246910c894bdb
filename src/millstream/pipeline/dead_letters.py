"""The table of dead letters, after its letters were added: none of them twice, and what a replay does with them.

Dead letters that have been replayed leave their table, after their rows are in the other one. A replay is two commits:
the rows go into the table with a record that names the places of their dead letters, then those dead letters are
removed. A crash in between leaves records that are in both tables; ``finish_replay`` removes them, and everything that
opens the tables calls it first. Both commits have a guard, so twice is once.

The table of rows may be set back by its owner, and the dead letters are not set back with it. What its batches rejected
since is rejected again when they are sent again, and would be there twice: ``Sent`` knows it. Rows of a replay are
then in neither table: ``give_back`` brings their dead letters back from the versions in which they still were.
"""

import contextlib
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from millstream.errors import Rejected
from millstream.pipeline.attempt import attempted
from millstream.pipeline.files import FileWriter, WrittenFile
from millstream.pipeline.layout import conform
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.pipeline.state import Offsets
from millstream.pipeline.tables.guard import REPLAY_SUFFIX, offsets_of, reaches
from millstream.pipeline.tables.table import CommitRecord, RecordOffsets, Table

_LOG: Final = logging.getLogger("millstream.pipeline")
REPLAY_QUERY: Final = "replay"
"""All replays of a sink count their commits together."""


def letter_marks(letters: Any, *, reasons: bool = False) -> list[int]:
    """A number for each dead letter that tells its record from others; with ``reasons``, also why it is one."""
    names = [*DEAD_LETTER_SCHEMA.names[:6], *(["error"] if reasons else [])]
    columns = [
        letters.column(name).cast(pa.int64() if name == "timestamp" else DEAD_LETTER_SCHEMA.field(name).type)
        for name in names
    ]
    return [hash(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]


def unseen(letters: Any, seen: set[int]) -> Any:
    """The dead letters whose records are not in ``seen``, each once; they are added to it."""
    fresh = [not (mark in seen or seen.add(mark)) for mark in letter_marks(letters)]
    return letters.filter(pa.array(fresh, pa.bool_()))


class Sent:
    """The dead letters of a sink, and which of them are in their table already, of records that are read again.

    The sink's own record in that table says how far its dead letters have been sent (``reached``). A sink that is not
    that far reads records again. ``schema`` is that of the table's files, None before it is open.
    """

    def __init__(self, table: Table, owner: str, *, always: bool) -> None:
        """``always``: the sink does not read in order, as a backfill."""
        self.table = table
        self.schema: Any = None
        self._owner = owner
        self._always = always
        self._known: frozenset[int] | None = None

    def open(self) -> Any:
        """Make the table unless it is there; returns ``schema``."""
        if self.schema is None:
            self.schema = self.table.prepare(DEAD_LETTER_SCHEMA)
        return self.schema

    def left(self, files: Sequence[WrittenFile], last: CommitRecord | None) -> Sequence[WrittenFile]:
        """The files of a batch's dead letters without those that are there; ``last`` is the sink's last record."""
        if files and self._known is None:
            self._known = frozenset(self._marks()) if self._always or self._repeats(last) else frozenset()
        if not self._known:
            return files
        kept: list[WrittenFile] = []
        writer = FileWriter(self.table.location, f"left-{uuid.uuid4().hex[:8]}", self.schema)
        for file in files:
            with self.table.location.open_file(file.path) as stream:
                rows = pq.read_table(stream)
            placed = rows.column("topic").is_valid().to_pylist()  # of rows without a place, two may be the same
            marks = letter_marks(rows, reasons=True)
            fresh = [not is_placed or mark not in self._known for is_placed, mark in zip(placed, marks, strict=True)]
            if all(fresh):
                kept.append(file)
                continue
            for batch in rows.filter(pa.array(fresh)).to_batches():
                writer.write(conform(batch, self.schema))
        return [*kept, *writer.close()]

    def reached(self, record: CommitRecord) -> str:
        """How far dead letters have been sent with those of a record, for its own record in their table."""
        found = {topic: dict(ends) for topic, ends in offsets_of(record).items()}
        for topic, ends in self._reached().items():
            for partition, end in ends.items():
                held = found.setdefault(topic, {})
                held[partition] = max(end, held.get(partition, end))
        return json.dumps(found)

    def _reached(self) -> Offsets:
        last = self.table.last(self._owner)
        if last is None or not last.begin:
            return {}
        return msgspec.json.decode(last.begin, type=Offsets)

    def _repeats(self, last: CommitRecord | None) -> bool:
        """Whether the sink has sent dead letters of records that come after its last batch."""
        ends = {} if last is None else offsets_of(last)
        return any(
            end > ends.get(topic, {}).get(partition, 0)
            for topic, partitions in self._reached().items()
            for partition, end in partitions.items()
        )

    def _marks(self) -> Iterator[int]:
        try:
            for batch in self.table.scan():
                yield from letter_marks(batch, reasons=True)
        except Rejected:  # plain Parquet, whose dead letters are not read back
            return


def encode_record_offsets(record_offsets: RecordOffsets) -> str:
    """Places as a record's ``offsets``."""
    return msgspec.json.encode(record_offsets).decode()


def next_number(letters: Table, owner: str, last: CommitRecord | None) -> int:
    """The number of a replay's next commit: both tables count on, also where one of them was set back.

    Args:
        letters: the table of dead letters.
        owner: of the replay.
        last: its record in the table of rows.
    """
    done = letters.committed(owner, REPLAY_QUERY)
    return max(-1 if last is None else last.batch, -1 if done is None else done) + 1


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
    record = table.standing(owner)
    if record is None or not record.begun:
        return
    removed = letters.committed(owner, REPLAY_QUERY)
    if removed is None or removed < record.batch:
        remove_dead_letters(letters, record, pause)


def give_back(table: Table, sent: Sent, owner: str, pause: Callable[[float], None]) -> None:
    """Give the dead letters back whose rows ``table`` has lost by being set back, as far as versions of their table
    still have them. A replay brings them into the table again.

    Args:
        table: has had the replayed rows.
        sent: the dead letters, open.
        owner: pipeline and sink, without the suffix.
        pause: as ``finish_replay``.

    Raises:
        Unavailable, OutcomeUnknown: as ``finish_replay``.
    """
    owner += REPLAY_SUFFIX
    letters, lost, standing = sent.table, table.guard(owner), table.standing(owner)
    if lost is None or not lost.begun or reaches(standing, lost):
        return
    kept = standing.batch if standing is not None and standing.begun else -1
    number = next_number(letters, owner, lost)
    if number > lost.batch + 1:
        return  # they are there, and the run that gave them back ended before it claimed the table
    there = {mark for batch in letters.scan() for mark in letter_marks(batch)}
    writer = FileWriter(letters.location, f"returned-{uuid.uuid4().hex[:8]}", sent.schema)
    seen: set[int] = set()
    for record, rows in letters.before(owner, kept):
        with contextlib.suppress(OSError):  # files of that version were removed
            for batch in _of_places(rows, msgspec.json.decode(record.offsets, type=RecordOffsets)):
                writer.write(conform(unseen(batch, there), sent.schema))
            seen.add(record.batch)
    files = list(writer.close())
    returned = msgspec.structs.replace(
        lost, batch=number, offsets="{}", rows=sum(file.rows for file in files), dead_letters=()
    )
    attempted(letters, returned, lambda: letters.commit(returned, files), pause)
    _LOG.warning("%s: %d dead letters that had been replayed are back", letters.shown, returned.rows)
    if not seen.issuperset(range(kept + 1, lost.batch + 1)):
        _LOG.warning("%s lacks older versions, and the dead letters that only they had", letters.shown)


def _of_places(batches: Iterable[Any], places: RecordOffsets) -> Iterator[Any]:
    """The rows of these topics, partitions and offsets."""
    wanted = {topic: {at: set(offsets) for at, offsets in found.items()} for topic, found in places.items()}
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in DEAD_LETTER_SCHEMA.names[:3])
        is_wanted = [offset in wanted.get(topic, {}).get(at, ()) for topic, at, offset in zip(*columns, strict=True)]
        yield batch.filter(pa.array(is_wanted, pa.bool_()))


def remove_dead_letters(letters: Table, record: CommitRecord, pause: Callable[[float], None]) -> None:
    """Remove the dead letters that a replay's record names.

    Raises:
        Unavailable, OutcomeUnknown: as ``finish_replay``.
    """
    record_offsets = msgspec.json.decode(record.offsets, type=RecordOffsets)
    attempted(letters, record, lambda: letters.remove(record, record_offsets), pause)
