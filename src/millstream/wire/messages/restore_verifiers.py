"""API key 15303, RestoreVerifiers: users log in again with the passwords that they had.

Millstream's own API; no Kafka client sends it. ``millstream backup restore`` sends what DescribeVerifiers answered. A
user that is there gets the verifier of the request in the place of its own.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.messages.describe_verifiers import UserVerifier
from millstream.wire.schema import Int16, Int32, Request, Response


class RestoreVerifiersRequest(Request, api_key=15303, versions=(0, 0), flexible=0):
    """The verifiers of any number of users."""

    verifiers: list[UserVerifier] = []


class RestoreVerifiersResponse(Response, api_key=15303, versions=(0, 0), flexible=0):
    """With an error, its message names the first user that was refused; others may be set."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
