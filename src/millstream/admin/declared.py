"""One route as the table declares it: what it takes and answers, which right it asks for, and the words for people.

The declaration of a route decodes its requests, is a part of ``GET /v1/openapi.json``, and is a section of the
reference page. A request whose parameters or body do not fit is refused with 400 and the path of what is wrong; no
handler sees it, so nothing has happened. A body is decoded once, within the bound of its route.
"""

from collections.abc import Callable
from typing import Any, Final, Generic, NamedTuple, TypeVar

import msgspec

from millstream.admin.routing import JSON, HttpError, Request, Response, Right

BrokerT = TypeVar("BrokerT")


class Call(NamedTuple):
    """A request with what was decoded from it. ``query`` and ``body`` have the types that the route declares."""

    request: Request
    query: Any
    body: Any


class Declared(msgspec.Struct, Generic[BrokerT], frozen=True, kw_only=True):
    """One route.

    ``needs`` is None where it is open. ``query`` and ``body`` are types of msgspec, or None;
    ``answer`` is the type of a JSON answer, None where ``content_type`` is another. ``counted`` is its label in
    ``http_requests``.
    """

    method: str
    path: str
    doc: str
    """One sentence, without its full stop."""
    needs: Right | None
    handler: Callable[[BrokerT, Call], Response]
    query: Any = None
    body: Any = None
    body_bytes_max: int = 0
    answer: Any = None
    content_type: str = JSON
    status: int = 200
    """Of success: 202 where the work continues after the answer."""
    unwell: Any = None
    """Type of the answer with status 503, where that is no plain failure."""
    example: Any = None
    """A body, as JSON."""
    counted: str = "other"

    def call(self, request: Request) -> Call:
        """Decode a request.

        Raises:
            HttpError: 400.
        """
        if self.method != "GET":
            self._check_parameters(request)
        query = (
            None if self.query is None else _checked(lambda: msgspec.convert(request.query, self.query, strict=False))
        )
        body = None if self.body is None else _checked(lambda: _decoded(request.body, self.body))
        return Call(request, query, body)

    def _check_parameters(self, request: Request) -> None:
        """Refuse parameters that a change does not know: one that ignores ``dry_run`` would be made."""
        fields = () if self.query is None else msgspec.structs.fields(self.query)
        unknown = request.query.keys() - {field.encode_name for field in fields}
        if unknown:
            raise HttpError(400, "INVALID_REQUEST", f"{self.method} {self.path} has no parameter {min(unknown)}")


def _decoded(data: bytes, wanted: Any) -> Any:
    found = msgspec.json.decode(data, type=wanted)
    msgspec.msgpack.encode(found)  # it travels to the shards like this, where numbers have at most 64 bits
    return found


_NO_REQUEST: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


def _checked(decode: Callable[[], Any]) -> Any:
    try:
        return decode()
    except _NO_REQUEST as error:
        raise HttpError(400, "INVALID_REQUEST", f"the request is not understood: {error}") from None
