"""A pipeline file: what is accepted, and that each complaint names the line it is about."""

import pytest

from millstream.errors import Rejected
from millstream.pipeline.document import InvalidPipeline, load
from millstream.spark.declared import parse_schema

GOOD = """\
pipeline: orders
source:
  topic: orders
  format: json
  schema:
    id: bigint not null
    country: string
sinks:
  - delta: tables/orders
"""


def written(tmp_path, text):
    path = tmp_path / "p.yaml"
    path.write_text(text)
    return path


def complaints(tmp_path, text):
    with pytest.raises(InvalidPipeline) as caught:
        load(written(tmp_path, text))
    return [problem.removeprefix(f"{tmp_path}/p.yaml:") for problem in caught.value.problems]


def test_a_good_file_is_a_pipeline_and_knows_its_directory(tmp_path):
    loaded = load(written(tmp_path, GOOD))
    assert loaded.pipeline.pipeline == "orders"
    assert loaded.pipeline.errors.mode == "dead_letter"
    assert loaded.directory == str(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "where", "what"),
    [
        ("  topic: orders", "  topik: orders", "3:3", "did you mean topic?"),
        ("sinks:", "sink:", "8:1", "did you mean sinks?"),
        ("    id: bigint not null", "    id: bigger", "6:9", "type bigger is unknown"),
        ("    country: string", "    _offset: string", "7:14", "column of the pipeline's own"),
        (
            "  format: json",
            "  format: jason",
            "4:11",
            "'jason' is unknown; known are raw, string, json, avro, protobuf",
        ),
        ("  - delta: tables/orders", "  - delta: a\n    sqll: x", "10:5", "sqll is not known here; did you mean sql?"),
        ("sinks:", "tables: {c: {topik: c}}\nsinks:", "8:14", "topik is not known here; did you mean topic?"),
        (
            "sinks:",
            "tables:\n  a: {topic: a}\n  c:\n    topik: c\nsinks:",
            "11:5",
            "topik is not known here; did you mean",
        ),
        (
            "sinks:",
            "tables: {c: {topic: c, format: jason}}\nsinks:",
            "8:32",
            "'jason' is unknown; known are raw, string, json, avro, protobuf",
        ),
        ("  - delta: tables/orders", "  - {topic: a, delivery: twice}", "9:26", "at-least-once, exactly-once"),
        ("  - delta: tables/orders", "  - delta: tables/orders\n    delivery: at-least-once", "10:15", "exactly once"),
        (
            "  - delta: tables/orders",
            "  - topic: o",
            "9:5",
            "nowhere to keep dead letters",
        ),
        ("  - delta: tables/orders", "  - delta: a\n    topic: b", "9:5", "given is delta and topic"),
        ("  - delta: tables/orders", "  - delta: a\n  - delta: a", "10:5", "second sink of the name"),
        (
            "  - delta: tables/orders",
            "  - delta: a\n    mode: upsert",
            "10:11",
            "needs key: the columns that tell rows",
        ),
        ("  - delta: tables/orders", "  - iceberg: a.b\n    mode: changelog", "10:11", "changelog needs key"),
        ("  - delta: tables/orders", "  - delta: a\n    mode: merge", "10:11", "'merge' is unknown; known are append"),
        ("  - delta: tables/orders", "  - delta: a\n    key: id", "10:5", "for topics, and for modes upsert"),
        ("  - delta: tables/orders", "  - {delta: a, mode: upsert, key: [id, id]}", "9:35", "stands here twice"),
        ("  - delta: tables/orders", "  - {delta: a, mode: upsert, key: nr}", "9:35", "nr is no column of the rows"),
        (
            "  - delta: tables/orders",
            "  - {parquet: a, mode: upsert, key: id}",
            "9:24",
            "plain Parquet are not replaced",
        ),
        ("country: string\nsinks:\n  - ", "f: float\nsinks:\n  - mode: upsert\n    key: f\n    ", "10:10", "no key"),
        ("  - delta: tables/orders", "  - {topic: a, key: [id, id]}\nerrors: {mode: drop}", "9:21", "is one column"),
        ("  - delta: tables/orders", "  - {delta: a, mode: upsert, key: id, keep_deletes: x}", "9:53", "no duration"),
        ("  - delta: tables/orders", "  - {parquet: a, create: {sort: [a]}}", "9:18", "for Delta and Iceberg tables"),
        (
            "  - delta: tables/orders",
            "  - {delta: a, create: {partition: [day(t)]}}",
            "9:37",
            "Delta partitions by columns",
        ),
        (
            "  - delta: tables/orders",
            "  - {iceberg: a.b, create: {partition: [week(t)]}}",
            "9:41",
            "known are a column",
        ),
        ("  - delta: tables/orders", "  - {delta: a, create: {sort: [a]}}", "9:25", "has no sort order"),
        ("  - delta: tables/orders", "  - {delta: a, create: {location: /x}}", "9:25", "is the path after delta:"),
        ("  topic: orders", "  topic: orders\n  key_format: avro", "4:15", "needs registry"),
        ("sinks:", "trigger: {every: soon}\nsinks:", "8:18", "no duration"),
        ("sinks:", "source: {topic: b}\nsinks:", "8:1", "source stands here twice"),
        ("sinks:", "errors: {mode: ignore}\nsinks:", "8:16", "ignore"),
        ("  format: json", "  format: json\n  options: {failOnDataLos: true}", "5:13", "did you mean failOnDataLoss"),
        ("  format: json", "  format: json\n  options: {subscribe: x}", "5:13", "say source.topic"),
        ("pipeline: orders", "pipeline: [", "3:8", "flow sequence"),
    ],
)
def test_a_fault_is_named_by_line_and_column(tmp_path, old, new, where, what):
    (complaint, *_) = complaints(tmp_path, GOOD.replace(old, new, 1))
    assert complaint.startswith(f"{where}: "), complaint
    assert what in complaint


def test_all_faults_of_the_content_are_named_at_once_and_in_order(tmp_path):
    text = GOOD.replace("bigint not null", "bigger").replace("  - delta: tables/orders", "  - topic: o")
    found = complaints(tmp_path, text.replace("pipeline: orders", "pipeline: ' '"))
    assert [complaint.split(":")[0] for complaint in found][:2] == ["1", "6"]


def test_a_file_that_multiplies_itself_is_refused(tmp_path):
    bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
    for before, name in zip("abcdef", "bcdefg", strict=True):
        bomb += f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    (complaint,) = complaints(tmp_path, bomb)
    assert "too much for one file" in complaint


@pytest.mark.parametrize("text", ["", "- a\n", "pipeline: &a {b: *a}\n", "!!python/object:os.system {}\n"])
def test_other_documents_are_refused_with_a_sentence(tmp_path, text):
    assert complaints(tmp_path, text)[0]


@pytest.mark.parametrize(
    "text",
    ["a", "a int,, b int", "a struct<b int", "a decimal(40)", "a int not", "a int, A int", "a map<int, int>", "%"],
)
def test_a_schema_that_is_none_is_refused(text):
    with pytest.raises(Rejected):
        parse_schema(text)


def test_a_schema_in_ddl_is_the_schema_in_yaml():
    ddl = "a bigint not null, b array<struct<c: string, d: map<string, double>>>, e decimal(9, 2)"
    yaml = {"a": "bigint not null", "b": "array<struct<c: string, d: map<string, double>>>", "e": "decimal(9,2)"}
    assert parse_schema(ddl) == parse_schema(yaml)
    assert [field.required for field in parse_schema(ddl)] == [True, False, False]
