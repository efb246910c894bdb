"""A declared pipeline as a project of Spark Declarative Pipelines, for those who run that.

::

    DIRECTORY/spark-pipeline.yml     name, where checkpoints are, which file has the definitions
    DIRECTORY/definitions.py         the same source, query and sinks as datasets and flows

``spark-pipelines run`` (``pip install "pyspark[pipelines]"``) reads what is new and ends. Topics
are read and written by ``format("millstream")``. Table sinks become tables of Spark's catalog, because declarative
pipelines write no others; their promises are Spark's, not those of ``millstream pipeline run``. What the project does
not take over, the file's opening words say; names that cannot be datasets are refused.
"""

import keyword
import os
import re
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

from millstream.client.schema_registry import is_registry_name
from millstream.errors import Rejected
from millstream.pipeline.checks import METADATA_NAMES, key_of, kind_of, sink_name
from millstream.pipeline.explain import shares
from millstream.pipeline.model import EXACTLY_ONCE, Pipeline, SideTable, Sink, Source
from millstream.pipeline.start import declared_start, source_options
from millstream.pipeline.wire_schemas import has_schema_ids, subject_of

SPEC_NAME: Final = "spark-pipeline.yml"
DEFINITIONS_NAME: Final = "definitions.py"
_LIMITS: Final = ("maxBytesPerTrigger", "maxOffsetsPerTrigger")
_RESERVED: Final = (
    "records",
    "pipeline_source",
    "pipeline_result",
    "dead_letters",
    "spark",
    "dp",
    "sys",
)
_WITH: Final = re.compile(r"\s*WITH\s+", re.IGNORECASE)
_DEAD_LETTERS: Final = (
    "_topic AS topic", "_partition AS partition", "_offset AS offset", "_timestamp AS timestamp", "_key AS key",
    "_value AS value", "_error AS error",
)  # fmt: skip
_RAW: Final = ("value", *(f"{name[1:]} AS {name}" for name in METADATA_NAMES))


def export(spark: SparkSession, pipeline: Pipeline, directory: str, target: str) -> list[str]:
    """Write the project; returns the paths of its files.

    Args:
        spark: looks at the queries.
        pipeline: the declaration, with the schema of each JSON source.
        directory: what relative paths in it are relative to.
        target: directory of the project; created if it is missing.

    Raises:
        Rejected: the target has such a project already, or a name of a sink or table cannot be a dataset's.
        QueryProblem: Spark does not take a query.
    """
    target = os.path.abspath(target)
    paths = [os.path.join(target, name) for name in (SPEC_NAME, DEFINITIONS_NAME)]
    for path in paths:
        if os.path.exists(path):
            raise Rejected(f"{path} is there already; export into another directory, or remove it")
    _check_names(pipeline)
    for sink in pipeline.sinks:
        if sink.mode != "append":
            raise Rejected(f"sink {sink_name(sink)} has mode {sink.mode}, and exported projects only append")
    columns = [frame.columns for frame in shares(spark, pipeline, directory)]
    texts = [_spec(pipeline, target), _definitions(pipeline, directory, columns)]
    os.makedirs(target, exist_ok=True)
    for path, text in zip(paths, texts, strict=True):
        with open(path, "x", encoding="utf-8") as file:
            file.write(text)
    return paths


def _check_names(pipeline: Pipeline) -> None:
    """Each dataset has a Python function of its name."""
    taken: set[str] = set(_RESERVED)
    if pipeline.transform is not None and pipeline.transform.python is not None:
        taken.add(pipeline.transform.python.partition(":")[2])
    for name in (*pipeline.tables, *map(_sink_dataset, pipeline.sinks)):
        if not name.isidentifier() or keyword.iskeyword(name):
            raise Rejected(f"a dataset cannot be called {name}; give the sink or table another name")
        if name in taken:
            raise Rejected(f"the exported project has another {name}; give the sink or table another name")
        taken.add(name)


