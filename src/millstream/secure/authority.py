"""Makes an authority and certificates, with the package of the extra ``security`` (``cryptography``).

Keys are ECDSA on P-256: a handshake costs half of what it costs with RSA of 2,048 bits, and every client takes them.
Private keys are PEM (PKCS#8) without a password: a file of mode 0600 protects them, as it would protect the password.
"""

import datetime as dt
import ipaddress
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from millstream.errors import Rejected, how_to_install

AUTHORITY_DAYS: Final = 3_650
CERTIFICATE_DAYS: Final = 397
"""Longest life that browsers and Java's tools take without a word."""
_CLOCK_SKEW: Final = dt.timedelta(hours=1)
_NAME_CHARACTERS_MAX: Final = 64
"""Of a common name (RFC 5280, upper bounds)."""


class Pair(NamedTuple):
    """A private key and its certificate, PEM."""

    key: bytes
    certificate: bytes


def make_authority(name: str, *, days: int = AUTHORITY_DAYS) -> Pair:
    """A self-signed authority that signs certificates, and no further authorities.

    Raises:
        Rejected: the package is not installed, or ``name`` is too long.
    """
    x509, ec, hashes = _library()
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(x509, name)
    builder = _begin(x509, subject, subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(x509, signs=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return _pair(key, builder.sign(key, hashes.SHA256()))


def issue(authority: Pair, name: str, hosts: Sequence[str] = (), *, days: int = CERTIFICATE_DAYS) -> Pair:
    """A certificate of ``authority`` for ``CN=name``. With ``hosts`` (names and addresses) it is a server's, and a
    client's too, as brokers of a cluster are both; without, a client's.

    Raises:
        Rejected: the package is not installed, the authority cannot be read, or a name cannot be used.
    """
    x509, ec, hashes = _library()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        signer: Any = load_pem_private_key(authority.key, None)
        parent: Any = x509.load_pem_x509_certificate(authority.certificate)
    except (ValueError, TypeError) as error:
        raise Rejected(f"the authority cannot be read: {error}") from None
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _begin(x509, _subject(x509, name), parent.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(x509, signs=False), critical=True)
    purposes = [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    if hosts:
        purposes.insert(0, x509.oid.ExtendedKeyUsageOID.SERVER_AUTH)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_host(x509, host) for host in hosts]), critical=False
        )
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(
        x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
    )
    return _pair(key, builder.sign(signer, hashes.SHA256()))


def _library() -> tuple[Any, Any, Any]:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        install = how_to_install("security")
        raise Rejected(f"making certificates needs a package that is not installed: {install}") from None
    return x509, ec, hashes


def _subject(x509: Any, name: str) -> Any:
    if not 0 < len(name) <= _NAME_CHARACTERS_MAX:
        raise Rejected(f"{name!r} is no name for a certificate, expected 1 to {_NAME_CHARACTERS_MAX} characters")
    return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name)])


def _begin(x509: Any, subject: Any, issuer: Any, key: Any, days: int) -> Any:
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now - _CLOCK_SKEW).not_valid_after(now + dt.timedelta(days=days))


def _usage(x509: Any, *, signs: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _host(x509: Any, host: str) -> Any:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        return x509.DNSName(host.encode("idna").decode("ascii"))
    except (UnicodeError, ValueError):
        raise Rejected(f"{host!r} is neither a host name nor an address") from None


def _pair(key: Any, certificate: Any) -> Pair:
    from cryptography.hazmat.primitives import serialization

    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Pair(private, certificate.public_bytes(pem))
