"""The tokens of SASL logins, and the arithmetic of SCRAM (RFC 5802, RFC 7677), for servers and clients.

::

    client                                            server
    n,,n=USER,r=NONCE              client first ──►
                                   ◄── server first   r=NONCE+MORE,s=SALT,i=ITERATIONS
    c=biws,r=NONCE+MORE,p=PROOF    client final ──►
                                   ◄── server final   v=SIGNATURE

Everything here is a pure function of its arguments. A token that is not what it should be raises ``MalformedToken``,
whose text has nothing of the token in it. Channel binding is not supported: a client that demands it (``p=``) is
refused. As in Kafka, passwords are UTF-8 and not normalized.

Cost: one HMAC is a microsecond. ``salted_password`` is the slow one: 0.9 ms for SHA-256 and 4,096 iterations; it never
runs where a server's loop runs.
"""

import base64
import binascii
import hashlib
import hmac
from typing import Final, NamedTuple

import msgspec

ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16384
"""Kafka's bounds. A client of ours computes no more, even if a server asks for it."""

TOKEN_BYTES_MAX: Final = 64 << 10
NAME_CHARACTERS_MAX: Final = 1024

PLAIN: Final = "PLAIN"
ON_BEHALF: Final = "MILLSTREAM-ON-BEHALF"
"""On peer addresses alone: a broker says whom it acts for. TLS between brokers has proved that it is a broker. The one
token is ``HOST NUL USER``.
"""


class MalformedToken(ValueError):
    """The peer's token breaks the grammar."""


class ScramMechanism(NamedTuple):
    """A hash function under its SASL name. ``number`` is Kafka's in Describe- and AlterUserScramCredentials."""

    name: str
    number: int
    hash_name: str
    size: int


SCRAM_SHA_256: Final = ScramMechanism("SCRAM-SHA-256", 1, "sha256", 32)
SCRAM_SHA_512: Final = ScramMechanism("SCRAM-SHA-512", 2, "sha512", 64)
SCRAM_BY_NAME: Final = {mechanism.name: mechanism for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)}
SCRAM_BY_NUMBER: Final = {mechanism.number: mechanism for mechanism in (SCRAM_SHA_256, SCRAM_SHA_512)}


class Verifier(msgspec.Struct, frozen=True, array_like=True):
    """What a server keeps of a password. It allows guesses to be tested, so it is never shown."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"Verifier({self.iterations} iterations)"


def salted_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi(password, salt, iterations): slow by design."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def verifier_of(mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int) -> Verifier:
    """What a server keeps of a salted password."""
    client_key = _hmac(mechanism, salted, b"Client Key")
    return Verifier(salt, _hash(mechanism, client_key), _hmac(mechanism, salted, b"Server Key"), iterations)


def opens(mechanism: ScramMechanism, password: str, verifier: Verifier) -> bool:
    """Whether the password is the verifier's; as slow as ``salted_password``. HMAC pads its key with zeros, so one with
    zeros at its end has the same salted password: it is refused.
    """
    salted = salted_password(mechanism, password, verifier.salt, verifier.iterations)
    found = verifier_of(mechanism, salted, verifier.salt, verifier.iterations)
    return hmac.compare_digest(found.stored_key, verifier.stored_key) and "\0" not in password


# SCRAM's messages


class ClientFirst(NamedTuple):
    """``bare`` is the message without its GS2 header, which the final message repeats."""

    gs2_header: bytes
    bare: bytes
    user: str
    authorization_id: str
    nonce: str


class ServerFirst(NamedTuple):
    """``nonce`` starts with the client's."""

    data: bytes
    nonce: str
    salt: bytes
    iterations: int


class ClientFinal(NamedTuple):
    """``without_proof`` is what the proof proves."""

    channel_binding: bytes
    nonce: str
    proof: bytes
    without_proof: bytes


def client_first(user: str, nonce: str) -> ClientFirst:
    """The first message of a client that acts as the user that it logs in as."""
    bare = f"n={_escaped(user)},r={nonce}".encode()
    return ClientFirst(b"n,,", bare, user, "", nonce)


def read_client_first(data: bytes) -> ClientFirst:
    """Parse the first message of a client. Raises MalformedToken."""
    text = _text(data)
    flag, separator, rest = text.partition(",")
    authorization, second, bare = rest.partition(",")
    if not separator or not second or flag not in ("n", "y"):
        raise MalformedToken("the GS2 header is malformed, or demands channel binding")
    if authorization and not authorization.startswith("a="):
        raise MalformedToken("the authorization id is malformed")
    attributes = bare.split(",")
    if len(attributes) < 2 or not attributes[0].startswith("n=") or not attributes[1].startswith("r="):
        raise MalformedToken("the first message has no user or no nonce")
    nonce = attributes[1][2:]
    if not nonce or len(nonce) > NAME_CHARACTERS_MAX or not nonce.isascii() or not nonce.isprintable():
        raise MalformedToken("the nonce is malformed")
    header = data[: len(data) - len(bare.encode())]
    return ClientFirst(header, bare.encode(), _unescaped(attributes[0][2:]), _unescaped(authorization[2:]), nonce)


def server_first(nonce: str, salt: bytes, iterations: int) -> ServerFirst:
    """The challenge."""
    data = f"r={nonce},s={_base64(salt)},i={iterations}".encode()
    return ServerFirst(data, nonce, salt, iterations)


