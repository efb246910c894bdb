"""Avro values with schema ids: one schema a run, every record by itself, and no field lost when a schema grows."""

import io
import json

import fastavro
import msgspec
import pyarrow as pa
import pytest

from millstream.client.schema_registry import RegistryRefused
from millstream.errors import Rejected, Unavailable
from millstream.pipeline.checks import decoder_of, problems_of
from millstream.pipeline.keys import KeyDecoder
from millstream.pipeline.missing import Missing
from millstream.pipeline.model import Pipeline, Sink, Source
from millstream.pipeline.state import PipelineState
from millstream.pipeline.task import _conformed
from millstream.pipeline.wire_schemas import (
    fitted,
    keep_columns,
    pinned,
    registry_mark,
    require_same_registry,
    with_kept_columns,
)
from millstream.registry.model import Schema
from millstream.spark import schemas as spark_schemas
from millstream.spark.registry_values import SchemaChanged
from millstream.spark.schemas import source
from millstream.spark.schemas.source import RegistrySchemas, Resolved, Use

V1 = [{"name": "id", "type": "long"}, {"name": "tags", "type": {"type": "array", "items": "string"}}]
V2 = [*V1, {"name": "item", "type": ["null", "string"], "default": None}]


def schema(fields):
    return {"type": "record", "name": "Order", "fields": fields}


def record(schema_id, fields, row):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema(fields)), row)
    return b"\0" + schema_id.to_bytes(4, "big") + out.getvalue()


@pytest.fixture
def registry(monkeypatch):
    """A registry in memory; ids count from 1."""

    class Registry:
        def __init__(self):
            self.held = [V1]
            self.asked = []
            self.subject = "orders-value"

        def __call__(self, conf):
            assert conf.url == "http://registry"
            return self

        def by_id(self, schema_id):
            return self._resolved(schema_id - 1) if schema_id <= len(self.held) else None

        def uses(self, schema_id):
            return (Use(self.subject, schema_id, False),)

        def latest(self, subject):
            self.asked.append(subject)
            return msgspec.structs.replace(self._resolved(len(self.held) - 1), subject=subject)

        def _resolved(self, index):
            return Resolved(Schema(json.dumps(schema(self.held[index]))), id=index + 1, version=index + 1)

    made = Registry()
    monkeypatch.setattr(spark_schemas, "RegistrySchemas", made)
    return made


def declared(**source):
    named = {"topic": "orders", "format": "avro", "registry": "http://registry", **source}
    return Pipeline(pipeline="p", source=Source(**named), sinks=[Sink(delta="t")])


def test_the_schema_is_asked_for_once_and_each_record_decodes_by_itself(registry):
    pipeline = pinned(declared())
    registry.held.append(V2)  # a run keeps its columns
    decoder = decoder_of(pipeline.source)
    values = [record(1, V1, {"id": 1, "tags": ["a"]}), b"junk", None]
    decoded = decoder.decode(pa.array(values, pa.binary()))
    assert registry.asked == ["orders-value"]
    assert [field.name for field in decoder.fields] == ["id", "tags"]
    assert decoder.fields[1].type.value_field.name == "element"  # as Spark has it
    assert decoded.columns.to_pylist() == [{"id": 1, "tags": ["a"]}, None, None]
    assert [error is None for error in decoded.errors.to_pylist()] == [True, False, True]


@pytest.mark.parametrize(
    ("source", "path"), [({}, ("source", "registry")), ({"subject": "orders-value"}, ("source", "subject"))]
)
def test_a_missing_subject_is_told_at_its_place(registry, monkeypatch, source, path):
    def latest(_):
        raise Rejected("there is no such subject")

    monkeypatch.setattr(registry, "latest", latest)
    with pytest.raises(Missing, match="no such subject") as caught:
        pinned(declared(**source))
    assert caught.value.path == path


