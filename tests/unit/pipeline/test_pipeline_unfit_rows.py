"""Rows that break a rule of the table: each is found alone, keeps its record's place, and becomes a dead letter."""

import datetime as dt
import json

import pyarrow as pa
import pytest

pytest.importorskip("deltalake")

from millstream.errors import Rejected
from millstream.pipeline.change_reader import ChangeReader
from millstream.pipeline.changes import CHANGE, GENERATION
from millstream.pipeline.fitted_rows import rows_that_fit
from millstream.pipeline.generations import advanced
from millstream.pipeline.keyed_query import keyed_sink
from millstream.pipeline.layout import PartitionField, Rules, with_rules
from millstream.pipeline.model import Sink, Source
from millstream.pipeline.row_letters import Origins, letters_of, with_records
from millstream.pipeline.rows import DEAD_LETTER_SCHEMA
from millstream.pipeline.tables.open_table import open_table
from millstream.spark.offsets import Position, StreamOffset, TopicPositions

PLACE = {"_topic": "t", "_partition": 1, "_timestamp": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}
PLACES = [("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())]
PLACES += [("_timestamp", pa.timestamp("us", tz="UTC"))]
FAR = 400_000_000_000_000_000
"""A time beyond the year 9999, in microseconds."""
INNER = pa.struct([pa.field("x", pa.int64(), nullable=False)])


def batch(fields, rows):
    """Rows with their places, as a query gives them."""
    schema = pa.schema([*fields, *PLACES])
    return pa.RecordBatch.from_pylist([{**PLACE, "_offset": at, **row} for at, row in enumerate(rows)], schema)


def table(*fields, partition=()):
    return with_rules(pa.schema([*fields, *PLACES]), Rules(tuple(partition)))


RULES = {
    "required": (("id", pa.int64()), pa.field("id", pa.int64(), nullable=False), [1, None, 3]),
    "required inside": (
        ("id", pa.struct([("x", pa.int64())])), pa.field("id", INNER), [{"x": 1}, {"x": None}, None],
    ),
    "required in a list": (
        ("id", pa.list_(pa.int64())), pa.field("id", pa.list_(pa.field("element", pa.int64(), nullable=False))),
        [[1], [1, None], None],
    ),
    "range": (("id", pa.int64()), pa.field("id", pa.int8()), [1, 300, 3]),
    "decimal": (("id", pa.decimal128(20, 2)), pa.field("id", pa.decimal128(4, 2)), [1, 1000, 3]),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_row_that_breaks_a_rule_leaves_its_neighbours_alone(rule):
    field, wanted, values = RULES[rule]
    found, faults = rows_that_fit(batch([field], [{"id": value} for value in values]), table(wanted))
    assert (found.column("_offset").to_pylist(), list(faults)) == ([0, 2], [1])
    assert faults[1].column == "id"
    assert ("t-1, offset 1 has no value" in faults[1].reason) == rule.startswith("required")


@pytest.mark.parametrize("transform", ["", "year"])
def test_a_value_without_a_partition_is_a_fault_of_its_row(transform):
    times = pa.timestamp("us", tz="UTC")
    at = pa.array([0, FAR, 1], times)
    rows = batch([("n", pa.int64())], [{}] * 3).append_column("at", at)
    field = PartitionField("at", "at", transform, "timestamptz" if transform else "")
    found, faults = rows_that_fit(rows, table(pa.field("at", times), partition=[field]))
    assert (found.column("_offset").to_pylist(), list(faults)) == ([0, 2], [1])


def test_every_row_of_a_batch_may_be_unfit():
    rows = batch([("id", pa.int64())], [{"id": None}] * 5)
    found, faults = rows_that_fit(rows, table(pa.field("id", pa.int64(), nullable=False)))
    assert (found.num_rows, list(faults)) == (0, [0, 1, 2, 3, 4])


def test_a_dead_letter_has_its_record_or_else_the_row():
    at = pa.array([0, FAR], pa.timestamp("us", tz="UTC"))
    rows = batch([("id", pa.int64())], [{"id": None}, {"id": 7, "_offset": None}]).append_column("at", at)
    faults = rows_that_fit(rows, table(pa.field("id", pa.string(), nullable=False)))[1]
    assert list(faults) == [0]
    letters = letters_of(rows, {0: faults[0], 1: faults[0]}, Origins(named=True, single_rows=True))
    found = with_records(pa.Table.from_batches([letters]), lambda wanted: {("t", 1, 0): (b"k", b"v")}).to_pylist()
    assert found[0] | {"error": ""} == {
        "topic": "t", "partition": 1, "offset": 0, "timestamp": PLACE["_timestamp"], "key": b"k", "value": b"v",
        "error": "", "column": "id",
    }  # fmt: skip
    assert (found[1]["topic"], found[1]["offset"]) == (None, None)
    assert json.loads(found[1]["value"])["id"] == 7
    (alone,) = letters_of(rows, {0: faults[0]}, Origins(named=False, single_rows=True)).to_pylist()
    assert (alone["topic"], json.loads(alone["value"])["_offset"]) == (None, 0)


def test_no_row_of_a_record_stays_if_one_of_them_has_no_key():
    kept = pa.schema([("id", pa.int64()), *PLACES, (GENERATION, pa.int64()), (CHANGE, pa.string())])
    reader = ChangeReader(Source(topic="t"), kept, ("id",))
    generations = advanced({}, {}, StreamOffset({"1" * 32: TopicPositions("t", {1: Position(9)})}))
    rows = batch([("id", pa.int64())], [{"id": 1, "_offset": 4}, {"id": None, "_offset": 4}, {"id": 2, "_offset": 5}])
    rows = pa.Table.from_batches([rows]).cast(ChangeReader.row_schema(kept, ("id",)))
    read = reader.read(rows, DEAD_LETTER_SCHEMA.empty_table(), generations, lambda _: {("t", 1, 4): (None, b"v")})
    assert read.changes.rows.column("_offset").to_pylist() == [5]
    assert [(letter["offset"], letter["value"]) for letter in read.letters.to_pylist()] == [(4, b"v")]


def test_a_row_of_a_keyed_table_without_a_place_does_not_fit():
    schema = ChangeReader.row_schema(pa.schema([("id", pa.int64()), *PLACES]), ("id",))
    found, faults = rows_that_fit(batch([("id", pa.int64())], [{"id": 1, "_offset": None}, {"id": None}]), schema)
    assert (found.column("_offset").to_pylist(), [fault.column for fault in faults.values()]) == ([1], ["_offset"])


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_changelog_into_a_table_that_requires_more_than_the_key_is_refused(tmp_path, kind):
    sink = Sink(**{kind: "ns.t" if kind == "iceberg" else "t"}, mode="changelog", key="id")
    required = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("who", pa.string(), nullable=False)])
    if kind == "delta":
        import deltalake

        deltalake.DeltaTable.create(str(tmp_path / "t"), schema=required)
    else:
        catalog = open_table(sink, str(tmp_path))._catalog
        catalog.create_namespace("ns")
        catalog.create_table("ns.t", required)
    made = keyed_sink("p", sink, str(tmp_path), open_table(sink, str(tmp_path)), None, "s")
    with pytest.raises(Rejected, match="requires a value in who, and the row of a deleted key has none"):
        made.open(pa.schema([("id", pa.int64()), ("who", pa.string()), *PLACES]))
