"""The test of one JSON web token (RFC 7519), as Kafka's broker does it, failing closed.

In this order: form, algorithm, key, signature, then claims, so that no claim is used before it is known
who wrote it. The algorithm is one of those that are set and fits the key; ``none`` and HMAC never do. ``exp``, ``iat``,
``iss``, ``aud`` and the subject have to be there. The clock's skew widens ``nbf`` only: it never prolongs ``exp``,
because the session ends with the token.

Pure: the time comes from outside. Work is linear in the token, whose size the listener bounds.
"""

import base64
import binascii
import hmac
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from millstream.secure.tokens.keys import KeySet, SignerKey
from millstream.secure.tokens.rules import TokenRules, Verdict

_HEADER_CHARACTERS_MAX: Final = 16 << 10
_SIGNATURE_CHARACTERS_MAX: Final = 2 << 10
_SUBJECT_CHARACTERS_MAX: Final = 1024
_SECONDS_MAX: Final = 1 << 40
_KEYS_TRIED_MAX: Final = 8
"""A token without a key id makes the broker try all keys that fit; each costs a verification."""

_T = TypeVar("_T")


class UnknownKey(Exception):
    """The token names a key that is not in the set. New ones may have been published."""


class _Refused(Exception):
    pass


class _Header(msgspec.Struct):
    alg: str
    kid: str | None = None
    crit: Any = msgspec.UNSET
    b64: Any = msgspec.UNSET


class _Times(msgspec.Struct):
    exp: int | float
    iat: int | float
    nbf: int | float = 0


_decode_header: Final = msgspec.json.Decoder(_Header).decode
_decode_claims: Final = msgspec.json.Decoder(dict[str, Any]).decode


def verify(token: str, keys: KeySet, rules: TokenRules, now_s: float) -> Verdict:
    """Who the token is about, or why it is refused. ``now_s`` is the time since 1970.

    Raises:
        UnknownKey: the key that it names is not among ``keys``.
    """
    try:
        claims = _signed_claims(token, keys, rules)
        return _checked(claims, rules, now_s)
    except _Refused as error:
        return Verdict(reason=str(error))


def verify_sign_in(token: str, nonce: str, keys: KeySet, rules: TokenRules, now_s: float) -> Verdict:
    """Who an ID token is about (OpenID Connect Core §3.1.3.7). ``nonce`` is the one of this sign-in.

    Raises:
        UnknownKey: the key that it names is not among ``keys``.
    """
    try:
        claims = _signed_claims(token, keys, rules)
        verdict = _checked(claims, rules, now_s)
        said = claims.get("nonce")
        if not isinstance(said, str) or not hmac.compare_digest(said.encode(errors="replace"), nonce.encode()):
            raise _Refused("the token is of another sign-in")
        if claims.get("azp", rules.audiences[0]) not in rules.audiences:
            raise _Refused("the token was issued to another client")
        if rules.groups and not _groups(claims.get(rules.groups_claim)) & set(rules.groups):
            raise _Refused(f"{verdict.user!r} is in none of the groups that may sign in")
    except _Refused as error:
        return Verdict(reason=str(error))
    return verdict


def _groups(claim: object) -> set[str]:
    return set(claim.split() if isinstance(claim, str) else _texts(claim) or ())


def _signed_claims(token: str, keys: KeySet, rules: TokenRules) -> dict[str, Any]:
    """The claims, once their signature is right."""
    parts = token.split(".")
    if len(parts) != 3 or not all(parts):
        raise _Refused("the token is not a signed JSON web token")
    if len(parts[0]) > _HEADER_CHARACTERS_MAX or len(parts[2]) > _SIGNATURE_CHARACTERS_MAX:
        raise _Refused("the token's header or signature is too large")
    header = _parsed(_decode_header, parts[0], "header")
    if header.alg not in rules.algorithms:
        raise _Refused("the token's algorithm is not allowed")
    if header.crit is not msgspec.UNSET or header.b64 is not msgspec.UNSET:
        raise _Refused("the token's header has extensions that are not understood")
    if not keys.knows(header.kid):
        raise UnknownKey
    signature = _bytes(parts[2], "signature")
    signed = f"{parts[0]}.{parts[1]}".encode()
    candidates = keys.candidates(header.kid, header.alg)[:_KEYS_TRIED_MAX]
    if not candidates:
        raise _Refused("the token's algorithm does not fit the key")
    if not any(_signs(key, header.alg, signed, signature) for key in candidates):
        raise _Refused("the token's signature is wrong")
    return _parsed(_decode_claims, parts[1], "claims")


def _signs(key: SignerKey, algorithm: str, signed: bytes, signature: bytes) -> bool:
    try:
        return JWSRegistry.algorithms[algorithm].verify(signed, signature, key.key)
    except (JoseError, ValueError, TypeError):
        return False


def _checked(claims: dict[str, Any], rules: TokenRules, now_s: float) -> Verdict:
    try:
        times = msgspec.convert(claims, _Times)
    except msgspec.ValidationError:
        raise _Refused("the token has no exp or no iat, or one of its times is no number") from None
    if not all(abs(time) < _SECONDS_MAX for time in (times.exp, times.iat, times.nbf)):
        raise _Refused("the token has a time that is out of range")
    if times.exp <= now_s:
        raise _Refused("the token has expired")
    if times.exp < times.iat:
        raise _Refused("the token ends before it was issued")
    if times.nbf > now_s + rules.skew_s:
        raise _Refused("the token is not valid yet")
    if claims.get("iss") != rules.issuer:
        raise _Refused("the token is of another issuer")
    audiences = claims.get("aud")
    named = {audiences} if isinstance(audiences, str) else set(_texts(audiences) or ())
    if named.isdisjoint(rules.audiences):
        raise _Refused("the token is for another audience")
    subject = claims.get(rules.subject_claim)
    if not isinstance(subject, str) or not subject or subject != subject.strip() or not subject.isprintable():
        raise _Refused(f"the token has no usable claim {rules.subject_claim!r}")
    if len(subject) > _SUBJECT_CHARACTERS_MAX:
        raise _Refused(f"the token's claim {rules.subject_claim!r} is too long")
    scope = claims.get(rules.scope_claim, "")
    if not isinstance(scope, str) and _texts(scope) is None:
        raise _Refused(f"the token's claim {rules.scope_claim!r} is neither text nor a list of texts")
    return Verdict(subject, max(1, int((times.exp - now_s) * 1000)))


def _texts(value: object) -> list[str] | None:
    """The texts of a list; None if the value is not a list of texts."""
    if not isinstance(value, list):
        return None
    items: list[object] = value
    texts = [item for item in items if isinstance(item, str)]
    return texts if len(texts) == len(items) else None


def _parsed(decode: Callable[[bytes], _T], part: str, what: str) -> _T:
    try:
        return decode(_bytes(part, what))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise _Refused(f"the token's {what} cannot be read") from None


def _bytes(part: str, what: str) -> bytes:
    """Base64 in the alphabet of URLs, without padding."""
    try:
        if "=" in part or "+" in part or "/" in part:
            raise ValueError
        return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise _Refused(f"the token's {what} is not base64") from None
