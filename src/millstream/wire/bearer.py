"""The tokens of the SASL mechanism OAUTHBEARER (RFC 7628, KIP-255), for servers and clients.

::

    client                                               server
    n,a=USER,^Aauth=Bearer TOKEN^ANAME=VALUE^A^A  ──►
                                                  ◄──    nothing: logged in
                                                  ◄──    {"status":"invalid_token"}: refused
    ^A                                            ──►    the exchange fails

``^A`` is the byte 1. Everything here is a pure function of its arguments and linear in them. A message that is not what
it should be raises ``MalformedToken``, whose text has nothing of the token in it.
"""

from typing import Final, NamedTuple

import msgspec

from millstream.wire.sasl import NAME_CHARACTERS_MAX, TOKEN_BYTES_MAX, MalformedToken

OAUTHBEARER: Final = "OAUTHBEARER"
GIVE_UP: Final = b"\x01"
"""What a client sends after it has read why it was refused."""
REFUSAL: Final = b'{"status":"invalid_token"}'
"""What a server says of a token that it does not take. It has no reason, as in Kafka."""

_SEPARATOR: Final = "\x01"
_AUTH: Final = "auth"
_SCHEME: Final = "bearer"
_TOKEN_CHARACTERS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=")


class BearerFirst(NamedTuple):
    """The first message of a client. Extensions are checked for their form and dropped."""

    token: str
    authorization_id: str

    def __repr__(self) -> str:
        return f"BearerFirst({self.authorization_id!r})"


def bearer_first(token: str, extensions: tuple[tuple[str, str], ...] = ()) -> bytes:
    """The first message of a client that acts as the token's subject."""
    pairs = ((_AUTH, f"Bearer {token}"), *extensions)
    return ("n,," + "".join(f"{_SEPARATOR}{name}={value}" for name, value in pairs) + _SEPARATOR * 2).encode()


def read_bearer_first(data: bytes) -> BearerFirst:
    """Parse the first message of a client. Raises MalformedToken."""
    if len(data) > TOKEN_BYTES_MAX:
        raise MalformedToken(f"the message has more than {TOKEN_BYTES_MAX} bytes")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise MalformedToken("the message is not UTF-8") from None
    header, separator, rest = text.partition(_SEPARATOR)
    flag, comma, authorization = header.partition(",")
    if not separator or not comma or flag != "n" or not authorization.endswith(","):
        raise MalformedToken("the GS2 header is malformed, or demands channel binding")
    authorization = authorization[:-1]
    if authorization and not authorization.startswith("a="):
        raise MalformedToken("the authorization id is malformed")
    user = authorization[2:].replace("=2C", ",").replace("=3D", "=")
    if len(user) > NAME_CHARACTERS_MAX or "," in authorization:
        raise MalformedToken("the authorization id is malformed")
    if not rest.endswith(_SEPARATOR * 2):
        raise MalformedToken("the message does not end as it should")
    return BearerFirst(_token_of(rest[:-2].split(_SEPARATOR)), user)


def _token_of(pairs: list[str]) -> str:
    """The token among the message's pairs."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not (name.isascii() and name.isalpha()) or name in found or not _is_printable(value):
            raise MalformedToken("a pair of the message is malformed or comes twice")
        found[name] = value
    scheme, _, token = found.get(_AUTH, "").partition(" ")
    token = token.strip(" ")
    if scheme.lower() != _SCHEME or not token or not _TOKEN_CHARACTERS.issuperset(token):
        raise MalformedToken("the message has no bearer token")
    return token


def _is_printable(value: str) -> bool:
    return all(" " <= character <= "~" or character in "\t\r\n" for character in value)


class _Refusal(msgspec.Struct):
    status: str = ""


def refusal_status(data: bytes) -> str:
    """Why a server refuses a token, from its answer to the first message."""
    try:
        return msgspec.json.decode(data, type=_Refusal).status[:100] or "no status"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "an answer that is no JSON"
