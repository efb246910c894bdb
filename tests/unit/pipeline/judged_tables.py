"""The matrix that readers are judged with: columns of every type, their values, filters, and the tables that hold them.

A *group* is one table. Each value of a column is in a file of its own, beside a null or another value, so a bound that
is too narrow loses rows. A group is written twice: by a pipeline's sink, and by the table format's own writer. Values
that leave a file without bounds are in groups of their own, where they hide no fault of other columns.
"""

import datetime as dt
import decimal
import math
from typing import NamedTuple

import deltalake
import pyarrow as pa
import pyarrow.dataset
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.transforms import parse_transform
from table_support import Writer

U = dt.UTC
D = decimal.Decimal
ID = "id"
NOON = dt.datetime(2024, 1, 1, 12, 0, 0, 123456, tzinfo=U)
FIRST = dt.datetime(1, 1, 1, tzinfo=U)
LAST = dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=U)
BEFORE = dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=U)
MIB = 1 << 20


def exact(precision, scale):
    """A decimal column with the largest, the smallest and the least positive number that it can have."""
    digits = (9,) * precision
    return pa.decimal128(precision, scale), [D((0, digits, -scale)), D((1, digits, -scale)), D((0, (1,), -scale))]


def local(*moments):
    return [moment.replace(tzinfo=None) for moment in moments]


