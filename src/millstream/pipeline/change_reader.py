"""Rows and tombstones of a batch as changes of a table with keys, and the dead letters among them."""

from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from millstream.pipeline.changes import CHANGE, GENERATION, PLACE, Changes
from millstream.pipeline.fitted_rows import rows_that_fit
from millstream.pipeline.generations import Generations, generations_of
from millstream.pipeline.keys import KeyDecoder
from millstream.pipeline.layout import conform, rules_of
from millstream.pipeline.model import Source
from millstream.pipeline.row_letters import Origins, RawRecords, letters_of, with_records
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA, METADATA
from millstream.spark.fitting import Fault
from millstream.spark.values import fault_arrays


class Read(msgspec.Struct, frozen=True):
    """Changes, tombstones after rows, and the dead letters among them, a table."""

    changes: Changes
    letters: Any


class ChangeReader:
    """Makes changes for one table."""

    def __init__(self, source: Source, table: Any, key: tuple[str, ...]) -> None:
        """``table`` is the schema of the table's files."""
        self._all: Any = pa.schema([pa.field(field.name, field.type) for field in table], table.metadata)
        self.key = key
        self.keys = KeyDecoder(source, table, key)

    @staticmethod
    def row_schema(table: Any, key: tuple[str, ...]) -> Any:
        """The schema of the rows to be read: the table's columns without the sink's own. A key may be missing, and the
        place of the record not.
        """
        kept = [field for field in table if field.name not in (GENERATION, CHANGE)]
        nullable = [field.name in key or (field.nullable and field.name not in PLACE[:3]) for field in kept]
        return pa.schema([pa.field(field.name, field.type, may) for field, may in zip(kept, nullable, strict=True)])

    def read(self, rows: Any, tombstones: Any, generations: Generations, raw: RawRecords) -> Read:
        """Args:
        rows: in the columns of ``row_schema``.
        tombstones: records without a value, as dead letters have them.
        generations: of the topics.
        raw: reads the records of rows without a key or a partition again, for their dead letters.
        """
        rows, unfit = self._fitting(rows, raw)
        deleted, unreadable = self._deleted(tombstones)
        changed = pa.concat_tables([self._whole(rows, generations), self._whole(deleted, generations)])
        gone = np.arange(changed.num_rows) >= rows.num_rows
        letters = pa.concat_tables([unfit, unreadable])
        return Read(Changes(changed, gone, self.key), letters)

    def _whole(self, rows: Any, generations: Generations) -> Any:
        """Rows in the table's columns, with their generations; columns that they lack are null."""
        topics, partitions, offsets = (rows.column(name).to_numpy() for name in ("_topic", "_partition", "_offset"))
        numbers = pa.array(generations_of(generations, topics, partitions, offsets))
        rows = rows.append_column(GENERATION, numbers)
        batches = [conform(batch, self._all) for batch in rows.combine_chunks().to_batches()]
        return pa.Table.from_batches(batches, self._all)

    def _fitting(self, rows: Any, raw: RawRecords) -> tuple[Any, Any]:
        """The rows that have a key and a partition, and the dead letters of the others, one for each record."""
        faults = self._without_partition(rows)
        for name in self.key:
            reason = f"{name} is null in the result of the query, and it is the key of the table's rows"
            for index in np.flatnonzero(rows.column(name).is_null().to_numpy()):
                faults[int(index)] = Fault(reason, name)
        if not faults:
            return rows, DEAD_LETTER_SCHEMA.empty_table()
        letters = letters_of(rows, faults, Origins(named=True, single_rows=False)).to_pylist()
        places = {(letter["topic"], letter["partition"], letter["offset"]): letter for letter in letters}
        # No row of such a record stays: a replay adds each of them once.
        own = zip(*(rows.column(name).to_pylist() for name in PLACE[:3]), strict=True)
        good = pa.array([place not in places for place in own], pa.bool_())
        return rows.filter(good), with_records(pa.Table.from_pylist(list(places.values()), DEAD_LETTER_SCHEMA), raw)

    def _without_partition(self, rows: Any) -> dict[int, Fault]:
        """The faults of rows that have no partition in the table, by their index."""
        found: dict[int, Fault] = {}
        begin = 0
        for batch in rows.to_batches() if rules_of(self._all).partition else ():
            _, faults = rows_that_fit(batch, self._all)
            found |= {begin + index: fault for index, fault in faults.items()}
            begin += batch.num_rows
        return found

    def _deleted(self, tombstones: Any) -> tuple[Any, Any]:
        """The keys and places of tombstones, and those that do not say which row they delete."""
        tombstones = tombstones.cast(DEAD_LETTER_SCHEMA)
        keys = tombstones.column("key").combine_chunks()
        columns, errors, places = self.keys.decode(keys)
        named = dict(zip(self.key, columns, strict=True))
        for own, field, _ in METADATA:
            if own in self._all.names and own not in named:
                named[own] = tombstones.column(field)
        deleted = pa.table(named)
        coalesce: Any = getattr(pc, "coalesce")  # noqa: B009 (made at run time)
        unfit = fault_arrays(self._without_partition(deleted), deleted.num_rows)
        errors, places = (coalesce(one, other) for one, other in zip((errors, places), unfit, strict=True))
        bad = tombstones.set_column(6, "error", errors).set_column(7, "column", places)
        return deleted.filter(errors.is_null()), bad.filter(errors.is_valid())
