"""Tables are read back through filters by the readers that people have, and every row is found.

Each value of each type is in a file of its own, beside others, so a bound that is too narrow loses rows. A reader is
asked for the rows that equal a value, and for those without one.
"""

import datetime as dt
import decimal
import math
import os

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyiceberg.expressions import EqualTo, IsNull
from table_support import Writer

U = dt.UTC
D = decimal.Decimal
MOMENT = dt.datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=U).replace(tzinfo=None)
TYPES = {
    "flag": (pa.bool_(), [True, False]),
    "tiny": (pa.int32(), [-(2**31), 2**31 - 1, 0]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "real": (pa.float32(), [1.5, -3.4028234663852886e38, math.inf, math.nan]),
    "wide": (pa.float64(), [0.1, -0.0, 1.7976931348623157e308, -math.inf, math.nan]),
    "cents": (pa.decimal128(9, 2), [D("1.10"), D("-5.00"), D("9999999.99")]),
    "exact": (pa.decimal128(38, 10), [D("12345678901234567890.1234567890"), D("-" + "9" * 28 + ".9999999999")]),
    "text": (pa.string(), ["", "https://" + "y" * 80, "\U0010ffff" * 70, "\ud7ff" * 70, "x" * 5000, "é'\"", "a"]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31)]),
    "moment": (
        pa.timestamp("us", tz="UTC"),
        [
            dt.datetime(1, 1, 1, tzinfo=U),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=U),
            dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=U),
            dt.datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=U),
        ],
    ),
    "local": (pa.timestamp("us"), [MOMENT, MOMENT.replace(year=1)]),
    "a b.c,d=": (pa.int32(), [1, 2]),
    "Quo\"te'": (pa.string(), ["q", None]),
    "blob": (pa.binary(), [b"", b"\xff\x00"]),
    "part": (pa.struct([("x", pa.int64()), ("y.z", pa.string())]), [{"x": 1, "y.z": "s"}, {"x": None, "y.z": None}]),
    "many": (pa.list_(pa.int64()), [[1, None], []]),
}
SCHEMA = pa.schema([("id", pa.int64()), *((name, kind) for name, (kind, _) in TYPES.items())])
FILES = max(len(values) for _, values in TYPES.values()) + 1
PLAIN = [name for name, (kind, _) in TYPES.items() if not pa.types.is_nested(kind)]


def batches():
    """Files of two rows: a value of each type (null where it has no more), and the first value of each."""
    for number in range(FILES):
        row = {name: values[number] if number < len(values) else None for name, (_, values) in TYPES.items()}
        first = {name: values[0] for name, (_, values) in TYPES.items()}
        yield [{"id": 2 * number, **row}, {"id": 2 * number + 1, **(first if number % 2 else row)}]


ROWS = [row for rows in batches() for row in rows]


def same(left, right):
    return left == right or (isinstance(left, float) and isinstance(right, float) and left != left and right != right)


