"""SaslHandshake: choose how to log in. Where no login is due it is refused, and the connection stays."""

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.logins.gate import Gate
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


def handle(node: Node, ctx: RequestContext, request: SaslHandshakeRequest) -> None:
    """Pass the mechanism to the connection's gate."""
    _ = node
    gate = ctx.connection.client.gate
    if isinstance(gate, Gate):
        gate.handshake(ctx, request.mechanism)
    else:
        ctx.respond(SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
