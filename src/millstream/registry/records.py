"""Records of ``_schemas``: what Confluent's registry and Karapace write, byte for byte, and what both of them read.

A key is JSON with its members in a fixed order, because compaction compares bytes. A null value deletes what the key
names. ::

    {"keytype":"SCHEMA","subject":"s","version":1,"magic":1}   {"subject":"s","version":1,"id":1,"schema":"…","deleted":false}
    {"keytype":"CONFIG","subject":null,"magic":0}              {"compatibilityLevel":"FULL"}
    {"keytype":"MODE","subject":"s","magic":0}                 {"mode":"READONLY"}
    {"keytype":"DELETE_SUBJECT","subject":"s","magic":0}       {"subject":"s","version":2}
    {"keytype":"CLEAR_SUBJECT","subject":"s","magic":0}        {"subject":"s"}
    {"keytype":"NOOP","magic":0}                               null

A value of a schema names ``schemaType`` unless it is AVRO, and ``references``, ``metadata`` and ``ruleSet`` where there
are any. Members that are not known are skipped when a record is read.
"""  # noqa: E501 (the table shows whole records)

import json
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from millstream.registry.model import (
    LEVELS,
    MODES,
    SCHEMA_TYPES,
    Config,
    Mode,
    Reference,
    Registered,
    Schema,
    SchemaId,
    Subject,
    VersionNumber,
)
from millstream.registry.subjects import normal


class BadRecord(ValueError):
    """A record of ``_schemas`` that is not of any known form."""


class SchemaWritten(msgspec.Struct, frozen=True):
    """A version was registered, or its soft delete changed."""

    registered: Registered


class SchemaErased(msgspec.Struct, frozen=True):
    """A version was deleted permanently."""

    subject: Subject
    version: VersionNumber


class ConfigWritten(msgspec.Struct, frozen=True):
    """The configuration of a subject, or of everything (``subject`` None), was set or removed (``config`` None)."""

    subject: Subject | None
    config: Config | None


class ModeWritten(msgspec.Struct, frozen=True):
    """The mode of a subject, or of everything (``subject`` None), was set or removed (``mode`` None)."""

    subject: Subject | None
    mode: Mode | None


class SubjectDeleted(msgspec.Struct, frozen=True):
    """Every version of a subject up to and including ``last_version`` was soft deleted."""

    subject: Subject
    last_version: VersionNumber


class SubjectCleared(msgspec.Struct, frozen=True):
    """Every version of a subject was deleted permanently."""

    subject: Subject


Event = SchemaWritten | SchemaErased | ConfigWritten | ModeWritten | SubjectDeleted | SubjectCleared


IF_FREE: Final = (("millstream.if-free", b""),)
"""Headers of a record that has no effect on a version or an id that is taken, and deletes nothing."""


class StoredRecord(msgspec.Struct, frozen=True):
    """Key and value of a record; a value of None is a tombstone."""

    key: bytes
    value: bytes | None


def encode(event: Event) -> StoredRecord:
    """The record that says ``event``."""
    match event:
        case SchemaWritten(registered):
            return StoredRecord(_schema_key(registered.subject, registered.version), _json(_schema_value(registered)))
        case SchemaErased(subject, version):
            return StoredRecord(_schema_key(subject, version), None)
        case ConfigWritten(subject, config):
            value = None if config is None else msgspec.json.encode(config)
            return StoredRecord(_subject_key("CONFIG", subject), value)
        case ModeWritten(subject, mode):
            return StoredRecord(_subject_key("MODE", subject), None if mode is None else _json({"mode": mode}))
        case SubjectDeleted(subject, last_version):
            value = _json({"subject": subject, "version": last_version})
            return StoredRecord(_subject_key("DELETE_SUBJECT", subject), value)
        case SubjectCleared(subject):
            return StoredRecord(_subject_key("CLEAR_SUBJECT", subject), _json({"subject": subject}))


def registrations(events: Iterable[Event]) -> list[Registered]:
    """The versions that events register, soft deletes left out."""
    return [each.registered for each in events if isinstance(each, SchemaWritten) and not each.registered.deleted]


