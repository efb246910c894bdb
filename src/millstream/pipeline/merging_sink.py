"""A table with one row for each key: the latest record of the key, none if that is a tombstone.

::

    changes ─► older than a deleted key? dropped ─► deleted keys into their own table ─► merge into the table, with
                                                                                         the record of the batch

An older record must not bring a deleted key back, and the table has no row to compare it with. Therefore deleted keys
are rows of ``<table>_deletes``, with their places, and stay there for ``keep_deletes``. They are added before the merge
that deletes the rows: a crash in between leaves a deleted key that is one batch ahead of the table, which is true
already, because the log has the tombstone.

Older records than those of the table come from a backfill, from dead letters that are replayed, and from a partition
that is read after another one. When deleted keys have been forgotten, backfills and replays are refused, because they
could bring such a key back and nothing would show it.
"""

import datetime as dt
import logging
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.attempt import attempted
from millstream.pipeline.changes import GENERATION, PLACES, Changes, latest
from millstream.pipeline.commit import Batch
from millstream.pipeline.generations import Generations, later
from millstream.pipeline.keyed_sink import KeyedSink
from millstream.pipeline.tables.guard import reaches
from millstream.pipeline.tables.table import CommitRecord, Table

_LOG: Final = logging.getLogger("millstream.pipeline")
_DELETED_AT: Final = "_deleted_at"
_ATTEMPTS: Final = 20
"""Attempts of a merge: writers of one table refuse each other's commits, and each attempt starts from the table as it
is then.
"""
_FORGOTTEN: Final = "~forgotten"
"""After the name of a sink it names the writer that forgets deleted keys."""


def require_same_key(table: Table, last: CommitRecord | None) -> None:
    """Refuse another key than that of the rows.

    Raises:
        Rejected: it is another one.
    """
    before, key = last.key if last is not None else (), table.key
    if before and sorted(before) != sorted(key):
        raise Rejected(
            f"{table.shown} has one row for each {', '.join(before)}, and key: names {', '.join(key)}; rows of both "
            "would stand side by side: name the old key, or write into a new table"
        )