def wanted(name, value):
    return [row["id"] for row in ROWS if (row[name] is None if value is None else same(row[name], value))]


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A table of each kind with all rows."""
    made = {}
    for kind in ("delta", "iceberg", "parquet"):
        made[kind] = Writer(tmp_path_factory.mktemp(kind), kind).open(SCHEMA)
        for rows in batches():
            made[kind].append(pa.Table.from_pylist(rows, SCHEMA))
    return made


def arrow_filter(name, value):
    field = pa.compute.field(name)
    if value is None:
        return field.is_null()
    return field == pa.scalar(value, TYPES[name][0])


def through_arrow(dataset, name, value):
    if isinstance(value, float) and math.isnan(value):
        return None  # it skips row groups by their footers, and no footer tells of NaN
    return dataset.to_table(filter=arrow_filter(name, value), columns=["id"]).column("id").to_pylist()


def through_duckdb(dataset, name, value):
    quoted = '"' + name.replace('"', '""') + '"'
    connection = duckdb.connect()
    connection.execute("set timezone = 'UTC'")
    relation = connection.register("t", dataset)
    if value is None:
        return [id_ for (id_,) in relation.execute(f"select id from t where {quoted} is null").fetchall()]
    kinds = {"exact": "decimal(38,10)", "cents": "decimal(9,2)", "real": "float", "moment": "timestamptz"}
    cast = f"?::{kinds[name]}" if name in kinds else "?"
    value = str(value) if name in ("exact", "moment") else value
    return [id_ for (id_,) in relation.execute(f"select id from t where {quoted} = {cast}", [value]).fetchall()]


def through_polars(frame, name, value):
    column = pl.col(name)
    if value is None:
        chosen = column.is_null()
    elif isinstance(value, float) and math.isnan(value):
        chosen = column.is_nan()
    else:
        chosen = column == pl.lit(value, dtype=frame.collect_schema()[name])
    return frame.filter(chosen).select("id").collect()["id"].to_list()


def through_datafusion(table, name, value):
    if value is None:
        text = "is null"
    elif isinstance(value, float):
        text = "is not null and isnan(c)" if math.isnan(value) else None
    else:
        text = {"exact": f"= cast('{value}' as decimal(38,10))", "big": f"= {value}", "tiny": f"= {value}"}.get(name)
        if isinstance(value, str):
            text = "= '" + value.replace("'", "''") + "'"
    if text is None or "isnan" in text:
        return None
    quoted = '"' + name.replace('"', '""') + '"'
    found = deltalake.QueryBuilder().register("t", table).execute(f"select id from t where {quoted} {text}").read_all()
    return pa.table(found).column("id").to_pylist()


def through_pyiceberg(table, name, value):
    if isinstance(value, float):
        return None  # its literals of NaN and infinity are no expressions
    term = IsNull(name) if value is None else EqualTo(name, value)
    return table.scan(row_filter=term, selected_fields=("id",)).to_arrow().column("id").to_pylist()


def readers(tables):
    """Every reader with the table that it reads."""
    delta, iceberg = tables["delta"], tables["iceberg"]
    root = os.path.dirname(tables["parquet"].table.location.address)
    files = pa.dataset.dataset(root, partitioning="hive")
    yield "deltalake, pyarrow", through_arrow, delta.delta().to_pyarrow_dataset()
    yield "deltalake, DuckDB", through_duckdb, delta.delta().to_pyarrow_dataset()
    yield "deltalake, DataFusion", through_datafusion, delta.delta()
    yield "Delta, polars", through_polars, pl.scan_delta(str(delta.directory / "t"))
    yield "pyiceberg", through_pyiceberg, iceberg.iceberg()
    yield "Iceberg, polars", through_polars, pl.scan_iceberg(iceberg.iceberg())
    yield "Parquet, pyarrow", through_arrow, files
    yield "Parquet, DuckDB", through_duckdb, files


def plain_text(rows):
    """Rows as text: NaN equals itself there, and -0.0 does not equal 0.0."""
    return sorted(str([(name, str(row[name])) for name in SCHEMA.names]) for row in rows)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PLAIN)
def test_every_reader_finds_every_value(tables, name):
    for reader, through, table in readers(tables):
        for value in {str(value): value for value in (*TYPES[name][1], None)}.values():
            found = through(table, name, value)
            if found is not None:
                assert sorted(found) == wanted(name, value), f"{reader}: {name} = {value!r:.60}"


@pytest.mark.filterwarnings("ignore")
def test_every_reader_has_every_row_as_it_was(tables):
    want = plain_text(ROWS)
    delta, iceberg = tables["delta"], tables["iceberg"]
    files = pa.dataset.dataset(os.path.dirname(tables["parquet"].table.location.address), partitioning="hive")
    assert plain_text(delta.rows()) == want
    assert plain_text(delta.delta().to_pyarrow_dataset().to_table().to_pylist()) == want
    assert plain_text(files.to_table().to_pylist()) == want
    assert plain_text(iceberg.rows()) == want


@pytest.mark.filterwarnings("ignore")
def test_structures_without_a_value_are_found(tables):
    for name in ("part", "many"):
        for reader, through, table in readers(tables):
            if through in (through_arrow, through_duckdb) or (through is through_pyiceberg and name == "part"):
                assert sorted(through(table, name, None)) == wanted(name, None), f"{reader}: {name}"
