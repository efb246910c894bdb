"""Values of the schema registry, and the one error that a request ends with.

Names are Confluent's. A *subject* is a name under which versions of a schema are registered, usually ``<topic>-value``.
A *version* is the number of a schema within its subject, from 1. A *schema id* names a schema within a context and is
what a serialized record carries.
"""

from __future__ import annotations

from typing import Any, Final, Literal, NewType, get_args

import msgspec

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

Subject = NewType("Subject", str)
"""A qualified name: ``orders-value`` in the default context, ``:.staging:orders-value`` in another."""

Context = NewType("Context", str)
"""``.`` is the default context."""

SchemaId = NewType("SchemaId", int)
VersionNumber = NewType("VersionNumber", int)

SchemaType = Literal["AVRO", "JSON", "PROTOBUF"]
SCHEMA_TYPES: Final[tuple[SchemaType, ...]] = get_args(SchemaType)

Level = Literal["NONE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE"]
LEVELS: Final[tuple[Level, ...]] = get_args(Level)
DEFAULT_LEVEL: Final[Level] = "BACKWARD"

Mode = Literal["READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"]
MODES: Final[tuple[Mode, ...]] = get_args(Mode)
DEFAULT_MODE: Final[Mode] = "READWRITE"

SCHEMA_BYTES_MAX: Final = 900_000
"""Longest schema text in UTF-8. A record of ``_schemas`` holds it as JSON and must fit a batch of 1 MiB."""

REFERENCES_MAX: Final = 500
"""Schemas that one schema may refer to, directly and through others."""


class Reference(msgspec.Struct, frozen=True):
    """A schema that another one uses: ``name`` is what the other one calls it, the rest says where it is registered."""

    name: str
    subject: str
    version: int


class Schema(msgspec.Struct, frozen=True):
    """A schema as its author gave it. ``metadata`` and ``rule_set`` are JSON texts, empty where it has none."""

    text: str
    type: SchemaType = "AVRO"
    references: tuple[Reference, ...] = ()
    metadata: str = ""
    rule_set: str = ""


class Registered(msgspec.Struct, frozen=True):
    """A version of a subject. ``deleted`` is a soft delete: the version is hidden, its id can still be read."""

    subject: Subject
    version: VersionNumber
    id: SchemaId
    schema: Schema
    deleted: bool = False


class Config(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is configured for a subject, a context or everything; None where the next wider scope decides."""

    level: Level | None = msgspec.field(default=None, name="compatibilityLevel")
    normalize: bool | None = None
    alias: str | None = None
    group: str | None = msgspec.field(default=None, name="compatibilityGroup")


class Refused(Rejected):
    """A request that ends with an error: HTTP status, error code of Confluent's API, and what a person reads."""

    default_code = ErrorCode.INVALID_REQUEST

    def __init__(self, status: int, error_code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.error_code = error_code

    def body(self) -> dict[str, Any]:
        """The JSON object of the answer."""
        return {"error_code": self.error_code, "message": self.message}


def subject_not_found(subject: str) -> Refused:
    """Error code 40401."""
    return Refused(404, 40401, f"Subject '{subject}' not found.")


def version_not_found(version: object) -> Refused:
    """Error code 40402."""
    return Refused(404, 40402, f"Version {version} not found.")


def schema_not_found(schema_id: int | None = None) -> Refused:
    """Error code 40403."""
    return Refused(404, 40403, "Schema not found" if schema_id is None else f"Schema {schema_id} not found")


def invalid_schema(schema_type: str, why: str) -> Refused:
    """Error code 42201."""
    return Refused(422, 42201, f"Invalid {schema_type} schema. Error: {why}")


def invalid_version(given: str) -> Refused:
    """Error code 42202."""
    return Refused(
        422,
        42202,
        f"The specified version '{given}' is not a valid version id. Allowed values are between [1, 2^31-1] and the "
        'string "latest"',
    )


def not_permitted(why: str) -> Refused:
    """Error code 42205."""
    return Refused(422, 42205, why)
