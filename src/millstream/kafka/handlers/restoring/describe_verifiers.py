"""DescribeVerifiers: the SCRAM verifiers of all users, for a backup.

A verifier allows passwords to be guessed, so it goes out over TLS or to this machine only, as a password
comes in (``access.alter_user_scram_credentials``).
"""

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.access.alter_user_scram_credentials import is_private
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_verifiers import (
    DescribeVerifiersRequest,
    DescribeVerifiersResponse,
    UserVerifier,
)

_IN_CLEAR = "This listener is not encrypted: ask for verifiers over TLS or from the broker's machine."


def handle(node: Node, ctx: RequestContext, request: DescribeVerifiersRequest) -> None:
    """List them by user and mechanism."""
    _ = request
    users = node.metadata.state.security.users
    if users and not is_private(node, ctx):
        ctx.respond(DescribeVerifiersResponse(error_code=int(ErrorCode.SECURITY_DISABLED), error_message=_IN_CLEAR))
        return
    found = [
        UserVerifier(user, mechanism, one.iterations, one.salt, one.stored_key, one.server_key)
        for (user, mechanism), one in sorted(users.items())
    ]
    ctx.respond(DescribeVerifiersResponse(verifiers=found))
