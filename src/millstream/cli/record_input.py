"""Records read from lines of JSON, in the form that ``cli/records.py`` shows and writes.

Apart from it because msgspec takes a twentieth of a second to import, which only ``produce --format json`` needs.
"""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any

import msgspec

from millstream.cli.failure import CommandFailed
from millstream.cli.records import NewRecord


class JsonHeader(msgspec.Struct, forbid_unknown_fields=True):
    """A header as JSON. A value that is not text is stored as its JSON."""

    name: str
    value: Any = None
    value_base64: str | None = None


class JsonRecord(msgspec.Struct, forbid_unknown_fields=True):
    """A record as JSON; ``timestamp`` in ms since 1970. Topic, partition and offset are those of ``consume --json`` and
    are ignored.
    """

    value: Any = msgspec.UNSET
    value_base64: str | None = None
    key: Any = None
    key_base64: str | None = None
    timestamp: Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)] | None = None
    headers: list[JsonHeader] | None = None
    topic: str | None = None
    partition: int | None = None
    offset: int | None = None


def record_from_json(line: bytes, number: int) -> NewRecord:
    """Read what ``record_to_json`` writes. ``number`` is that of the line, which a refusal names."""
    try:
        given = _decode_record(line)
        if given.value is msgspec.UNSET and given.value_base64 is None:
            raise ValueError("field `value` is missing; null is a tombstone")
        return NewRecord(
            value=_bytes(None if given.value is msgspec.UNSET else given.value, given.value_base64, "value"),
            key=_bytes(given.key, given.key_base64, "key"),
            headers=[(each.name, _bytes(each.value, each.value_base64, "value")) for each in given.headers or ()],
            timestamp_ms=given.timestamp or 0,
        )
    except (ValueError, RecursionError) as error:
        raise CommandFailed(
            f'line {number} is not a record ({_said(error)}), expected JSON such as {{"key": "k", "value": "v", '
            '"headers": [{"name": "h", "value": "1"}]}; nothing from it on was sent'
        ) from None


_decode_record = msgspec.json.Decoder(JsonRecord).decode


def _said(error: Exception) -> str:
    """What is wrong and in which field, in words of JSON."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = str(error)
    if text[1:2].islower():  # a word, not JSON
        text = f"{text[:1].lower()}{text[1:]}"
    return text.rstrip(".")


def _bytes(value: Any, encoded: str | None, name: str) -> bytes | None:
    """What a field and its base64 form stand for."""
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError:
            raise ValueError(f"`{name}_base64` is not base64") from None
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else json.dumps(value, ensure_ascii=False).encode()
