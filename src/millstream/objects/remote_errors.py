"""From errors of the client library to errors of ``objects.errors``.

The library has a type for a missing object and for a failed precondition; for the rest, the HTTP status stands only in
its text. An error without a status is a failed connection or a time-out, after which a change may have taken effect.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Final

from obstore import exceptions

from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Unavailable
from millstream.objects.errors import Conflict, Denied, NotFound, ShortRead, Throttled, Unsupported

if TYPE_CHECKING:
    from collections.abc import Generator

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})")
_NO_BUCKET: Final = ("NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist")
_THROTTLING: Final = frozenset({"SlowDown", "RequestLimitExceeded", "ServerBusy", "ThrottlingException"})
_DENYING: Final = frozenset(
    {"ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "AuthorizationHeaderMalformed"}
)
_PASSING: Final = frozenset({"RequestTimeout", "ConditionalRequestConflict", "OperationAborted"})
_NOT_IMPLEMENTED: Final = 501
_RANGE_NOT_SATISFIABLE: Final = 416
_BEYOND_THE_END: Final = "Wanted range starting at"
"""What the library says itself where a store answers such a request with the whole object."""


@contextlib.contextmanager
def reading(url: str, what: str) -> Generator[None]:
    """Errors of an operation without effect."""
    try:
        yield
    except MillstreamError:
        raise
    except Exception as error:  # the library's errors have no useful common type
        raise translate(error, url, what, Unavailable) from error


@contextlib.contextmanager
def changing(url: str, what: str) -> Generator[None]:
    """Errors of an operation that changes an object."""
    try:
        yield
    except MillstreamError:
        raise
    except (exceptions.BaseError, OSError, ValueError) as error:
        raise translate(error, url, what, OutcomeUnknown) from error


def is_missing_bucket(error: Exception) -> bool:
    """Whether the bucket is missing, for which the library has the same type as for an object."""
    text = str(error)
    return any(sign in text for sign in _NO_BUCKET)


def translate(error: Exception, url: str, what: str, unclear: type[OutcomeUnknown | Unavailable]) -> MillstreamError:
    """The error to raise. ``unclear`` is for failures after which it is unknown what the store did."""
    text = str(error)
    found = _STATUS.search(text)
    status = int(found[1]) if found else 0
    code = found[1] if (found := _CODE.search(text)) else ""
    said = f"{url}: {what}: {_reason(text, status, code)}"
    if is_missing_bucket(error):
        return NotFound(f"{said}. Create the bucket, or correct the URL")
    if code in _THROTTLING or status in (429, 503):
        return Throttled(said)
    if status == _NOT_IMPLEMENTED or code == "NotImplemented" or isinstance(error, exceptions.NotSupportedError):
        return Unsupported(f"{said}. The store lacks what this needs")
    if code in _PASSING:
        return unclear(said)
    if isinstance(error, exceptions.AlreadyExistsError | exceptions.PreconditionError):
        return Conflict(said)
    if isinstance(error, FileNotFoundError):
        return NotFound(said)
    if status == _RANGE_NOT_SATISFIABLE or _BEYOND_THE_END in text:
        return ShortRead(said)
    denied = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
    if denied or status in (401, 403) or code in _DENYING:
        return Denied(f"{said}. Check the credentials in the environment of the broker, and their permissions")
    if 400 <= status < 500 and status != 408:
        return Rejected(said)
    return unclear(said)


def _reason(text: str, status: int, code: str) -> str:
    """One line for people, out of a text that may contain a whole response and the library's internals."""
    if message := _MESSAGE.search(text):
        return f"{message[1].strip()} ({code or status})"
    first = text.split("Debug source:", 1)[0].split("\n", 1)[0].strip()
    first = first.rsplit(" - ", 1)[-1].split("<?xml", 1)[0].rstrip(": ")
    return first[:300] or type(text).__name__
