"""Reads keys and certificates: PEM files, PEM text in a setting, PKCS12 files.

A PEM file of a key store has the private key and the certificate chain in any order, as in Kafka; one of a trust store
has certificates. PKCS12 needs the package of the extra ``security``. Java's own format (JKS) is refused with the
command that converts it.

Bad input: a missing, unreadable, empty, enormous or foreign file is ``Rejected``, which names the file. Whether a key
fits its certificate is seen when a context is made (``contexts``). Nothing is written: a file is read once, whole.
"""

import re
from typing import Any, Final

import msgspec

from millstream.errors import Rejected, how_to_install
from millstream.secure.options import TlsOptions

FILE_BYTES_MAX: Final = 4 << 20
"""A bundle of all public authorities has 250 KB."""

TYPES: Final = ("PEM", "PKCS12", "JKS")
_JKS: Final = bytes.fromhex("feedfeed"), bytes.fromhex("cececece")
_BLOCK: Final = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_CERTIFICATES: Final = (b"CERTIFICATE", b"X509 CERTIFICATE", b"TRUSTED CERTIFICATE")


class Material(msgspec.Struct, frozen=True):
    """Key and certificates as PEM. Empty where there are none."""

    key: bytes = b""
    key_password: str = ""
    chain: bytes = b""
    """The own certificate first, then intermediates."""
    trusted: bytes = b""
    """Authorities whose certificates are taken from the other side."""

    def __repr__(self) -> str:
        return f"Material({len(self.chain)} bytes of chain, {len(self.trusted)} of authorities)"  # never the key


def read_material(options: TlsOptions) -> Material:
    """The material that ``options`` name.

    Raises:
        Rejected: a file or text is not what it should be.
    """
    key, chain, password = _own(options)
    if bool(key) != bool(chain):
        missing = "private key" if chain else "certificate"
        raise Rejected(f"{_store(options)} has no {missing}, expected the private key and its certificate chain")
    return Material(key, password, chain, _trusted(options))


def _store(options: TlsOptions) -> str:
    return options.keystore_location or options.certificate_location or "the inline key store"


def _own(options: TlsOptions) -> tuple[bytes, bytes, str]:
    """Private key, certificate chain and password of the key."""
    password = options.key_password
    if options.keystore_location:
        data = _read(options.keystore_location)
        if _kind(options.keystore_location, data, options.keystore_type) == "PKCS12":
            key, chain, _ = _pkcs12(options.keystore_location, data, options.keystore_password)
            return key, chain, ""
        blocks = _blocks(options.keystore_location, data)
        return _keys(blocks), _certificates(blocks), password
    key_text, chain_text = options.keystore_key.encode(), options.keystore_certificate_chain.encode()
    if options.key_location:
        key_text = _read(options.key_location)
    if options.certificate_location:
        chain_text = _read(options.certificate_location)
    key = _keys(_blocks(options.key_location or "ssl.keystore.key", key_text)) if key_text else b""
    chain_name = options.certificate_location or "ssl.keystore.certificate.chain"
    chain = _certificates(_blocks(chain_name, chain_text)) if chain_text else b""
    return key, chain, password


def _trusted(options: TlsOptions) -> bytes:
    name = options.truststore_location
    if name:
        data = _read(name)
        if _kind(name, data, options.truststore_type) == "PKCS12":
            _, chain, others = _pkcs12(name, data, options.truststore_password)
            found = chain + others
        else:
            found = _certificates(_blocks(name, data))
    elif options.truststore_certificates:
        name = "ssl.truststore.certificates"
        found = _certificates(_blocks(name, options.truststore_certificates.encode()))
    else:
        return b""
    if not found:
        raise Rejected(f"{name} has no certificate, expected those of the authorities to trust")
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Rejected(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise Rejected(f"{path} has more than {FILE_BYTES_MAX} bytes, expected a key store")
    return data


def _kind(path: str, data: bytes, declared: str) -> str:
    """PEM or PKCS12, by what the file begins with. A JKS file, or a type that is not the file's, is refused."""
    if data[:4] in _JKS or declared == "JKS":
        raise Rejected(
            f"{path} is a Java key store (JKS), which only Java reads; convert it with: keytool -importkeystore "
            f"-srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12, and set the type to PKCS12"
        )
    found = "PEM" if b"-----BEGIN " in data else "PKCS12" if data[:1] == b"\x30" else ""
    if not found:
        raise Rejected(f"{path} is neither PEM nor PKCS12")
    if found == "PEM" and declared == "PKCS12":
        raise Rejected(f"{path} is PEM, and its type is set to PKCS12; set the type to PEM")
    return found


def _blocks(name: str, data: bytes) -> list[tuple[bytes, bytes]]:
    """Label and text of each PEM block. A setting in one line may have spaces where line ends were, as in Kafka."""
    found = [(match[1], _in_lines(match[1], match[0])) for match in _BLOCK.finditer(data)]
    if not found:
        raise Rejected(f"{name} has no PEM block, expected text that begins with -----BEGIN")
    return found


def _in_lines(label: bytes, block: bytes) -> bytes:
    if b"\n" in block:
        return block + b"\n"
    begin, end = b"-----BEGIN " + label + b"-----", b"-----END " + label + b"-----"
    return b"\n".join((begin, *block[len(begin) : -len(end)].split(), end, b""))


def _keys(blocks: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(text for label, text in blocks if label.endswith(b"PRIVATE KEY"))


def _certificates(blocks: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(text for label, text in blocks if label in _CERTIFICATES)


def _pkcs12(path: str, data: bytes, password: str) -> tuple[bytes, bytes, bytes]:
    """Key, chain and other certificates of a PKCS12 file, as PEM."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.serialization import pkcs12
    except ImportError:
        install = how_to_install("security")
        raise Rejected(f"{path} is PKCS12, which needs a package that is not installed: {install}") from None
    try:
        store: Any = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise Rejected(f"{path} cannot be opened: the password is wrong, or the file is damaged") from None
    pem = serialization.Encoding.PEM
    key = b""
    if store.key is not None:
        plain = serialization.NoEncryption()
        key = store.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    own = [] if store.cert is None else [store.cert.certificate]
    others = [each.certificate for each in store.additional_certs]
    if key:
        return key, b"".join(each.public_bytes(pem) for each in own + others), b""
    return b"", b"", b"".join(each.public_bytes(pem) for each in own + others)
