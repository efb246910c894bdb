"""One batch into one table, once, with its dead letters.

::

    guard ──► commit rows + record ──► publish dead letters ──► forget reports
      │            │                        │
      │            └ unknown? look it up    └ the record names their files: a crash in between is made good
      └ has the table this batch already? then only what follows

The commit of the table is the one point at which a batch happens: its record names the files of dead letters, so rows
and dead letters are committed together. Those files are added to the dead-letter table after it; after a crash in
between, the next run adds them before it does anything else. Both tables have a guard, so twice is once. Between the
two steps the dead-letter table is one batch behind.

``attempt`` says what becomes of a commit that raises. Nothing is deleted on the way: a file that no commit names is
left for the table format's own clean-up.
"""

import logging
import os
import socket
import time
import uuid
from collections.abc import Callable
from typing import Any, Final

import msgspec

from millstream.errors import Unavailable
from millstream.pipeline.attempt import attempted
from millstream.pipeline.changes import Changes
from millstream.pipeline.dead_letters import Sent, finish_replay, give_back
from millstream.pipeline.files import WrittenFile
from millstream.pipeline.generations import Generations
from millstream.pipeline.ranges import Ranges
from millstream.pipeline.tables.guard import REPLAY_SUFFIX, Moved, recorded, require_own, with_left_topics
from millstream.pipeline.tables.table import CommitRecord, Table, TableChanged
from millstream.pipeline.upkeep import Schedule

