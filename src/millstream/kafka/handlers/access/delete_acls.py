"""DeleteAcls: remove the access control entries that filters mean, and say which they were. Without access control each
filter is refused with SECURITY_DISABLED, as in Kafka.
"""

from millstream.core.access.entry import AclEntry, AclFilter
from millstream.core.controller.requests import DeleteAcls, Results
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.access.describe_acls import NO_AUTHORIZER
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_acls import (
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsRequest,
    DeleteAclsResponse,
)


def handle(node: Node, ctx: RequestContext, request: DeleteAclsRequest) -> None:
    """Let the controller remove the entries."""
    count = len(request.filters)
    if node.access is None:
        refused = DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message=NO_AUTHORIZER)
        ctx.respond(DeleteAclsResponse(filter_results=[refused] * count))
        return

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            answers = [DeleteAclsFilterResult(results.code, results.message)] * count
        else:
            answers = [DeleteAclsFilterResult(0, None, [_deleted(entry) for entry in one.acls]) for one in results]
        ctx.respond(DeleteAclsResponse(filter_results=answers))

    filters = tuple(
        AclFilter(
            one.resource_type_filter,
            one.pattern_type_filter,
            one.resource_name_filter,
            one.principal_filter,
            one.host_filter,
            one.operation,
            one.permission_type,
        )
        for one in request.filters
    )
    node.controller.submit(DeleteAcls(filters), done)


def _deleted(entry: AclEntry) -> DeleteAclsMatchingAcl:
    return DeleteAclsMatchingAcl(
        error_message=None,
        resource_type=entry.resource_type,
        resource_name=entry.name,
        pattern_type=entry.pattern_type,
        principal=entry.principal,
        host=entry.host,
        operation=entry.operation,
        permission_type=entry.permission,
    )
