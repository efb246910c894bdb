"""Columns from the first records: types that hold all of them, or a refusal that names the member; once for ever."""

import json

import msgspec
import pyarrow as pa
import pytest

from millstream.errors import Rejected
from millstream.pipeline import inference
from millstream.pipeline.checks import decoder_of, problems_of
from millstream.pipeline.inference import infer, inferred
from millstream.pipeline.model import Pipeline, SideTable, Sink, Source, Transform
from millstream.pipeline.state import PipelineState


def values(*rows):
    return [json.dumps(row).encode() for row in rows]


def test_each_member_has_the_type_that_holds_all_of_its_values():
    rows = [
        {"id": 1, "price": 1, "ok": None, "tags": [], "at": {"x": 1, "the-y": None}},
        {"id": 2, "price": 1.5, "ok": True, "tags": ["a"], "big": 1 << 64, "none": None},
        {"at": {"z": [{"w": 1}, {"v": "s"}]}, "empty": {}},
    ]
    found = infer([b"{broken", b"[1]", *values(*rows)])
    assert found == {
        "id": "bigint", "price": "double", "ok": "boolean", "tags": "array<string>",
        "at": "struct<x: bigint, `the-y`: string, z: array<struct<w: bigint, v: string>>>",
        "big": "decimal(38, 0)", "none": "string", "empty": "json",
    }  # fmt: skip
    decoder = decoder_of(Source(topic="t", format="json", schema=found))
    decoded = decoder.decode(pa.array(values(*rows), pa.binary()))
    assert decoded.errors.null_count == 3
    assert decoded.columns.to_pylist()[0]["at"] == {"x": 1, "the-y": None, "z": None}


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no JSON object is in the topic"),
        ([{"_offset": 1}], "_offset is the name of a column beside"),
    ],
)
def test_what_cannot_be_inferred_is_to_be_declared(rows, words):
    with pytest.raises(Rejected, match=words) as caught:
        infer(values(*rows))
    assert "declare source.schema" in caught.value.message


def test_a_member_without_one_type_is_kept_as_json_text():
    rows = [
        {"a": {"b": 1}, "c": [1], "d": {"x": {}, "X": 1}, "e": [[], [1]]},
        {"a": {"b": "x"}, "c": {}, "e": [["y", None]], "big": 10**50},
    ]
    found = infer(values(*rows))
    assert found == {"a": "struct<b: json>", "c": "json", "d": "json", "e": "array<array<json>>", "big": "json"}
    decoder = decoder_of(Source(topic="t", format="json", schema=found))
    decoded = decoder.decode(pa.array(values(*rows), pa.binary()))
    first, second = decoded.columns.to_pylist()
    assert (first["a"], first["c"], first["d"], first["big"]) == ({"b": "1"}, "[1]", '{"x": {}, "X": 1}', None)
    assert (second["a"], second["c"], second["e"]) == ({"b": '"x"'}, "{}", [['"y"', None]])
    assert second["big"] == str(10**50)


def test_deep_members_are_kept_as_json_text():
    value = b'{"a":' * 50 + b"1" + b"}" * 50
    found = infer([value])
    assert found["a"].count("struct") == 12
    decoder = decoder_of(Source(topic="t", format="json", schema=found))
    assert decoder.decode(pa.array([value], pa.binary())).errors.to_pylist() == [None]


def test_a_schema_is_inferred_once_and_kept(tmp_path, monkeypatch):
    asked = []

    def sample(options):
        asked.append(options["subscribe"])
        return values({"id": 1} if len(asked) < 3 else {"other": "x"})

    monkeypatch.setattr(inference, "sample", sample)
    state = PipelineState(str(tmp_path / "state"))
    pipeline = Pipeline(
        pipeline="p", source=Source(topic="orders", format="json"), sinks=[Sink(delta="t")],
        tables={"names": SideTable(topic="names")}, transform=Transform(sql="SELECT 1"),
    )  # fmt: skip
    assert problems_of(pipeline) == []
    with pytest.raises(Rejected, match="has not been inferred yet"):
        decoder_of(pipeline.source)
    seen = inferred(pipeline, state, pin=False)
    assert (seen.source.schema, state.schemas()) == ({"id": "bigint"}, {})
    inferred(pipeline, state, pin=True)
    again = inferred(pipeline, state, pin=True)
    assert asked == ["orders", "names"] * 2
    assert again.source.schema == {"other": "string"}
    assert again.tables["names"].schema == {"other": "string"}
    declared = msgspec.structs.replace(pipeline, source=Source(topic="t", format="string"), tables={})
    assert inferred(declared, state, pin=True) is declared