class MergingSink(KeyedSink):
    """Commits the batches of a table with keys. ``deletes`` are its deleted keys, kept for ``keep_s`` seconds."""

    def __init__(
        self,
        table: Table,
        dead_letters: Table | None,
        deletes: Callable[[tuple[str, ...]], Table],
        *,
        pipeline: str,
        sink: str,
        keep_s: float,
        compact: bool = True,
        replay: bool = False,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """``deletes`` opens the table of deleted keys for a key."""
        super().__init__(table, dead_letters, pipeline=pipeline, sink=sink, compact=compact, replay=replay, pause=pause)
        self._open_deletes = deletes
        self._deletes: Table | None = None
        self._keep = dt.timedelta(seconds=keep_s)

    def open(self, schema: Any) -> Any:
        """As ``TableSink.open``; ``schema`` has the places of rows and their key, and not their generation.

        Raises:
            Rejected: also if older records would be brought into a table that has forgotten deleted keys, or if the
                sink has written rows of another key.
        """
        written = super().open(schema)
        key = self.table.key
        require_same_key(self.table, self.last)
        deletes = self._deletes = self._open_deletes(key)
        fields = [schema.field(name) for name in (*key, *(name for name in PLACES if name not in (*key, GENERATION)))]
        at = pa.timestamp("us", tz="UTC")
        are_lost = self._are_lost(deletes)
        deletes.prepare(pa.schema([*fields, pa.field(GENERATION, pa.int64()), pa.field(_DELETED_AT, at)]))
        forgotten = deletes.last(f"{self._writer.pipeline}.{self._writer.main}{_FORGOTTEN}")
        if forgotten is None and are_lost:
            _LOG.warning("%s was dropped or set back: deleted keys are lost", deletes.shown)
            forgotten = self._forgotten(deletes, dt.datetime.now(dt.UTC))
            attempted(deletes, forgotten, lambda: deletes.commit(forgotten, []), self._pause)
        if self._writer.brings_older and forgotten is not None:
            raise Rejected(
                f"{self.table.shown} has forgotten keys that were deleted before {forgotten.begin} (keep_deletes), and "
                "older records could bring them back: read the topic from its beginning into a new table instead"
            )
        return written

    def _are_lost(self, deletes: Table) -> bool:
        """Whether the table has rows of the pipeline, and that of its deleted keys was dropped or set back."""
        owner = f"{self._writer.pipeline}.{self._writer.main}"
        if self.table.last(owner) is None:
            return False
        if not deletes.exists():
            return True
        found = deletes.guard(owner)
        return found is not None and not reaches(deletes.standing(owner), found)

    def filled(self, batch: Batch, changes: Changes, stem: str) -> Batch:  # noqa: ARG002 (of all such sinks)
        return msgspec.structs.replace(batch, changes=latest(changes))

    def _known_generations(self) -> Generations:
        found, deletes = super()._known_generations(), self._deletes
        kept = deletes.last(self._writer.owner) if deletes is not None else None
        return found if kept is None else later(found, kept.generations)

    def _commit(self, record: CommitRecord, batch: Batch) -> str:
        assert batch.changes is not None and self._deletes is not None, "an open sink of this kind gets changes"
        changes, deletes, after, table = batch.changes, self._deletes, self._guard, self.table
        self._keep_deletes(record, changes)

        def kept() -> Changes:
            # Asked after the table's version: a key that another pipeline deletes after it refuses this commit.
            return changes.chosen(changes.deleted | ~deletes.later(changes))

        return attempted(table, record, lambda: table.merge(record, kept, after), self._pause, attempts=_ATTEMPTS)

    def _keep_deletes(self, record: CommitRecord, changes: Changes) -> None:
        """Add the deleted keys of a batch to their table."""
        deletes = self._deletes
        if deletes is None or not changes.deleted.any():
            return
        done, found = deletes.committed(record.owner, record.query), deletes.guard(record.owner)
        if done is not None and done >= record.batch:
            return
        gone = changes.chosen(changes.deleted)
        now = pa.scalar(dt.datetime.now(dt.UTC), pa.timestamp("us", tz="UTC"))
        rows = gone.rows.select([*changes.key, *(name for name in PLACES if name not in changes.key)])
        rows = rows.append_column(_DELETED_AT, pa.repeat(now, rows.num_rows))
        added = Changes(rows, np.zeros(rows.num_rows, dtype=bool), changes.key)
        # The claim is in the main table; this one may be of an earlier table of that name.
        epoch = max(record.epoch, 0 if found is None else found.epoch)
        own = msgspec.structs.replace(record, rows=rows.num_rows, dead_letters=(), epoch=epoch)
        attempted(deletes, own, lambda: deletes.merge(own, lambda: added), self._pause)

    def _tables(self) -> list[Table]:
        assert self._deletes is not None, "a sink is opened before its first batch"
        return [*super()._tables(), self._deletes]

    def _merge(self) -> None:
        super()._merge()
        assert self._deletes is not None, "a sink is opened before its first batch"
        try:
            self._forget(self._deletes)
        except Exception as error:  # noqa: BLE001 (no row depends on it)
            _LOG.warning("deleted keys of %s could not be cleaned up: %s", self.table.shown, error)

    def _forget(self, deletes: Table) -> None:
        """Remove deleted keys that were kept for long enough."""
        before = dt.datetime.now(dt.UTC) - self._keep
        record = self._forgotten(deletes, before)
        if deletes.forget(record, _DELETED_AT, before):
            _LOG.info("%s: forgot the keys that were deleted before %s", self.table.shown, record.begin)

    def _forgotten(self, deletes: Table, before: dt.datetime) -> CommitRecord:
        """The record that keys which were deleted before a time are not known any longer."""
        owner = f"{self._writer.main}{_FORGOTTEN}"
        last = deletes.last(f"{self._writer.pipeline}.{owner}")
        return msgspec.structs.replace(
            self._empty(0), sink=owner, query="forgotten", batch=0 if last is None else last.batch + 1,
            offsets="{}", begin=before.isoformat(timespec="seconds"),
        )  # fmt: skip
