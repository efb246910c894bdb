"""What a worker does with a task of the source: it reads records, decodes them, and keeps what does not decode.

::

    segment files, leader ──read_task──► record batches ──decode──► rows ──► Spark                     (a query follows)
                                                             │       └────► Parquet, right here       (none follows)
                                                             └─ dead letters: Parquet, right here

Where no query stands between topic and table, rows never enter the JVM: the task writes the table's files itself and
hands their names on. Dead letters are always written here, beside the table, and named in the task's *report*, a small
file that the driver reads before it commits. A report is written under the batch and the run that it belongs to, by its
task's number; a task that is repeated replaces it, so nothing is counted twice.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.checks import decoder_of
from millstream.pipeline.failing_records import order_of
from millstream.pipeline.files import GROUP_BYTES, FileWriter, WrittenFile, files_batch
from millstream.pipeline.fitted_rows import rows_that_fit
from millstream.pipeline.layout import conform, decode_schema
from millstream.pipeline.locations import Location
from millstream.pipeline.model import ErrorMode, Source
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA, METADATA, row_schema
from millstream.spark.fitting import Fault
from millstream.spark.registry_values import RegistryDecoder
from millstream.spark.stats import ReadStats
from millstream.spark.task import ReadTask
from millstream.spark.values import Decoded, Decoder, SchemaRefused, fault_arrays


class SourceSettings(msgspec.Struct, frozen=True):
    """What all tasks of a sink's query share. ``fail_on_schema`` ends the run at a record whose schema does not fit.

    ``reports`` and ``dead_letters`` are directories; ``dead_letters`` is None where they are not kept. ``table`` is the
    directory of the table that a task without a query writes to. ``run`` differs each time a pipeline is started.
    ``letters_schema`` is the schema of a dead-letter table's files, as text. With ``tombstones``, a directory, records
    without a value are kept there and are no rows; ``key`` names columns that rows must have a value in, or their
    records are dead letters.
    """

    source: Source
    mode: ErrorMode
    run: str
    reports: str
    dead_letters: str | None
    table: str | None = None
    letters_schema: str | None = None
    fail_on_schema: bool = False
    tombstones: str | None = None
    key: tuple[str, ...] = ()


class Report(msgspec.Struct, frozen=True):
    """What a task has done: rows decoded, records rejected, files with dead letters, where records were read from, and
    by schema id the fields that were left out because no column is for them. ``tombstones`` are files of records
    without a value, in the form of dead letters.
    """

    rows: int = 0
    rejected: int = 0
    dead_letters: tuple[WrittenFile, ...] = ()
    origins: ReadStats = msgspec.field(default_factory=ReadStats)
    left_out: dict[int, tuple[str, ...]] = {}
    tombstones: tuple[WrittenFile, ...] = ()


def batch_name(run: str, batch: int) -> str:
    """Names the reports and files of one batch in one run."""
    return f"{batch:08d}-{run}"


def decoded_rows(
    task: ReadTask, settings: SourceSettings, batch: int, *, held_bytes: int = 0, table: Any = None
) -> Iterator[Any]:
    """Yield the rows of a task as record batches; leaves a report.

    With ``table``, the schema of a table, rows are conformed to it; one that does not fit is a dead letter, too.

    Raises:
        Rejected: a record does not decode, and the pipeline wants to fail.
        MillstreamError: as ``read_task``.
    """
    # Decoding in a worker needs numba, planning does not.
    from millstream.spark.read import read_task

    place = Location(settings.reports) / batch_name(settings.run, batch)
    order = order_of(place)
    if order.only is not None:
        settings = msgspec.structs.replace(settings, dead_letters=None, tombstones=None)
    decoder = decoder_of(settings.source, fail_on_schema=settings.fail_on_schema)
    schema = row_schema(decoder.fields)
    stem = f"part-{batch_name(settings.run, batch)}-{task.index}"
    letters, tombstones = _DeadLetters(settings, stem), _Tombstones(settings, stem)
    rows, origins = 0, ReadStats()
    for records in read_task(task, origins, held_bytes=held_bytes):
        records = tombstones.taken_out(order.chosen(records))
        failing = order.faults(records)
        if failing:
            errors, places = fault_arrays(failing, records.num_rows)
            letters.add(records, errors, places)
            records = records.filter(errors.is_null())
        decoded = _decoded(decoder, records)
        if decoded.errors.null_count < len(decoded.errors):
            letters.add(records, decoded.errors, decoded.places)
            records, decoded = _without_bad(records, decoded)
        columns = [*decoded.columns.flatten(), *(records.column(name) for _, name, _ in METADATA)]
        found = pa.RecordBatch.from_arrays(columns, schema=schema)
        if settings.key:
            found, records = _with_keys(found, records, settings.key, letters)
        if table is not None:
            found = _conformed(found, records, table, letters)
        rows += found.num_rows
        yield found
    if order.only is not None:
        return
    left_out = decoder.left_out if isinstance(decoder, RegistryDecoder) else {}
    report = Report(rows, letters.count, tuple(letters.close()), origins, left_out, tuple(tombstones.close()))
    place.make()
    place.write(f"{task.index}.json", msgspec.json.encode(report))


def written_files(task: ReadTask, settings: SourceSettings, batch: int, schema: Any) -> Iterator[Any]:
    """Write the rows of a task to Parquet files of the table; yields one batch that tells of them."""
    assert settings.table is not None, "a task without a query has a table to write to"
    stem = f"part-{batch_name(settings.run, batch)}-{task.index}"
    writer = FileWriter(Location(settings.table), stem, schema)
    for rows in decoded_rows(task, settings, batch, held_bytes=GROUP_BYTES, table=schema):
        writer.write(rows)
    yield files_batch(writer.close())


def read_reports(settings: SourceSettings, batch: int) -> list[Report]:
    """The reports of a batch's tasks, as far as they have ended."""
    location = Location(settings.reports) / batch_name(settings.run, batch)
    return [msgspec.json.decode(location.read(name), type=Report) for name in location.files(".json") if name[0] != "."]


