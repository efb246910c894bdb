"""API key 51, AlterUserScramCredentials: set and remove users' SCRAM credentials (KIP-554).

The client hashes the password; what it sends still opens the account, and is never shown.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int8, Int16, Int32, Message, Request, Response


class ScramCredentialDeletion(Message):
    """A credential to remove. ``mechanism``: 1 SCRAM-SHA-256, 2 SCRAM-SHA-512."""

    name: str = ""
    mechanism: Int8 = 0


class ScramCredentialUpsertion(Message):
    """A credential to set: ``salted_password`` is Hi(password, salt, iterations) of RFC 5802."""

    name: str = ""
    mechanism: Int8 = 0
    iterations: Int32 = 0
    salt: bytes = b""
    salted_password: bytes = b""

    def __repr__(self) -> str:
        return f"ScramCredentialUpsertion({self.name!r}, {self.mechanism}, {self.iterations})"


class AlterUserScramCredentialsRequest(Request, api_key=51, versions=(0, 0), flexible=0):
    """Changes, each made or refused on its own; one user at most once."""

    deletions: list[ScramCredentialDeletion] = []
    upsertions: list[ScramCredentialUpsertion] = []


class AlterUserScramCredentialsResult(Message):
    """What became of one user's change."""

    user: str = ""
    error_code: Int16 = 0
    error_message: str | None = None


class AlterUserScramCredentialsResponse(Response, api_key=51, versions=(0, 0), flexible=0):
    """One result a user."""

    throttle_time_ms: Int32 = 0
    results: list[AlterUserScramCredentialsResult] = []
