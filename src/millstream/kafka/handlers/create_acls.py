"""CreateAcls: every entry is refused with SECURITY_DISABLED, as by a Kafka without an authorizer."""

from collections.abc import Callable
from typing import Final

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.describe_acls import NO_AUTHORIZER
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse

API_KEY: Final = 30


def handle(
    node: Node, ctx: RequestContext, request: CreateAclsRequest, respond: Callable[[CreateAclsResponse], None]
) -> None:
    """Refuse each entry."""
    _ = node, ctx
    refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
    respond(CreateAclsResponse(results=[refused] * len(request.creations)))
