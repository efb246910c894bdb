"""Maintenance of a pipeline's tables: the rows stay, files and old versions become fewer, and it may be repeated."""

import deltalake
import msgspec
import pyarrow as pa
import pytest

from millstream.errors import Rejected, Unavailable
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.dead_letters import encode_record_offsets, remove_dead_letters
from millstream.pipeline.files import FileWriter
from millstream.pipeline.layout import conform
from millstream.pipeline.locations import state_directory
from millstream.pipeline.maintain import maintain
from millstream.pipeline.model import Pipeline, Sink, Source
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.pipeline.state import PipelineState
from millstream.pipeline.tables import iceberg, merging
from millstream.pipeline.tables.delta import DeltaTable
from millstream.pipeline.tables.iceberg import IcebergTable
from millstream.pipeline.tables.open_table import open_table

SCHEMA = pa.schema([("n", pa.int64())])
SINKS = {
    "delta": Sink(delta="t", name="delta", compact=False),
    "iceberg": Sink(iceberg="ns.t", name="iceberg", compact=False),
}
COUNT = 6


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Few files are many."""
    for module in (merging, iceberg):
        monkeypatch.setattr(module, "_SMALL_FILES", 4)


def pipeline(*sinks):
    source = Source(topic="t", format="json", schema="n bigint")
    return Pipeline(pipeline="p", brokers="localhost:1", source=source, sinks=list(sinks))


def fill(tmp_path, sink, name, start=0):
    table = open_table(sink, str(tmp_path))
    made = TableSink(table, None, pipeline="p", sink=name, compact=False)
    schema = made.open(SCHEMA)
    for number in range(start, start + COUNT):
        writer = FileWriter(table.location, f"part-{number}", schema)
        writer.write(conform(pa.RecordBatch.from_pylist([{"n": number}], SCHEMA), schema))
        made.commit(Batch(query="q", number=number, offsets="{}", files=tuple(writer.close())))


def rows(tmp_path, sink):
    found = open_table(sink, str(tmp_path))
    return sorted(value for batch in found.scan() for value in pa.table(batch.to_pydict())["n"].to_pylist())


@pytest.mark.parametrize("kind", SINKS)
def test_files_are_merged_and_old_versions_go_while_rows_and_records_stay(tmp_path, kind):
    sink = SINKS[kind]
    fill(tmp_path, sink, kind)
    last = open_table(sink, str(tmp_path)).last(f"p.{kind}")
    (kept,) = maintain(pipeline(sink), str(tmp_path), keep_days=7)
    assert kept.merged == COUNT - 1
    assert kept.expired == 0, "they are younger"
    (gone,) = maintain(pipeline(sink), str(tmp_path), keep_days=0)
    assert (gone.merged, gone.expired >= COUNT) == (0, True)
    version = open_table(sink, str(tmp_path)).version()
    (again,) = maintain(pipeline(sink), str(tmp_path), keep_days=0)
    assert (again.merged, again.expired) == (0, 0)
    assert open_table(sink, str(tmp_path)).version() == version, "nothing to do is no commit"
    assert rows(tmp_path, sink) == list(range(COUNT))
    assert open_table(sink, str(tmp_path)).last(f"p.{kind}") == last
    fill(tmp_path, sink, kind, COUNT)
    assert rows(tmp_path, sink) == list(range(2 * COUNT))


def test_a_file_that_no_commit_names_stays(tmp_path):
    fill(tmp_path, SINKS["delta"], "delta")
    pending = tmp_path / "t" / "pending.parquet"
    pending.write_bytes(b"of a batch that is about to be committed")
    maintain(pipeline(SINKS["delta"]), str(tmp_path), keep_days=0)
    assert pending.exists()
    assert len(deltalake.DeltaTable(str(tmp_path / "t")).file_uris()) == 1


@pytest.mark.parametrize(("kind", "table"), [("delta", DeltaTable), ("iceberg", IcebergTable)])
def test_what_a_failure_cut_off_is_done_by_the_next_call(tmp_path, monkeypatch, kind, table):
    fill(tmp_path, SINKS[kind], kind)
    with monkeypatch.context() as broken:

        def fail(*_):
            raise OSError("no disk")

        broken.setattr(table, "expire", fail)
        with pytest.raises(Unavailable, match="no disk; the same command continues from here"):
            maintain(pipeline(SINKS[kind]), str(tmp_path), keep_days=0)
    (done,) = maintain(pipeline(SINKS[kind]), str(tmp_path), keep_days=0)
    assert done.merged == 0, "that was done before"
    assert done.expired > 0
    assert rows(tmp_path, SINKS[kind]) == list(range(COUNT))


def test_a_call_that_is_stopped_ends_between_two_steps(tmp_path):
    fill(tmp_path, SINKS["delta"], "delta")
    (done,) = maintain(pipeline(SINKS["delta"]), str(tmp_path), keep_days=0, stopped=lambda: True)
    assert (done.merged, done.expired, done.stopped) == (0, 0, True)


def test_tables_of_a_running_pipeline_are_left_alone(tmp_path):
    declared = pipeline(SINKS["delta"])
    running = PipelineState(state_directory(declared, str(tmp_path))).running()
    with running, pytest.raises(Unavailable, match="is running already"):
        maintain(declared, str(tmp_path), keep_days=7)


def test_nothing_to_maintain_is_said(tmp_path):
    assert maintain(pipeline(*SINKS.values()), str(tmp_path), keep_days=7) == []
    with pytest.raises(Rejected, match="no Delta or Iceberg table"):
        maintain(pipeline(Sink(parquet="x")), str(tmp_path), keep_days=7)


def test_files_that_a_foreign_optimize_joins_at_the_same_time_are_joined_once(tmp_path):
    sink = SINKS["delta"]
    fill(tmp_path, sink, "delta")
    table = open_table(sink, str(tmp_path))
    write, foreign = table._write, []

    def raced(*given, **named):
        foreign.append(deltalake.DeltaTable(str(tmp_path / "t")).optimize.compact()["numFilesRemoved"])
        return write(*given, **named)

    table._write = raced
    with pytest.raises(deltalake.exceptions.CommitFailedError):
        table.compact()
    assert foreign == [COUNT]
    assert rows(tmp_path, sink) == list(range(COUNT))


def test_dead_letters_leave_a_table_that_a_foreign_optimize_changes_at_the_same_time(tmp_path):
    table = open_table(SINKS["delta"], str(tmp_path), suffix="_dead_letters")
    made = TableSink(table, None, pipeline="p", sink="s", compact=False, pause=lambda _: None)
    schema = made.open(DEAD_LETTER_SCHEMA)
    for number in range(COUNT):
        writer = FileWriter(table.location, f"part-{number}", schema)
        letter = {"topic": "t", "partition": 0, "offset": number}
        writer.write(conform(pa.RecordBatch.from_pylist([letter], DEAD_LETTER_SCHEMA), schema))
        made.commit(Batch(query="q", number=number, offsets="{}", files=tuple(writer.close())))
    properties, foreign = table._properties, []

    def raced(*given):
        if not foreign:
            place = table.location.address
            foreign.append(deltalake.DeltaTable(place).optimize.compact()["numFilesRemoved"])
        return properties(*given)

    table._properties = raced
    record = msgspec.structs.replace(made.last, sink="s~replay", query="replay", batch=0)
    record = msgspec.structs.replace(record, offsets=encode_record_offsets({"t": {0: [1, 3]}}))
    remove_dead_letters(table, record, lambda _: None)
    assert foreign == [COUNT]
    left = sorted(offset for batch in table.scan() for offset in pa.table(batch.to_pydict())["offset"].to_pylist())
    assert left == [0, 2, 4, 5]