def read_server_first(data: bytes, client_nonce: str) -> ServerFirst:
    """Parse a challenge, and check that it answers this client and asks for a bearable number of iterations.

    Raises:
        MalformedToken: it does not.
    """
    fields = _attributes(data, "r", "s", "i")
    nonce, salt = fields["r"], _bytes_of(fields["s"])
    iterations = int(fields["i"]) if fields["i"].isdecimal() and len(fields["i"]) <= len(str(ITERATIONS_MAX)) else 0
    if not nonce.startswith(client_nonce) or nonce == client_nonce or not salt:
        raise MalformedToken("the server's nonce or salt is malformed")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise MalformedToken(f"the server asks for a number of iterations outside {ITERATIONS_MIN} to {ITERATIONS_MAX}")
    return ServerFirst(data, nonce, salt, iterations)


def client_final(mechanism: ScramMechanism, salted: bytes, first: ClientFirst, challenge: ServerFirst) -> bytes:
    """The client's proof that it knows the password."""
    without_proof = f"c={_base64(first.gs2_header)},r={challenge.nonce}".encode()
    client_key = _hmac(mechanism, salted, b"Client Key")
    message = auth_message(first, challenge, without_proof)
    proof = _xor(client_key, _hmac(mechanism, _hash(mechanism, client_key), message))
    return without_proof + b",p=" + _base64(proof).encode()


def read_client_final(data: bytes) -> ClientFinal:
    """Parse a proof. Raises MalformedToken."""
    without_proof, separator, _ = data.rpartition(b",p=")
    if not separator:
        raise MalformedToken("the final message has no proof")
    fields = _attributes(data, "c", "r", "p", last="p")
    return ClientFinal(_bytes_of(fields["c"]), fields["r"], _bytes_of(fields["p"]), without_proof)


def server_final(mechanism: ScramMechanism, verifier: Verifier, message: bytes) -> bytes:
    """The server's proof that it knows the verifier."""
    return b"v=" + _base64(_hmac(mechanism, verifier.server_key, message)).encode()


def auth_message(first: ClientFirst, challenge: ServerFirst, without_proof: bytes) -> bytes:
    """What both sides sign."""
    return b",".join((first.bare, challenge.data, without_proof))


def proof_is_right(mechanism: ScramMechanism, verifier: Verifier, message: bytes, proof: bytes) -> bool:
    """Whether the proof comes from who knows the password."""
    if len(proof) != mechanism.size:
        return False
    client_key = _xor(proof, _hmac(mechanism, verifier.stored_key, message))
    return hmac.compare_digest(_hash(mechanism, client_key), verifier.stored_key)


def server_is_right(mechanism: ScramMechanism, salted: bytes, message: bytes, final: bytes) -> bool:
    """Whether the server's final message proves that it knows the verifier of the salted password."""
    expected = b"v=" + _base64(_hmac(mechanism, _hmac(mechanism, salted, b"Server Key"), message)).encode()
    return hmac.compare_digest(expected, final)


# PLAIN's message (RFC 4616)


class PlainToken(NamedTuple):
    """Who logs in, with which password."""

    authorization_id: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"PlainToken({self.user!r})"


def plain_token(user: str, password: str) -> bytes:
    """The one message of a client."""
    return f"\0{user}\0{password}".encode()


def read_plain(data: bytes) -> PlainToken:
    """Parse a client's message. Raises MalformedToken."""
    parts = _text(data).split("\0")
    if len(parts) != 3:
        raise MalformedToken("a PLAIN token has three parts")
    token = PlainToken(*parts)
    if not token.user or not token.password or len(token.user) > NAME_CHARACTERS_MAX:
        raise MalformedToken("a PLAIN token has a user and a password")
    return token


class Behalf(NamedTuple):
    """Whom a broker acts for, and the address that its caller came from."""

    user: str
    host: str


def behalf_token(behalf: Behalf) -> bytes:
    """The client's only message."""
    return f"{behalf.host}\0{behalf.user}".encode()


def read_behalf(data: bytes) -> Behalf:
    """Parse a client's message. Raises MalformedToken."""
    host, between, user = _text(data).partition("\0")
    if not between or not user or not host or len(user) > NAME_CHARACTERS_MAX:
        raise MalformedToken("a token of a broker has a host and a user")
    return Behalf(user, host)


def _text(data: bytes) -> str:
    if len(data) > TOKEN_BYTES_MAX:
        raise MalformedToken("the token is too long")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise MalformedToken("the token is not UTF-8") from None


def _attributes(data: bytes, *names: str, last: str = "") -> dict[str, str]:
    """The attributes of a message, which starts with ``names`` in order; ``last`` may follow others."""
    pairs = [part.partition("=") for part in _text(data).split(",")]
    found = {name: value for name, _, value in pairs}
    order = [name for name, _, _ in pairs]
    expected = [name for name in names if name != last]
    if order[: len(expected)] != expected or (last and order[-1] != last) or len(found) != len(pairs):
        raise MalformedToken("the message lacks an attribute")
    return found


def _escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescaped(name: str) -> str:
    if len(name) > NAME_CHARACTERS_MAX or "\0" in name:
        raise MalformedToken("the name is malformed")
    parts = name.split("=")
    if any(part[:2] not in ("2C", "3D") for part in parts[1:]):
        raise MalformedToken("the name is malformed")
    return parts[0] + "".join(("," if part[:2] == "2C" else "=") + part[2:] for part in parts[1:])


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes_of(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise MalformedToken("an attribute is not base 64") from None


def _hmac(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.hash_name)


def _hash(mechanism: ScramMechanism, data: bytes) -> bytes:
    return hashlib.new(mechanism.hash_name, data).digest()


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=True))
