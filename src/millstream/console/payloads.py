"""Bytes of keys, values and headers as people read them.

A payload that starts with a schema id (byte 0, four bytes) is decoded by the schema registry, if there is one. Else
JSON is JSON, UTF-8 without control characters is text, and everything else is a hex dump of its first bytes. A payload
that its schema does not fit is shown as it is, with the reason. Nothing here raises for what is in a record.
"""

import json
from typing import Any, Final, NamedTuple

from millstream.console.registry import Registry

SHOWN_MAX: Final = 64 << 10
"""Bytes of one payload that are shown whole; the rest is behind the export."""
HEX_MAX: Final = 1 << 10
_PREFIX: Final = 5
_ALLOWED: Final = frozenset("\n\r\t")


class Payload(NamedTuple):
    """A payload. ``data`` is what filters see: a document, a text, or None for null.

    ``format`` is ``null``, ``empty``, ``json``, ``text``, ``binary``, or the schema's type. ``line`` is its beginning
    on one line, ``text`` the whole, ``note`` what has to be said beside it.
    """

    format: str
    line: str
    text: str
    data: Any
    note: str = ""
    size: int = 0


NULL: Final = Payload("null", "null", "", None)


def read_payload(raw: bytes | None, registry: Registry | None = None) -> Payload:
    """The payload, decoded as far as it can be."""
    if raw is None:
        return NULL
    if not raw:
        return Payload("empty", "", "", "")
    note = ""
    if registry is not None and len(raw) > _PREFIX and raw[0] == 0:
        schema_id = int.from_bytes(raw[1:_PREFIX], "big")
        document, kind, why = registry.decode(schema_id, raw)
        if not why:
            text = _pretty(document)
            return Payload(kind, _one_line(document), _cut(text), document, f"schema {schema_id}", len(raw))
        note = f"schema {schema_id}: {why}"
    return _plain(raw, note)


def _plain(raw: bytes, note: str) -> Payload:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or any(not (character.isprintable() or character in _ALLOWED) for character in text[:SHOWN_MAX]):
        shown = raw.hex(" ") if len(raw) <= 64 else f"{raw[:64].hex(' ')} …"
        return Payload("binary", shown, hex_dump(raw), shown if text is None else text, note, len(raw))
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return Payload("text", _short(text), _cut(text), text, note, len(raw))
    if isinstance(document, dict | list):
        return Payload("json", _short(text), _cut(_pretty(document)), document, note, len(raw))
    return Payload("text", _short(text), _cut(text), document, note, len(raw))


def hex_dump(raw: bytes) -> str:
    """The first bytes, sixteen a line, with their offsets and their letters."""
    lines = [
        f"{at:08x}  {raw[at : at + 16].hex(' '):<47}  "
        f"{''.join(chr(byte) if 32 <= byte < 127 else '·' for byte in raw[at : at + 16])}"
        for at in range(0, min(len(raw), HEX_MAX), 16)
    ]
    if len(raw) > HEX_MAX:
        lines.append(f"… {len(raw) - HEX_MAX:,} more bytes")
    return "\n".join(lines)


def _pretty(document: Any) -> str:
    try:
        return _encodable(json.dumps(document, ensure_ascii=False, indent=2, default=str))
    except (ValueError, RecursionError):
        return _encodable(str(document))


def _one_line(document: Any) -> str:
    try:
        return _short(_encodable(json.dumps(document, ensure_ascii=False, default=str)))
    except (ValueError, RecursionError):
        return _short(_encodable(str(document)))


def _encodable(text: str) -> str:
    """The text with half surrogates as escapes: JSON can hold them, and no page can."""
    return text.encode(errors="backslashreplace").decode()


def _short(text: str) -> str:
    line = " ".join(text[:1200].split())
    return line if len(line) <= 300 else f"{line[:300]}…"


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}\n… {len(text) - SHOWN_MAX:,} more characters"
