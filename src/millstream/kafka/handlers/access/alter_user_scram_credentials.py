"""AlterUserScramCredentials: create, change and remove users (KIP-554).

A salted password that is read on the network opens the account, so it is taken over TLS or from this machine;
elsewhere it is refused. What is kept of it (``wire.sasl.verifier_of``) does not open the account.
"""

import ipaddress

from millstream.config.listeners import HTTP_LISTENER, PEER_LISTENER
from millstream.core.controller.requests import AlterUsers, RemoveUser, Results, SetUser
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from millstream.wire.sasl import SCRAM_BY_NUMBER, Verifier, verifier_of

_IN_CLEAR = "This listener is not encrypted: set passwords over TLS or from the broker's machine."


def handle(node: Node, ctx: RequestContext, request: AlterUserScramCredentialsRequest) -> None:
    """Let the controller change the users."""
    if request.upsertions and not is_private(node, ctx):
        names = dict.fromkeys([*(one.name for one in request.deletions), *(one.name for one in request.upsertions)])
        error = ErrorCode.UNACCEPTABLE_CREDENTIAL
        refused = [AlterUserScramCredentialsResult(each, error, _IN_CLEAR) for each in names]
        ctx.respond(AlterUserScramCredentialsResponse(results=refused))
        return
    removals = tuple(RemoveUser(one.name, one.mechanism) for one in request.deletions)
    sets = tuple(_wanted(one) for one in request.upsertions)

    def done(results: Results | MillstreamError) -> None:
        if isinstance(results, MillstreamError):
            names = dict.fromkeys(change.user for change in (*removals, *sets))
            answers = [AlterUserScramCredentialsResult(name, results.code, results.message) for name in names]
        else:
            answers = [AlterUserScramCredentialsResult(one.name or "", one.error, one.message) for one in results]
        ctx.respond(AlterUserScramCredentialsResponse(results=answers))

    node.controller.submit(AlterUsers(removals, sets), done)


def _wanted(one: ScramCredentialUpsertion) -> SetUser:
    """What the controller decides on. Of an unknown mechanism it needs no more than the number."""
    mechanism = SCRAM_BY_NUMBER.get(one.mechanism)
    salt, salted = bytes(one.salt), bytes(one.salted_password)
    if mechanism is None or len(salted) != mechanism.size:
        return SetUser(one.name, one.mechanism, Verifier(salt, b"", b"", one.iterations))
    return SetUser(one.name, one.mechanism, verifier_of(mechanism, salted, salt, one.iterations))


def is_private(node: Node, ctx: RequestContext) -> bool:
    """Whether no one on a network can read what this client sends. ``HTTP_LISTENER`` has callers over HTTPS, unless a
    listener of Kafka's protocol has this name. ``PEER_LISTENER`` has those of another broker, which has seen to their
    way until there: its clients come behind TLS between brokers alone.
    """
    protocol = dict(node.settings.listener_security_protocol_map).get(ctx.listener, "")
    same_machine = ctx.host in ("", ctx.local_host) or ipaddress.ip_address(ctx.host).is_loopback
    of_a_broker = not protocol and ctx.listener in (HTTP_LISTENER, PEER_LISTENER)
    return same_machine or protocol.endswith("SSL") or of_a_broker
