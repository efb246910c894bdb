"""Content types of the REST API: which one an answer gets, and which ones a body may have."""

from collections.abc import Mapping
from email.message import Message
from typing import Final

from millstream.registry.model import Refused

TYPES: Final = (
    "application/vnd.schemaregistry.v1+json",
    "application/vnd.schemaregistry+json",
    "application/json",
)
"""What answers may be; the first is what a client gets that does not ask."""

_BODIES: Final = (*TYPES, "application/octet-stream")


def accepted_type(accept: str) -> str:
    """The content type of the answer to a request with this ``Accept`` header (RFC 9110, section 12.5.1).

    Raises:
        Refused: the client takes none of ours.
    """
    if not accept.strip():
        return TYPES[0]
    best, weight = "", 0.0
    for entry in accept[:1000].split(","):
        wanted, *parameters = (part.strip().lower() for part in entry.split(";"))
        quality = next((_weight(part) for part in parameters if part.replace(" ", "").startswith("q=")), 1.0)
        if quality > weight and (found := _match(wanted)) is not None:
            best, weight = found, quality
    if not best:
        raise Refused(406, 406, "HTTP 406 Not Acceptable")
    return best


def decoded_body(headers: Mapping[str, str], body: bytes) -> bytes:
    """A body as UTF-8.

    Raises:
        Refused: its content type or its charset is not supported.
    """
    given = headers.get("content-type", "")
    if not given.strip():
        return body
    message = Message()
    message["content-type"] = given[:500]
    if message.get_content_type() not in _BODIES:
        raise Refused(415, 415, "HTTP 415 Unsupported Media Type")
    charset = message.get_content_charset("utf-8")
    if charset in ("utf-8", "utf8", "us-ascii"):
        return body
    try:
        return body.decode(charset).encode()
    except (LookupError, UnicodeError):
        raise Refused(415, 415, f"HTTP 415 Unsupported Media Type: charset {charset[:40]}") from None


def _match(wanted: str) -> str | None:
    main, _, sub = wanted.partition("/")
    if main == "*" or (main == "application" and sub == "*"):
        return TYPES[0]
    return wanted if wanted in TYPES else None


def _weight(parameter: str) -> float:
    try:
        return min(1.0, max(0.0, float(parameter.replace(" ", "").removeprefix("q="))))
    except ValueError:
        return 0.0
