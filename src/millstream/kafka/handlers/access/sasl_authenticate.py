"""SaslAuthenticate: one token of a login. Where no login is due it is refused, and the connection stays."""

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.logins.gate import Gate
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


def handle(node: Node, ctx: RequestContext, request: SaslAuthenticateRequest) -> None:
    """Pass the token to the connection's gate."""
    _ = node
    gate = ctx.connection.client.gate
    if isinstance(gate, Gate):
        gate.authenticate(ctx, bytes(request.auth_bytes))
    else:
        message = "SaslAuthenticate request received on a listener without SASL"
        ctx.respond(SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=message))
