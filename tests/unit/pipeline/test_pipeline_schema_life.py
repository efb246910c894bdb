"""Tables whose rows get more: columns, members within structures, wider types; and what each format refuses."""

import pyarrow as pa
import pytest
from table_support import Writer

from millstream.errors import Rejected

OLD = pa.schema(
    [
        ("id", pa.int32()),
        ("f", pa.float32()),
        ("d", pa.decimal128(9, 2)),
        ("s", pa.struct([("x", pa.int32())])),
        ("l", pa.list_(pa.field("element", pa.struct([("x", pa.int32())])))),
        ("m", pa.map_(pa.string(), pa.struct([("x", pa.int32())]))),
    ]
)
MORE = pa.struct([("x", pa.int32()), ("value", pa.struct([("z", pa.string())]))])
WITH_MEMBERS = pa.schema(
    [
        *list(OLD)[:3],
        ("s", MORE),
        ("l", pa.list_(pa.field("element", MORE))),
        ("m", pa.map_(pa.string(), MORE)),
        ("new", pa.string()),
    ]
)
ROW = {"id": 1, "f": 0.5, "d": None, "s": {"x": 1}, "l": [{"x": 2}], "m": [("k", {"x": 3})]}
Y = {"z": "a"}
NEXT = {
    "id": 2, "f": 0.5, "d": None, "s": {"x": 1, "value": Y}, "l": [{"x": 2, "value": Y}],
    "m": [("k", {"x": 3, "value": Y})],
    "new": "b",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_members_are_added_wherever_they_are_and_older_rows_have_null(tmp_path, kind):
    def less(row):  # deltalake reads no older files once a structure in a map has more
        return {name: value for name, value in row.items() if name != "m"} if kind == "delta" else row

    old, new = (pa.schema([field for field in schema if field.name in less(NEXT)]) for schema in (OLD, WITH_MEMBERS))
    writer = Writer(tmp_path, kind).open(old)
    writer.append(pa.Table.from_pylist([less(ROW)], old))
    writer.open(new)
    writer.append(pa.Table.from_pylist([less(NEXT)], new))
    first, second = writer.rows()
    assert first["s"] == {"x": 1, "value": None}
    assert (first["l"][0]["x"], first["new"]) == (2, None)
    assert (second["s"], second["l"], second["new"]) == (NEXT["s"], NEXT["l"], "b")
    assert kind == "delta" or dict(second["m"])["k"] == {"x": 3, "value": Y}
    writer.open(old)  # narrower rows of an older version still fit
    writer.append(pa.Table.from_pylist([less({**ROW, "id": 3})], old))
    assert [row["id"] for row in writer.rows()] == [1, 2, 3]


WIDER = pa.schema(
    [
        ("id", pa.int64()),
        ("f", pa.float64()),
        ("d", pa.decimal128(12, 2)),
        ("s", pa.struct([("x", pa.int64())])),
        ("l", pa.list_(pa.field("element", pa.struct([("x", pa.int64())])))),
        ("m", pa.map_(pa.string(), pa.struct([("x", pa.int64())]))),
    ]
)


def test_an_iceberg_column_becomes_wider_and_keeps_its_rows(tmp_path):
    writer = Writer(tmp_path, "iceberg").open(OLD)
    writer.append(pa.Table.from_pylist([ROW], OLD))
    schema = writer.open(WIDER).schema
    assert [str(field.type) for field in schema] == [str(field.type) for field in WIDER]
    big = 1 << 40
    row = {**ROW, "id": big, "f": 0.1, "s": {"x": big}, "l": [{"x": big}], "m": [("k", {"x": big})]}
    writer.append(pa.Table.from_pylist([row], WIDER))
    first, second = writer.rows()
    assert (first["id"], first["s"], first["f"]) == (1, {"x": 1}, 0.5)
    assert (second["id"], second["l"], second["f"]) == (big, [{"x": big}], 0.1)


def test_what_a_format_cannot_widen_is_refused_with_the_way_round(tmp_path):
    delta = Writer(tmp_path, "delta").open(OLD)
    before = delta.delta().version()
    with pytest.raises(Rejected, match=r"column id is int64, in the table int32.*column s\.x is.*Cast in the query"):
        delta.open(WIDER)
    with pytest.raises(Rejected, match=r"column m\.value has the field value"):
        delta.open(WITH_MEMBERS)
    assert delta.delta().version() == before
    iceberg = Writer(tmp_path / "i", "iceberg").open(OLD)
    with pytest.raises(Rejected, match=r"column d is decimal128\(12, 3\)"):
        iceberg.open(pa.schema([("d", pa.decimal128(12, 3))]))
    with pytest.raises(Rejected, match="field X of s is called x in the table"):
        iceberg.open(pa.schema([("s", pa.struct([("X", pa.int32())]))]))
