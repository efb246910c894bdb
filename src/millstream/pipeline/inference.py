"""Columns of JSON values that nobody has declared: inferred once from the first records, then the same for ever.

``inferred`` reads up to ``SAMPLE`` records of a topic, from its beginning, and takes each member's type from them:
``boolean``, ``bigint`` (``decimal(38, 0)`` beyond 64 bits), ``double``, ``string``, ``array<…>``, ``struct<…>``; a
member that is only ever null is a string. What was found is kept in the state directory and used by every later run, so
that columns do not depend on when a run begins. Records that do not fit it are dead letters; members that came later
are ignored, until the file declares them. A member with two types in the sample is not guessed at: the run ends and
says which one, and the schema is to be declared.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeAlias, cast

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.model import Pipeline, SideTable, Source
from millstream.pipeline.rows import METADATA
from millstream.pipeline.start import source_options
from millstream.pipeline.state import PipelineState
from millstream.spark.bounds import subscription
from millstream.spark.filters import Predicate
from millstream.spark.logs import Logs
from millstream.spark.options import READ, parse_options
from millstream.spark.plan import plan_batch
from millstream.spark.wanted import Column

SAMPLE: Final = 10_000
"""Records of a topic, spread over its partitions."""
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OWN_NAMES: Final = frozenset(name for name, _, _ in METADATA)
_INT64: Final = 1 << 63
_DEPTH_MAX: Final = 12

Shape: TypeAlias = "str | list[Shape | None] | dict[str, Shape | None] | None"
"""A name of a type, a list of one element's shape, a struct's members; None while only nulls were seen."""


def needs_inference(declared: Source | SideTable) -> bool:
    """Whether a source is JSON and says nothing of its members."""
    return declared.format == "json" and declared.schema is None and declared.registry is None


def inferred(pipeline: Pipeline, state: PipelineState, *, pin: bool) -> Pipeline:
    """The declaration with the schema of each JSON source that has none.

    Args:
        pipeline: the declaration.
        state: where schemas are kept.
        pin: keep those that are new.

    Raises:
        Rejected: a topic is empty or has no JSON objects, or a member has several types.
        MillstreamError: the cluster does not answer.
    """
    if not needs_inference(pipeline.source) and not any(map(needs_inference, pipeline.tables.values())):
        return pipeline
    known = state.schemas()
    before = dict(known)
    source, tables = pipeline.source, dict(pipeline.tables)
    if needs_inference(source):
        if "source" not in known:
            known["source"] = infer(_sample(source_options(pipeline)))
        source = msgspec.structs.replace(source, schema=known["source"])
    for name, table in tables.items():
        if needs_inference(table):
            if name not in known:
                options = {"kafka.bootstrap.servers": pipeline.brokers, "subscribe": table.topic}
                known[name] = infer(_sample(options))
            tables[name] = msgspec.structs.replace(table, schema=known[name])
    if pin and known != before:
        state.keep_schemas(known)
    return msgspec.structs.replace(pipeline, source=source, tables=tables)


def infer(values: Iterable[bytes]) -> dict[str, str]:
    """Member and type of the JSON objects among these values, in the order in which they appear.

    Raises:
        Rejected: there is none, or a member has several types.
    """
    members: dict[str, Shape] = {}
    seen = 0
    for value in values:
        try:
            row: Any = msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        if isinstance(row, dict):
            seen += 1
            _merge_members(members, cast("dict[str, Any]", row), ())
    if not seen:
        raise Rejected("no JSON object is in the topic, from which columns could be inferred; declare source.schema")
    for name in members:
        if name.lower() in _OWN_NAMES:
            raise Rejected(f"{name} is the name of a column of the pipeline's own; declare source.schema without it")
    found = {name: _ddl(shape) for name, shape in members.items()}
    return {name: text for name, text in found.items() if text is not None}


def _sample(options: dict[str, str]) -> Iterable[bytes]:
    """Values from the beginning of each partition."""
    from millstream.spark.read import read_task

    base = {name: text for name, text in options.items() if not name.startswith("max")}
    parsed = parse_options(base, READ)
    logs = Logs(parsed, subscription(parsed))
    try:
        source_partitions = logs.source_partitions()
        starts, ends = logs.earliest(source_partitions), logs.latest(source_partitions)
    finally:
        logs.close()
    share = max(1, SAMPLE // max(1, len(source_partitions)))
    low: dict[str, dict[str, int]] = {}
    high: dict[str, dict[str, int]] = {}
    for place in source_partitions:
        start = starts[place.key].offset
        low.setdefault(place.topic, {})[str(place.partition)] = start
        high.setdefault(place.topic, {})[str(place.partition)] = min(ends[place.key].offset, start + share)
    bounds = {"startingOffsets": msgspec.json.encode(low).decode(), "endingOffsets": msgspec.json.encode(high).decode()}
    for task in plan_batch(parse_options({**base, **bounds}, READ), (Column("value"),), Predicate()):
        for batch in read_task(task):
            yield from (value for value in batch.column("value").to_pylist() if value is not None)


def _merge_members(members: dict[str, Shape], row: dict[str, Any], path: Sequence[str]) -> None:
    for name, value in row.items():
        members[name] = _merged(members.get(name), _shape(value, (*path, name)), (*path, name))


def _shape(value: Any, path: Sequence[str]) -> Shape:
    if len(path) > _DEPTH_MAX:
        raise Rejected(f"{'.'.join(path)} is nested deeper than {_DEPTH_MAX}; declare source.schema")
    if value is None:
        return None
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if -_INT64 <= value < _INT64 else "decimal(38, 0)"
    if isinstance(value, float):
        return "double"
    if isinstance(value, str):
        return "string"
    if isinstance(value, list):
        element: Shape = None
        for item in cast("list[Any]", value):
            element = _merged(element, _shape(item, (*path, "[]")), (*path, "[]"))
        return [element]
    inner: dict[str, Shape] = {}
    _merge_members(inner, value, path)
    return inner


_NUMBERS: Final = ("bigint", "decimal(38, 0)", "double")


def _merged(left: Shape, right: Shape, path: Sequence[str]) -> Shape:
    """A type that holds both.

    Raises:
        Rejected: there is none.
    """
    if left is None or right is None or left == right:
        return right if left is None else left
    if isinstance(left, dict) and isinstance(right, dict):
        names = [*left, *(name for name in right if name not in left)]
        return {name: _merged(left.get(name), right.get(name), (*path, name)) for name in names}
    if isinstance(left, list) and isinstance(right, list):
        return [_merged(left[0], right[0], (*path, "[]"))]
    if left in _NUMBERS and right in _NUMBERS:
        return _NUMBERS[max(_NUMBERS.index(cast("str", left)), _NUMBERS.index(cast("str", right)))]
    raise Rejected(
        f"{'.'.join(path)} is {_said(left)} in one record and {_said(right)} in another, so its type cannot be "
        "inferred; declare source.schema"
    )


def _said(shape: Shape) -> str:
    return shape if isinstance(shape, str) else "an array" if isinstance(shape, list) else "an object"


def _ddl(shape: Shape) -> str | None:
    """Spark's DDL of a type; None for an object without members, which no column can be."""
    if shape is None or isinstance(shape, str):
        return shape or "string"
    if isinstance(shape, list):
        element = _ddl(shape[0])
        return None if element is None else f"array<{element}>"
    inner = [(name, _ddl(member)) for name, member in shape.items()]
    kept = [f"{_quoted(name)}: {text}" for name, text in inner if text is not None]
    return f"struct<{', '.join(kept)}>" if kept else None


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name}`"
