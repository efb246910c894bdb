"""Values with schema ids in a pipeline: the columns of a run are fixed when it starts.

``pinned`` asks the registry once for the latest schema of each subject and puts the answer into the declaration, which
travels to all tasks. ``schemas.decoded`` says what becomes of records of other versions. A record of a newer version
that needs more columns stops the query before its batch is committed; the run then pins the newer schema, widens the
table and repeats the batch, so no field is lost.

The columns of the view ``source`` are kept in the state directory and only ever grow (``with_kept_columns``,
``keep_columns``): a field that the subject's owner drops, or turns into something else, changes no query. Where tasks
write into a table directly, fields go into the columns that the table has (``fitted``).
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from millstream.client.schema_registry import RegistryAccess, registry_access
from millstream.client.security import read_security, resolve
from millstream.errors import Rejected
from millstream.pipeline.changes import CHANGE, GENERATION
from millstream.pipeline.layout import decode_schema, encode_schema
from millstream.pipeline.missing import Missing
from millstream.pipeline.model import Pipeline, SideTable, Source
from millstream.pipeline.rows import METADATA, row_schema
from millstream.pipeline.state import PipelineState
from millstream.spark.registry_values import RegistryDecoder, latest_schema, mark_of, schema_mark

_Declared = TypeVar("_Declared", Source, SideTable)

WIRE_FORMATS: Final = ("avro", "protobuf")
_OWN_NAMES: Final = frozenset((*(name for name, _, _ in METADATA), GENERATION, CHANGE))


def registry_decoder_of(declared: Source | SideTable, *, fail_on_schema: bool = False) -> RegistryDecoder:
    """The decoder of a source with schema ids; ``pinned`` comes first.

    Raises:
        Rejected: the schema is of another format, or has a field with the name of a column of the pipeline's own.
        Unavailable: a library is not installed.
    """
    assert declared.pinned is not None and declared.registry is not None, "pinned() comes before decoding"
    subject = subject_of(declared)
    topics = (declared.topic,) if isinstance(declared.topic, str) else declared.topic
    decoder = RegistryDecoder(
        declared.format,
        registry_of(declared),
        subject,
        declared.pinned,
        table=decode_schema(declared.columns) if declared.columns is not None else None,
        own=_OWN_NAMES,
        subjects=[f"{topic}-value" for topic in topics],
        fail_on_schema=fail_on_schema,
    )
    for field in decoder.fields:
        if field.name.lower() in _OWN_NAMES:
            raise Rejected(f"{subject} has a field {field.name}, the name of a column of the pipeline's own")
    return decoder


def registry_of(declared: Source | SideTable) -> RegistryAccess:
    """How the registry of a source is reached.

    Raises:
        Rejected: a property is wrong.
    """
    reached = dict(declared.reached or {})
    bootstrap = reached.pop("bootstrap.servers", "")
    return registry_access(declared.registry, reached, read_security(reached), bootstrap)


def resolved(declared: _Declared) -> _Declared:
    """The declaration for another machine: what its properties refer to is on this one."""
    if declared.reached is None:
        return declared
    reached = {name: resolve(text) for name, text in declared.reached.items()}
    return msgspec.structs.replace(declared, reached=reached)


def with_kept_columns(pipeline: Pipeline, state: PipelineState) -> Pipeline:
    """The declaration with the columns that its views had in earlier runs."""
    return _with_columns(pipeline, state.columns())


def keep_columns(pipeline: Pipeline, state: PipelineState) -> Pipeline:
    """Keep the columns that the views have now; the declaration with them.

    Raises:
        MillstreamError: as ``registry_decoder_of``.
    """
    named: dict[str, Source | SideTable] = {"source": pipeline.source, **pipeline.tables}
    found = {
        name: encode_schema(row_schema(registry_decoder_of(declared).fields))
        for name, declared in named.items()
        if has_schema_ids(declared)
    }
    if found and found != state.columns():
        state.keep_columns(found)
    return _with_columns(pipeline, found)


def fitted(pipeline: Pipeline, table: Any) -> Pipeline:
    """The declaration whose fields go into the columns of a table; ``table`` is its Arrow schema, None without one."""
    if table is None or not has_schema_ids(pipeline.source):
        return pipeline
    source = msgspec.structs.replace(pipeline.source, columns=encode_schema(table))
    return msgspec.structs.replace(pipeline, source=source)


def _with_columns(pipeline: Pipeline, known: Mapping[str, str]) -> Pipeline:
    def held(declared: Any, name: str) -> Any:
        if name not in known or not has_schema_ids(declared):
            return declared
        return msgspec.structs.replace(declared, columns=known[name])

    tables = {name: held(table, name) for name, table in pipeline.tables.items()}
    return msgspec.structs.replace(pipeline, source=held(pipeline.source, "source"), tables=tables)


def has_schema_ids(declared: Source | SideTable) -> bool:
    """Whether each record names its schema: always in Avro and Protobuf, and in JSON where a registry is named."""
    return declared.format in WIRE_FORMATS or (declared.format == "json" and declared.registry is not None)


def needs_inference(declared: Source | SideTable) -> bool:
    """Whether a source is JSON and says nothing of its members."""
    return declared.format == "json" and declared.schema is None and declared.registry is None


def subject_of(declared: Source | SideTable) -> str:
    """The subject that the columns come from."""
    topic = declared.topic if isinstance(declared.topic, str) else declared.topic[0]
    return declared.subject or f"{topic}-value"


def pinned(pipeline: Pipeline) -> Pipeline:
    """The declaration with the latest schema of each subject that it reads.

    Raises:
        Missing: the registry has no such subject, or the schema no such message.
        Unavailable: the registry does not answer, or its libraries are not installed.
    """
    reach = pipeline.registry_reach
    source = _pinned(pipeline.source, ("source",), reach)
    tables = {name: _pinned(table, ("tables", name), reach) for name, table in pipeline.tables.items()}
    return msgspec.structs.replace(pipeline, source=source, tables=tables)


def registry_mark(source: Source) -> str:
    """What tells a source's registry from others: the id and a digest of the schema that columns are of. Empty
    without a registry. ``pinned`` comes first.
    """
    return "" if source.pinned is None else schema_mark(source.pinned)


def require_same_registry(source: Source, mark: str, sink: str) -> None:
    """Refuse a registry that gives another schema for the id that a record names.

    Raises:
        Rejected: it does, or it has no such id.
        Unavailable: the registry does not answer.
    """
    if not mark or source.registry is None:
        return
    schema_id = int(mark.partition(":")[0])
    registry = registry_of(source)
    found = mark_of(registry, schema_id)
    if found != mark:
        what = "no schema" if found is None else "another schema"
        raise Rejected(
            f"{sink}: the table has rows of another registry: {registry.url} has {what} under id {schema_id}, whose "
            "schema the table's record knows, and ids in records would be misread. Name the registry that the "
            "records were written with; 'millstream pipeline run --replay' continues with this one"
        )


def _pinned(declared: _Declared, path: tuple[str, ...], reach: Mapping[str, str]) -> _Declared:
    if not has_schema_ids(declared):
        return declared
    declared = msgspec.structs.replace(declared, reached=dict(reach))
    try:
        schema = latest_schema(registry_of(declared), subject_of(declared), declared.message)
    except Rejected as error:
        place = "message" if declared.message else "subject" if declared.subject else "registry"
        raise Missing(error.message, (*path, place)) from None
    return msgspec.structs.replace(declared, pinned=schema)
