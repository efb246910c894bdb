"""Values with schema ids as one fixed set of columns: those of the schema that a query was planned with.

``latest_schema`` asks the registry once for the latest schema of a subject; the answer, as text, travels to all tasks.
Records of other versions are converted to it. A record whose schema has more fields, or wider types, ends the query
before its batch is committed: nothing of it would fit. The next start takes the newer schema, so no field is lost.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from millstream.errors import Rejected, Unavailable, how_to_install
from millstream.spark.declared import Field
from millstream.spark.values import Decoded


class SchemaChanged(Rejected):
    """Records need columns that the query's schema does not have; a new start gets them."""


class RegistryDecoder:
    """Decodes values to the columns of one schema."""

    def __init__(self, value_format: str, registry: str, subject: str, pinned: str) -> None:
        """Args:
            value_format: ``avro``, ``protobuf`` or ``json``.
            registry: the URL of the registry.
            subject: names the schema in sentences.
            pinned: what ``latest_schema`` returned.

        Raises:
            Rejected: the schema is of another format, or has no columns.
            Unavailable: a library is not installed.
        """
        schemas = _schemas()
        from millstream.spark.schemas.source import Resolved

        reader = msgspec.json.decode(pinned, type=Resolved)
        if reader.schema.type != value_format.upper():
            raise Rejected(f"{subject} is a schema of type {reader.schema.type}, and format is {value_format}")
        kinds = {"avro": schemas.AvroDecoder, "protobuf": schemas.ProtobufDecoder, "json": schemas.JsonSchemaDecoder}
        self._decoder: Any = kinds[value_format](schemas.RegistrySchemas({"url": registry}), reader)
        self._subject = subject
        self._type = _spark_form(self._decoder.type)
        self.fields: Sequence[Field] = tuple(Field(field.name, field.type) for field in self._type)

    def decode(self, values: Any) -> Decoded:
        """Columns and errors, as long as ``values``.

        Raises:
            SchemaChanged: a record has more than the query's schema.
            Unavailable: the registry does not answer; nothing is said of any record.
        """
        found = self._decoder.decode(values)
        if found.boundary is not None:
            more = ", ".join(f"{field.name} {field.type}" for field in found.boundary.fields)
            raise SchemaChanged(
                f"records were written with schema {found.boundary.schema_id}, which has {more}, and the columns of "
                f"this start do not. Nothing of the batch was committed. Start again: that takes the latest schema of "
                f"{self._subject}"
            )
        return Decoded(found.columns.cast(self._type), found.errors)


def latest_schema(registry: str, subject: str) -> str:
    """The latest schema of a subject with all that it refers to, as text.

    Raises:
        Rejected: the registry has no such subject.
        Unavailable: the registry does not answer, or its libraries are not installed.
    """
    return msgspec.json.encode(_schemas().RegistrySchemas({"url": registry}).latest(subject)).decode()


def _schemas() -> Any:
    try:
        from millstream.spark import schemas
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise Unavailable(
            f"records with schema ids need {package}, which is not installed: " + how_to_install("pipeline,schemas")
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