def clear_reports(settings: SourceSettings, batch: int | None = None) -> None:
    """Remove what the tasks of a batch have reported; None: what crashed runs have left. Call that before a run's first
    batch and never at the beginning of one: Spark may have run a part of its tasks by then, those before a shuffle.
    """
    location = Location(settings.reports)
    (location if batch is None else location / batch_name(settings.run, batch)).remove()


class _Tombstones:
    """Takes records without a value out of what a task reads, and keeps them."""

    def __init__(self, settings: SourceSettings, stem: str) -> None:
        self._writer: FileWriter | None = None
        if settings.tombstones is not None:
            self._writer = FileWriter(Location(settings.tombstones), f"{stem}-tombstones", DEAD_LETTER_SCHEMA)

    def taken_out(self, records: Any) -> Any:
        gone = records.column("value").is_null()
        if self._writer is None or not gone.true_count:
            return records
        kept = records.filter(gone)
        arrays = [kept.column(name) for name in DEAD_LETTER_SCHEMA.names[:-2]]
        arrays += [pa.nulls(kept.num_rows, pa.string())] * 2
        self._writer.write(conform(pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA), DEAD_LETTER_SCHEMA))
        return records.filter(records.column("value").is_valid())

    def close(self) -> Sequence[WrittenFile]:
        return () if self._writer is None else self._writer.close()


def _with_keys(rows: Any, records: Any, key: Sequence[str], letters: "_DeadLetters") -> tuple[Any, Any]:
    """Rows that have a key, and their records; the others become dead letters."""
    faults: dict[int, Fault] = {}
    for name in key:
        column = rows.column(name)
        for index in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)) if column.null_count else ():
            faults.setdefault(int(index), Fault(f"{name} is null, and it is the key of the table's rows", name))
    if not faults:
        return rows, records
    errors, places = fault_arrays(faults, rows.num_rows)
    letters.add(records, errors, places)
    good = errors.is_null()
    return rows.filter(good), records.filter(good)


class _DeadLetters:
    """Collects the undecodable records of a task."""

    def __init__(self, settings: SourceSettings, stem: str) -> None:
        self.count = 0
        self._fail = settings.mode == "fail"
        location = settings.dead_letters
        text = settings.letters_schema
        self._schema = DEAD_LETTER_SCHEMA if text is None else decode_schema(text)
        self._writer = FileWriter(Location(location), stem, self._schema) if location is not None else None

    def add(self, records: Any, errors: Any, places: Any) -> None:
        bad = errors.is_valid()
        records, errors, places = records.filter(bad), errors.filter(bad), places.filter(bad)
        if self._fail:
            raise Rejected(
                f"{_place(records, 0)} does not decode: {errors[0].as_py()}; errors.mode dead_letter keeps such "
                "records apart and continues"
            )
        self.count += records.num_rows
        if self._writer is not None:
            names = DEAD_LETTER_SCHEMA.names[:-2]
            arrays = [*(records.column(name) for name in names), errors, places]
            self._writer.write(conform(pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA), self._schema))

    def close(self) -> Sequence[WrittenFile]:
        return () if self._writer is None else self._writer.close()


def _conformed(rows: Any, records: Any, table: Any, letters: _DeadLetters) -> Any:
    """Rows in the table's columns, without those that do not fit, whose records become dead letters."""
    found, faults = rows_that_fit(rows, table)
    if faults:
        letters.add(records, *fault_arrays(faults, rows.num_rows))
    return found


def _decoded(decoder: Decoder, records: Any) -> Decoded:
    """Raises Rejected: a record's schema does not fit, and the pipeline wants to fail."""
    try:
        return decoder.decode(records.column("value"))
    except SchemaRefused as error:
        raise Rejected(
            f"{_place(records, error.row)}: {error.message}; nothing of its batch was committed. errors.on_schema "
            "dead_letter keeps such records apart and continues"
        ) from error


def _place(records: Any, row: int) -> str:
    at = {name: records.column(name)[row].as_py() for name in ("topic", "partition", "offset")}
    return f"{at['topic']}-{at['partition']}, offset {at['offset']}"


def _without_bad(records: Any, decoded: Decoded) -> tuple[Any, Decoded]:
    good = decoded.errors.is_null()
    arrays = (array.filter(good) for array in (decoded.columns, decoded.errors, decoded.places))
    return records.filter(good), Decoded(*arrays)
