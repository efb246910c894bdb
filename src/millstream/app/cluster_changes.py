"""Changes of the cluster that a person asks for over HTTP: modes of brokers, moves of replicas, factors.

::

    POST /v1/cluster ──HTTP thread──► controller's shard ──ControllerClient──► active controller

The body is one request of `core.controller.requests`, as JSON. The answer has a result for each of its parts; moves
have started then, and ``GET /v1/cluster`` shows how far they are. A request that is not understood is refused, and
nothing has happened; what a result refuses has not happened either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.core.controller.requests import AdminRequest
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.app.shard_queries import ShardQueries
    from millstream.cluster.client import ControllerClient
    from millstream.core.controller.requests import Results
    from millstream.shard.control import ControlEnd

CHANGE: Final = "change_cluster"
"""The question on the control channel."""

_TIMEOUT_MS: Final = 20_000
_TIMEOUT_US: Final = 25_000_000


def serve_changes(control: ControlEnd, client: ControllerClient | None) -> None:
    """Pass requests on to the controller; a shard without ``client`` has nothing to do."""

    def change(arguments: Any, answer: Callable[[Any], None]) -> None:
        if client is None:
            answer(None)
            return
        request = msgspec.convert(arguments, AdminRequest)

        def done(results: Results | MillstreamError) -> None:
            answer(results if isinstance(results, MillstreamError) else [_shown(result) for result in results])

        client.submit(request, done, _TIMEOUT_MS)

    control.serve(CHANGE, change)


def _shown(result: Any) -> dict[str, Any]:
    error = ErrorCode(result.error)
    return {
        "error": None if error is ErrorCode.NONE else error.name,
        "message": result.message,
        "topic": result.name,
        "moves": max(result.partitions, 0),
    }


def change_cluster(queries: ShardQueries, request: AdminRequest) -> dict[str, Any]:
    """Have the controller carry out ``request``.

    Raises:
        MillstreamError: it was not carried out, or that is unknown.
    """
    operator_log.info("asked over HTTP for %s", request)
    return {"results": queries.ask_all(CHANGE, msgspec.to_builtins(request), _TIMEOUT_US)[0]}