PLAIN = {
    "flag": (pa.bool_(), [True, False]),
    "byte": (pa.int8(), [-128, 127, 0]),
    "short": (pa.int16(), [-(2**15), 2**15 - 1, 0]),
    "tiny": (pa.int32(), [-(2**31), 2**31 - 1, 0]),
    "big": (pa.int64(), [-(2**63), 2**63 - 1, 0]),
    "real": (pa.float32(), [1.5, -3.4028234663852886e38, 1.401298464324817e-45, -0.0]),
    "wide": (pa.float64(), [0.1, -1.7976931348623157e308, 5e-324, -0.0]),
    "text": (pa.string(), ["", "https://" + "y" * 80, "\U0010ffff" * 70, "\ud7ff" * 70, "x" * 5000, "é'\"\\", "a\0b"]),
    "blob": (pa.binary(), [b"", b"\xff\x00", b"'" * 200]),
    "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31), dt.date(2024, 2, 29)]),
    "moment": (pa.timestamp("us", tz="UTC"), [FIRST, LAST, BEFORE, NOON]),
    "local": (pa.timestamp("us"), local(FIRST, LAST, BEFORE, NOON)),
    "part": (pa.struct([("x", pa.int64()), ("y", pa.string())]), [{"x": 1, "y": "s"}, {"x": None, "y": None}]),
    "many": (pa.list_(pa.int64()), [[1, None], []]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], []]),
}
LINE = pa.struct([("item", pa.string()), ("tags", pa.list_(pa.string()))])
NESTED = {
    "lines": (pa.list_(LINE), [[{"item": "a", "tags": ["x", None]}, None, {"item": None, "tags": None}], []]),
    "by": (pa.map_(pa.string(), LINE), [[("k", {"item": "a", "tags": []}), ("n", None)], []]),
    "deep": (
        pa.struct([("inner", pa.list_(LINE)), ("n", pa.int64())]),
        [{"inner": [{"item": "a", "tags": []}], "n": 1}, {"inner": None, "n": None}, {"inner": [], "n": 2}],
    ),
    "rows": (pa.list_(pa.list_(LINE)), [[[{"item": "a", "tags": None}], None, []], []]),
    "n": (pa.int64(), [1, 2, 3]),
}
"""Each is null in some rows, and empty in others."""
DECIMALS = {f"d{p}": exact(p, (0, p // 2, p)[p % 3]) for p in range(1, 39)}
FLOATS = {
    "real": (pa.float32(), [1.5, math.inf, math.nan, -math.inf, -0.0]),
    "wide": (pa.float64(), [0.1, -math.inf, -0.0, math.nan, math.inf]),
    "n": (pa.int64(), [1, 2, 3]),
    "s": (pa.string(), ["a", "b", "c"]),
}
LONG = {
    "long": (pa.string(), ["a" * MIB, "\U0010ffff" * (MIB // 4), "z"]),
    "bytes": (pa.binary(), [b"\xff" * MIB, b"a"]),
    "n": (pa.int64(), [1, 2, 3]),
}
DAYS = [2_932_897, -719_163, 0, 90_000_000]
"""The first day behind the year 9999, the last one before the year 1, 1970, and one in the year 248,381."""
FAR = {
    "day": (pa.date32(), DAYS),
    "moment": (pa.timestamp("us", tz="UTC"), [day * 86_400_000_000 for day in DAYS[:3]]),
    "local": (pa.timestamp("us"), [day * 86_400_000_000 for day in DAYS[:3]]),
    "n": (pa.int64(), [1, 2, 3]),
}
"""Dates and times without a Python object, which no filter can name."""
NAMES = {
    "a b.c": (pa.int32(), [1, 2]),
    "Quo\"te'": (pa.string(), ["q", None]),
    "back`tick": (pa.int64(), [7, -7]),
    "über/%20#?&": (pa.string(), ["u", "v"]),
    "SELECT": (pa.bool_(), [True, False]),
    "Stück": (pa.struct([("x.y", pa.int64()), ("Z", pa.string())]), [{"x.y": 1, "Z": "s"}, {"x.y": None, "Z": None}]),
}
PARTS = {name: PLAIN[name] for name in ("flag", "byte", "short", "tiny", "real", "day", "moment", "local")} | {
    "wide": FLOATS["wide"],
    "d20": (pa.decimal128(20, 5), [D("1.00000"), D("12345678901234.12345"), D("0.50000")]),
    "text": (pa.string(), ["a/b", "a=b", "ü %20+&?#", "é'\"\\:", "null", " x ", "z" * 195, "a\nb\tc", "\\", ".."]),
    "a b%": (pa.int64(), [-1, 2]),
}
"""Columns that Delta tables are partitioned by, one each."""
TRANSFORMS = [
    ("text", "identity"), ("d20", "truncate[2]"), ("tiny", "bucket[4]"), ("day", "month"), ("moment", "hour"),
]  # fmt: skip
"""Columns of ``PARTS`` that Iceberg tables are partitioned by, and how."""
GROUPS = {
    "plain": PLAIN,
    "decimals": DECIMALS,
    "floats": FLOATS,
    "long": LONG,
    "names": NAMES,
    "far": FAR,
    "nested": NESTED,
}
"""``far`` is compared by its rows and by whether a value is there."""


class Filter(NamedTuple):
    """``path operator value``; the operators are =, <=, >=, null and present."""

    path: tuple
    operator: str
    value: object
    kind: object


def schema_of(group):
    return pa.schema([(ID, pa.int64()), *((name, kind) for name, (kind, _) in GROUPS[group].items())])


def batches(group):
    """Files of two rows: a value of each column (null where it has no more), and the first value of each."""
    columns = GROUPS[group]
    for number in range(max(len(values) for _, values in columns.values()) + 1):
        row = {name: values[number] if number < len(values) else None for name, (_, values) in columns.items()}
        first = {name: values[0] for name, (_, values) in columns.items()}
        rows = [{ID: 2 * number, **row}, {ID: 2 * number + 1, **(first if number % 2 else row)}]
        schema = schema_of(group)
        yield pa.table([pa.array([row[field.name] for row in rows], field.type) for field in schema], schema)


def filters(group, column, *, everything):
    """Filters on a column, and on the members of a structure."""
    kind, values = GROUPS[group][column]
    if group == "far" and column != "n":
        values = []
    if pa.types.is_struct(kind):
        members = [kind.field(index) for index in range(kind.num_fields)]
        inner = [
            _filters((column, one.name), one.type, [value[one.name] for value in values if not _nested(one)], True)
            for one in members
        ]
        return [*_filters((column,), kind, [], everything), *(each for some in inner for each in some)]
    return _filters((column,), kind, [] if pa.types.is_nested(kind) else values, everything)


def _filters(path, kind, values, everything):
    values = [value for value in values if value is not None]
    found = [Filter(path, "null", None, kind), Filter(path, "present", None, kind)]
    for value in values:
        wanted = ("=", "<=", ">=") if everything else ("=",)
        found += [Filter(path, operator, value, kind) for operator in wanted if _ordered(kind) or operator == "="]
    if not everything and values and _ordered(kind):
        found += [Filter(path, operator, value, kind) for operator, value in zip(("<=", ">="), values, strict=False)]
    return found


def _nested(field):
    return pa.types.is_nested(field.type)


def _ordered(kind):
    return not pa.types.is_boolean(kind) and not pa.types.is_binary(kind)


class Judged(NamedTuple):
    """A group in two tables of one kind: the sink's, and that of the format's own writer. Each is a path; of Iceberg,
    the name of a table in ``catalog``.
    """

    group: str
    kind: str
    ours: str
    reference: str
    catalog: object = None


def judged(place, group, kind, *, one_file=False):
    """Write a group both ways; with ``one_file`` the sink's batches are one."""
    writer = Writer(_made(place / "ours"), kind).open(schema_of(group))
    for rows in [pa.concat_tables(batches(group))] if one_file else batches(group):
        writer.append(rows)
    if kind == "iceberg":
        catalog = writer.table._catalog
        return Judged(group, kind, "ns.t", _iceberg_reference(catalog, group), catalog)
    reference = str(place / "reference")
    for number, rows in enumerate(batches(group)):
        if kind == "delta":
            deltalake.write_deltalake(reference, rows, mode="append")
        else:
            pa.dataset.write_dataset(rows, f"{reference}/millstream_batch={number}", format="parquet")
    return Judged(group, kind, str(place / "ours" / "t"), reference)


def judged_parts(place, column):
    """A Delta table that is partitioned by a column of ``PARTS``, written both ways."""
    GROUPS[column] = {column: PARTS[column], "n": (pa.int64(), [1, 2])}
    ours, reference = _made(place / "ours"), str(place / "reference")
    deltalake.DeltaTable.create(str(ours / "t"), schema=schema_of(column), partition_by=[column])
    writer = Writer(ours, "delta").open(schema_of(column))
    for rows in batches(column):
        writer.append(rows)
        deltalake.write_deltalake(reference, rows, mode="append", partition_by=[column])
    return Judged(column, "delta", str(ours / "t"), reference)


def judged_transform(place, column, transform, spark):
    """An Iceberg table that is partitioned by a column of ``PARTS``, and the same one as Spark writes it."""
    GROUPS[column] = {column: PARTS[column]}
    writer = Writer(_made(place / "ours"), "iceberg")
    catalog = writer.table._catalog
    catalog.create_namespace("ns")
    with catalog.create_table("ns.t", schema_of(column)).update_spec() as update:
        update.add_field(column, parse_transform(transform), "part")
    writer.open(schema_of(column))
    for rows in batches(column):
        writer.append(rows)
    table = Judged(column, "iceberg", "ns.t", "ns.reference", catalog)
    name, _, argument = transform.removesuffix("]").partition("[")
    part = {"identity": "{}", "bucket": "bucket({1}, {0})", "truncate": "truncate({1}, {0})"}.get(name, name + "s({})")
    source = spark.source(table, table.ours)
    made = spark.source(table, table.reference)
    spark.query(
        f"create table {made} using iceberg partitioned by ({part.format(column, argument)}) as select * from {source}"
    )
    return table


def _iceberg_reference(catalog: SqlCatalog, group):
    metrics = "none" if group == "far" else "full"  # it has no such dates, and cannot cut a text behind U+D7FF
    whole = {"write.metadata.metrics.default": metrics}
    table = catalog.create_table("ns.reference", schema_of(group), properties=whole)
    for rows in batches(group):
        table.append(rows)
    return "ns.reference"


def _made(place):
    place.mkdir()
    return place
