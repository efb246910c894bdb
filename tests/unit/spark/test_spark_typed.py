"""Typed columns of a topic: options that fit together, every record a row, reasons beside it."""

import json

import pyarrow as pa
import pytest

pytest.importorskip("pyspark")

from pyspark.sql.types import LongType, StringType, StructField, StructType

from millstream.errors import Rejected
from millstream.spark import read, typed
from millstream.spark.options import READ, parse_options
from millstream.spark.source import MillstreamDataSource, TypedReader, TypedStreamReader
from millstream.spark.typed import typed_rows, value_format

WHERE = {"servers": "x:1", "subscribe": "t"}
JSON = {"value.format": "json", "value.schema": "id bigint not null, who string"}


def parsed(**options):
    return parse_options({**WHERE, **{name.replace("__", "."): text for name, text in options.items()}}, READ)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"value__schema": "id bigint"}, "set value.format"),
        ({"value__format": "json"}, "needs either value.schema or"),
        ({"value__format": "json", "value__schema": "a int", "schema__registry__url": "http://x"}, "needs either"),
        ({"value__format": "avro"}, "schema.registry.url is missing"),
        ({"value__format": "string", "value__schema": "a int"}, "is for value.format=json"),
        ({"value__format": "string", "includeHeaders": "true"}, "exclude each other"),
        ({"value__format": "string", "filter__pushdown": "true"}, "exclude each other"),
        ({"value__format": "avro", "schema__registry__url": "http://x", "subscribe": "a,b"}, "need value.subject"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, words):
    with pytest.raises(Rejected, match=words):
        value_format(parsed(**options))


def test_the_subject_follows_from_the_topic():
    found = value_format(parsed(value__format="avro", schema__registry__url="http://x"))
    assert (found.subject, found.pinned) == ("t-value", None)
    assert value_format(parsed()) is None


def test_every_record_is_a_row_and_a_bad_one_has_its_reason(monkeypatch):
    values = [
        json.dumps({"id": 1, "who": "a"}).encode(),
        b"{broken",
        json.dumps({"id": "x", "who": "b"}).encode(),
        None,
    ]
    count = len(values)
    batch = pa.RecordBatch.from_pydict(
        {
            "key": pa.array([b"k"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "topic": ["t"] * count,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array([0] * count, pa.timestamp("us", tz="UTC")),
        }
    )
    monkeypatch.setattr(read, "read_task", lambda task: iter([batch]))
    form = value_format(parsed(value__format="json", value__schema=JSON["value.schema"]))
    (found,) = typed_rows(None, form, ["_offset", "id", "who", "_error", "_value"])
    rows = found.to_pylist()
    assert [(row["_offset"], row["id"], row["who"]) for row in rows] == [
        (0, 1, "a"), (1, None, None), (2, None, None), (3, None, None),
    ]  # fmt: skip
    assert [row["_value"] for row in rows] == [None, *values[1:]]
    words = ["malformed", "got `str`", "no value, and id is required"]
    assert rows[0]["_error"] is None
    assert [word in row["_error"] for word, row in zip(words, rows[1:], strict=True)] == [True] * 3


def test_spark_gets_the_columns_and_asks_for_some_of_them():
    source = MillstreamDataSource({**WHERE, **JSON})
    whole = source.schema()
    assert whole.fieldNames() == [
        "id",
        "who",
        "_key",
        "_topic",
        "_partition",
        "_offset",
        "_timestamp",
        "_error",
        "_value",
    ]
    assert isinstance(source.reader(whole), TypedReader)
    stream = source.streamReader(StructType([StructField("id", LongType())]))
    assert isinstance(stream, TypedStreamReader)
    again = TypedStreamReader.__new__(TypedStreamReader)
    again.__setstate__(stream.__getstate__())
    assert again._names == ("id",)
    with pytest.raises(Rejected, match="column 'id' is bigint, not string; a schema that changed"):
        source.reader(StructType([StructField("id", StringType())]))
    with pytest.raises(Rejected, match="field _Error, the name of a column"):
        MillstreamDataSource({**WHERE, **JSON, "value.schema": "_Error int"}).schema()
    assert typed.ERROR_COLUMN == "_error"
