"""API key 36, SaslAuthenticate: one token of a login (KIP-152, KIP-368). A token may be a password: never shown."""

from typing import Annotated

from millstream.wire.schema import F, Int16, Int64, Request, Response


class SaslAuthenticateRequest(Request, api_key=36, versions=(0, 2), flexible=2):
    """A token of the client."""

    auth_bytes: bytes = b""

    def __repr__(self) -> str:
        return f"SaslAuthenticateRequest({len(self.auth_bytes)} bytes)"


class SaslAuthenticateResponse(Response, api_key=36, versions=(0, 2), flexible=2):
    """A token of the server. ``session_lifetime_ms``: how long the login holds; 0 for always."""

    error_code: Int16 = 0
    error_message: str | None = None
    auth_bytes: bytes = b""
    session_lifetime_ms: Annotated[Int64, F("1+")] = 0

    def __repr__(self) -> str:
        return f"SaslAuthenticateResponse(error_code={self.error_code}, {len(self.auth_bytes)} bytes)"
