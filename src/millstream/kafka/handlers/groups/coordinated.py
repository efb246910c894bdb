"""Requests that are passed on to the coordinator of one group."""

from collections.abc import Callable
from typing import Protocol

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ApiKey
from millstream.wire.schema import Message, Response


class Refusal(Protocol):
    """A response with an error only: the class of a response."""

    def __call__(self, *, error_code: int) -> Response: ...


def ask(
    node: Node,
    ctx: RequestContext,
    group_id: str,
    api: ApiKey,
    request: Message,
    done: Callable[[Message | ErrorCode], None],
) -> None:
    """Ask the coordinator of a group for the client. ``done`` gets the response or the code that refuses it."""
    node.coordinator.ask(
        group_id, api, ctx.api_version, ctx.client_id, ctx.host, request, done, principal=ctx.principal
    )


def pass_on(node: Node, ctx: RequestContext, group_id: str, api: ApiKey, request: Message, refusal: Refusal) -> None:
    """Answer with what the coordinator of a group answers."""

    def done(answer: Message | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            answer = refusal(error_code=answer)
        assert isinstance(answer, Response)
        ctx.respond(answer)

    ask(node, ctx, group_id, api, request, done)
