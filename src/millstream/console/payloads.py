"""Bytes of keys, values and headers as people read them.

A payload that starts with a schema id (byte 0, four bytes) is decoded by the schema registry, if there is one. Else
JSON is JSON, UTF-8 without control characters is text, and everything else is a hex dump of its first bytes. Marks
that turn the direction of a line are shown as escapes. A payload
that its schema does not fit is shown as it is, with the reason. Nothing here raises for what is in a record.
"""

import json
import re
from typing import Any, Final, NamedTuple

from millstream.console.registry import Registry

SHOWN_MAX: Final = 64 << 10
"""Bytes of one payload that are shown whole; the rest is in the export."""
HEX_MAX: Final = 1 << 10
_PREFIX: Final = 5
_INDENTED: Final = json.JSONEncoder(ensure_ascii=False, indent=2, default=str)
_CONTROLS: Final = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
"""What no text has; tabs and line ends are text."""
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
"""Control characters, and marks that turn the direction of a line or have no width."""


class Payload(NamedTuple):
    """A payload. ``data`` is what filters see: a document, a text, or None for null.

    ``format`` is ``null``, ``empty``, ``json``, ``text``, ``binary``, ``masked``, or the schema's type. ``line`` is its
    start on one line, ``text`` the whole, ``note`` what has to be said beside it.
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


def shown_document(payload: Payload, document: Any) -> Payload:
    """The payload with another document in its place."""
    return payload._replace(line=_one_line(document), text=_cut(_pretty(document)), data=document)


def _plain(raw: bytes, note: str) -> Payload:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = None
    if text is None or _CONTROLS.search(text, 0, SHOWN_MAX):
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
    """The document with a line for each part. It is written until more than is shown: a small one that is deep and wide
    has spaces beyond measure.
    """
    parts, size = list[str](), 0
    try:
        for part in _INDENTED.iterencode(document):
            parts.append(part)
            size += len(part)
            if size > SHOWN_MAX:
                break
    except (ValueError, RecursionError):
        return _encodable(str(document)[: SHOWN_MAX + 1])
    return _encodable("".join(parts))


def _one_line(document: Any) -> str:
    try:
        return _short(_encodable(json.dumps(document, ensure_ascii=False, default=str)))
    except (ValueError, RecursionError):
        return _short(_encodable(str(document)))


def _encodable(text: str) -> str:
    """The text with half surrogates as escapes: JSON can hold them, and no page can."""
    return text.encode(errors="backslashreplace").decode()


def visible(text: object) -> str:
    """A text with what cannot be seen as escapes: without them a name could look like another one."""
    return _UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text))


def _short(text: str) -> str:
    line = " ".join(visible(text[:1200]).split())
    return line if len(line) <= 300 else f"{line[:300]}…"


def _cut(text: str) -> str:
    return visible(text) if len(text) <= SHOWN_MAX else f"{visible(text[:SHOWN_MAX])}\n… more, which the export has"
