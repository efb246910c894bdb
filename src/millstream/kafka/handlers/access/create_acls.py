"""CreateAcls: add access control entries. Without access control each is refused with SECURITY_DISABLED."""

from millstream.core.access.entry import AclEntry
from millstream.core.controller.requests import CreateAcls, Results
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.access.describe_acls import NO_AUTHORIZER
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse


def handle(node: Node, ctx: RequestContext, request: CreateAclsRequest) -> None:
    """Let the controller add the entries."""
    count = len(request.creations)
    if node.access is None:
        refused = AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        ctx.respond(CreateAclsResponse(results=[refused] * count))
        return

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            answers = [AclCreationResult(results.code, results.message)] * count
        else:
            answers = [AclCreationResult(one.error, one.message) for one in results]
        ctx.respond(CreateAclsResponse(results=answers))

    entries = tuple(
        AclEntry(
            one.resource_type,
            one.resource_pattern_type,
            one.resource_name,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for one in request.creations
    )
    node.controller.submit(CreateAcls(entries), done)
