"""SCRAM-SHA-256 and SCRAM-SHA-512 for a server.

::

    client first ─► step ─► server first ─► client final ─► step ─► server final; done, ``user`` is who logged in

The client's nonce has to come back with the server's after it, the GS2 header has to come back unchanged, and who
wants to act as another user is refused. Comparisons take the same time for equal and unequal values.
"""

import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import Final

from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.sasl import (
    ITERATIONS_MIN,
    ClientFirst,
    MalformedToken,
    ScramMechanism,
    ServerFirst,
    Verifier,
    auth_message,
    proof_is_right,
    read_client_final,
    read_client_first,
    server_final,
    server_first,
)

FindVerifier = Callable[[str], Verifier]
"""The verifier of a user; ``decoy`` for one that does not exist."""

_SALT_BYTES: Final = 18


class LoginRefused(Rejected):
    """The login failed. The message is for the broker's log; the client learns no reason."""

    default_code = ErrorCode.SASL_AUTHENTICATION_FAILED


class ScramExchange:
    """One login. Lifecycle: made for a connection's handshake, dropped when done or refused."""

    __slots__ = ("_challenge", "_find", "_first", "_mechanism", "_nonce", "_verifier", "done", "user")

    def __init__(self, mechanism: ScramMechanism, find: FindVerifier, nonce: str) -> None:
        """``nonce`` is the server's part: printable, without commas, never used before."""
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce
        self._first: ClientFirst | None = None
        self._challenge: ServerFirst | None = None
        self._verifier: Verifier | None = None
        self.done = False
        self.user = ""

    def step(self, data: bytes) -> bytes:
        """The answer to the client's next token.

        Raises:
            LoginRefused: the token is malformed or proves nothing.
        """
        assert not self.done
        try:
            return self._answer_first(data) if self._first is None else self._answer_final(data)
        except MalformedToken as error:
            raise LoginRefused(f"a malformed {self._mechanism.name} token: {error}") from None

    def _answer_first(self, data: bytes) -> bytes:
        first = read_client_first(data)
        if first.authorization_id not in ("", first.user):
            raise LoginRefused(f"user {first.user!r} wants to act as another one")
        self._first = first
        self._verifier = verifier = self._find(first.user)
        self._challenge = server_first(first.nonce + self._nonce, verifier.salt, verifier.iterations)
        return self._challenge.data

    def _answer_final(self, data: bytes) -> bytes:
        first, challenge, verifier = self._first, self._challenge, self._verifier
        assert first is not None
        assert challenge is not None
        assert verifier is not None
        final = read_client_final(data)
        if final.nonce != challenge.nonce or final.channel_binding != first.gs2_header:
            raise LoginRefused("the final message belongs to another exchange")
        message = auth_message(first, challenge, final.without_proof)
        if not proof_is_right(self._mechanism, verifier, message, final.proof):
            raise LoginRefused(f"wrong password, or no such user: {first.user!r}")
        self.done = True
        self.user = first.user
        return server_final(self._mechanism, verifier, message)


def decoy(mechanism: ScramMechanism, secret: bytes, user: str, iterations: Sequence[int]) -> Verifier:
    """A verifier for a user that does not exist. ``secret`` is the cluster's; ``iterations`` those of real users."""
    digest = hmac.digest(secret, f"{mechanism.name}\0{user}".encode(), hashlib.sha512)
    count = iterations[int.from_bytes(digest[-8:], "big") % len(iterations)] if iterations else ITERATIONS_MIN
    key = hmac.digest(secret, digest, mechanism.hash_name)
    return Verifier(digest[:_SALT_BYTES], key, key, count)
