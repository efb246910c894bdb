"""OpenSSL contexts for both sides of a connection.

TLS 1.2 or newer, without tickets, renegotiation and compression. A server asks for a client's certificate as
``ssl.client.auth`` says. A client trusts the authorities that it was given, or the system's, and checks that the
certificate is for the host that it dialled.

Bad material is ``Rejected`` in words: a key that does not fit its certificate, a wrong password, an authority that is
none. Key and chain reach OpenSSL through an anonymous file in memory, because Python's ``ssl`` reads files only.
"""

import os
import ssl
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from millstream.errors import Rejected
from millstream.secure.material import Material
from millstream.secure.options import NONE, REQUIRED, TlsOptions

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SUITES_13: Final = frozenset(("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"))
_OPTIONS: Final = ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET
_REASONS: Final = {
    "KEY_VALUES_MISMATCH": "the private key does not fit the certificate",
    "EE_KEY_TOO_SMALL": "the key is too short, expected RSA of 2048 bits or more, or ECDSA",
    "CA_MD_TOO_WEAK": "the signature of the certificate is too weak, expected SHA-256 or better",
}


def server_context(material: Material, options: TlsOptions) -> ssl.SSLContext:
    """A context for the accepting side.

    Raises:
        Rejected: the material cannot be used.
    """
    if not material.chain:
        raise Rejected("TLS needs a certificate: set ssl.keystore.location, or 'millstream security init' makes one")
    if options.client_auth != NONE and not material.trusted:
        raise Rejected(
            f"ssl.client.auth={options.client_auth} needs the authorities of the clients: set ssl.truststore.location"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    _restrict(context, options)
    if options.client_auth != NONE:
        context.verify_mode = ssl.CERT_REQUIRED if options.client_auth == REQUIRED else ssl.CERT_OPTIONAL
    _load(context, material)
    return context


def client_context(material: Material, options: TlsOptions, *, check_name: bool = True) -> ssl.SSLContext:
    """A context for the dialling side. Without ``check_name`` any name that a trusted authority signed is taken.

    Raises:
        Rejected: the material cannot be used.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = check_name
    _restrict(context, options)
    if not material.trusted:
        context.load_default_certs()
    _load(context, material)
    return context


def _restrict(context: ssl.SSLContext, options: TlsOptions) -> None:
    """Protocol versions and cipher suites."""
    context.options |= _OPTIONS
    versions = sorted(_VERSIONS[name] for name in options.enabled_protocols)
    lowest, highest = versions[0], versions[-1]
    if options.cipher_suites:
        modern = _SUITES_13.intersection(options.cipher_suites)
        older = [_openssl_name(name) for name in options.cipher_suites if name not in _SUITES_13]
        if modern and modern != _SUITES_13:
            names = ", ".join(sorted(_SUITES_13))
            raise Rejected(f"ssl.cipher.suites has some suites of TLS 1.3, expected none or all of them: {names}")
        lowest = lowest if older else ssl.TLSVersion.TLSv1_3
        highest = highest if modern else ssl.TLSVersion.TLSv1_2
        if lowest > highest:
            raise Rejected("ssl.cipher.suites has no suite for a version of ssl.enabled.protocols")
        if older:
            try:
                context.set_ciphers(":".join(older))
            except ssl.SSLError:
                raise Rejected(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(older)}") from None
    context.minimum_version, context.maximum_version = lowest, highest


def _openssl_name(name: str) -> str:
    """OpenSSL's name of a suite of TLS 1.2: IANA's ``TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256`` is
    ``ECDHE-RSA-AES128-GCM-SHA256``.
    """
    if not name.startswith("TLS_"):
        return name
    exchange, _, cipher = name.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    cipher = cipher.replace("_CBC_", "_")
    prefix = "" if exchange == "RSA" else f"{exchange}_"
    return f"{prefix}{cipher}".replace("_", "-")


def _load(context: ssl.SSLContext, material: Material) -> None:
    try:
        if material.chain:
            with _in_memory(material.chain, material.key) as path:
                context.load_cert_chain(path, password=material.key_password)
        if material.trusted:
            context.load_verify_locations(cadata=material.trusted.decode("ascii", "replace"))
    except ssl.SSLError as error:
        raise Rejected(f"the TLS key store cannot be used: {_words(error.reason or '', material)}") from None
    except (OSError, ValueError) as error:
        raise Rejected(f"the TLS key store cannot be used: {error}") from None


def _words(reason: str, material: Material) -> str:
    if reason in _REASONS:
        return _REASONS[reason]
    if b"ENCRYPTED" in material.key:
        return "the private key is encrypted, and ssl.key.password does not open it"
    return reason.lower().replace("_", " ") or "a key or a certificate is damaged"


@contextmanager
def _in_memory(*parts: bytes) -> Generator[str]:
    """The path of an anonymous file in memory with these bytes; it is gone at the end."""
    descriptor = os.memfd_create("millstream-tls", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.writelines(parts)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)
