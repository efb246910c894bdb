"""How a program of ours gets its token: from a file, or from an issuer by the client's own credentials (RFC 6749 §4.4).

A file is read for each login, so that renewing the file is enough. A token of an issuer is kept for the
whole process until ``RENEW`` of its time has passed; logins at the same time wait for one request. An issuer that fails
while the kept token still holds is asked again at the next login. The token's own ``exp`` is believed for the length of
its life; what it says otherwise is the broker's to judge.
"""

import base64
import threading
import time
import urllib.parse
from typing import Any, Final, NamedTuple

import msgspec

from millstream.config.urls import file_of
from millstream.errors import Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.secure.tokens.fetch import fetch, read_small_file

ANSWER_BYTES_MAX: Final = 256 << 10
RENEW: Final = 0.8
"""Share of a token's life after which the next login gets another one, as in Kafka's clients."""
_FAR: Final = 4_102_444_800.0
"""The year 2100, in seconds: for a token that does not say when it ends. The broker knows."""
_KEPT_MAX: Final = 64


class TokenEndpoint(msgspec.Struct, frozen=True):
    """Where tokens come from, and as whom."""

    url: str
    client_id: str = ""
    client_secret: str = ""
    scope: str = ""
    truststore: str = ""
    """PEM file with the authorities of an https server; empty for those of the system."""

    def __repr__(self) -> str:
        return f"TokenEndpoint({self.url!r}, {self.client_id!r})"


class Token(NamedTuple):
    """``ends_s`` is in seconds since 1970."""

    text: str
    ends_s: float

    def __repr__(self) -> str:
        return f"Token(ends_s={self.ends_s})"


class _Answer(msgspec.Struct):
    access_token: str
    expires_in: int | float | None = None


_lock = threading.Lock()
_kept: dict[TokenEndpoint, tuple[Token, float]] = {}


def token_from(endpoint: TokenEndpoint) -> Token:
    """A token that holds. Blocks for at most ten seconds.

    Raises:
        Rejected: the issuer takes neither id nor secret, or its answer has no token.
        Unavailable: it does not answer, or the file cannot be read.
    """
    path = file_of(endpoint.url)
    if path:
        text = read_small_file(path, ANSWER_BYTES_MAX).decode(errors="replace").strip()
        return token_of(text)
    with _lock:
        token, renew_s = _kept.get(endpoint, (Token("", 0.0), 0.0))
        now_s = time.time()
        if now_s < renew_s:
            return token
        try:
            fresh = _ask(endpoint, now_s)
        except Unavailable:
            if now_s < token.ends_s:
                return token
            raise
        while len(_kept) >= _KEPT_MAX:
            _kept.pop(next(iter(_kept)))
        _kept[endpoint] = (fresh, now_s + (fresh.ends_s - now_s) * RENEW)
        return fresh


def token_of(text: str) -> Token:
    """A token that was given, and when it ends, as far as it says so."""
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise Rejected("the token is empty or has characters that a token cannot have", _FAILED)
    return Token(text, _end_of(text) or _FAR)


def _ask(endpoint: TokenEndpoint, now_s: float) -> Token:
    form = {"grant_type": "client_credentials"} | ({"scope": endpoint.scope} if endpoint.scope else {})
    quoted = (urllib.parse.quote_plus(word) for word in (endpoint.client_id, endpoint.client_secret))
    headers = {
        "Authorization": "Basic " + base64.b64encode(":".join(quoted).encode()).decode(),
        "Content-Type": "application/x-www-form-urlencoded",
        "Accept": "application/json",
    }
    body = urllib.parse.urlencode(form).encode()
    try:
        data = fetch(endpoint.url, ANSWER_BYTES_MAX, body=body, headers=headers, truststore=endpoint.truststore)
    except Rejected as error:
        raise Rejected(f"no token for client {endpoint.client_id!r}: {error.message}", _FAILED) from None
    try:
        answer = msgspec.json.decode(data, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise Rejected(f"the answer of {endpoint.url} has no access_token", _FAILED) from None
    token = token_of(answer.access_token)
    if token.ends_s == _FAR and answer.expires_in:
        return Token(token.text, now_s + answer.expires_in)
    return token


def _end_of(text: str) -> float:
    """``exp`` of a JSON web token; 0 for another token, or one that does not say."""
    part = text.split(".")[1] if text.count(".") == 2 else ""
    try:
        claims: Any = msgspec.json.decode(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return 0.0


_FAILED: Final = ErrorCode.SASL_AUTHENTICATION_FAILED
