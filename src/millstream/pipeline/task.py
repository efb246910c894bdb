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
import pyarrow as pa

from millstream.errors import Rejected
from millstream.pipeline.checks import decoder_of
from millstream.pipeline.files import GROUP_BYTES, FileWriter, WrittenFile, files_batch
from millstream.pipeline.layout import conform, decode_schema
from millstream.pipeline.locations import Location
from millstream.pipeline.model import ErrorMode, Source
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA, METADATA, row_schema
from millstream.spark.stats import ReadStats
from millstream.spark.task import ReadTask
from millstream.spark.values import Decoded


class SourceSettings(msgspec.Struct, frozen=True):
    """What all tasks of a sink's query share.

    ``reports`` and ``dead_letters`` are directories; ``dead_letters`` is None where they are not kept. ``table`` is the
    directory of the table that a task without a query writes to. ``run`` differs each time a pipeline is started.
    ``letters_schema`` is the schema of a dead-letter table's files, as text.
    """

    source: Source
    mode: ErrorMode
    run: str
    reports: str
    dead_letters: str | None
    table: str | None = None
    letters_schema: str | None = None


class Report(msgspec.Struct, frozen=True):
    """What a task has done: rows decoded, records rejected, files with dead letters, where records were read from."""

    rows: int = 0
    rejected: int = 0
    dead_letters: tuple[WrittenFile, ...] = ()
    origins: ReadStats = msgspec.field(default_factory=ReadStats)


def batch_name(run: str, batch: int) -> str:
    """Names the reports and files of one batch in one run."""
    return f"{batch:08d}-{run}"


def decoded_rows(task: ReadTask, settings: SourceSettings, batch: int, *, held_bytes: int = 0) -> Iterator[Any]:
    """Yield the rows of a task as record batches; leaves a report.

    Raises:
        Rejected: a record does not decode, and the pipeline wants to fail.
        MillstreamError: as ``read_task``.
    """
    # Decoding in a worker needs numba, planning does not.
    from millstream.spark.read import read_task

    decoder = decoder_of(settings.source)
    schema = row_schema(decoder.fields)
    letters = _DeadLetters(settings, f"part-{batch_name(settings.run, batch)}-{task.index}")
    rows, origins = 0, ReadStats()
    for records in read_task(task, origins, held_bytes=held_bytes):
        decoded = decoder.decode(records.column("value"))
        if decoded.errors.null_count < len(decoded.errors):
            letters.add(records, decoded.errors)
            records, decoded = _without_bad(records, decoded)
        rows += records.num_rows
        columns = [*decoded.columns.flatten(), *(records.column(name) for _, name, _ in METADATA)]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
    report = Report(rows, letters.count, tuple(letters.close()), origins)
    location = Location(settings.reports) / batch_name(settings.run, batch)
    location.make()
    location.write(f"{task.index}.json", msgspec.json.encode(report))


def written_files(task: ReadTask, settings: SourceSettings, batch: int, schema: Any) -> Iterator[Any]:
    """Write the rows of a task to Parquet files of the table; yields one batch that tells of them."""
    assert settings.table is not None, "a task without a query has a table to write to"
    stem = f"part-{batch_name(settings.run, batch)}-{task.index}"
    writer = FileWriter(Location(settings.table), stem, schema)
    for rows in decoded_rows(task, settings, batch, held_bytes=GROUP_BYTES):
        writer.write(conform(rows, schema))
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


class _DeadLetters:
    """Collects the undecodable records of a task."""

    def __init__(self, settings: SourceSettings, stem: str) -> None:
        self.count = 0
        self._fail = settings.mode == "fail"
        location = settings.dead_letters
        text = settings.letters_schema
        self._schema = DEAD_LETTER_SCHEMA if text is None else decode_schema(text)
        self._writer = FileWriter(Location(location), stem, self._schema) if location is not None else None

    def add(self, records: Any, errors: Any) -> None:
        bad = errors.is_valid()
        records, errors = records.filter(bad), errors.filter(bad)
        if self._fail:
            first = {name: records.column(name)[0].as_py() for name in ("topic", "partition", "offset")}
            raise Rejected(
                f"{first['topic']}-{first['partition']}, offset {first['offset']} does not decode: "
                f"{errors[0].as_py()}; errors.mode dead_letter keeps such records apart and goes on"
            )
        self.count += records.num_rows
        if self._writer is not None:
            names = DEAD_LETTER_SCHEMA.names[:-1]
            arrays = [*(records.column(name) for name in names), errors]
            self._writer.write(conform(pa.RecordBatch.from_arrays(arrays, schema=DEAD_LETTER_SCHEMA), self._schema))

    def close(self) -> Sequence[WrittenFile]:
        return () if self._writer is None else self._writer.close()


def _without_bad(records: Any, decoded: Decoded) -> tuple[Any, Decoded]:
    good = decoded.errors.is_null()
    return records.filter(good), Decoded(decoded.columns.filter(good), decoded.errors.filter(good))
