"""What a pipeline asks of a table.

The one law: a batch of a query is in the table once. A table keeps the *record* of the last batch in the very commit
that adds the batch's files, so every doubt (a driver that was killed, a commit whose answer was lost) is settled by
asking the table. A commit that fails deletes nothing, because it may have landed.
"""

import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeAlias

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.changes import Changes
from millstream.pipeline.files import WrittenFile
from millstream.pipeline.generations import Generations
from millstream.pipeline.locations import Location
from millstream.pipeline.model import PartitionPart
from millstream.pipeline.ranges import Ranges

RecordOffsets: TypeAlias = dict[str, dict[int, list[int]]]
"""Offsets of records by topic and partition."""


class CommitRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a commit says about the batch that it adds.

    ``offsets`` is where the batch ends, as in Spark's log. ``rows``, ``rejected`` and ``bytes`` count this batch, their
    ``total_*`` everything of this sink so far. ``dead_letters`` are files of the dead-letter table: they belong to this
    commit and are added there after it. ``begin`` is where the sink started, as offsets by topic and partition; of a
    backfill's records it is where the pipeline's own part starts, and ``ranges`` has what backfills have read. It is
    empty in records of versions that did not keep it.

    ``epoch`` counts the runs that have claimed the table, and ``writer`` is the last of them, for people. ``table`` is
    the table's id, ``at`` the place in its history that the commit went to, in a form of the table's own, ``cluster``
    the id of the cluster that is read. ``columns`` and ``members`` say what the writer calls the table's fields, in
    tables whose fields have ids (``iceberg_columns``).
    ``registry`` tells the schema registry that is read from others (``wire_schemas.registry_mark``).
    ``generations`` are those of the topics, for tables with keys, and ``key`` the columns of the key.
    """

    pipeline: str
    sink: str
    query: str
    batch: int
    offsets: str
    rows: int
    rejected: int
    bytes: int
    total_rows: int
    total_rejected: int
    total_bytes: int
    dead_letters: tuple[WrittenFile, ...] = ()
    begin: str = ""
    epoch: int = 0
    writer: str = ""
    table: str = ""
    at: str = ""
    cluster: str = ""
    columns: dict[str, int] = {}
    members: dict[str, str] = {}
    registry: str = ""
    generations: Generations = {}
    ranges: Ranges = {}
    key: tuple[str, ...] = ()

    @property
    def begun(self) -> bool:
        """Whether a batch was committed: a claim of a new writer has none."""
        return bool(self.offsets)

    @property
    def owner(self) -> str:
        """Names the writer in the table: one pipeline may write to it through several sinks."""
        return f"{self.pipeline}.{self.sink}"


class Declared(msgspec.Struct, frozen=True):
    """What a pipeline's file says of a table. ``key`` are the columns that tell rows apart, where there is one row for
    each; ``merges`` says whether there is, and without ``key`` the table itself names them. The rest is for a table
    that is made: ``sort`` has columns and whether they descend, ``location`` is the address of its files.
    """

    key: tuple[str, ...] = ()
    merges: bool = False
    partition: tuple[PartitionPart, ...] = ()
    sort: tuple[tuple[str, bool], ...] = ()
    properties: dict[str, str] = {}
    location: str | None = None


class TableChanged(Rejected):
    """Since ``prepare`` the table's columns or rules were changed, or files of the batch removed; nothing of the batch
    was added. It may be done again after another ``prepare``.
    """


def no_longer_there(table: str) -> Rejected:
    """The refusal of a table that is no longer there."""
    return Rejected(
        f"{table} is no longer there: it was dropped, renamed or moved. Name the table where it is now, or start again "
        "to make a new one"
    )


class Table(Protocol):
    """One table. Only the driver commits, and only from one thread at a time."""

    @property
    def shown(self) -> str:
        """What messages call the table."""
        ...

    @property
    def location(self) -> Location:
        """The directory that tasks write files to."""
        ...

    @property
    def key(self) -> tuple[str, ...]:
        """The columns that tell rows apart; empty in a table that is only appended to."""
        ...

    def exists(self) -> bool:
        """Whether the table has been made."""
        ...

    def inspect(self, schema: Any | None) -> None:
        """Refuse a table that exists and that rows cannot be added to; changes nothing.

        Args:
            schema: of the rows, None if it is not known yet.

        Raises:
            Rejected: the table has rules that are not kept here, or the rows do not fit its columns.
        """
        ...

    def columns(self) -> Any:
        """The Arrow schema of the table's columns as it is now; None without a table."""
        ...

    def prepare(self, schema: Any) -> Any:
        """Make the table, or widen it by columns that it lacks; returns the Arrow schema that files must have.

        Raises:
            Rejected: as ``inspect``.
        """
        ...

    def guard(self, owner: str) -> CommitRecord | None:
        """The record of a writer's last commit or claim, from the table as it is now; None without a table."""
        ...

    def standing(self, owner: str) -> CommitRecord | None:
        """The newest record of a writer that the table's present history holds. It is ``guard`` unless the table was
        set back behind it, or made again.
        """
        ...

    def claim(self, record: CommitRecord, after: CommitRecord | None) -> None:
        """Add a record without rows, if the guard is ``after``.

        May raise any error of the table's library; then the outcome is unknown until ``guard`` is asked.

        Raises:
            Moved: the guard is another one.
        """
        ...

    def last(self, owner: str) -> CommitRecord | None:
        """The record of the last batch of a writer, from the table as it is now; None before the first."""
        ...

    def committed(self, owner: str, query: str) -> int | None:
        """The last batch of a query that the table holds, from the table as it is now; None if it holds none."""
        ...

    def commit(self, record: CommitRecord, files: list[WrittenFile], after: CommitRecord | None = None) -> str:
        """Add files and record in one commit; returns the table's version.

        The table's rules are read again: what its owner has changed since ``prepare`` refuses the commit. With
        ``after``, the guard has to be that record and to stand.

        May raise any error of the table's library; then the outcome is unknown until
        ``committed`` is asked.

        Raises:
            TableChanged: the rules are others.
            TakenOver: another run has claimed the table.
            SetBack: ``after`` does not stand.
            Rejected: the table was dropped and made again.
        """
        ...

    def lacking(self, files: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Those of a batch's files that another program has removed."""
        ...

    def merge(self, record: CommitRecord, changes: Callable[[], Changes], after: CommitRecord | None = None) -> str:
        """Bring the changes into the rows, and add the record, in one commit; returns the table's version.

        A change that is not later than the row of its key changes nothing. ``changes`` is called when the version is
        known that the commit goes behind; another commit in between refuses this one. Otherwise as ``commit``.

        Raises:
            Rejected: rows of this kind of table are not replaced.
        """
        ...

    def later(self, changes: Changes) -> Any:
        """Whether the table has a later row of the key of each change, as a boolean array."""
        ...

    def scan(self) -> Iterator[Any]:
        """The rows of the table as it is now, as record batches; commits that follow do not change them.

        Raises:
            Rejected: rows of this kind of table are not read back.
        """
        ...

    def remove(self, record: CommitRecord, record_offsets: RecordOffsets) -> None:
        """Remove the rows of these topics, partitions and offsets, and add the record, in one commit.

        May raise any error of the table's library; then the outcome is unknown until
        ``committed`` is asked.

        Raises:
            Rejected: single rows cannot leave this kind of table.
        """
        ...

    def forget(self, record: CommitRecord, column: str, before: dt.datetime) -> bool:
        """Remove rows whose time in a column is earlier, and add the record, in one commit; False, and nothing
        changes, if no row is earlier.

        Raises:
            Rejected: single rows cannot leave this kind of table.
        """
        ...

    def before(self, owner: str, batch: int) -> Iterator[tuple[CommitRecord, Iterator[Any]]]:
        """For each commit of a writer with a later number than ``batch``, its record and the rows of the table before
        it, as far as these versions are still there.
        """
        ...

    def drop(self) -> None:
        """Remove the table with all of its rows, permanently."""
        ...

    def version(self) -> str:
        """The table's current version."""
        ...

    def compact(self) -> int:
        """Merge small files if there are many; returns how many fewer there are. Readers see the same rows."""
        ...

    def expire(self, keep_days: float) -> int:
        """Expire versions that are older; returns how many files, or of Iceberg snapshots, it has removed. The present
        version stays, and what is known of commits. Without anything to expire it commits nothing.
        """
        ...


def made_again(table: str, before: str, now: str) -> str:
    """The sentence for a table that took the place of another of its name."""
    return (
        f"{table} was dropped and made again (its id was {before} and is {now}); what this run has read is not in it. "
        "'millstream pipeline run --replay' fills it from the beginning"
    )


def incompatible(table: str, differences: list[str]) -> str:
    """The sentence for columns whose types differ."""
    return (
        f"{table} cannot take these rows: {'; '.join(differences)}. Cast in the query, let the table's owner widen the "
        "column, or write to another table: this format does not make such a column wider"
    )
