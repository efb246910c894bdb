"""Queries of pipelines, checked without Spark: what is wrong has its place, and a type that is told is certain."""

import subprocess
import sys

import pytest

pytest.importorskip("sqlglot")

from millstream.errors import Rejected
from millstream.pipeline.model import Pipeline, SideTable, Sink, Source, Transform
from millstream.pipeline.query_names import UNKNOWN, QueryProblem, results
from waits import PATIENCE_S

SCHEMA = "id bigint, country string, amount double, tags array<string>, place struct<city: string, zip: int>"


def found(sql, *sinks):
    return results(
        Pipeline(
            pipeline="p",
            source=Source(topic="t", format="json", schema=SCHEMA),
            tables={"countries": SideTable(topic="c", schema="code string, name string")},
            transform=Transform(sql=sql),
            sinks=[*sinks] or [Sink(delta="t")],
        )
    )


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("SELECT id, upper(country) AS c FROM source WHERE amount > 0", [("id", "bigint"), ("c", "string")]),
        ("SELECT * EXCEPT (id, country, amount, tags, _key, _topic) FROM source",
         [("place", "struct<city:string,zip:int>"), ("_partition", "int"), ("_offset", "bigint"),
          ("_timestamp", "timestamp")]),
        ("SELECT s.place.city, tags[0] AS tag FROM source s", [("city", "string"), ("tag", UNKNOWN)]),
        ("SELECT id, n.name FROM source JOIN countries n ON n.code = country", [("id", "bigint"), ("name", "string")]),
        ("SELECT id * 2 AS twice, builtin.abs(id) AS own FROM source", [("twice", UNKNOWN), ("own", UNKNOWN)]),
        ("SELECT x FROM (SELECT if(id > 1, 1, 2) AS x FROM source)", [("x", UNKNOWN)]),
        ("SELECT tag FROM source LATERAL VIEW explode(tags) t AS tag", [("tag", UNKNOWN)]),
        ("SELECT window.start, count(*) AS n FROM source GROUP BY window(_timestamp, '5 minutes')",
         [("start", UNKNOWN), ("n", "bigint")]),
        ("WITH big AS (SELECT id FROM source WHERE id > 9) SELECT * FROM big", [("id", UNKNOWN)]),
        ("SELECT transform(tags, t -> upper(t)) AS u FROM source", [("u", UNKNOWN)]),
        ("SELECT place.* FROM source", None),
    ],
)  # fmt: skip
def test_columns_of_a_query(sql, columns):
    assert found(sql) == [columns]


@pytest.mark.parametrize(
    ("sql", "place", "said"),
    [
        ("SELECT id,\n  countri\nFROM source", (2, 3), "no column countri, did you mean country"),
        ("SELECT id FROM sourc", (1, 16), "there is no table sourc, did you mean source"),
        ("SELEC id FROM source", (1, 10), "not read as SQL"),
        ("SELECT id, place.cty FROM source", (1, 18), "place has no field cty, did you mean city"),
        ("SELECT 'open FROM source", (0, 0), "not read as SQL"),
        ("SELECT id,\n  uper(country) FROM source", (2, 3), "no function uper, did you mean upper"),
        ("SELECT transform(tags, t -> my_own(t)) FROM source", (1, 29), "no function my_own"),
        ("SELECT tag FROM source LATERAL VIEW explod(tags) t AS tag", (1, 37), "no function explod"),
        ("SELECT group_concat(country) FROM source", (1, 8), "no function group_concat"),
        ("DROP TABLE source", (0, 0), "a query is one SELECT"),
        ("SELECT 1 AS a FROM source; SELECT 2 AS b FROM source", (0, 0), "a query is one SELECT"),
    ],
)
def test_a_mistake_has_its_line_and_column(sql, place, said):
    with pytest.raises(QueryProblem, match=said) as caught:
        found(sql)
    assert (caught.value.path, caught.value.line, caught.value.column) == (("transform", "sql"), *place)


def test_a_sinks_query_sees_the_result_and_a_topics_key_is_one_of_its_columns():
    sink = Sink(topic="out", key="c", sql="SELECT c, id FROM result")
    assert found("SELECT id, upper(country) AS c FROM source", sink) == [[("c", "string"), ("id", "bigint")]]
    for wrong in (Sink(delta="t", sql="SELECT amount FROM result"), Sink(topic="out", key="amount")):
        with pytest.raises(QueryProblem, match="no column amount"):
            found("SELECT id, upper(country) AS c FROM source", wrong)


@pytest.mark.parametrize("sql", ["SELECT id, amount AS ID FROM source", "SELECT id, NULL AS nothing FROM source"])
def test_columns_that_a_table_cannot_have_are_refused(sql):
    with pytest.raises(Rejected, match=r"stands twice|bare NULL"):
        found(sql)


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("SELECT id, _topic, _partition, _timestamp FROM source", "lacks _offset, and the query has to keep them"),
        ("SELECT amount AS id, _topic, _partition, _offset, _timestamp FROM source", "and such are no key"),
    ],
)
def test_a_query_that_loses_what_tells_records_of_a_key_apart_is_refused(sql, said):
    sink = Sink(delta="t", mode="upsert", key="id")
    with pytest.raises(QueryProblem, match=said) as caught:
        found(sql, sink)
    assert caught.value.path == ("transform", "sql")
    assert found("SELECT * FROM source", sink) is not None


def test_nothing_is_said_of_names_before_the_schema_is_inferred_but_of_syntax():
    source = Source(topic="t", format="json")

    def read(sql):
        return results(Pipeline(pipeline="p", source=source, transform=Transform(sql=sql), sinks=[Sink(delta="t")]))

    assert read("SELECT anything FROM source") == [None]
    with pytest.raises(QueryProblem, match="not read as SQL"):
        read("SELEC anything FROM source")


def test_neither_check_nor_plan_starts_or_imports_spark(tmp_path):
    (tmp_path / "p.yaml").write_text(
        "pipeline: p\nsource: {topic: t, format: json, schema: 'id bigint'}\n"
        "transform: {sql: SELECT id FROM source}\nsinks: [{delta: t}]\n"
    )
    program = (
        "import sys\nfrom millstream.cli.pipeline_file import load_file\n"
        "from millstream.cli.pipeline_spark import analysed\n"
        f"found = analysed(load_file({str(tmp_path / 'p.yaml')!r}), deep=False)\n"
        "import millstream.pipeline.plan\n"
        "assert found[0].columns == [('id', 'bigint')], found\n"
        "assert not {'pyspark', 'numba'} & sys.modules.keys()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
