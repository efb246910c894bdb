"""Routes that the broker answers by asking itself as the caller, over a connection of its own.

Checks, the caller's rights and the audit are those of Kafka's clients, and the right that a route names is only the
first of them. A change with ``dry_run=true`` is checked, its answer is the same, and nothing changes: by the broker
where Kafka's API can check (topics, quotas, settings), else by what the cluster has now. The answer of a change is the
list of its ``edits``.

==============================================  ==================================================================
Refused with                                    When
==============================================  ==================================================================
400 and Kafka's error                           the broker refuses it, or a part of the request is wrong
403                                             a right is missing
403 ``PASSWORD_IN_CLEAR``                       a password comes from another machine without TLS
404                                             there is no such user, topic, group or transactional id
503                                             the broker cannot answer now; of a change the message says whether it
                                                may have been made
==============================================  ==================================================================
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Literal, Protocol

import msgspec

from millstream.admin.declared import Call, Declared
from millstream.admin.routing import HttpError, Request, Response, Right, dump
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

_BODY_BYTES_MAX: Final = 64 << 10
_MISSING: Final = frozenset(
    (
        ErrorCode.RESOURCE_NOT_FOUND,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.GROUP_ID_NOT_FOUND,
        ErrorCode.TRANSACTIONAL_ID_NOT_FOUND,
    )
)


class ChangeQuery(msgspec.Struct, frozen=True):
    """Parameters of a change."""

    dry_run: bool = False
    """Check and tell, but change nothing."""


class Edit(msgspec.Struct, frozen=True):
    """One thing that a change does. A secret value is never shown."""

    action: Literal["create", "replace", "remove"]
    what: str
    before: Any = None
    after: Any = None


class Edits(msgspec.Struct, frozen=True):
    """What was changed, or with ``dry_run`` would be. Empty: it is so already."""

    dry_run: bool
    edits: list[Edit]


class HasActing(Protocol):
    """The broker, which acts as callers."""

    def acting(self, request: Request) -> AbstractContextManager[Any]:
        """The cluster as the caller of a request. Raises MillstreamError."""
        ...


def read(
    path: str, doc: str, needs: Right, ask: Callable[[Any, Call], Any], answer: Any, query: Any = None
) -> Declared[HasActing]:
    """A route that shows something."""
    return Declared(method="GET", path=path, doc=doc, needs=needs, handler=_as_caller(ask), answer=answer, query=query)


def change(
    method: str,
    path: str,
    doc: str,
    needs: Right,
    ask: Callable[[Any, Call], Edits],
    body: Any = None,
    example: Any = None,
    query: Any = ChangeQuery,
) -> Declared[HasActing]:
    """A route that changes something; ``ask`` gives the edits."""
    return Declared(
        method=method,
        path=path,
        doc=doc,
        needs=needs,
        handler=_as_caller(ask),
        query=query,
        body=body,
        body_bytes_max=0 if body is None else _BODY_BYTES_MAX,
        answer=Edits,
        example=example,
    )


def _as_caller(ask: Callable[[Any, Call], Any]) -> Callable[[HasActing, Call], Response]:
    def handler(broker: HasActing, call: Call) -> Response:
        try:
            with broker.acting(call.request) as acting:
                return Response(dump(msgspec.to_builtins(ask(acting, call))))
        except Rejected as error:
            raise HttpError(_status_of(error.code), error.code.name, error.message) from None

    return handler


def _status_of(code: ErrorCode) -> int:
    if code in _MISSING:
        return 404
    return 403 if code.name.endswith("_AUTHORIZATION_FAILED") else 400
