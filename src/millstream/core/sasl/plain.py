"""PLAIN for a server (RFC 4616): one token with user and password in clear.

The password is tested against the user's SCRAM verifier, which takes milliseconds: not here.
"""

from millstream.core.sasl.scram import LoginRefused
from millstream.wire.sasl import MalformedToken, PlainToken, read_plain


def plain_login(data: bytes) -> PlainToken:
    """Who wants to log in, and with which password.

    Raises:
        LoginRefused: the token is malformed, or the user wants to act as another one.
    """
    try:
        token = read_plain(data)
    except MalformedToken as error:
        raise LoginRefused(f"a malformed PLAIN token: {error}") from None
    if token.authorization_id not in ("", token.user):
        raise LoginRefused(f"user {token.user!r} wants to act as another one")
    return token
