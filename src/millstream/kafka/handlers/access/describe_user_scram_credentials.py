"""DescribeUserScramCredentials: who can log in by SCRAM, and with how many iterations (KIP-554).

Codes and words are Kafka's: a user without credentials gets RESOURCE_NOT_FOUND, one that is asked for twice
DUPLICATE_RESOURCE.
"""

from collections import Counter
from collections.abc import Sequence

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)


def handle(node: Node, ctx: RequestContext, request: DescribeUserScramCredentialsRequest) -> None:
    """List the credentials of the users that are named, or of all."""
    found: dict[str, list[CredentialInfo]] = {}
    for (user, mechanism), verifier in sorted(node.metadata.state.security.users.items()):
        found.setdefault(user, []).append(CredentialInfo(mechanism, verifier.iterations))
    named = [user.name for user in request.users or ()]
    results = _named(named, found) if named else [_result(user, infos) for user, infos in found.items()]
    ctx.respond(DescribeUserScramCredentialsResponse(results=results))


def _named(names: Sequence[str], found: dict[str, list[CredentialInfo]]) -> list[DescribeUserScramCredentialsResult]:
    results: list[DescribeUserScramCredentialsResult] = []
    for name, count in Counter(names).items():
        if count > 1:
            message = "Cannot describe SCRAM credentials for the same user twice in a single request: " + name
            results.append(DescribeUserScramCredentialsResult(name, ErrorCode.DUPLICATE_RESOURCE, message))
        elif name not in found:
            message = "Attempt to describe a user credential that does not exist: " + name
            results.append(DescribeUserScramCredentialsResult(name, ErrorCode.RESOURCE_NOT_FOUND, message))
        else:
            results.append(_result(name, found[name]))
    return results


def _result(user: str, infos: list[CredentialInfo]) -> DescribeUserScramCredentialsResult:
    return DescribeUserScramCredentialsResult(user, credential_infos=infos)
