"""RestoreVerifiers: set the SCRAM verifiers of a backup. The controller checks them as those of a new password."""

from millstream.core.controller.requests import AlterUsers, Results, SetUser
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.access.alter_user_scram_credentials import is_private
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.restore_verifiers import RestoreVerifiersRequest, RestoreVerifiersResponse
from millstream.wire.sasl import Verifier

_IN_CLEAR = "This listener is not encrypted: send verifiers over TLS or from the broker's machine."


def handle(node: Node, ctx: RequestContext, request: RestoreVerifiersRequest) -> None:
    """Let the controller set them; a user has one verifier a request."""
    if request.verifiers and not is_private(node, ctx):
        ctx.respond(RestoreVerifiersResponse(error_code=int(ErrorCode.SECURITY_DISABLED), error_message=_IN_CLEAR))
        return

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            ctx.respond(RestoreVerifiersResponse(error_code=int(results.code), error_message=results.message))
            return
        refused = next((one for one in results if one.error), None)
        if refused is None:
            ctx.respond(RestoreVerifiersResponse())
        else:
            message = f"user {refused.name}: {refused.message}"
            ctx.respond(RestoreVerifiersResponse(error_code=int(refused.error), error_message=message))

    sets = tuple(
        SetUser(
            one.user,
            one.mechanism,
            Verifier(bytes(one.salt), bytes(one.stored_key), bytes(one.server_key), one.iterations),
        )
        for one in request.verifiers
    )
    node.controller.submit(AlterUsers((), sets), done)
