"""Columns of JSON values that are not declared: inferred once from the first records, then the same for ever.

``inferred`` reads up to ``SAMPLE`` records of a topic, from its beginning, and takes each member's type from them:
``boolean``, ``bigint`` (``decimal(38, 0)`` beyond 64 bits), ``double``, ``string``, ``array<…>``, ``struct<…>``; a
member that is only ever null is a string. A member without one type (two types in the sample, an object without
members, deep nesting) is ``json``: its values are kept as JSON text. What was found is kept in the state directory and
used by every later run, so that columns do not depend on when a run starts. Records that do not fit it are dead
letters; members that came later are ignored, until the file declares them.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from millstream.pipeline.model import Pipeline
from millstream.pipeline.rows import METADATA
from millstream.pipeline.start import source_options
from millstream.pipeline.state import PipelineState
from millstream.pipeline.wire_schemas import needs_inference
from millstream.spark.bounds import subscription
from millstream.spark.inferred import infer as infer_fields
from millstream.spark.logs import Logs
from millstream.spark.options import READ, parse_options
from millstream.spark.plan import plan_batch
from millstream.spark.wanted import Column, Predicate

SAMPLE: Final = 10_000
"""Records of a topic, spread over its partitions."""
_OWN_NAMES: Final = frozenset(name for name, _, _ in METADATA)


def inferred(pipeline: Pipeline, state: PipelineState, *, pin: bool) -> Pipeline:
    """The declaration with the schema of each JSON source that has none.

    Args:
        pipeline: the declaration.
        state: where schemas are kept.
        pin: keep those that are new.

    Raises:
        Rejected: a topic is empty or has no JSON objects, or a member has the name of a column beside them.
        MillstreamError: the cluster does not answer.
    """
    if not needs_inference(pipeline.source) and not any(map(needs_inference, pipeline.tables.values())):
        return pipeline
    known = state.schemas()
    before = dict(known)
    named: dict[str, tuple[Any, dict[str, str]]] = {"source": (pipeline.source, source_options(pipeline))}
    for name, table in pipeline.tables.items():
        named[name] = table, pipeline.reach | {"subscribe": table.topic}
    for name, (declared, options) in named.items():
        if needs_inference(declared) and name not in known:
            known[name] = infer(sample(options))
    if pin and known != before:
        state.keep_schemas(known)
    return with_schemas(pipeline, known)


def with_schemas(pipeline: Pipeline, known: Mapping[str, Mapping[str, str]]) -> Pipeline:
    """The declaration with the schemas that earlier runs have inferred, by name of their view; no broker is asked."""

    def held(declared: Any, name: str) -> Any:
        if name not in known or not needs_inference(declared):
            return declared
        return msgspec.structs.replace(declared, schema=dict(known[name]))

    tables = {name: held(table, name) for name, table in pipeline.tables.items()}
    return msgspec.structs.replace(pipeline, source=held(pipeline.source, "source"), tables=tables)


def infer(values: Iterable[bytes]) -> dict[str, str]:
    """As ``millstream.spark.inferred.infer``, for a pipeline's source."""
    return infer_fields(values, _OWN_NAMES, "source.schema")


def sample(options: dict[str, str]) -> Iterable[bytes]:
    """Values from the beginning of each partition, ``SAMPLE`` together at most; those that are null are left out."""
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
