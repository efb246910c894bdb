"""Functions of queries without Spark: those that Spark has are known, and a pipeline may bring its own."""

import pytest

pytest.importorskip("sqlglot")

from millstream.pipeline.model import Pipeline, Sink, Source, Transform
from millstream.pipeline.query_functions import builtin
from millstream.pipeline.query_names import QueryProblem, results
from tools import spark_functions

CALLS = [
    "upper(c)",
    "iff",
    "nvl(c, '')",
    "if(a > 1, 1, 2)",
    "count(*) OVER ()",
    "sum(a) FILTER (WHERE a > 1)",
    "cast(a AS string)",
    "try_cast(c AS int)",
    "extract(YEAR FROM t)",
    "trim(BOTH 'x' FROM c)",
    "substring(c FROM 1 FOR 2)",
    "position('a' IN c)",
    "struct(a)",
    "named_struct('a', a)",
    "current_date",
    "current_timestamp()",
    "date '2026-01-01'",
    "interval 5 days",
    "timestampdiff(DAY, t, t)",
    "dateadd(DAY, 1, t)",
    "c RLIKE 'x'",
    "to_json(struct(a))",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY a)",
    "filter(array(a), x -> x > 1)",
    "aggregate(array(a), 0, (s, x) -> s + x)",
    "variant_get(parse_json(c), '$.a', 'int')",
    "row_number() OVER (PARTITION BY a ORDER BY a)",
    "bigint(c)",
    "a BETWEEN 1 AND 2",
    "a IN (1, 2)",
    "CASE WHEN a > 1 THEN 1 END",
    "c || 'x'",
    "a DIV 2",
    "a::string",
]


def checked(sql, **more):
    source = Source(topic="t", format="json", schema="a bigint, c string, t timestamp, iff int")
    more = {"transform": Transform(sql=sql), "sinks": [Sink(delta="t")], **more}
    return results(Pipeline(pipeline="p", source=source, **more))


def test_the_kept_names_are_those_of_the_installed_spark():
    pytest.importorskip("pyspark")
    assert spark_functions.kept() == spark_functions.installed() == builtin(), "run python tools/spark_functions.py"
    assert {"upper", "explode", "window", "struct", "parse_json", "percentile_cont", "range", "if"} <= builtin()
    assert not {"my_own", "uper", "group_concat", "source"} & builtin()


@pytest.mark.parametrize("call", CALLS)
def test_functions_and_what_only_looks_like_one_are_taken(call):
    assert checked(f"SELECT {call} AS x FROM source") is not None


@pytest.mark.parametrize(
    "more",
    [
        {"transform": Transform(python="m:f"), "sinks": [Sink(delta="t", sql="SELECT my_own(a) AS x FROM result")]},
        {"spark": {"spark.sql.extensions": "org.example.Functions"}},
        {"spark": {"spark.jars.packages": "org.example:functions:1"}},
    ],
)
def test_a_pipeline_that_brings_functions_may_call_them(more):
    assert checked("SELECT my_own(a) AS x FROM source", **more) is not None


def test_other_settings_bring_none():
    with pytest.raises(QueryProblem, match="Spark has no function my_own"):
        checked("SELECT my_own(a) AS x FROM source", spark={"spark.sql.shuffle.partitions": "2"})
