"""Who asks over HTTP, and what a route needs: the vocabulary between the server, its routes and the authorizer.

Where access is controlled, every route that is not ``open`` names rights on Kafka's resources, and the broker's own
authorizer decides for the caller, as it does for Kafka's clients. A caller proves who it is by one of these:

=================================  ====================================================================
``Authorization: Basic``           a user of the broker and its password
``Authorization: Bearer``          a JSON web token, where the broker takes tokens
a client certificate               the principal of its subject, as on Kafka's listeners
none                               ``User:ANONYMOUS``, with the rights that it is given
=================================  ====================================================================

The header wins over the certificate. A password or a token that comes in clear from another machine is refused, because
the next one who reads it could use it.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from millstream.admin.routing import Caller, HttpError, Need

HEADER_CHARACTERS_MAX: Final = 66_000
_CHALLENGE: Final = ("WWW-Authenticate", 'Basic realm="millstream", charset="UTF-8"')


class Proof(NamedTuple):
    """What a caller shows of itself. At most one of ``user``, ``token`` and ``principal`` is not empty."""

    user: str = ""
    password: str = ""
    token: str = ""
    principal: str = ""
    """Of a certificate, which TLS has checked."""
    nonce: str = ""
    """Of a sign-in at the console: ``token`` is its ID token. No header has one."""

    def __repr__(self) -> str:
        return f"Proof({self.user or self.principal!r})"


class Callers(Protocol):
    """The broker's users and rights, as the server asks for them. Called by many threads."""

    def admit(self, proof: Proof, host: str, needs: Sequence[Need]) -> Caller:
        """The caller, which has all of ``needs``.

        Raises:
            HttpError: 401 if the proof is wrong, 403 if a right is missing.
            MillstreamError: the broker cannot say.
        """
        ...


def read_proof(header: str, principal: str) -> Proof:
    """What an ``Authorization`` header shows, or without one a certificate's ``principal``.

    Raises:
        HttpError: 401: the header cannot be read.
    """
    if not header:
        return Proof(principal=principal)
    scheme, _, value = header.strip().partition(" ")
    if len(header) > HEADER_CHARACTERS_MAX:
        raise unauthorized("the Authorization header is too long")
    if scheme.lower() == "bearer" and value.strip():
        return Proof(token=value.strip())
    if scheme.lower() != "basic":
        raise unauthorized("the Authorization header is neither Basic nor Bearer")
    try:
        user, colon, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise unauthorized("the Authorization header is not Base64 of USER:PASSWORD") from None
    if not colon or not user or not password:
        raise unauthorized("the Authorization header has no user or no password")
    return Proof(user=user, password=password)


def unauthorized(message: str) -> HttpError:
    """401, with the question for a user and a password that a browser understands."""
    return HttpError(401, "UNAUTHORIZED", message, (_CHALLENGE,))


def forbidden(principal: str, need: Need) -> HttpError:
    """403, with the right that is missing."""
    refused = HttpError(403, need.error.name, f"{principal} needs {need}")
    refused.principal = principal
    return refused


def check_needs(principal: str, needs: Sequence[Need], allowed: Sequence[bool]) -> None:
    """Raises HttpError (403) for the first right that a caller lacks."""
    for need, granted in zip(needs, allowed, strict=True):
        if not granted:
            raise forbidden(principal, need)
