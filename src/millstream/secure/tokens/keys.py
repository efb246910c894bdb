"""A set of public keys, as JSON (RFC 7517).

Only keys that may verify signatures count: RSA of at least 2,048 bits and the three NIST curves. Symmetric keys, keys
for encryption and keys that cannot be read are left out and counted, so that one odd key does not take away the others.
A document that has no key left is refused as a whole: the keys that were good before stay.
"""

import warnings
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

DOCUMENT_BYTES_MAX: Final = 1 << 20
_KEYS_MAX: Final = 1_000
_RSA_BITS_MIN: Final = 2048
_RSA_BITS_MAX: Final = 8192
"""Verifying with a larger key takes milliseconds."""
_CURVES: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_RSA_ALGORITHMS: Final = frozenset(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"))


class BadKeys(ValueError):
    """The document has no usable key. The message is for the broker's log."""


class _Document(msgspec.Struct):
    keys: list[dict[str, Any]]


class SignerKey(msgspec.Struct, frozen=True):
    """A public key and the algorithms that it may be used with."""

    key: RSAKey | ECKey
    algorithms: frozenset[str]


class KeySet(msgspec.Struct, frozen=True):
    """Keys by their id; those without an id under the empty text. Immutable."""

    by_id: Mapping[str, tuple[SignerKey, ...]]
    left_out: int = 0

    def candidates(self, key_id: str | None, algorithm: str) -> list[SignerKey]:
        """The keys that may have signed a token: those of its id, or all if it has none."""
        groups = self.by_id.values() if key_id is None else [self.by_id.get(key_id, ())]
        return [key for group in groups for key in group if algorithm in key.algorithms]

    def knows(self, key_id: str | None) -> bool:
        """Whether there is a key of this id; True for a token that names none."""
        return key_id is None or key_id in self.by_id


def read_keys(data: bytes) -> KeySet:
    """The keys of a document. Raises BadKeys."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise BadKeys(f"the document has more than {DOCUMENT_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(data, type=_Document).keys
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise BadKeys('the document is not JSON of the form {"keys": […]}') from None
    if len(found) > _KEYS_MAX:
        raise BadKeys(f"the document has more than {_KEYS_MAX} keys")
    by_id: dict[str, tuple[SignerKey, ...]] = {}
    left_out = 0
    for each in found:
        key = _signer(each)
        key_id = each.get("kid", "")
        if key is None or not isinstance(key_id, str):
            left_out += 1
            continue
        by_id[key_id] = (*by_id.get(key_id, ()), key)
    if not by_id:
        raise BadKeys(f"none of its {len(found)} keys is a public RSA or elliptic key for signatures")
    return KeySet(by_id, left_out)


def _signer(fields: dict[str, Any]) -> SignerKey | None:
    """The key; None for one that is not to be used."""
    operations = fields.get("key_ops", ["verify"])
    if fields.get("use", "sig") != "sig" or not isinstance(operations, list) or "verify" not in operations:
        return None
    public = {name: value for name, value in fields.items() if name in ("kty", "n", "e", "crv", "x", "y")}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of short RSA keys, which are left out below
            if fields.get("kty") == "RSA":
                key: RSAKey | ECKey = RSAKey.import_key(public)
                bits = key.public_key.key_size
                usable = _RSA_ALGORITHMS if _RSA_BITS_MIN <= bits <= _RSA_BITS_MAX else frozenset[str]()
            elif fields.get("kty") == "EC" and fields.get("crv") in _CURVES:
                key = ECKey.import_key(public)
                _ = key.public_key  # a point beside the curve is found here
                usable = frozenset((_CURVES[fields["crv"]],))
            else:
                return None
    except (JoseError, ValueError, TypeError, KeyError, OverflowError):
        return None
    if "alg" in fields:
        usable &= {fields["alg"]} if isinstance(fields["alg"], str) else frozenset()
    return SignerKey(key, frozenset(usable)) if usable else None
