"""DescribeAcls: access control entries. This version has no authorization and answers as a Kafka without an authorizer.

Tools such as MirrorMaker 2 recognize SECURITY_DISABLED and go on without access control.
"""

from collections.abc import Callable
from typing import Final

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse

API_KEY: Final = 29
NO_AUTHORIZER: Final = "No Authorizer is configured."
"""Kafka's words for changes of access control; those for DescribeAcls name the broker, too."""
_NO_AUTHORIZER_HERE: Final = "No Authorizer is configured on the broker"


def handle(
    node: Node, ctx: RequestContext, request: DescribeAclsRequest, respond: Callable[[DescribeAclsResponse], None]
) -> None:
    """Refuse with SECURITY_DISABLED."""
    _ = node, ctx, request
    respond(DescribeAclsResponse(error_code=ErrorCode.SECURITY_DISABLED, error_message=_NO_AUTHORIZER_HERE))
