"""Values with schema ids in a pipeline: the columns of a run are fixed when it begins.

``pinned`` asks the registry once for the latest schema of each subject and puts the answer into the declaration, which
travels to all tasks. ``spark.registry_values`` says what becomes of records of other versions. A record that needs more
columns stops the query before its batch is committed; the run then pins the newer schema, widens the table and repeats
the batch, so no field is lost.
"""

from typing import Any, Final

import msgspec

from millstream.errors import Rejected
from millstream.pipeline.missing import Missing
from millstream.pipeline.model import Pipeline, SideTable, Source
from millstream.pipeline.rows import METADATA
from millstream.spark.registry_values import RegistryDecoder, latest_schema

WIRE_FORMATS: Final = ("avro", "protobuf")
_OWN_NAMES: Final = frozenset(name for name, _, _ in METADATA)


def registry_decoder_of(declared: Source | SideTable) -> RegistryDecoder:
    """The decoder of a source with schema ids; ``pinned`` comes first.

    Raises:
        Rejected: the schema is of another format, or has a field with the name of a column of the pipeline's own.
        Unavailable: a library is not installed.
    """
    assert declared.pinned is not None and declared.registry is not None, "pinned() comes before decoding"
    subject = subject_of(declared)
    decoder = RegistryDecoder(declared.format, declared.registry, subject, declared.pinned)
    for field in decoder.fields:
        if field.name.lower() in _OWN_NAMES:
            raise Rejected(f"{subject} has a field {field.name}, the name of a column of the pipeline's own")
    return decoder


def has_schema_ids(declared: Source | SideTable) -> bool:
    """Whether each record names its schema: always in Avro and Protobuf, and in JSON where a registry is named."""
    return declared.format in WIRE_FORMATS or (declared.format == "json" and declared.registry is not None)


def subject_of(declared: Source | SideTable) -> str:
    """The subject that the columns come from."""
    topic = declared.topic if isinstance(declared.topic, str) else declared.topic[0]
    return declared.subject or f"{topic}-value"


def pinned(pipeline: Pipeline) -> Pipeline:
    """The declaration with the latest schema of each subject that it reads.

    Raises:
        Missing: the registry has no such subject.
        Unavailable: the registry does not answer, or its libraries are not installed.
    """
    source = _pinned(pipeline.source, ("source",))
    tables = {name: _pinned(table, ("tables", name)) for name, table in pipeline.tables.items()}
    return msgspec.structs.replace(pipeline, source=source, tables=tables)


def _pinned(declared: Any, path: tuple[str, ...]) -> Any:
    if not has_schema_ids(declared):
        return declared
    try:
        schema = latest_schema(declared.registry, subject_of(declared))
    except Rejected as error:
        raise Missing(error.message, (*path, "subject" if declared.subject else "registry")) from None
    return msgspec.structs.replace(declared, pinned=schema)