def _sink_dataset(sink: Sink) -> str:
    return re.sub(r"\W", "_", sink_name(sink))


def _spec(pipeline: Pipeline, target: str) -> str:
    lines = [
        f"name: {pipeline.pipeline}",
        f"storage: file://{target}/storage",
        "libraries:",
        "  - glob:",
        f"      include: {DEFINITIONS_NAME}",
        "configuration:",
        '  spark.sql.session.timeZone: "UTC"',
    ]
    return "\n".join(lines) + "\n"


def _definitions(pipeline: Pipeline, directory: str, columns: list[list[str]]) -> str:
    source = pipeline.source
    parts = [_head(pipeline, directory)]
    options = {name: text for name, text in source_options(pipeline).items() if name not in _LIMITS}
    options |= _value_options(pipeline, source) | declared_start(pipeline)
    read = f'spark.readStream.format("millstream").options(\n        **{_mapping(options)}\n    ).load()'
    parts.append(_view("records", read))
    for name, table in pipeline.tables.items():
        options = pipeline.reach | {"subscribe": table.topic, **_value_options(pipeline, table)}
        read = f'spark.read.format("millstream").options(\n        **{_mapping(options)}\n    ).load()'
        rows = f"{read}{_good(table, 'drop')}.drop({', '.join(map(_text, METADATA_NAMES))})"
        parts.append(_view(name, rows))
    good = f"spark.readStream.table({_text('records')}){_good(source, pipeline.errors.mode)}"
    parts.append(_view("pipeline_source", good))
    parts.append(_view("pipeline_result", _result(pipeline)))
    if pipeline.errors.mode == "dead_letter" and source.format != "raw":
        parts.append(_dead_letters(pipeline))
    parts += [_sink(pipeline, sink, names) for sink, names in zip(pipeline.sinks, columns, strict=True)]
    return "\n\n".join(parts)


def _head(pipeline: Pipeline, directory: str) -> str:
    lines = [
        f'"""Pipeline {pipeline.pipeline} for Spark Declarative Pipelines, made by "millstream pipeline export --sdp".',
        "",
        "    spark-pipelines run --conf spark.sql.catalogImplementation=hive",
        "",
        "Each run reads what is new and ends. Tables are in Spark's catalog, which outlives a run by this setting.",
        "Not taken over: formats and places of tables, the trigger, limits of a batch, and settings of Spark.",
        "Compacted topics that are joined with are read whole, not as their latest values.",
        '"""',
        "",
    ]
    transform = pipeline.transform
    if transform is not None and transform.python is not None:
        lines += ["import sys", ""]
    lines += ["from pyspark import pipelines as dp", "from pyspark.sql import SparkSession", ""]
    if transform is not None and transform.python is not None:
        module, _, function = transform.python.partition(":")
        lines += [f"sys.path.insert(0, {_text(os.path.abspath(directory))})", f"from {module} import {function}", ""]
    lines += ["spark = SparkSession.active()", ""]
    return "\n".join(lines)


def _value_options(pipeline: Pipeline, declared: Source | SideTable) -> dict[str, str]:
    """Options of the source that decode values."""
    if declared.format == "raw":
        return {}
    if has_schema_ids(declared):
        assert declared.registry is not None, "a checked declaration names its registry"
        message = {} if declared.message is None else {"value.message": declared.message}
        return {
            "value.format": declared.format, "schema.registry.url": declared.registry,
            "value.subject": subject_of(declared), **message,
            **{name: text for name, text in pipeline.registry_reach.items() if is_registry_name(name)},
        }  # fmt: skip
    if declared.format == "string":
        return {"value.format": "string"}
    assert declared.schema is not None, "schemas are inferred before"
    return {"value.format": "json", "value.schema": _ddl(declared.schema)}


def _ddl(schema: str | Mapping[str, str]) -> str:
    return schema if isinstance(schema, str) else ", ".join(f"`{name}` {kind}" for name, kind in schema.items())


