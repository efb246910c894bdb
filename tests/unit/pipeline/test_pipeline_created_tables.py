"""Tables that a pipeline makes have the partitions, the order, the properties and the place that its file names."""

import datetime as dt
from types import SimpleNamespace

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.types import ArrayType, LongType, MapType, StringType, StructType, VariantType

from millstream.errors import Rejected
from millstream.pipeline.checks import partition_part
from millstream.pipeline.commit import Batch, TableSink
from millstream.pipeline.files import FileWriter
from millstream.pipeline.layout import conform
from millstream.pipeline.model import Create, PartitionPart, Sink
from millstream.pipeline.query import arrow_schema
from millstream.pipeline.tables.open_table import open_table

SCHEMA = pa.schema(
    [("id", pa.int64()), ("who", pa.string()), ("at", pa.timestamp("us", tz="UTC")), ("tags", pa.list_(pa.string()))]
)
DAY = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def filled(directory, sink, rows):
    """A new table with these rows, and the paths of its files."""
    table = open_table(sink, str(directory))
    commits = TableSink(table, None, pipeline="p", sink="s", pause=lambda _: None)
    schema = commits.open(SCHEMA)
    writer = FileWriter(table.location, "part", schema)
    for batch in pa.Table.from_pylist(rows, SCHEMA).to_batches():
        writer.write(conform(batch, schema))
    commits.commit(Batch(query="q", number=0, offsets="{}", files=tuple(writer.close())))
    return table


def test_a_delta_table_has_declared_partitions_and_properties(tmp_path):
    create = Create(partition=["who"], properties={"delta.deletedFileRetentionDuration": "interval 3 days"})
    rows = [{"id": number, "who": f"n{number % 3}", "at": DAY} for number in range(9)]
    table = filled(tmp_path, Sink(delta="t", create=create), rows)
    made = deltalake.DeltaTable(str(tmp_path / "t"))
    assert made.metadata().partition_columns == ["who"]
    assert made.metadata().configuration["delta.deletedFileRetentionDuration"] == "interval 3 days"
    assert len(made.file_uris()) == 3
    assert sum(batch.num_rows for batch in table.scan()) == 9


def test_an_iceberg_table_has_declared_partitions_order_properties_and_place(tmp_path):
    create = Create(
        partition=["day(at)", "bucket(4, id)", "truncate(1, who)"], sort=["who desc", "id"],
        properties={"write.target-file-size-bytes": 1 << 20, "owner": "me", "history.expire.min-snapshots-to-keep": 5},
        location=f"file://{tmp_path}/elsewhere",
    )  # fmt: skip
    rows = [{"id": number % 4, "who": f"a{number}", "at": DAY + dt.timedelta(days=number % 2)} for number in range(40)]
    made = filled(tmp_path, Sink(iceberg="ns.t", create=create), rows)._fresh()
    assert [(str(part.transform), part.name) for part in made.spec().fields] == [
        ("day", "at_day"), ("bucket[4]", "id_bucket"), ("truncate[1]", "who_truncate"),
    ]  # fmt: skip
    assert [field.direction.name for field in made.sort_order().fields] == ["DESC", "ASC"]
    assert made.properties["history.expire.min-snapshots-to-keep"] == "5"
    assert made.location() == f"file://{tmp_path}/elsewhere"
    assert made.scan(row_filter="id = 3").to_arrow().num_rows == 10
    for task in made.scan().plan_files():
        found = pq.read_table(task.file.file_path.removeprefix("file://")).to_pylist()
        assert found == sorted(found, key=lambda row: (row["who"], -row["id"]), reverse=True)
        assert len({row["at"].date() for row in found}) == 1


def test_a_table_that_exists_keeps_what_it_has(tmp_path):
    filled(tmp_path, Sink(delta="t"), [{"id": 1}])
    table = open_table(Sink(delta="t", create=Create(partition=["who"])), str(tmp_path))
    TableSink(table, None, pipeline="p", sink="s", pause=lambda _: None).open(SCHEMA)
    assert deltalake.DeltaTable(str(tmp_path / "t")).metadata().partition_columns == []


@pytest.mark.parametrize(
    ("sink", "what"),
    [
        (Sink(delta="t", create=Create(partition=["nr"])), "create names column nr, and the rows have id, who"),
        (Sink(iceberg="ns.t", create=Create(partition=["day(nr)"])), "create names column nr"),
        (Sink(iceberg="ns.t", create=Create(partition=["day(who)"])), "day does not take who, a string"),
        (Sink(iceberg="ns.t", create=Create(sort=["tags"])), "column tags is no simple column"),
        (Sink(delta="t", create=Create(properties={"delta.nonsense": 1})), "cannot be made as create: says"),
        (Sink(iceberg="ns.t", create=Create(properties={"format-version": 3})), "format-version 3 is not written here"),
        (
            Sink(delta="t", create=Create(properties={"delta.appendOnly": True}), mode="upsert", key="id"),
            "rows that stay for ever",
        ),
        (
            Sink(delta="t", create=Create(properties={"delta.enableDeletionVectors": True}), mode="upsert", key="id"),
            "deletionVectors",
        ),
    ],
)
def test_what_a_table_cannot_have_is_refused_before_it_is_made(tmp_path, sink, what):
    table = open_table(sink, str(tmp_path))
    with pytest.raises(Rejected, match=what):
        table.prepare(SCHEMA)
    assert not table.exists()


@pytest.mark.parametrize("around", [lambda one: one, ArrayType, lambda one: StructType().add("x", one)])
def test_a_result_of_spark_types_that_tables_lack_is_refused(around):
    frame = SimpleNamespace(schema=StructType().add("id", LongType()).add("v", around(VariantType())))
    with pytest.raises(Rejected, match="column v has type variant, which tables do not have"):
        arrow_schema(frame)


def test_what_spark_knows_to_be_never_null_is_no_rule_of_a_table():
    member = StructType().add("x", LongType(), nullable=False)
    frame = SimpleNamespace(
        schema=StructType()
        .add("s", member, nullable=False)
        .add("l", ArrayType(member, containsNull=False), nullable=False)
        .add("m", MapType(StringType(), member, valueContainsNull=False), nullable=False)
    )
    x = pa.struct([("x", pa.int64())])
    assert arrow_schema(frame) == pa.schema(
        [("s", x), ("l", pa.list_(pa.field("element", x))), ("m", pa.map_(pa.string(), x))]
    )


def test_parts_of_a_partition_key_are_read():
    texts = ["who", " day( at )", "bucket(16, a b.c)", "TRUNCATE(4,x)"]
    assert list(map(partition_part, texts)) == [
        PartitionPart("who"), PartitionPart("at", "day"), PartitionPart("a b.c", "bucket", 16),
        PartitionPart("x", "truncate", 4),
    ]  # fmt: skip
    for wrong in ("", "week(at)", "bucket(id)", "bucket(0, id)", "day(3, at)", "day(at"):
        with pytest.raises(ValueError, match=r"no part of|takes"):
            partition_part(wrong)
