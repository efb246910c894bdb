"""API key 15302, DescribeVerifiers: what the cluster keeps of the passwords of its users.

Millstream's own API; no Kafka client sends it. A verifier (RFC 5802) does not open an account, but it allows guesses to
be tested. ``millstream backup create`` asks for them, over TLS or from the broker's machine, else they are refused.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Message, Request, Response


class UserVerifier(Message):
    """One user's verifier for one SCRAM mechanism, which has Kafka's number."""

    user: str = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""


class DescribeVerifiersRequest(Request, api_key=15302, versions=(0, 0), flexible=0):
    """Those of all users."""


class DescribeVerifiersResponse(Response, api_key=15302, versions=(0, 0), flexible=0):
    """By user and mechanism; none with an error."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    verifiers: list[UserVerifier] = []
