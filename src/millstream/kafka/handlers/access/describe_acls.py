"""DescribeAcls: the access control entries that pass a filter.

Without access control it answers as a Kafka without an authorizer does: tools such as MirrorMaker 2 recognize
SECURITY_DISABLED and continue without access control.
"""

from typing import Final

from millstream.core.access.entry import AclEntry, AclFilter
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)

NO_AUTHORIZER: Final = "No Authorizer is configured."
"""Kafka's words for changes of access control; those for DescribeAcls name the broker, too."""
_NO_AUTHORIZER_HERE: Final = "No Authorizer is configured on the broker"


def handle(node: Node, ctx: RequestContext, request: DescribeAclsRequest) -> None:
    """List the entries, by resource."""
    if node.access is None:
        ctx.respond(DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER_HERE))
        return
    wanted = AclFilter(
        request.resource_type_filter,
        request.pattern_type_filter,
        request.resource_name_filter,
        request.principal_filter,
        request.host_filter,
        request.operation,
        request.permission_type,
    )
    found: dict[tuple[int, str, int], list[AclDescription]] = {}
    for entry in node.metadata.state.security.rules.entries:
        if wanted.matches(entry):
            resource = (entry.resource_type, entry.name, entry.pattern_type)
            found.setdefault(resource, []).append(_described(entry))
    resources = [DescribeAclsResource(*resource, entries) for resource, entries in found.items()]
    ctx.respond(DescribeAclsResponse(error_message=None, resources=resources))


def _described(entry: AclEntry) -> AclDescription:
    return AclDescription(entry.principal, entry.host, entry.operation, entry.permission)
