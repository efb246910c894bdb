"""Records as text: JSON lines, and templates such as ``{partition}:{offset} {value}``.

::

    {"value": "v", "key": "k", "timestamp": 1767225600000, "headers": [{"name": "h", "value": "1"}]}

The JSON of one record is the same in and out (``cli/record_input.py`` reads it), so ``consume --json | produce --format
json`` copies a topic: keys decide the partition again, timestamps stay. Bytes that are not UTF-8 travel as base64 under
``key_base64`` and ``value_base64``; an absent value (a tombstone) is null.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from millstream.cli.failure import WrongUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TEMPLATE_FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_PLACEHOLDER = re.compile(rb"\{([a-z_]+)\}")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}


Header = tuple[str, str | bytes | None]
"""Name and value, as confluent-kafka takes them."""


class Message(Protocol):
    """A record that was read, as confluent-kafka shows it. ``timestamp`` is (kind, ms); kind 0 is no timestamp."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def timestamp(self) -> tuple[int, int]: ...
    def key(self) -> str | bytes | None: ...
    def value(self) -> str | bytes | None: ...
    def headers(self) -> Any: ...


class NewRecord(NamedTuple):
    """A record to be sent; ``timestamp_ms`` 0 is the time of sending."""

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[Header] = ()
    timestamp_ms: int = 0


def record_to_json(message: Message) -> bytes:
    """One line of JSON, with its line end."""
    document: dict[str, Any] = {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "timestamp": _timestamp_ms(message),
    }
    _put(document, "key", _data(message.key()))
    decoded: Any = getattr(message, "document", None)
    if decoded is None:
        _put(document, "value", _data(message.value()))
    else:
        document["value"] = decoded
    headers: list[dict[str, Any]] = []
    for name, data in message.headers() or ():
        header: dict[str, Any] = {"name": name}
        _put(header, "value", _data(data))
        headers.append(header)
    if headers:
        document["headers"] = headers
    return json.dumps(document, ensure_ascii=False, default=str).encode() + b"\n"


def compile_template(text: str) -> Callable[[Message], bytes]:
    """A function that fills the template for a record; values go out as the bytes they are."""
    for name in re.findall(r"\{([^{}]*)\}", text):
        if name not in TEMPLATE_FIELDS:
            raise WrongUsage(
                f"--format: {{{name}}} is not valid, expected {', '.join(f'{{{known}}}' for known in TEMPLATE_FIELDS)}"
            )
    if unclosed := re.search(rf"\{{({'|'.join(TEMPLATE_FIELDS)})\b(?!\}})", text):
        raise WrongUsage(f"--format: {{{unclosed[1]} has no closing brace, expected {{{unclosed[1]}}}")
    template = re.sub(r"\\[ntr0\\]", lambda found: _ESCAPES[found[0]], text).encode()

    def fill(message: Message) -> bytes:
        return _PLACEHOLDER.sub(lambda found: _field(message, found[1].decode()), template) + b"\n"

    return fill


def value_line(message: Message) -> bytes:
    """The value as it is, and a line end."""
    return (_data(message.value()) or b"") + b"\n"


def key_and_value(message: Message) -> bytes:
    """Key, tab, value and line end; without key and tab if the record has no key."""
    key, value = _data(message.key()), value_line(message)
    return value if key is None else key + b"\t" + value


def _field(message: Message, name: str) -> bytes:
    if name == "key":
        return _data(message.key()) or b""
    if name == "value":
        return _data(message.value()) or b""
    if name == "headers":
        return b",".join(header.encode() + b"=" + (_data(data) or b"") for header, data in message.headers() or ())
    if name == "timestamp":
        return str(_timestamp_ms(message) or "").encode()
    return str(getattr(message, name)()).encode()


def _timestamp_ms(message: Message) -> int | None:
    kind, timestamp = message.timestamp()
    return int(timestamp) if kind else None


def _data(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _put(document: dict[str, Any], name: str, data: bytes | None) -> None:
    if data is None:
        document[name] = None
        return
    try:
        document[name] = data.decode()
    except UnicodeDecodeError:
        document[f"{name}_base64"] = base64.b64encode(data).decode()
