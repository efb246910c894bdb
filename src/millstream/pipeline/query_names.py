"""Queries checked without Spark: their syntax, their names, and the types that are certain.

sqlglot reads each query as Spark's SQL, over the columns that the declaration and the registry give. A query that it
does not read, a function that Spark does not have (``query_functions``), a table or a column that is not there, a field
that a structure does not have, and a name that stands twice in a result are problems with their line and column. A type
is given where it is certain: of columns, casts, literals, comparisons and some functions; any other is ``UNKNOWN``, and
Spark knows it (``check --deep``). Python functions are not called, so what they return is unknown.

Spark knows more SQL than sqlglot. A query that is refused here and not by Spark runs; each message names ``--deep``.
"""

import difflib
import functools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import pyarrow as pa

from millstream.config.yaml_file import Path
from millstream.errors import Rejected
from millstream.pipeline.checks import METADATA_NAMES, decoder_of, key_of, kind_of
from millstream.pipeline.extra import need_extra
from millstream.pipeline.keys import key_fault
from millstream.pipeline.model import Pipeline
from millstream.pipeline.query_functions import WRITTEN, brings_functions, builtin, unknown_function
from millstream.pipeline.rows import row_schema
from millstream.pipeline.wire_schemas import needs_inference

UNKNOWN: Final = "unknown"
"""Shown for a type that Spark alone can tell."""

Columns: TypeAlias = list[tuple[str, str]]
"""Name and Spark's name of the type."""

_ASK_SPARK: Final = "'millstream pipeline check --deep' asks Spark itself"
_PLACE: Final = re.compile(r"Line: (\d+), Col: (\d+)")
_UNRESOLVED: Final = re.compile(r"Column '(.*?)' could not be resolved(?: for table: '(.*?)')?")
_GROUPS: Final = re.compile(r"\b(?:session_)?window\s*\(", re.IGNORECASE)
"""Spark makes a column of such a call, by which sqlglot knows no column."""
_CERTAIN: Final = (
    "Alias", "And", "Between", "Boolean", "Cast", "Column", "Concat", "Count", "Date", "Dot", "EQ", "GT", "GTE",
    "Identifier", "In", "Is", "LT", "LTE", "Length", "Literal", "Lower", "NEQ", "Not", "Null", "Or", "Paren", "Star",
    "Trim", "TryCast", "Upper",
)  # fmt: skip
"""Expressions whose types sqlglot gives as Spark does."""
_NAMES: Final = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "float": "float",
    "double": "double", "string": "string", "large_string": "string", "binary": "binary", "large_binary": "binary",
    "date32[day]": "date",
}  # fmt: skip


class QueryProblem(Rejected):
    """A query that does not run. ``path`` names its text, ``line`` and ``column`` the place in it, from 1."""

    def __init__(self, message: str, path: Path, line: int = 0, column: int = 0) -> None:
        super().__init__(message)
        self.path = path
        self.line = line
        self.column = column


