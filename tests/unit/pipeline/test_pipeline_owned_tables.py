"""Tables that others own: their rules are kept or refused by name, and upkeep changes no row."""

import datetime as dt
import decimal
import json
import os

import deltalake
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import LongType, StringType
from table_support import Writer

from millstream.errors import Rejected
from millstream.pipeline.fitted_rows import rows_that_fit
from millstream.pipeline.model import Create, Sink
from millstream.pipeline.tables import delta, iceberg, merging
from millstream.pipeline.tables.open_table import open_table
from millstream.pipeline.tables.table import TableChanged

N = pa.schema([("n", pa.int64())])
ROWS = pa.schema([("id", pa.int64()), ("country", pa.string()), ("count", pa.int32())])
COLUMN = {"name": "n", "type": "long", "nullable": True, "metadata": {}}


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Few files are many."""
    for module in (merging, iceberg):
        monkeypatch.setattr(module, "_SMALL_FILES", 3)


def own_iceberg(tmp_path, schema, **created):
    """A table that somebody else has made."""
    catalog = Writer(tmp_path, "iceberg").table._catalog
    catalog.create_namespace_if_not_exists("ns")
    return catalog.create_table("ns.t", schema, **created)


def own_delta(tmp_path, schema, **created):
    return deltalake.DeltaTable.create(str(tmp_path / "t"), schema=schema, **created)


def written_delta(tmp_path, protocol, column=COLUMN, configuration=None):
    """A Delta table of a protocol, with one column."""
    log = tmp_path / "t" / "_delta_log"
    log.mkdir(parents=True)
    schema = json.dumps({"type": "struct", "fields": [column]})
    metadata = {"id": "a", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    metadata |= {"partitionColumns": [], "configuration": configuration or {}, "createdTime": 1}
    lines = [{"protocol": protocol}, {"metaData": metadata}]
    (log / f"{0:020d}.json").write_text("\n".join(map(json.dumps, lines)))


def rename(table):
    with table.update_schema() as update:
        update.rename_column("country", "nation")


def drop_and_add(table):
    with table.update_schema() as update:
        update.delete_column("country")
    with table.update_schema() as update:
        update.add_column("country", StringType())


def widen(table):
    with table.update_schema() as update:
        update.update_column("count", LongType())


@pytest.mark.parametrize("change", [rename, drop_and_add, widen])
def test_upkeep_of_a_table_whose_owner_changed_its_columns_keeps_every_row(tmp_path, change):
    writer = Writer(tmp_path, "iceberg").open(ROWS)
    for number in range(3):
        writer.append([{"id": number, "country": f"C{number}", "count": number}])
    writer.iceberg().append(pa.table({"id": [3], "country": ["C3"], "count": pa.array([3], pa.int32())}))
    change(writer.iceberg())
    before = writer.rows()
    assert writer.table.compact() == 3
    assert writer.rows() == before
    assert len(writer.iceberg().inspect.files()) == 1


def test_upkeep_keeps_properties_partitions_and_order(tmp_path):
    owned = own_iceberg(tmp_path, ROWS, properties={"owner": "me", "write.metadata.metrics.default": "counts"})
    with owned.update_spec() as update:
        update.add_field("country", IdentityTransform(), "country")
    with owned.update_sort_order() as update:
        update.desc("id", IdentityTransform(), NullOrder.NULLS_LAST)
    writer = Writer(tmp_path, "iceberg").open(ROWS)
    for number in range(4):
        places = [(0, "A"), (10, "A"), (20, "B"), (30, "B")]
        writer.append([{"id": number + place, "country": country, "count": 1} for place, country in places])
    before, was = writer.rows(), writer.iceberg()
    while writer.table.compact():
        pass
    now = writer.iceberg()
    assert writer.rows() == before
    assert now.properties == was.properties
    assert (now.spec(), now.sort_order()) == (was.spec(), was.sort_order())
    files = now.inspect.files().to_pylist()
    assert sorted(file["partition"]["country"] for file in files) == ["A", "B"]
    assert {file["sort_order_id"] for file in files} == {now.sort_order().order_id}
    for task in now.scan().plan_files():
        ids = pa.parquet.read_table(task.file.file_path.removeprefix("file://")).column("id").to_pylist()
        assert ids == sorted(ids, reverse=True)


@pytest.mark.parametrize(
    ("protocol", "rule"),
    [
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["rowTracking"]}, "rowTracking"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["ofTheFuture"]}, "ofTheFuture"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["clustering"]}, "clustering"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["inCommitTimestamp"]}, "inCommitTimestamp"),
        (
            {
                "minReaderVersion": 3, "minWriterVersion": 7,
                "readerFeatures": ["ofTheFuture"], "writerFeatures": ["ofTheFuture"],
            },
            "ofTheFuture",
        ),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["domainMetadata"]}, "domainMetadata"),
        ({"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": ["allowColumnDefaults"]}, "ColumnDefaults"),
        ({"minReaderVersion": 2, "minWriterVersion": 6}, "identityColumns"),
        ({"minReaderVersion": 9, "minWriterVersion": 9}, "version 9"),
    ],
)  # fmt: skip
def test_a_delta_table_with_features_of_others_is_refused_by_name(tmp_path, protocol, rule):
    written_delta(tmp_path, protocol)
    for refused in (lambda: Writer(tmp_path, "delta").table.inspect(None), lambda: Writer(tmp_path, "delta").open(N)):
        with pytest.raises(Rejected, match=rule):
            refused()


@pytest.mark.parametrize("feature", sorted(delta._FEATURES))
def test_a_delta_table_with_a_feature_that_is_not_refused_is_written_to(tmp_path, feature):
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    if feature in ("columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint"):
        protocol |= {"minReaderVersion": 3, "readerFeatures": [feature]}
    written_delta(tmp_path, protocol)
    writer = Writer(tmp_path, "delta").open(N)
    writer.append([{"n": 1}])
    assert writer.rows() == [{"n": 1}]


@pytest.mark.parametrize(
    ("metadata", "rule"),
    [
        ({"delta.generationExpression": "1"}, "a generated value in column n"),
        ({"delta.identity.start": 1, "delta.identity.step": 1}, "identity values in column n"),
        ({"delta.invariants": '{"expression": {"expression": "n > 1"}}'}, "an invariant in column n"),
        ({"CURRENT_DEFAULT": "1"}, "a default value in column n"),
        ({"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}, "a bounded length in column n"),
    ],
)
def test_rules_of_delta_columns_are_refused_by_name(tmp_path, metadata, rule):
    written_delta(tmp_path, {"minReaderVersion": 1, "minWriterVersion": 6}, {**COLUMN, "metadata": metadata})
    with pytest.raises(Rejected, match=rule):
        Writer(tmp_path, "delta").table.inspect(None)


def test_a_check_constraint_is_refused_and_also_one_that_comes_while_a_batch_is_written(tmp_path):
    own_delta(tmp_path, N)
    writer = Writer(tmp_path, "delta").open(N)
    files = writer.files([{"n": -1}])
    writer.delta().alter.add_constraint({"positive": "n > 0"})
    with pytest.raises(TableChanged):
        writer.commit(files)
    with pytest.raises(Rejected, match=r"the CHECK constraint positive \(n > 0\)"):
        writer.table.inspect(N)
    assert writer.rows() == []


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_required_columns_stay_required(tmp_path, kind):
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    members = [("id", pa.int64()), ("s", inner), ("l", pa.list_(pa.field("element", inner, nullable=False)))]
    schema = pa.schema([pa.field(name, type_, nullable=name != "id") for name, type_ in members])
    (own_delta if kind == "delta" else own_iceberg)(tmp_path, schema)
    with pytest.raises(Rejected, match="requires a value in id"):
        Writer(tmp_path, kind).table.inspect(pa.schema([("other", pa.int64())]))
    loose = pa.struct([("x", pa.int64())])
    rows = pa.schema([("id", pa.int64()), ("s", loose), ("l", pa.list_(loose)), ("added", pa.string())])
    writer = Writer(tmp_path, kind).open(rows)
    assert [field.nullable for field in writer.schema] == [False, True, True, True]
    good = [{"id": 1, "s": {"x": 1}, "l": [{"x": 2}]}, {"id": 2, "s": None, "l": None, "added": "a"}]
    writer.append(pa.Table.from_pylist(good, rows))
    for bad, column in [
        ({"id": None}, "column id is"),
        ({"id": 3, "s": {"x": None}}, "column s.x is"),
        ({"id": 3, "l": [{"x": 1}, {"x": None}]}, "column l.element.x is"),
        ({"id": 3, "l": [None]}, "column l.element is"),
    ]:
        with pytest.raises(Rejected, match=column):
            writer.append(pa.Table.from_pylist([{"id": 9}, bad], rows))
    assert [row["id"] for row in writer.rows()] == [1, 2]


def test_a_refused_row_is_named_by_its_record(tmp_path):
    own_delta(tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    place = {"_topic": "orders", "_partition": 2, "_offset": 70}
    rows = pa.schema([("id", pa.int64()), ("_topic", pa.string()), ("_partition", pa.int32()), ("_offset", pa.int64())])
    writer = Writer(tmp_path, "delta").open(rows)
    with pytest.raises(Rejected, match="orders-2, offset 71 has no value"):
        writer.files(pa.Table.from_pylist([{"id": 1, **place}, {"id": None, **place, "_offset": 71}], rows))


@pytest.mark.parametrize("mode", ["name", "id"])
def test_delta_column_mapping_gets_physical_names_and_ids(tmp_path, mode):
    schema = pa.schema([("id", pa.int64()), ("a b", pa.string()), ("c,d", pa.struct([("x=y", pa.list_(pa.int64()))]))])
    own_delta(tmp_path, schema, configuration={"delta.columnMapping.mode": mode})
    old, new = ({"id": id_, "a b": str(id_), "c,d": {"x=y": [id_]}} for id_ in (0, 1))
    deltalake.write_deltalake(str(tmp_path / "t"), pa.Table.from_pylist([old], schema), mode="append")
    writer = Writer(tmp_path, "delta").open(schema)
    writer.append(pa.Table.from_pylist([new], schema))
    assert writer.rows() == [old, new]
    query = deltalake.QueryBuilder().register("t", writer.delta())
    assert pa.table(query.execute("select id from t where \"a b\" = '1'").read_all()).to_pylist() == [{"id": 1}]
    with pytest.raises(Rejected, match="has column mapping and lacks z"):
        Writer(tmp_path, "delta").open(pa.schema([("z", pa.int64())]))
    with pytest.raises(Rejected, match=r"has column mapping\. Such a table is not maintained here"):
        writer.table.compact()


VALUES = {
    "text": (pa.string(), ["FR", "a/b c=%20,é", " ", None]),
    "number": (pa.int32(), [1, -5, None, 7]),
    "flag": (pa.bool_(), [True, False, None, True]),
    "day": (pa.date32(), [dt.date(2024, 1, 2), dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
    "moment": (pa.timestamp("us", tz="UTC"), [dt.datetime(2024, 1, 2, 3, 4, 5, 678901, tzinfo=dt.UTC), None] * 2),
    "amount": (pa.decimal128(10, 2), [decimal.Decimal("1.50"), decimal.Decimal("-0.01"), None, None]),
}


def partition_rows(name):
    kind, values = VALUES[name]
    schema = pa.schema([("id", pa.int64()), ("p", kind), ("count", pa.int32())])
    rows = [{"id": id_, "p": value, "count": 1} for id_, value in enumerate(values)]
    return schema, rows


@pytest.mark.parametrize("name", VALUES)
def test_a_partitioned_delta_table_gets_its_rows_in_their_partitions(tmp_path, name):
    schema, rows = partition_rows(name)
    own_delta(tmp_path, schema, partition_by=["p", "count"])
    writer = Writer(tmp_path, "delta").open(schema)
    writer.append(pa.Table.from_pylist(rows, schema))
    assert writer.rows() == rows


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' means null"), ("__HIVE_DEFAULT_PARTITION__", "'__HIVE_DEFAULT_PARTITION__' means null"),
        ("x" * 199, "the name of its partition has 201 bytes, and 200 is the most"), ("ü" * 33 + "x", "has 201 bytes"),
    ],
)  # fmt: skip
def test_a_text_that_readers_do_not_find_in_a_delta_partition_has_no_row_there(tmp_path, text, why):
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    own_delta(tmp_path, schema, partition_by=["p"])
    writer = Writer(tmp_path, "delta").open(schema)
    rows = pa.table([[0, 1, 2, 3], ["x" * 198, text, None, text]], schema)
    good, faults = rows_that_fit(rows.to_batches()[0], writer.schema)
    assert good.column("id").to_pylist() == [0, 2]
    assert list(faults) == [1, 3]
    assert all(why in fault.reason for fault in faults.values())


@pytest.mark.parametrize("name", ["a/b", "a\\b", "a=b", ".a", "a\tb", "x" * 101])
def test_a_partition_column_that_cannot_name_directories_is_refused(tmp_path, name):
    """polars would read null in it."""
    schema = pa.schema([("id", pa.int64()), (name, pa.string())])
    sink = Sink(delta="u", create=Create(partition=[name]))
    with pytest.raises(Rejected, match="cannot be that of a directory"):
        open_table(sink, str(tmp_path)).prepare(schema)
    assert not (tmp_path / "u" / "_delta_log").exists()
    own_delta(tmp_path, schema, partition_by=[name])
    for refused in (Writer(tmp_path, "delta").table.inspect, Writer(tmp_path, "delta").open):
        with pytest.raises(Rejected, match="whose name cannot be that of a directory"):
            refused(schema)


@pytest.mark.parametrize(
    ("name", "transform"),
    [
        ("text", IdentityTransform()), ("text", TruncateTransform(2)), ("number", BucketTransform(3)),
        ("day", IdentityTransform()), ("moment", DayTransform()), ("amount", TruncateTransform(10)),
        ("flag", IdentityTransform()),
    ],
)  # fmt: skip
def test_a_partitioned_iceberg_table_gets_its_rows_in_their_partitions(tmp_path, name, transform):
    schema, rows = partition_rows(name)
    with own_iceberg(tmp_path, schema).update_spec() as update:
        update.add_field("p", transform, "part")
    writer = Writer(tmp_path, "iceberg").open(schema)
    writer.append(pa.Table.from_pylist(rows, schema))
    assert writer.rows() == rows
    reference = own_reference(tmp_path / "other", schema, transform, rows)
    parts = [sorted(str(f["partition"]) for f in t.inspect.files().to_pylist()) for t in (writer.iceberg(), reference)]
    assert parts[0] == parts[1] or isinstance(transform, BucketTransform | TruncateTransform | DayTransform)


def own_reference(directory, schema, transform, rows):
    """The same table as the library writes it, where it can."""
    directory.mkdir()
    table = own_iceberg(directory, schema)
    with table.update_spec() as update:
        update.add_field("p", transform, "part")
    if isinstance(transform, IdentityTransform):
        table.append(pa.Table.from_pylist(rows, schema))
    return table


def test_iceberg_rules_that_are_not_kept_are_refused_by_name(tmp_path):
    table = own_iceberg(tmp_path, pa.schema([pa.field("id", pa.int64(), nullable=False), ("s", pa.string())]))
    writer = Writer(tmp_path, "iceberg")
    with table.update_schema() as update:
        update.set_identifier_fields("id")
    with pytest.raises(Rejected, match=r"identifier fields \(id\)"):
        writer.table.inspect(None)
    with table.update_schema() as update:
        update.set_identifier_fields()
    with table.update_sort_order() as update:
        update.asc("id", BucketTransform(4))
    with pytest.raises(Rejected, match="the sort order"):
        writer.table.inspect(None)


def test_identifier_fields_within_structures_are_refused_by_name(tmp_path):
    inner = pa.struct([pa.field("b", pa.int64(), nullable=False)])
    table = own_iceberg(tmp_path, pa.schema([pa.field("a", inner, nullable=False), ("s", pa.string())]))
    with table.update_schema() as update:
        update.set_identifier_fields("a.b")
    with pytest.raises(Rejected, match=r"identifier fields \(a\.b\)"):
        Writer(tmp_path, "iceberg").table.inspect(None)


def test_a_newer_format_version_is_refused(tmp_path, monkeypatch):
    own_iceberg(tmp_path, N)
    monkeypatch.setattr(iceberg, "FORMAT", 1)
    with pytest.raises(Rejected, match="format version 2, and version 1 is the newest"):
        Writer(tmp_path, "iceberg").open(N)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_column_that_its_owner_has_widened_gets_the_rows_as_before(tmp_path, kind):
    wide = pa.schema([("n", pa.int64()), ("f", pa.float64()), ("d", pa.decimal128(12, 2))])
    (own_delta if kind == "delta" else own_iceberg)(tmp_path, wide)
    narrow = pa.schema([("n", pa.int32()), ("f", pa.float32()), ("d", pa.decimal128(10, 2))])
    row = {"n": 1, "f": 0.5, "d": decimal.Decimal("1.25")}
    Writer(tmp_path, kind).open(narrow).append(pa.Table.from_pylist([row], narrow))
    assert Writer(tmp_path, kind).rows() == [row]
    with pytest.raises(Rejected, match="column n is double, in the table int64"):
        Writer(tmp_path, kind).open(pa.schema([("n", pa.float64())]))


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_name_that_differs_by_case_alone_is_refused(tmp_path, kind):
    Writer(tmp_path, kind).open(pa.schema([("Country", pa.string())]))
    with pytest.raises(Rejected, match="column country is called Country in the table"):
        Writer(tmp_path, kind).open(pa.schema([("country", pa.string())]))


INNER = pa.struct([("a", pa.int64()), ("A", pa.int64())])
OTHERS = {
    "": pa.int64(), "a\0b": pa.int64(), "ID": pa.int64(), "s": INNER, "l": pa.list_(INNER), "void": pa.null(),
    "voids": pa.list_(pa.null()), "m": pa.map_(pa.string(), pa.struct([("x", pa.null())])), "empty": pa.struct([]),
    "span": pa.duration("us"), "months": pa.list_(pa.month_day_nano_interval()),
}  # fmt: skip


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
@pytest.mark.parametrize("name", OTHERS)
def test_a_table_gets_no_columns_that_readers_cannot_read(tmp_path, kind, name):
    schema = pa.schema([("id", pa.int64()), (name, OTHERS[name])])
    for refused in (Writer(tmp_path, kind).table.inspect, Writer(tmp_path, kind).open):
        with pytest.raises(Rejected, match=r"cannot have (a|the) column"):
            refused(schema)
    assert not Writer(tmp_path, kind).table.exists()
    writer = Writer(tmp_path, kind).open(N)
    with pytest.raises(Rejected, match=r"cannot have (a|the) column"):
        writer.table.prepare(schema)
    assert writer.table.columns() is None or writer.table.columns().names == ["n"]


@pytest.mark.parametrize(
    ("kind", "type_"), [("delta", pa.time64("us")), ("delta", pa.float16()), ("iceberg", pa.timestamp("ns"))]
)
def test_a_type_that_a_format_lacks_is_refused_in_words(tmp_path, kind, type_):
    with pytest.raises(Rejected, match=r"cannot have these columns: .*(Time64|Float16|timestamp)"):
        Writer(tmp_path, kind).open(pa.schema([("x", type_)]))
    assert not Writer(tmp_path, kind).table.exists()


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_batch_for_columns_that_were_changed_is_not_committed(tmp_path, kind):
    writer = Writer(tmp_path, kind).open(ROWS)
    files = writer.files([{"id": 1, "country": "A", "count": 1}])
    if kind == "iceberg":
        rename(writer.iceberg())
    else:
        writer.delta().alter.add_columns([deltalake.Field("more", "string")])
    with pytest.raises(TableChanged, match="has been changed by its owner"):
        writer.commit(files)
    assert writer.rows() == []


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_table_that_is_made_again_under_a_writer_gets_nothing(tmp_path, kind):
    writer = Writer(tmp_path, kind).open(N)
    writer.append([{"n": 1}])
    files = writer.files([{"n": 2}])
    if kind == "iceberg":
        writer.table._catalog.drop_table("ns.t")
        own_iceberg(tmp_path, N)
    else:
        own_delta(tmp_path, N, mode="overwrite")
    with pytest.raises(Rejected, match="was dropped and made again"):
        writer.commit(files)
    assert writer.rows() == []


def test_columns_of_iceberg_files_are_found_by_id_after_a_drop(tmp_path):
    writer = Writer(tmp_path, "iceberg").open(ROWS)
    writer.append([{"id": 1, "country": "old", "count": 1}])
    with writer.iceberg().update_schema() as update:
        update.delete_column("country")
    writer.open(ROWS).append([{"id": 2, "country": "new", "count": 1}])
    assert [(row["id"], row["country"]) for row in writer.rows()] == [(1, None), (2, "new")]


def test_a_column_with_the_name_of_the_parquet_key_is_refused(tmp_path):
    for name in ("millstream_batch", "Millstream_Batch"):
        with pytest.raises(Rejected, match=f"column {name} has the name of the directories' key"):
            Writer(tmp_path, "parquet").open(pa.schema([(name, pa.string())]))
    writer = Writer(tmp_path, "parquet").open(pa.schema([("batch", pa.string())]))
    writer.append([{"batch": "LOT-7"}])
    found = pa.dataset.dataset(str(tmp_path / "t"), partitioning="hive").to_table()
    assert found.column("batch").to_pylist() == ["LOT-7"]


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
@pytest.mark.parametrize("directory", ["a%20b", "a b", "a#b", "a?b", "é+&=,b"])
def test_directories_whose_names_mean_something_in_addresses(tmp_path, kind, directory):
    (tmp_path / directory).mkdir()
    if set(directory) & set("%#?" if kind == "iceberg" else "%"):
        with pytest.raises(Rejected, match=r"addresses of Iceberg do not carry|for an escape"):
            Writer(tmp_path / directory, kind)
        return
    writer = Writer(tmp_path / directory, kind).open(N)
    writer.append([{"n": 1}])
    Writer(tmp_path / directory, kind, query="q2").open(N).append([{"n": 2}])
    assert writer.rows() == [{"n": 1}, {"n": 2}]


def test_upkeep_keeps_removed_files_as_long_as_the_owner_says(tmp_path):
    own_delta(tmp_path, N, configuration={"delta.deletedFileRetentionDuration": "interval 30 days"})
    writer = Writer(tmp_path, "delta").open(N)
    for number in range(4):
        writer.append([{"n": number}])
    assert writer.table.compact() == 3
    assert writer.table.expire(0) == 0


@pytest.mark.parametrize("names", [("a b", "a_x20b"), ("a_x20b", "a b"), ("1", "_1"), ("a.b", "a_x2Eb", "a_x2Eb_")])
def test_columns_that_would_have_one_name_in_iceberg_files_are_told_apart(tmp_path, names):
    row = {name: number for number, name in enumerate(names)}
    members = pa.struct([(name, pa.int64()) for name in names])
    schema = pa.schema([*members, ("s", members), ("l", pa.list_(members)), ("m", pa.map_(pa.string(), members))])
    writer = Writer(tmp_path, "iceberg").open(schema)
    rows = [{**row, "s": row, "l": [row], "m": [("k", row)]}, dict.fromkeys(schema.names)]
    writer.append(pa.Table.from_pylist(rows, schema))
    writer.append(pa.Table.from_pylist(rows[:1], schema))
    assert writer.rows() == [rows[0], rows[0], rows[1]]
    for name in names:
        found = writer.iceberg().scan(row_filter=EqualTo(name, row[name])).to_arrow().to_pylist()
        assert found == [rows[0]] * 2
    for file in writer.iceberg().inspect.files().to_pylist():
        assert [int.from_bytes(bound, "little") for _, bound in sorted(file["lower_bounds"])[: len(names)]] == [
            *row.values()
        ]


@pytest.mark.parametrize(("clean", "kept"), [("true", False), ("false", True)])
def test_upkeep_keeps_the_log_of_a_delta_table_whose_owner_says_so(tmp_path, clean, kept):
    configuration = {"delta.enableExpiredLogCleanup": clean, "delta.checkpointInterval": "1000"}
    own_delta(tmp_path, N, configuration=configuration)
    writer = Writer(tmp_path, "delta").open(N)
    for number in range(3):
        writer.append([{"n": number}])
    writer.delta().create_checkpoint()
    for path in (tmp_path / "t" / "_delta_log").iterdir():
        os.utime(path, (0, 0))
    writer.append([{"n": 3}])
    writer.table.expire(7)
    assert (tmp_path / "t" / "_delta_log" / f"{1:020}.json").exists() is kept
    assert [row["n"] for row in writer.rows()] == [0, 1, 2, 3]


def test_a_sorted_table_gets_sorted_files_with_nulls_at_their_end(tmp_path):
    with own_iceberg(tmp_path, ROWS).update_sort_order() as update:
        update.asc("country", IdentityTransform(), NullOrder.NULLS_FIRST)
    writer = Writer(tmp_path, "iceberg").open(ROWS)
    writer.append([{"id": 1, "country": "b"}, {"id": 2, "country": None}, {"id": 3, "country": "a"}])
    (file,) = writer.iceberg().inspect.files().to_pylist()
    read = pa.parquet.read_table(file["file_path"].removeprefix("file://"))
    assert read.column("country").to_pylist() == [None, "a", "b"]
    assert writer.iceberg().sort_order().fields[0].direction is SortDirection.ASC


@pytest.mark.parametrize(
    ("properties", "gone"),
    [
        ({}, 4),
        ({"gc.enabled": "false"}, 0),
        ({"history.expire.min-snapshots-to-keep": "3"}, 2),
        ({"history.expire.max-snapshot-age-ms": "3600000"}, 0),
    ],
)
def test_upkeep_keeps_as_many_snapshots_as_the_owner_says(tmp_path, properties, gone):
    own_iceberg(tmp_path, N, properties=properties)
    writer = Writer(tmp_path, "iceberg").open(N)
    for number in range(4):
        writer.append([{"n": number}])
    assert writer.table.expire(0) == gone
    assert [row["n"] for row in writer.rows()] == [0, 1, 2, 3]


def test_upkeep_keeps_of_each_branch_what_its_owner_says(tmp_path):
    writer = Writer(tmp_path, "iceberg").open(N)
    for number in range(6):
        writer.append([{"n": number}])
        if number in (2, 4):
            table = writer.iceberg()
            kept = {2: {"max_snapshot_age_ms": 3_600_000}, 4: {"min_snapshots_to_keep": 2}}[number]
            name, head = f"branch-{number}", table.current_snapshot().snapshot_id
            table.manage_snapshots().create_branch(head, name, **kept).commit()
    heads = [ref.snapshot_id for _, ref in sorted(writer.iceberg().metadata.refs.items())]
    history = [snapshot.snapshot_id for snapshot in writer.iceberg().snapshots()]
    writer.table.expire(0)
    left = {snapshot.snapshot_id for snapshot in writer.iceberg().snapshots()}
    old, fifth = history.index(heads[0]), history.index(heads[1])
    assert left == {*history[: old + 1], *history[fifth - 1 : fifth + 1], heads[2]}
    for head in left:
        writer.iceberg().scan(snapshot_id=head).to_arrow()
    assert [row["n"] for row in writer.rows()] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}"])
def test_a_directory_is_the_same_in_every_form_that_catalogs_have(tmp_path, form):
    own_iceberg(tmp_path, N, location=form.format(tmp_path / "lake"))
    writer = Writer(tmp_path, "iceberg").open(N)
    for number in range(4):
        writer.append([{"n": number}])
    assert writer.table.compact() == 3
    assert writer.rows() == [{"n": number} for number in range(4)]
    assert len(list((tmp_path / "lake/data").iterdir())) == 5


def test_files_go_where_the_owner_wants_them_from_now_on(tmp_path):
    writer = Writer(tmp_path, "iceberg").open(N)
    files = writer.files([{"n": 1}])
    with writer.iceberg().transaction() as transaction:
        transaction.set_properties({"write.data.path": f"file:{tmp_path}/other"})
    with pytest.raises(TableChanged):
        writer.commit(files)
    writer.open(N).append([{"n": 1}])
    assert writer.rows() == [{"n": 1}]
    assert len(list((tmp_path / "other").iterdir())) == 1


def test_a_part_of_the_key_that_its_owner_removes_is_left_empty(tmp_path):
    """Format version 1 keeps its place in the key."""
    owned = own_iceberg(tmp_path, ROWS, properties={"format-version": "1"})
    with owned.update_spec() as update:
        update.add_field("country", IdentityTransform(), "country")
        update.add_field("id", BucketTransform(2), "bucket")
    writer = Writer(tmp_path, "iceberg").open(ROWS)
    writer.append([{"id": 1, "country": "A", "count": 1}])
    with writer.iceberg().update_spec() as update:
        update.remove_field("country")
    writer.open(ROWS).append([{"id": 2, "country": "B", "count": 1}])
    assert [row["country"] for row in writer.rows()] == ["A", "B"]
    assert len(writer.iceberg().scan(row_filter="country == 'B'").to_arrow()) == 1


def test_upkeep_joins_files_that_lie_outside_of_the_table(tmp_path):
    table = own_iceberg(tmp_path, N)
    for number in range(3):
        pa.parquet.write_table(pa.table({"n": [number]}), tmp_path / f"{number}.parquet")
        table.add_files([f"file://{tmp_path}/{number}.parquet"])
    writer = Writer(tmp_path, "iceberg")
    assert writer.table.compact() == 2
    assert [row["n"] for row in writer.rows()] == [0, 1, 2]


def renamed(writer, old, new):
    with writer.iceberg().update_schema() as update:
        update.rename_column(old, new)


TWO = pa.schema([("n", pa.int64()), ("who", pa.string())])


def test_a_column_that_its_owner_renames_goes_on_to_be_filled(tmp_path):
    one = Writer(tmp_path, "iceberg")
    one.sink.take()
    one.open(TWO).append([{"n": 1, "who": "a"}])
    renamed(one, "who", "name")
    with pytest.raises(TableChanged):
        one.append([{"n": 2, "who": "b"}])
    one.open(TWO).append([{"n": 2, "who": "b"}])
    two = Writer(tmp_path, "iceberg", query="another")  # the record knows the column, too
    two.sink.take()
    two.open(TWO).append([{"n": 3, "who": "c"}])
    assert one.rows() == [{"n": number, "name": who} for number, who in ((1, "a"), (2, "b"), (3, "c"))]
    assert two.table.columns().names == ["n", "who"]


@pytest.mark.parametrize("names", [("s", "s~backfill"), ("s", "s~replay"), ("s~backfill", "s")])
def test_a_renamed_column_is_filled_by_backfills_and_replays_too(tmp_path, names):
    first, second = names
    one = Writer(tmp_path, "iceberg", name=first).open(TWO)
    one.append([{"n": 1, "who": "a"}])
    renamed(one, "who", "name")
    Writer(tmp_path, "iceberg", name=second).open(TWO).append([{"n": 2, "who": "b"}])
    assert one.rows() == [{"n": 1, "name": "a"}, {"n": 2, "name": "b"}]


def test_a_name_that_went_to_another_column_is_not_filled_for_the_renamed_one(tmp_path):
    one = Writer(tmp_path, "iceberg")
    one.sink.take()
    one.open(TWO).append([{"n": 1, "who": "a"}])
    renamed(one, "who", "name")
    with one.iceberg().update_schema() as update:
        update.add_column("who", StringType())
    one.open(TWO).append([{"n": 2, "who": "b"}])
    assert one.rows() == [{"n": 1, "name": "a", "who": None}, {"n": 2, "name": "b", "who": None}]
    with pytest.raises(Rejected, match=r"column who is called name since .* and the result has another column name"):
        one.open(pa.schema([*TWO, ("name", pa.string())]))


def test_a_renamed_column_is_widened_and_partitions_follow_it(tmp_path):
    one = Writer(tmp_path, "iceberg")
    one.sink.take()
    one.open(pa.schema([("n", pa.int32()), ("who", pa.string())])).append(
        pa.table({"n": pa.array([1], pa.int32()), "who": ["a"]})
    )
    with one.iceberg().update_spec() as update:
        update.add_identity("who")
    renamed(one, "who", "name")
    renamed(one, "n", "number")
    one.open(TWO).append([{"n": 2**40, "who": "b"}])
    assert one.rows() == [{"number": 1, "name": "a"}, {"number": 2**40, "name": "b"}]
    assert one.iceberg().scan(row_filter="name == 'b'").to_arrow().column("number").to_pylist() == [2**40]


PLACE = pa.struct([("city", pa.string()), ("zip", pa.int32())])
NESTED = pa.schema([("n", pa.int64()), ("at", PLACE), ("many", pa.list_(PLACE)), ("by", pa.map_(pa.string(), PLACE))])


def nested_row(n):
    place = {"city": f"c{n}", "zip": n}
    return pa.Table.from_pylist([{"n": n, "at": place, "many": [place, None], "by": [("k", place)]}], NESTED)


@pytest.mark.parametrize("path", ["at", "many.element", "by.value"])
def test_a_renamed_member_of_a_structure_goes_on_to_be_filled(tmp_path, path):
    one = Writer(tmp_path, "iceberg")
    one.sink.take()
    one.open(NESTED).append(nested_row(1))
    renamed(one, f"{path}.city", "town")
    with one.iceberg().update_schema() as update:
        update.update_column(f"{path}.zip", LongType())
    one.open(NESTED).append(nested_row(2))
    two = Writer(tmp_path, "iceberg", query="another")  # the record knows the member, too
    two.sink.take()
    two.open(NESTED).append(nested_row(3))
    column, of = path.split(".")[0], {"at": lambda at: at, "many": lambda many: many[0], "by": lambda by: by[0][1]}
    assert [of[column](row[column]) for row in one.rows()] == [{"town": f"c{n}", "zip": n} for n in (1, 2, 3)]
    wider = pa.schema([("n", pa.int64()), ("at", pa.struct([*PLACE, ("town", pa.string())]))])
    if path == "at":
        with pytest.raises(Rejected, match=r"column at\.city is called at\.town since .* another column at\.town"):
            one.open(wider)


@pytest.mark.parametrize("kind", ["delta", "iceberg", "parquet"])
def test_a_batch_whose_files_were_cleaned_away_is_done_again(tmp_path, kind):
    one = Writer(tmp_path, kind)
    one.sink.take()
    one.open(TWO).append([{"n": 1, "who": "a"}])
    files = one.files([{"n": 2, "who": "b"}])
    if kind == "delta":
        one.delta().vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True)
    else:
        os.remove(f"{one.table.location.address}/{files[0].path}")
    with pytest.raises(TableChanged, match="was removed before its batch was committed"):
        one.commit(files)
    one.open(TWO).append([{"n": 2, "who": "b"}])
    if kind != "parquet":
        assert [row["n"] for row in one.rows()] == [1, 2]


def test_a_table_that_its_owner_renames_or_moves_is_named(tmp_path):
    one = Writer(tmp_path, "iceberg")
    one.sink.take()
    files = one.open(TWO).files([{"n": 1, "who": "a"}])
    one.table._catalog.rename_table("ns.t", "ns.other")
    with pytest.raises(Rejected, match=r"Iceberg table ns\.t is no longer there: it was dropped, renamed or moved"):
        one.commit(files)
    two = Writer(tmp_path, "delta")
    two.sink.take()
    two.open(TWO).append([{"n": 1, "who": "a"}])
    os.rename(tmp_path / "t", tmp_path / "moved")
    with pytest.raises(Rejected, match=r"is no longer there: it was dropped, renamed or moved"):
        two.table.version()
