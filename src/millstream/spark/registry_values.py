"""Values with schema ids as one fixed set of columns: those of the schema that a query was planned with.

``latest_schema`` asks the registry once for the latest schema of a subject; the answer, as text, travels to all tasks.
Each record is read with its own schema and fitted to the columns (``schemas.decoded``). A record of a newer version
that has more fields, or wider types, ends the query before its batch is committed: nothing of it would fit. The next
start takes the newer schema, so no field is lost.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from millstream.client.schema_registry import RegistryAccess
from millstream.errors import Rejected, Unavailable, how_to_install
from millstream.spark.declared import Field
from millstream.spark.values import Decoded


class SchemaChanged(Rejected):
    """Records need columns that the query's schema does not have; a new start gets them."""


class Pinned(msgspec.Struct, frozen=True):
    """A subject's latest schema as a query was planned with it.

    ``reader`` is a ``schemas.Resolved`` as JSON, ``message`` the message that the columns are of, in full (Protobuf).
    """

    reader: msgspec.Raw
    message: str | None = None


class RegistryDecoder:
    """Decodes values to the columns of one schema. ``left_out`` has fields without a column, by schema id."""

    def __init__(
        self,
        value_format: str,
        registry: RegistryAccess,
        subject: str,
        pinned: str,
        *,
        table: Any = None,
        own: frozenset[str] = frozenset(),
        subjects: Sequence[str] = (),
        fail_on_schema: bool = False,
    ) -> None:
        """Args:
            value_format: ``avro``, ``protobuf`` or ``json``.
            registry: how the registry is reached.
            subject: names the schema in sentences.
            pinned: what ``latest_schema`` returned.
            table: the Arrow schema of columns that are there and that fields are written into; None without.
            own: names of the table's columns that are no fields of the value, in lower case.
            subjects: further subjects that records' schemas may be of.
            fail_on_schema: a schema that does not fit raises ``SchemaRefused``.

        Raises:
            Rejected: the schema is of another format, or not valid.
            Unavailable: a library is not installed.
        """
        schemas = _schemas()
        held = msgspec.json.decode(pinned, type=Pinned)
        reader = msgspec.json.decode(held.reader, type=schemas.Resolved)
        if reader.schema.type != value_format.upper():
            raise Rejected(f"{subject} is a schema of type {reader.schema.type}, and format is {value_format}")
        source = schemas.RegistrySchemas(registry)
        columns = schemas.columns_of(schemas.members_of(reader, held.message), table, own)
        named = {"message": held.message} if reader.schema.type == "PROTOBUF" else {}
        kinds = {"avro": schemas.AvroDecoder, "protobuf": schemas.ProtobufDecoder, "json": schemas.JsonSchemaDecoder}
        self._decoder: Any = kinds[value_format](
            source, reader, columns=columns, subjects=subjects, fail_on_schema=fail_on_schema, **named
        )
        self._subject = subject
        self.left_out: dict[int, tuple[str, ...]] = self._decoder.left_out
        self.fields: Sequence[Field] = tuple(Field(field.name, field.type) for field in self._decoder.type)

    def decode(self, values: Any) -> Decoded:
        """Columns and errors, as long as ``values``.

        Raises:
            SchemaChanged: a record has more than the query's schema.
            SchemaRefused: a record's schema does not fit.
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
        return Decoded(found.columns, found.errors, found.places)


def latest_schema(registry: RegistryAccess, subject: str, message: str | None = None) -> str:
    """The latest schema of a subject with all that it refers to, as text.

    ``message`` names the Protobuf message that the columns are of, in full. Without one it is the first message of the
    subject's oldest version, if the latest still has it, so the order of messages in later versions changes nothing.

    Raises:
        Rejected: the registry has no such subject, or the schema no such message.
        Unavailable: the registry does not answer, or its libraries are not installed.
    """
    schemas = _schemas()
    source = schemas.RegistrySchemas(registry)
    reader = source.latest(subject)
    if reader.schema.type == "PROTOBUF":
        message = schemas.message_of(source, reader, message)
    elif message is not None:
        raise Rejected(f"{subject} is a schema of type {reader.schema.type}, and message is for Protobuf")
    return msgspec.json.encode(Pinned(msgspec.Raw(msgspec.json.encode(reader)), message)).decode()


def schema_mark(pinned: str) -> str:
    """``ID:DIGEST`` of a pinned schema: in another registry the id has another digest, or none."""
    reader = msgspec.json.decode(msgspec.json.decode(pinned, type=Pinned).reader, type=_schemas().Resolved)
    return _mark(reader)


def mark_of(registry: RegistryAccess, schema_id: int) -> str | None:
    """The mark of a schema that a registry has under an id; None if it has none.

    Raises:
        Unavailable: the registry does not answer.
    """
    found = _schemas().RegistrySchemas(registry).by_id(schema_id)
    return None if found is None else _mark(found)


def _mark(resolved: Any) -> str:
    digest = hashlib.sha256(msgspec.json.encode(resolved.schema)).hexdigest()[:32]
    return f"{resolved.id}:{digest}"


def _schemas() -> Any:
    try:
        from millstream.spark import schemas
    except ImportError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise Unavailable(
            f"records with schema ids need {package}, which is not installed: " + how_to_install("pipeline,schemas")
        ) from error
    return schemas
