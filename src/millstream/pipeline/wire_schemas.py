"""Avro, Protobuf and JSON values with schema ids: the columns of a run are fixed when it begins.

``pinned`` asks the registry once for the latest schema of each subject and puts the answer into the declaration, which
travels to all tasks. Records of other versions are converted to it. A record whose schema has more fields, or wider
types, than the pinned schema stops the run before its batch is committed: nothing of it would fit the table. The next
run pins the newer schema, widens the table and repeats the batch, so no field is lost.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa

from millstream.errors import Rejected, Unavailable
from millstream.pipeline.model import Pipeline, SideTable, Source
from millstream.pipeline.rows import METADATA
from millstream.spark.declared import Field
from millstream.spark.values import Decoded

WIRE_FORMATS: Final = ("avro", "protobuf")
_OWN_NAMES: Final = frozenset(name for name, _, _ in METADATA)


class SchemaChanged(Rejected):
    """Records need columns that the pinned schema does not have; a new run gets them."""


class RegistryDecoder:
    """Decodes values of one topic to the columns of its pinned schema."""

    def __init__(self, declared: Source | SideTable) -> None:
        schemas = _schemas()
        source = schemas.RegistrySchemas({"url": declared.registry})
        assert declared.pinned is not None, "pinned() comes before decoding"
        from millstream.spark.schemas.source import Resolved

        reader = msgspec.json.decode(declared.pinned, type=Resolved)
        if reader.schema.type != declared.format.upper():
            raise Rejected(
                f"{subject_of(declared)} is a schema of type {reader.schema.type}, and format is {declared.format}"
            )
        kinds = {"avro": schemas.AvroDecoder, "protobuf": schemas.ProtobufDecoder, "json": schemas.JsonSchemaDecoder}
        kind = kinds[declared.format]
        self._decoder: Any = kind(source, reader)
        self._subject = subject_of(declared)
        self._type = _spark_form(self._decoder.type)
        self.fields: Sequence[Field] = tuple(Field(field.name, field.type) for field in self._type)
        for field in self.fields:
            if field.name.lower() in _OWN_NAMES:
                raise Rejected(f"{self._subject} has a field {field.name}, the name of a column of the pipeline's own")

    def decode(self, values: Any) -> Decoded:
        """Columns and errors, as long as ``values``.

        Raises:
            SchemaChanged: a record has more than the pinned schema.
            Unavailable: the registry does not answer; nothing is said of any record.
        """
        found = self._decoder.decode(values)
        if found.boundary is not None:
            more = ", ".join(f"{field.name} {field.type}" for field in found.boundary.fields)
            raise SchemaChanged(
                f"records were written with schema {found.boundary.schema_id}, which has {more}, and this run's "
                f"columns do not. Nothing of the batch was committed. Run the pipeline again: it then takes the latest "
                f"schema of {self._subject} and widens the table"
            )
        return Decoded(found.columns.cast(self._type), found.errors)


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
        Rejected: the registry has no such subject.
        Unavailable: the registry does not answer, or its libraries are not installed.
    """
    source = _pinned(pipeline.source)
    tables = {name: _pinned(table) for name, table in pipeline.tables.items()}
    return msgspec.structs.replace(pipeline, source=source, tables=tables)


def _pinned(declared: Any) -> Any:
    if not has_schema_ids(declared):
        return declared
    latest = _schemas().RegistrySchemas({"url": declared.registry}).latest(subject_of(declared))
    return msgspec.structs.replace(declared, pinned=msgspec.json.encode(latest).decode())


def _schemas() -> Any:
    try:
        from millstream.spark import schemas
    except ImportError as error:
        raise Unavailable(
            f"records with schema ids need a package that is not installed ({error}): "
            'pip install "millstream[pipeline,schemas]"'
        ) from error
    return schemas


def _spark_form(kind: Any) -> Any:
    """A type with list elements named as Spark names them."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _spark_form(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_spark_form(kind.key_type), _spark_form(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _spark_form(kind.value_type)))
    return kind