_LOG: Final = logging.getLogger("millstream.pipeline")
_CLAIMS: Final = 5
"""Attempts to claim a table that other runs claim at the same time."""


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A batch that is ready to be committed: files of new rows, or, in a table with keys, changes of rows. ``rows`` and
    ``bytes`` are what changes were made of.
    """

    query: str
    number: int
    offsets: str
    files: tuple[WrittenFile, ...] = ()
    rejected: int = 0
    dead_letters: tuple[WrittenFile, ...] = ()
    changes: Changes | None = None
    rows: int = 0
    bytes: int = 0
    generations: Generations = {}
    ranges: Ranges = {}


class Outcome(msgspec.Struct, frozen=True):
    """What the table holds after a batch. ``repeated``: it had the batch already, and nothing was added."""

    record: CommitRecord
    version: str
    repeated: bool


class Writer(msgspec.Struct, frozen=True):
    """Who commits: a run of a sink of a pipeline. ``run`` is for people. A backfill or a replay of dead letters is a
    sink whose name is that of its main sink, ``~`` and what it does.
    """

    pipeline: str
    sink: str
    run: str

    @property
    def owner(self) -> str:
        """Whose records its commits are."""
        return f"{self.pipeline}.{self.sink}"

    @property
    def main(self) -> str:
        """The sink that a backfill or a replay brings older records for; else the sink itself."""
        return self.sink.partition("~")[0]

    @property
    def brings_older(self) -> bool:
        return self.main != self.sink


class Reads:
    """What a sink reads, for the records of its commits: the ``cluster`` and the ``registry``, and ``begin``, where the
    sink started; empty is as in its last record. The query that fills the sink sets them before the first batch.
    """

    def __init__(self) -> None:
        self.begin = self.cluster = self.registry = ""


class TableSink:
    """Commits the batches of one sink. Open it before the first batch; one thread at a time.

    Invariants: batches come in order; ``last`` is the record of the sink's last commit, of this run or an earlier
    one. With ``replay`` a table that was set back is taken from where it stands, and ``lost`` is the record that it
    was set back behind.
    """

    def __init__(
        self,
        table: Table,
        dead_letters: Table | None,
        *,
        pipeline: str,
        sink: str,
        compact: bool = True,
        replay: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.table = table
        self.last: CommitRecord | None = None
        self.reads = Reads()
        self.lost: CommitRecord | None = None
        self._replay = replay
        self._guard: CommitRecord | None = None
        run = f"host {socket.gethostname()}, process {os.getpid()}, run {uuid.uuid4().hex[:8]}"
        self._writer = Writer(pipeline, sink, run)
        always = self._writer.brings_older
        self._sent = None if dead_letters is None else Sent(dead_letters, self._writer.owner, always=always)
        self.upkeep = Schedule(compact=compact)
        self._pause = pause
        self._was_missing = False

    @property
    def owner(self) -> str:
        """Whose records its commits are."""
        return self._writer.owner

    @property
    def dead_letters(self) -> Table | None:
        """The table of dead letters, if they are kept."""
        return None if self._sent is None else self._sent.table

    @property
    def letters_schema(self) -> Any:
        """The schema of the files of dead letters; None before their table is open."""
        return None if self._sent is None else self._sent.schema

    def take(self) -> CommitRecord | None:
        """Claim the table, if it exists and is not claimed yet; returns the record of this sink's last batch.

        From then on no other run of the name adds a batch, and what an older one adds is in ``last``.

        Raises:
            Rejected: the table was set back behind that batch, or made again, and nothing is to be replayed.
            Unavailable: runs of the name that start at once take it from each other.
        """
        if self._guard is None:
            if self.table.exists():
                self._take()
            else:
                self._was_missing = True
        return self.last

    def _take(self) -> None:
        for _ in range(_CLAIMS):
            try:
                self._claim()
            except Moved as moved:
                _LOG.info("%s: %s", self._writer.owner, moved.message)
            else:
                return
        raise Unavailable(f"{self._writer.owner}: other runs of this pipeline claim its table at the same time")

    def _claim(self) -> None:
        """One attempt to claim the table.

        Raises:
            Moved: another run was faster.
        """
        before = recorded(self.table, self._writer.owner, replay=self._replay)
        found = before.guard
        epoch = 1 if found is None else found.epoch + 1
        claim = self._of(before.last, epoch) if before.last is not None else self._empty(epoch)
        attempted(self.table, claim, lambda: self.table.claim(claim, found), self._pause, claim=True)
        guard = self.table.guard(self._writer.owner)
        if guard is None or (guard.epoch, guard.writer) != (claim.epoch, claim.writer):
            raise Moved("another run has claimed the table at the same time")
        self._guard, self.last = guard, guard if guard.begun else None
        self.lost = before.lost

    def _of(self, record: CommitRecord, epoch: int) -> CommitRecord:
        return msgspec.structs.replace(record, epoch=epoch, writer=self._writer.run)

    def _empty(self, epoch: int) -> CommitRecord:
        nothing = dict.fromkeys(("rows", "rejected", "bytes", "total_rows", "total_rejected", "total_bytes"), 0)
        return CommitRecord(
            pipeline=self._writer.pipeline, sink=self._writer.sink, query="", batch=-1, offsets="",
            epoch=epoch, writer=self._writer.run, **nothing,
        )  # fmt: skip

    def open_dead_letters(self) -> Any:
        """Make the table of dead letters, if they are kept; returns the schema of its files."""
        return None if self._sent is None else self._sent.open()

    def give_back(self) -> None:
        """Take the table's loss of replayed rows for known: it was set back behind them. Their dead letters are back
        then, as far as their table still has them.
        """
        replays = f"{self._writer.sink}{REPLAY_SUFFIX}"
        lost = recorded(self.table, f"{self._writer.pipeline}.{replays}", replay=True).lost
        if lost is None or not lost.begun:
            return
        if self._sent is not None:
            give_back(self.table, self._sent, self._writer.owner, self._pause)
        TableSink(
            self.table, None, pipeline=self._writer.pipeline, sink=replays, replay=True, pause=self._pause
        ).take()  # fmt: skip

    def open(self, schema: Any) -> Any:
        """Make or widen the tables and finish what a crash has left undone; returns the schema of the table's files.

        Raises:
            Rejected: the table does not take such rows; as ``take``.
            Unavailable: another run made the table at the same time.
        """
        if self._guard is None:
            self.table.guard(self._writer.owner)  # the table learns what this sink calls its columns
        written = self.table.prepare(schema)
        self.open_dead_letters()
        if self._guard is None:
            self._take()
            if self._was_missing and self.last is not None:
                raise Unavailable(
                    f"{self._writer.owner}: another run of this pipeline started at the same time; start it again"
                )
        if self.last is not None:
            self._publish(self.last)
        if self.dead_letters is not None:
            finish_replay(self.table, self.dead_letters, self._writer.owner, self._pause)
        return written

    def holds(self, query: str, number: int) -> bool:
        """Whether the table has a batch already."""
        done = self.table.committed(self._writer.owner, query)
        return done is not None and done >= number

    def commit(self, batch: Batch) -> Outcome:
        """Add a batch; does nothing if the table has it.

        Raises:
            Unavailable: it could not be added; the same batch may be tried again.
            OutcomeUnknown: it may have been added; the next attempt finds out.
            TableChanged: nothing was added, and the batch is to be done again.
        """
        if self.holds(batch.query, batch.number):
            last = self.table.guard(self._writer.owner)
            assert last is not None, "a table that holds a batch has its record"
            require_own(self.table.shown, last, self._of(last, self._epoch))
            self._guard = self.last = last
            self._publish(last)
            return Outcome(last, self.table.version(), repeated=True)
        if self._sent is not None:
            batch = msgspec.structs.replace(batch, dead_letters=tuple(self._sent.left(batch.dead_letters, self.last)))
        record = self._record(batch)
        self._require_files(batch)
        version = self._commit(record, batch)
        self._guard = self.last = record
        self._publish(record, checked=True)
        if self.upkeep.merge_due():
            self._merge()
        if self.upkeep.expire_due():
            self._expire(self.upkeep.keep_days)
        return Outcome(record, version, repeated=False)

    def _require_files(self, batch: Batch) -> None:
        """Refuse a batch one of whose files is missing: no reader could read a table that names it.

        Raises:
            TableChanged: another program has removed it, as one that no commit names.
        """
        for table, files in ((self.table, batch.files), (self.dead_letters, batch.dead_letters)):
            if table is None or not files:
                continue
            missing = table.lacking(files)
            if missing:
                raise TableChanged(
                    f"{table.shown}: {missing[0].path} was removed before its batch was committed, as VACUUM and the "
                    "removal of orphan files do with a short retention: give them one of hours"
                )

    def _record(self, batch: Batch) -> CommitRecord:
        rows = batch.rows + sum(file.rows for file in batch.files)
        size = batch.bytes + sum(file.bytes for file in batch.files)
        last = self.last
        return CommitRecord(
            pipeline=self._writer.pipeline,
            sink=self._writer.sink,
            query=batch.query,
            batch=batch.number,
            offsets=batch.offsets if self._writer.brings_older else with_left_topics(batch.offsets, self.last),
            rows=rows,
            rejected=batch.rejected,
            bytes=size,
            total_rows=rows + (last.total_rows if last else 0),
            total_rejected=batch.rejected + (last.total_rejected if last else 0),
            total_bytes=size + (last.total_bytes if last else 0),
            dead_letters=batch.dead_letters if self.dead_letters is not None else (),
            begin=self.reads.begin or (last.begin if last is not None else ""),
            epoch=self._epoch,
            writer=self._writer.run,
            cluster=self.reads.cluster,
            registry=self.reads.registry,
            generations=batch.generations,
            ranges=batch.ranges,
            key=self.table.key,
        )

    @property
    def _epoch(self) -> int:
        assert self._guard is not None, "a sink is opened before its first batch"
        return self._guard.epoch

    def _publish(self, record: CommitRecord, *, checked: bool = False) -> None:
        """Add the dead letters that a commit of the table names to their own table. ``checked``: their files are there;
        after a crash another program may have removed them, and no reader could read a table that names such a file.
        """
        if self._sent is None or not record.dead_letters:
            return
        letters, files = self._sent.table, list(record.dead_letters)
        done = letters.committed(record.owner, record.query)
        if done is not None and done >= record.batch:
            return
        gone = [] if checked else letters.lacking(files)
        if gone:
            lost = sum(file.rows for file in gone)
            _LOG.warning("%s: %d of batch %d are lost: their files were removed", letters.shown, lost, record.batch)
            files = [file for file in files if file not in gone]
        rows, begin = sum(file.rows for file in files), self._sent.reached(record)
        own = msgspec.structs.replace(record, rows=rows, dead_letters=(), begin=begin)
        attempted(letters, own, lambda: letters.commit(own, files), self._pause)

    def _commit(self, record: CommitRecord, batch: Batch) -> str:
        after, files = self._guard, list(batch.files)
        return attempted(self.table, record, lambda: self.table.commit(record, files, after), self._pause)

    def _tables(self) -> list[Table]:
        """The tables that are looked after."""
        return [table for table in (self.table, self.dead_letters) if table is not None]

    def _merge(self) -> None:
        """Compact the tables. A failure is logged and stops nothing, because no row depends on it."""
        for table in self._tables():
            try:
                gone = table.compact()
            except Exception as error:  # noqa: BLE001 (see above)
                _LOG.warning("small files of %s could not be merged: %s", table.location.address, error)
            else:
                if gone:
                    _LOG.info("merged small files of %s: %d fewer", table.location.address, gone)

    def _expire(self, keep_days: float) -> None:
        """Expire old versions of the tables. A failure is logged, as of ``_merge``."""
        for table in self._tables():
            if not table.exists():
                continue
            try:
                gone = table.expire(keep_days)
            except Exception as error:  # noqa: BLE001 (no row depends on it)
                _LOG.warning("old versions of %s could not be expired: %s", table.shown, error)
            else:
                if gone:
                    _LOG.info("expired old versions of %s: %d", table.shown, gone)
