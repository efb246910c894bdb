"""API key 50, DescribeUserScramCredentials: which users have which SCRAM credentials (KIP-554). No secret is shown."""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Message, Request, Response


class UserName(Message):
    """A user."""

    name: str = ""


class DescribeUserScramCredentialsRequest(Request, api_key=50, versions=(0, 0), flexible=0):
    """Users by name; None or an empty list for all."""

    users: list[UserName] | None = None


class CredentialInfo(Message):
    """A credential. ``mechanism``: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    mechanism: Int8 = 0
    iterations: Int32 = 0


class DescribeUserScramCredentialsResult(Message):
    """The credentials of one user."""

    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = ""
    credential_infos: list[CredentialInfo] = []


class DescribeUserScramCredentialsResponse(Response, api_key=50, versions=(0, 0), flexible=0):
    """One result a user."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = ""
    results: list[DescribeUserScramCredentialsResult] = []