def decode(key: bytes | None, value: bytes | None) -> Event | None:
    """What a record says; None for one that says nothing (NOOP, and key types of other products).

    Raises:
        BadRecord: it is not of the form that its key type has.
    """
    try:
        named = _object(key or b"")
        content = _object(value) if value else None  # Karapace writes an empty value where Confluent writes null
        return _event(named, content)
    except (ValueError, TypeError, KeyError, RecursionError, msgspec.ValidationError) as error:
        raise BadRecord(f"{(key or b'')[:200]!r}: {error!r}") from error


def _event(key: dict[str, Any], value: dict[str, Any] | None) -> Event | None:
    subject = None if key.get("subject") is None else normal(_text(key["subject"]))
    match key.get("keytype"):
        case "SCHEMA":
            named = _named(subject)
            version = VersionNumber(_number(key["version"]))
            if value is None:
                return SchemaErased(named, version)
            return SchemaWritten(_registered(named, version, value))
        case "CONFIG":
            return ConfigWritten(subject, None if value is None else _config(value))
        case "MODE":
            return ModeWritten(subject, None if value is None else cast("Mode", _one_of(value["mode"], MODES)))
        case "DELETE_SUBJECT" if value is not None:
            return SubjectDeleted(_named(subject), VersionNumber(_number(value["version"])))
        case "CLEAR_SUBJECT" if value is not None:
            return SubjectCleared(_named(subject))
        case _:
            return None


def _registered(subject: Subject, version: VersionNumber, value: dict[str, Any]) -> Registered:
    references = tuple(
        Reference(_text(entry["name"]), _text(entry["subject"]), _number(entry["version"]))
        for entry in value.get("references") or ()
    )
    schema = Schema(
        _text(value["schema"]),
        _one_of(value.get("schemaType") or "AVRO", SCHEMA_TYPES),
        references,
        _json_text(value.get("metadata")),
        _json_text(value.get("ruleSet")),
    )
    return Registered(subject, version, SchemaId(_number(value["id"])), schema, bool(value.get("deleted")))


def _config(value: dict[str, Any]) -> Config:
    level = value.get("compatibilityLevel")
    return Config(
        None if level is None else _one_of(level, LEVELS),
        None if value.get("normalize") is None else bool(value["normalize"]),
        None if value.get("alias") is None else _text(value["alias"]),
        None if value.get("compatibilityGroup") is None else _text(value["compatibilityGroup"]),
    )


def schema_details(schema: Schema) -> dict[str, Any]:
    """The parts of a schema beside its text, as records and answers name them. Parts that are empty are left out."""
    shown: dict[str, Any] = {}
    if schema.type != "AVRO":
        shown["schemaType"] = schema.type
    if schema.references:
        shown["references"] = [msgspec.to_builtins(reference) for reference in schema.references]
    if schema.metadata:
        shown["metadata"] = json.loads(schema.metadata)
    if schema.rule_set:
        shown["ruleSet"] = json.loads(schema.rule_set)
    return shown


def _schema_value(registered: Registered) -> dict[str, Any]:
    schema = registered.schema
    value: dict[str, Any] = {
        "subject": registered.subject,
        "version": registered.version,
        "id": registered.id,
        **schema_details(schema),
    }
    value["schema"] = schema.text
    value["deleted"] = registered.deleted
    return value


def _schema_key(subject: Subject, version: VersionNumber) -> bytes:
    return _json({"keytype": "SCHEMA", "subject": subject, "version": version, "magic": 1})


def _subject_key(kind: str, subject: Subject | None) -> bytes:
    return _json({"keytype": kind, "subject": subject, "magic": 0})


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _json_text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=True) if value else ""


def _object(data: bytes) -> dict[str, Any]:
    decoded: object = json.loads(data)
    if not isinstance(decoded, dict):
        raise TypeError("a JSON object is expected")
    return cast("dict[str, Any]", decoded)


_NUMBER_MAX: Final = 2**31 - 1


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{value!r} is no number of 31 bits")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _named(subject: Subject | None) -> Subject:
    if subject is None:
        raise ValueError("the key has no subject")
    return subject


def _one_of(value: object, known: tuple[Any, ...]) -> Any:
    if value not in known:
        raise ValueError(f"{value!r} is not one of {', '.join(known)}")
    return value