def test_what_is_no_registry_makes_no_dead_letters(monkeypatch):
    schemas = RegistrySchemas({"url": "http://127.0.0.1:1"})
    with pytest.raises(Unavailable, match=r"registry at http://127\.0\.0\.1:1 cannot be reached: .*refused"):
        schemas.latest("orders-value")
    with pytest.raises(Unavailable, match="cannot be reached"):
        schemas.by_id(1)
    answer = {"error": None}

    def refuse(*_, **__):
        raise answer["error"]

    monkeypatch.setattr(source, "ask", refuse)
    answer["error"] = RegistryRefused("not found", 404)  # a proxy, say
    for call in (lambda: schemas.latest("orders-value"), lambda: schemas.by_id(1)):
        with pytest.raises(Unavailable, match="does not give"):
            call()
    answer["error"] = RegistryRefused("Subject not found", 404, 40401)
    with pytest.raises(Rejected, match="'millstream schema register orders-value FILE' makes it"):
        schemas.latest("orders-value")
    answer["error"] = RegistryRefused("Schema not found", 404, 40403)
    assert schemas.by_id(1) is None


def test_a_record_with_more_fields_stops_the_batch_and_the_next_run_has_them(registry):
    old = pinned(declared())
    registry.held.append(V2)
    values = pa.array([record(2, V2, {"id": 1, "tags": [], "item": "tea"})], pa.binary())
    with pytest.raises(SchemaChanged, match=r"has item string.*Start again"):
        decoder_of(old.source).decode(values)
    new = decoder_of(pinned(declared()).source).decode(values)
    assert new.columns.to_pylist() == [{"id": 1, "tags": [], "item": "tea"}]


def test_a_field_with_the_name_of_a_pipelines_column_is_refused(registry):
    registry.held.append([{"name": "_offset", "type": "long"}])
    with pytest.raises(Rejected, match="_offset"):
        decoder_of(pinned(declared()).source)


def test_another_format_than_the_subjects_is_refused(registry):
    with pytest.raises(Rejected, match="type AVRO, and format is protobuf"):
        decoder_of(pinned(declared(format="protobuf")).source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ({"registry": None}, "needs registry"),
        ({"registry": "registry"}, "no URL"),
        ({"schema": "id bigint"}, "has its schema in the registry"),
        ({"topic": ["a", "b"]}, "need subject"),
        ({"pinned": "{}"}, "set by the runner"),
        ({"format": "string"}, "registry is for formats avro, protobuf and json"),
    ],
)
def test_a_wrong_declaration_is_told_in_words(source, words):
    (problem,) = problems_of(declared(**source))
    assert words in problem.message
    assert problems_of(declared()) == []


def test_fields_go_into_a_tables_columns_and_views_keep_theirs(registry, tmp_path):
    state = PipelineState(str(tmp_path))
    first = keep_columns(pinned(with_kept_columns(declared(), state)), state)
    registry.held.append([{"name": "id", "type": "long", "aliases": ["number"]}])
    second = keep_columns(pinned(with_kept_columns(declared(), state)), state)
    assert [field.name for field in decoder_of(first.source).fields] == ["id", "tags"]
    assert [field.name for field in decoder_of(second.source).fields] == ["id", "tags"]  # though version 2 has no tags
    table = pa.schema([pa.field("number", pa.int64(), nullable=False), ("own", pa.bool_()), ("_offset", pa.int64())])
    fields = decoder_of(fitted(second, table).source).fields
    assert [(field.name, str(field.type)) for field in fields] == [("number", "int64"), ("own", "bool")]
    assert fitted(second, None) is second
    assert problems_of(second)[0].message.startswith("pinned is set by the runner")