def _good(declared: Source | SideTable, mode: str) -> str:
    """What makes rows of records: the fields and the columns beside them.

    ``DataFrame.drop`` would ask for the columns of ``records`` before that view is defined.
    """
    if declared.format == "raw":
        return f".selectExpr(*{list(_RAW)!r})"
    wanted = "_error IS NULL"
    if mode == "fail":
        wanted = "assert_true(_error IS NULL, concat('offset ', _offset, ': ', _error)) IS NULL"
    return f'.where({_text(wanted)}).selectExpr("* EXCEPT (_error, _value)")'


def _result(pipeline: Pipeline) -> str:
    transform = pipeline.transform
    if transform is None:
        return "spark.readStream.table('pipeline_source')"
    if transform.python is not None:
        return f"{transform.python.partition(':')[2]}(spark.readStream.table('pipeline_source'))"
    assert transform.sql is not None, "a checked transform has sql or python"
    return _query(transform.sql, "source", "pipeline_source")


def _query(sql: str, name: str, dataset: str) -> str:
    """A query over a stream that it knows by another name."""
    begin = f"WITH {name} AS (SELECT * FROM STREAM({dataset}))"  # noqa: S608 (names of ours)
    found = _WITH.match(sql)
    text = f"{begin},\n{sql[found.end() :]}" if found is not None else f"{begin}\n{sql}"
    return f"spark.sql({_text(text.strip())})"


def _dead_letters(pipeline: Pipeline) -> str:
    rows = 'spark.readStream.table("records").where("_error IS NOT NULL")'
    if pipeline.errors.topic is None:
        return _dataset("table", "dead_letters", f"{rows}.selectExpr(*{list(_DEAD_LETTERS)!r})")
    return _topic(
        pipeline,
        "dead_letters",
        pipeline.errors.topic,
        f'{rows}.selectExpr("_key AS key", "_value AS value")',
        EXACTLY_ONCE,
    )


def _sink(pipeline: Pipeline, sink: Sink, columns: list[str]) -> str:
    name = _sink_dataset(sink)
    share = "spark.readStream.table('pipeline_result')"
    if sink.sql is not None:
        share = _query(sink.sql, "result", "pipeline_result")
    if kind_of(sink) != "topic":
        return _dataset("table", name, share)
    assert sink.topic is not None
    fields = ", ".join(f"`{one}`" for one in columns if one not in METADATA_NAMES)
    key = next((f"CAST(`{name}` AS STRING) AS key" for name in key_of(sink)), None)
    if key is None and "_key" in columns:
        key = "_key AS key"
    wanted = [*([key] if key else []), f"to_json(struct({fields})) AS value"]
    return _topic(pipeline, name, sink.topic, f"{share}.selectExpr(*{wanted!r})", sink.delivery or EXACTLY_ONCE)


def _topic(pipeline: Pipeline, name: str, topic: str, rows: str, delivery: str) -> str:
    options = pipeline.reach | {"topic": topic, "delivery": delivery}
    made = f"dp.create_sink({_text(name)}, {_text('millstream')}, {_mapping(options, 1)})\n\n\n"
    return f"{made}@dp.append_flow(target={_text(name)})\ndef {name}():\n    return {rows}\n"


def _view(name: str, rows: str) -> str:
    return _dataset("temporary_view", name, rows)


def _dataset(kind: str, name: str, rows: str) -> str:
    return f"@dp.{kind}(name={_text(name)})\ndef {name}():\n    return {rows}\n"


def _mapping(options: Mapping[str, str], depth: int = 2) -> str:
    indent = "    " * depth
    lines = "".join(f"{indent}    {_text(name)}: {_text(value)},\n" for name, value in options.items())
    return "{\n" + lines + indent + "}"


def _text(text: str) -> str:
    """A Python literal."""
    if "\n" in text and '"""' not in text and "\\" not in text:
        return f'"""{text}"""'
    return repr(text)
