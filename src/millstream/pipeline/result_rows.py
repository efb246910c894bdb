"""Rows of a query as files of a table, and those that do not fit it as dead letters.

::

    the query's tasks ──► files of rows that fit
                      └─► staged files: rows that do not, with the place of their record ──► driver: dead letters

A row names its record if the query passes ``_topic``, ``_partition`` and ``_offset`` on and puts no records together.
Then the record becomes the dead letter, and none of its rows is in the table, so that a replay adds each row once. A
query that may make several rows of a record is run again over the batch without the records that were found. Without
those columns the row itself is the dead letter, as JSON and without a place: it is kept and counted, and a replay
leaves it where it is.

Staged files belong to one run. What a crash leaves of them is removed when the sink is opened.
"""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from millstream.pipeline.files import FILE_COLUMNS, FILE_SCHEMA, FileWriter, WrittenFile, files_batch, written
from millstream.pipeline.fitted_rows import rows_that_fit
from millstream.pipeline.layout import conform
from millstream.pipeline.locations import Location
from millstream.pipeline.row_letters import PLACE, Origins, letters_of
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA

_Offsets: TypeAlias = dict[tuple[str, int], list[int]]
_COLUMNS: Final = f"{FILE_COLUMNS}, unfit boolean"


class Target(msgspec.Struct, frozen=True):
    """Where tasks write: ``address`` is the directory of the table's files, ``staging`` that of rows that do not fit.
    Names of files start with ``stem``.
    """

    address: str
    staging: str
    stem: str
    schema: Any


class Result(msgspec.Struct, frozen=True):
    """What a query gave: files of rows that fit, and a table of dead letters whose records are not read yet."""

    files: tuple[WrittenFile, ...]
    letters: Any


def write_result(frame: DataFrame, target: Target, origins: Origins) -> Result:
    """Run a query and write its rows."""
    letters: dict[tuple[str, int, int], Any] = {}
    while True:
        left_out: _Offsets = {}
        for topic, partition, offset in letters:
            left_out.setdefault((topic, partition), []).append(offset)
        rows = _writing(frame, target, origins, left_out).collect()
        found = _staged(target.staging, written(row for row in rows if row.unfit))
        placed = {tuple(letter[name] for name in PLACE): letter for letter in found if letter["topic"] is not None}
        done = origins.single_rows or not placed
        letters = {**placed, **letters}
        if done:
            rest = [letter for letter in found if letter["topic"] is None]
            table = pa.Table.from_pylist([*letters.values(), *rest], DEAD_LETTER_SCHEMA)
            return Result(written(row for row in rows if not row.unfit), table)


def _writing(frame: DataFrame, target: Target, origins: Origins, left_out: _Offsets) -> DataFrame:
    """A frame with a row for each file that the tasks of ``frame`` have written when it is collected."""

    def write(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        stem = f"{target.stem}-{context.partitionId() if context else 0}"
        writer = FileWriter(Location(target.address), stem, target.schema)
        unfit = FileWriter(Location(target.staging), stem, DEAD_LETTER_SCHEMA)
        for batch in batches:
            rows = _without(batch, left_out) if left_out else batch
            found, faults = rows_that_fit(rows, target.schema)
            writer.write(found)
            if faults:
                unfit.write(conform(letters_of(rows, faults, origins), DEAD_LETTER_SCHEMA))
        yield _file_rows(writer.close(), unfit=False)
        yield _file_rows(unfit.close(), unfit=True)

    return frame.mapInArrow(write, _COLUMNS)


def _file_rows(files: Sequence[WrittenFile], *, unfit: bool) -> Any:
    rows = files_batch(files)
    marks = pa.array([unfit] * rows.num_rows, pa.bool_())
    return pa.RecordBatch.from_arrays([*rows.columns, marks], schema=FILE_SCHEMA.append(pa.field("unfit", pa.bool_())))


def _without(rows: Any, left_out: _Offsets) -> Any:
    """Rows of other records than these."""
    topics = rows.column("_topic").to_numpy(zero_copy_only=False)
    partitions, offsets = (rows.column(f"_{name}").to_numpy(zero_copy_only=False) for name in PLACE[1:])
    kept = np.ones(rows.num_rows, dtype=bool)
    for (topic, partition), gone in left_out.items():
        kept &= ~((topics == topic) & (partitions == partition) & np.isin(offsets, gone))
    return rows.filter(pa.array(kept))


def _staged(staging: str, files: Sequence[WrittenFile]) -> list[dict[str, Any]]:
    """What tasks have staged; the files go."""
    location = Location(staging)
    found: list[dict[str, Any]] = []
    for file in files:
        with location.open_file(file.path) as stream:
            found += pq.read_table(stream).to_pylist()
        location.remove_file(file.path)
    return found
