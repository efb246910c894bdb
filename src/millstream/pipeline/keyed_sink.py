"""Tables whose rows have a key: what their sinks have in common, and the one that keeps every change.

Rows carry the place of their record and a generation of its topic (``generations``), so that of two records of a key
the later one is known. In a changelog each record is a row, with its kind in ``_change``: ``upsert``, or ``delete`` for
a tombstone, which has values in the key's columns alone. ``merging_sink`` keeps the latest record of each key instead.
"""

import json
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.changes import CHANGE, GENERATION, PLACES, Changes
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.files import FileWriter
from millstream.pipeline.generations import Generations, advanced, later
from millstream.pipeline.layout import conform
from millstream.pipeline.tables.guard import offsets_of
from millstream.spark.offsets import read_offset

UPSERT: Final = "upsert"
DELETE: Final = "delete"


class KeyedSink(TableSink):
    """A sink whose batches are made of changes."""

    _schema: Any = None

    def open(self, schema: Any) -> Any:
        """As ``TableSink.open``; ``schema`` is without the columns that the sink adds."""
        self._schema = super().open(self._columns(schema))
        return self._schema

    def filled(self, batch: Batch, changes: Changes, stem: str) -> Batch:
        """The batch with changes, in the order in which they were read; ``stem`` is the first part of file names."""
        raise NotImplementedError

    def generations(self, offsets: str | None = None) -> Generations:
        """The generations of the topics, with those that start in a batch that ends at these offsets."""
        known = self._known_generations()
        if not self._writer.brings_older:
            assert offsets is not None, "only a replay has no end"
            ends = {} if self.last is None else offsets_of(self.last)
            return advanced(known, ends, read_offset(json.loads(offsets)))
        main = self.table.last(f"{self._writer.pipeline}.{self._writer.main}")
        known = later(known, main.generations if main is not None else {})
        return known if offsets is None else {**advanced({}, {}, read_offset(json.loads(offsets))), **known}

    def _columns(self, schema: Any) -> Any:
        return schema.append(pa.field(GENERATION, pa.int64()))

    def _known_generations(self) -> Generations:
        return self.last.generations if self.last is not None else {}


class ChangelogSink(KeyedSink):
    """Adds each change as a row. ``key`` are the columns that the row of a tombstone has."""

    key: tuple[str, ...] = ()

    def open(self, schema: Any) -> Any:
        """As ``KeyedSink.open``.

        Raises:
            Rejected: also if the table requires a value that the row of a tombstone lacks.
        """
        found = super().open(schema)
        filled = (*self.key, *PLACES, CHANGE)
        required = [field.name for field in found if not field.nullable and field.name not in filled]
        if required:
            raise Rejected(
                f"{self.table.shown} requires a value in {', '.join(required)}, and the row of a deleted key has none: "
                "let the table's owner make it optional, or use mode: upsert"
            )
        return found

    def filled(self, batch: Batch, changes: Changes, stem: str) -> Batch:
        kinds = pa.array(np.where(changes.deleted, DELETE, UPSERT).tolist(), pa.string())
        rows = changes.rows.set_column(changes.rows.schema.get_field_index(CHANGE), CHANGE, kinds)
        writer = FileWriter(self.table.location, stem, self._schema)
        for part in rows.combine_chunks().to_batches():
            writer.write(conform(part, self._schema))
        return msgspec.structs.replace(batch, files=tuple(writer.close()), rows=0, bytes=0)

    def _columns(self, schema: Any) -> Any:
        return super()._columns(schema).append(pa.field(CHANGE, pa.string()))
