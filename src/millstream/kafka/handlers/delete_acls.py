"""DeleteAcls: every filter is refused with SECURITY_DISABLED, as by a Kafka without an authorizer."""

from collections.abc import Callable
from typing import Final

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.describe_acls import NO_AUTHORIZER
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse

API_KEY: Final = 31


def handle(
    node: Node, ctx: RequestContext, request: DeleteAclsRequest, respond: Callable[[DeleteAclsResponse], None]
) -> None:
    """Refuse each filter."""
    _ = node, ctx
    refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    respond(DeleteAclsResponse(filter_results=[refused] * len(request.filters)))