def spark_name(kind: Any) -> str:
    """What Spark calls an Arrow type."""
    if pa.types.is_struct(kind):
        return f"struct<{','.join(f'{field.name}:{spark_name(field.type)}' for field in kind)}>"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{spark_name(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<{spark_name(kind.key_type)},{spark_name(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    return _NAMES.get(str(kind), "string")


def results(pipeline: Pipeline) -> list[Columns | None]:
    """The columns of each sink; None where only Spark can tell them.

    Args:
        pipeline: a checked declaration; records with schema ids have theirs pinned.

    Raises:
        QueryProblem: a query cannot run.
        Rejected: a table could not have the columns of a result.
    """
    named: dict[str, Any] = {"source": pipeline.source, **pipeline.tables}
    known = not any(map(needs_inference, named.values()))
    views: dict[str, Columns] = {}
    if known:
        for name, declared in named.items():
            fields = decoder_of(declared).fields
            schema = row_schema(fields) if name == "source" else fields
            views[name] = [(field.name, spark_name(field.type)) for field in schema]
    result: Columns | None = views.get("source")
    if pipeline.transform is not None:
        sql = pipeline.transform.sql
        result = None if sql is None else _columns(sql, views if known else None, ("transform", "sql"), pipeline)
    found: list[Columns | None] = []
    for index, sink in enumerate(pipeline.sinks):
        columns = result
        if sink.sql is not None:
            tables = None if result is None or not known else {**views, "result": result}
            columns = _columns(sink.sql, tables, ("sinks", index, "sql"), pipeline)
        if columns is not None:
            _require_usable(columns, pipeline, index)
        found.append(columns)
    return found


def query_path(pipeline: Pipeline, index: int) -> Path:
    """The part of the declaration that decides which columns a sink's rows have."""
    if pipeline.sinks[index].sql is not None:
        return "sinks", index, "sql"
    transform = pipeline.transform
    if transform is None:
        return "sinks", index, "key"
    return "transform", "sql" if transform.sql is not None else "python"


def _require_usable(columns: Columns, pipeline: Pipeline, index: int) -> None:
    """Refuse columns that the sink cannot have."""
    sink = pipeline.sinks[index]
    if kind_of(sink) == "topic":
        names = [name for name, _ in columns]
        for key in key_of(sink):
            if "*" not in names and key.lower() not in map(str.lower, names):
                raise QueryProblem(f"the result has no column {key}; {_known(names)}", ("sinks", index, "key"))
        if all(name in METADATA_NAMES for name in names):
            raise Rejected("the result has no column that could be written to a topic")
        return
    if sink.mode != "append" and "*" not in (name for name, _ in columns):
        fault = key_fault({name: kind in ("float", "double") for name, kind in columns}, key_of(sink))
        if fault is not None:
            raise QueryProblem(fault, query_path(pipeline, index))
    seen: set[str] = set()
    for name, kind in columns:
        if name.lower() in seen:
            raise Rejected(f"column {name} stands twice in the result; give one of them another name")
        seen.add(name.lower())
        if kind == "null":
            raise Rejected(f"column {name} has no type (a bare NULL); cast it in the query")


def _columns(text: str, tables: Mapping[str, Columns] | None, path: Path, pipeline: Pipeline) -> Columns | None:
    """The columns of a query over these tables; without tables its syntax and its functions alone are checked."""
    sqlglot = need_extra("sqlglot", "queries of pipelines")
    errors = need_extra("sqlglot.errors", "queries of pipelines")
    query = _parsed(sqlglot, text, path)
    unknown = None if brings_functions(pipeline) else unknown_function(query)
    if unknown is not None:
        name, place = unknown
        message = f"Spark has no function {name}{_near(name.lower(), builtin())}; {_ASK_SPARK}"
        raise _problem(message, path, place, name)
    if tables is None:
        return None
    _require_tables(query, tables, path)
    schema = {name: dict(columns) for name, columns in tables.items()}
    try:
        query = sqlglot.optimizer.qualify.qualify(
            query, schema=schema, dialect="spark", validate_qualify_columns=not _GROUPS.search(text)
        )
        query = sqlglot.optimizer.annotate_types.annotate_types(query, schema=schema, dialect="spark")
    except errors.SqlglotError as error:
        raise _unresolved(str(error), tables, path) from None
    _require_fields(query, path)
    scope = sqlglot.optimizer.scope.build_scope(query)
    own = {name for name, source in scope.sources.items() if isinstance(source, sqlglot.exp.Table)} if scope else set()
    columns = [(each.alias_or_name, _type_of(each, own)) for each in query.selects]
    return None if any(name in ("*", "") for name, _ in columns) else columns


def _parsed(sqlglot: Any, text: str, path: Path) -> Any:
    """The query's tree. ``window`` is also tried as a function, as which Spark takes it in a GROUP BY."""
    need_extra("sqlglot.optimizer.qualify", "queries of pipelines")
    need_extra("sqlglot.optimizer.annotate_types", "queries of pipelines")
    need_extra("sqlglot.optimizer.scope", "queries of pipelines")
    windows, plain = _dialects()
    dialects = (windows, plain) if _GROUPS.search(text) else (plain,)
    problem: Any = None
    for dialect in dialects:
        try:
            found = sqlglot.parse(text, read=dialect)
        except sqlglot.errors.SqlglotError as error:
            problem = error
            continue
        statements = [each for each in found if each is not None]
        if len(statements) != 1 or not isinstance(statements[0], sqlglot.exp.Query):
            raise QueryProblem("a query is one SELECT", path)
        return statements[0]
    details: Sequence[Mapping[str, Any]] = getattr(problem, "errors", ())
    if not details:
        raise QueryProblem(f"this is not read as SQL: {str(problem).splitlines()[0]}; {_ASK_SPARK}", path)
    first = details[0]
    near = f" at {first['highlight']!r}" if first["highlight"] else ""
    column = max(1, first["col"] - len(first["highlight"] or " ") + 1)
    message = f"this is not read as SQL: {first['description'].rstrip('.')}{near}; {_ASK_SPARK}"
    raise QueryProblem(message, path, first["line"], column)


@functools.cache
def _dialects() -> tuple[Any, Any]:
    """Spark's SQL with ``window`` as a function, and as it is."""
    spark = need_extra("sqlglot.dialects.spark", "queries of pipelines").Spark
    keywords = {word: token for word, token in spark.Tokenizer.KEYWORDS.items() if word != "WINDOW"}
    plain = type("Written", (spark,), {"ORIGINAL_NAME_META_KEY": WRITTEN})
    windows = type("Windows", (plain,), {"Tokenizer": type("Tokenizer", (spark.Tokenizer,), {"KEYWORDS": keywords})})
    return windows, plain


def _require_tables(query: Any, tables: Mapping[str, Columns], path: Path) -> None:
    """Refuse a query over a table that is not there."""
    exp = need_extra("sqlglot.expressions", "queries of pipelines")
    own = {each.alias_or_name.lower() for each in query.find_all(exp.CTE)}
    known = {name.lower() for name in tables}
    for table in query.find_all(exp.Table):
        name = table.name
        if not isinstance(table.this, exp.Identifier) or table.db or name.lower() in own | known:
            continue
        message = f"there is no table {name}{_near(name, known)}; known are {', '.join(tables)}"
        raise _problem(message, path, table.this.meta, name)


def _require_fields(query: Any, path: Path) -> None:
    """Refuse a field that its structure does not have."""
    exp = need_extra("sqlglot.expressions", "queries of pipelines")
    for dot in query.find_all(exp.Dot):
        kind = dot.this.type
        if kind is None or not kind.is_type("struct") or not kind.expressions or dot.name == "*":
            continue
        names = [field.name for field in kind.expressions]
        if dot.name.lower() not in map(str.lower, names):
            message = f"{dot.this.name} has no field {dot.name}{_near(dot.name, names)}; {_known(names)}"
            raise _problem(message, path, dot.expression.meta, dot.name)


def _problem(message: str, path: Path, place: Mapping[str, Any], name: str) -> QueryProblem:
    """What is wrong with a name, whose end sqlglot has noted as its place."""
    return QueryProblem(message, path, place.get("line", 0), max(1, place.get("col", 0) - len(name) + 1))


def _unresolved(said: str, tables: Mapping[str, Columns], path: Path) -> QueryProblem:
    """What qualifying a query has found, as a problem at a place."""
    place, found = _PLACE.search(said), _UNRESOLVED.match(said)
    line, column = (int(place[1]), int(place[2])) if place else (0, 0)
    if found is None:
        return QueryProblem(f"{_PLACE.sub('', said.splitlines()[0]).strip(' ().')}; {_ASK_SPARK}", path, line, column)
    name, table = found[1], found[2]
    columns = [each for columns in tables.values() for each, _ in columns]
    where = (
        f"{table} has" if table else f"{' and '.join(tables)} have" if len(tables) > 1 else f"{next(iter(tables))} has"
    )
    message = f"{where} no column {name}{_near(name, columns)}; {_known(columns)}; {_ASK_SPARK}"
    return QueryProblem(message, path, line, max(1, column - len(name) + 1))


def _near(name: str, known: Collection[str]) -> str:
    found = difflib.get_close_matches(name, known, 1)
    return f", did you mean {found[0]}?" if found else ""


def _known(names: Sequence[str]) -> str:
    return f"columns are {', '.join(dict.fromkeys(names))}"


def _type_of(expression: Any, own: set[str]) -> str:
    """Spark's name of an expression's type, if it is certain; ``own`` are the tables whose columns have known types."""
    if expression.type is None or any(kind not in _CERTAIN for kind in _kinds(expression, own)):
        return UNKNOWN
    found = expression.type.sql("spark").lower()
    if "unknown" in found or ("`" in found and ": " not in found):
        return UNKNOWN
    return re.sub(r"([:,]) ", r"\1", found.replace("`", ""))


def _kinds(expression: Any, own: set[str]) -> Iterator[str]:
    """Names of the expressions within one; what a cast is of does not matter, nor does what COUNT counts."""
    name = type(expression).__name__
    yield name
    if name == "Column" and expression.table not in own:
        yield "Derived"
    if name == "Literal" and not expression.is_string and not _is_int(expression.this):
        yield "Decimal"
    if name not in ("Cast", "Count", "TryCast"):
        for child in expression.iter_expressions():
            yield from _kinds(child, own)


def _is_int(text: str) -> bool:
    return text.isdecimal() and int(text) < 1 << 31