def test_a_row_that_the_table_refuses_is_a_dead_letter_of_its_record():
    table = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("s", pa.struct([pa.field("x", pa.int8(), nullable=False)]))])  # fmt: skip  # noqa: E501
    rows = pa.RecordBatch.from_pylist(
        [{"id": 1, "s": {"x": 1}}, {"id": None, "s": None}, {"id": 3, "s": {"x": 1000}}, {"id": 4, "s": None}],
        pa.schema([("id", pa.int64()), ("s", pa.struct([("x", pa.int64())]))]),
    )
    records = pa.RecordBatch.from_pydict({"offset": pa.array([5, 6, 7, 8])})
    kept = []

    class Letters:
        def add(self, records, errors, places):
            kept.extend(zip(records.column("offset").to_pylist(), errors.to_pylist(), strict=True))

    found = _conformed(rows, records, table, Letters())
    assert (found.schema, found.to_pylist()) == (table, [{"id": 1, "s": {"x": 1}}, {"id": 4, "s": None}])
    assert [offset for offset, error in kept if error is not None] == [6, 7]
    assert "column id is required" in kept[1][1]
    assert _conformed(rows.slice(0, 1), records, table, None).num_rows == 1


def test_versions_of_an_id_are_those_that_were_deleted_too(monkeypatch):
    schemas = RegistrySchemas({"url": "http://127.0.0.1:1"})
    first, second = {"subject": "a", "version": 1}, {"subject": "b", "version": 2}
    refusals = {2: RegistryRefused("no such path", 404, 404), 3: RegistryRefused("broken", 500, 50001)}

    def versions(_, method, path, **__):
        schema_id = int(path.split("/")[3])
        if schema_id in refusals:
            raise refusals[schema_id]
        return [first, second] if path.endswith("deleted=true") else [second]

    monkeypatch.setattr(source, "ask", versions)
    assert schemas.uses(1) == (Use("a", 1, True), Use("b", 2, False))
    assert schemas.uses(2) == ()  # an older registry does not say
    with pytest.raises(Unavailable, match="where id 3 is used"):
        schemas.uses(3)


def test_a_schema_whose_references_are_lost_is_an_error_of_its_records(monkeypatch):
    schemas = RegistrySchemas({"url": "http://127.0.0.1:1"})
    held = {"schema": "{}", "references": [{"name": "x", "subject": "gone", "version": 3}]}

    def answered(_, method, path, **__):
        if path.startswith("/schemas/"):
            return held
        raise RegistryRefused("Version not found", 404, 40402)

    monkeypatch.setattr(source, "ask", answered)
    for _ in range(2):
        with pytest.raises(Rejected, match="refers to version 3 of gone, which the registry does not have"):
            schemas.by_id(1)


def test_the_keys_of_tombstones_decode_with_the_subject_of_the_key(registry):
    registry.subject, registry.held = "orders-key", [[{"name": "id", "type": "long"}]]
    source = Source(topic="orders", format="avro", registry="http://registry", key_format="avro")
    decoder = KeyDecoder(source, pa.schema([("id", pa.int32()), ("name", pa.string())]), ["id"])
    keys = [record(1, registry.held[0], {"id": 7}), b"junk", record(1, registry.held[0], {"id": 1 << 40}), None]
    (ids,), errors, _ = decoder.decode(pa.array(keys, pa.binary()))
    assert (ids.type, ids.to_pylist()) == (pa.int32(), [7, None, None, None])
    assert errors.is_null().to_pylist() == [True, False, False, False]
    assert registry.asked[-1] == "orders-key"


def test_a_registry_whose_ids_mean_other_schemas_is_refused(registry):
    registry.held.append(V2)
    source = pinned(declared()).source
    mark = registry_mark(source)
    assert mark.startswith("2:")
    require_same_registry(source, mark, "s")
    require_same_registry(source, "", "s")  # a record of an earlier release
    registry.held.append([*V2, {"name": "more", "type": "long", "default": 0}])
    require_same_registry(source, mark, "s")
    registry.held[1] = [{"name": "stranger", "type": "string"}]
    with pytest.raises(Rejected, match=r"another registry: http://registry has another schema under id 2, .* --replay"):
        require_same_registry(source, mark, "s")
    del registry.held[1:]
    with pytest.raises(Rejected, match="http://registry has no schema under id 2"):
        require_same_registry(source, mark, "s")
