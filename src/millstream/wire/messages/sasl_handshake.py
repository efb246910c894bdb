"""API key 17, SaslHandshake: choose how to log in (KIP-43, KIP-152).

After version 0 the client sends its tokens bare, each with its length before it; after version 1 in SaslAuthenticate
requests.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from millstream.wire.schema import Int16, Request, Response


class SaslHandshakeRequest(Request, api_key=17, versions=(0, 1)):
    """The mechanism by which the client wants to log in."""

    mechanism: str = ""


class SaslHandshakeResponse(Response, api_key=17, versions=(0, 1)):
    """Whether the mechanism is enabled, and those that are."""

    error_code: Int16 = 0
    mechanisms: list[str] = []
