"""How a client proves itself and what it trusts, by Kafka's setting names in Java's and librdkafka's spelling.

::

    properties ──read_security──► Security ──► secured(socket)             our own client
                                     └────────► to_librdkafka(security)    confluent-kafka

A ``Security`` is plain data: it travels to other processes, and its repr shows no secret. Files are read where the
connection is made. ``${env:NAME}``, ``${file:PATH}`` and ``${file:PATH:KEY}`` in a value stand for what is there; they
are resolved by ``resolve`` when the value is used, so that a declaration can be shown.

Bad input: a name that starts with ``security.``, ``ssl.`` or ``sasl.`` and is not one of Kafka's is ``Rejected`` with
the nearest one, because a misspelt name would silently weaken the connection. Other names are not this room's.
``sasl.jaas.config`` is read by its grammar, for three modules; nothing is loaded by name.
"""

import base64
import os
import re
import socket
import ssl
import urllib.parse
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Final

import msgspec

from millstream.config.listeners import is_loopback
from millstream.config.properties_file import parse_properties
from millstream.config.urls import EXPECTED, file_of, is_issuer_url
from millstream.errors import Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.secure.contexts import client_context
from millstream.secure.material import read_material
from millstream.secure.options import PROTOCOLS, TlsOptions
from millstream.secure.tokens.issuer import Token, TokenEndpoint, token_from, token_of
from millstream.secure.words import say

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
_TLS_FIELDS: Final = {
    "ssl.keystore.type": "keystore_type",
    "ssl.keystore.location": "keystore_location",
    "ssl.keystore.password": "keystore_password",
    "ssl.key.password": "key_password",
    "ssl.keystore.key": "keystore_key",
    "ssl.key.pem": "keystore_key",
    "ssl.keystore.certificate.chain": "keystore_certificate_chain",
    "ssl.certificate.pem": "keystore_certificate_chain",
    "ssl.key.location": "key_location",
    "ssl.certificate.location": "certificate_location",
    "ssl.truststore.type": "truststore_type",
    "ssl.truststore.location": "truststore_location",
    "ssl.ca.location": "truststore_location",
    "ssl.truststore.password": "truststore_password",
    "ssl.truststore.certificates": "truststore_certificates",
    "ssl.ca.pem": "truststore_certificates",
}
_OTHERS: Final = (
    "security.protocol",
    "ssl.enabled.protocols",
    "ssl.protocol",
    "ssl.cipher.suites",
    "ssl.endpoint.identification.algorithm",
    "enable.ssl.certificate.verification",
    "sasl.mechanism",
    "sasl.mechanisms",
    "sasl.username",
    "sasl.password",
    "sasl.jaas.config",
    "sasl.oauthbearer.token",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.client.id",
    "sasl.oauthbearer.client.secret",
    "sasl.oauthbearer.scope",
    "https.ca.location",
)
_FIXED: Final = {
    "sasl.oauthbearer.method": ("oidc", "default"),
    "sasl.oauthbearer.jwt.retriever.class": (
        "DefaultJwtRetriever",
        "ClientCredentialsJwtRetriever",
        "FileJwtRetriever",
    ),
    "sasl.login.callback.handler.class": ("OAuthBearerLoginCallbackHandler",),
}
"""Names that other clients need to get a token, with the values that mean what is done here. Classes are not loaded."""
NAMES: Final = (*_TLS_FIELDS, *_OTHERS, *_FIXED)
"""Every name that is read."""

_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}:]+)(?::([^}]+))?\}")
_PAIR: Final = r'([\w.]+)=("(?:\\.|[^"\\])*"|[^\s;"]+)'
_JAAS_PAIR: Final = re.compile(_PAIR)
_JAAS: Final = re.compile(
    rf"\s*([\w.]+)\s+(?:required|requisite|sufficient|optional)((?:\s+{_PAIR})*)\s*;\s*\Z", re.DOTALL
)
_MODULES: Final = {"PlainLoginModule": "PLAIN", "ScramLoginModule": "SCRAM", "OAuthBearerLoginModule": "OAUTHBEARER"}
_FILE_BYTES_MAX: Final = 1 << 20


class Login(msgspec.Struct, frozen=True):
    """What is said to a listener with SASL."""

    mechanism: str
    username: str = ""
    password: str = ""
    token: str = ""
    """A JSON web token, for OAUTHBEARER."""
    endpoint: TokenEndpoint | None = None
    """Where to get the token instead."""
    host: str = ""
    """Where ``username`` comes from, for ``wire.sasl.ON_BEHALF``. No property sets it."""

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.username!r})"


class Security(msgspec.Struct, frozen=True):
    """How a client connects. The default is no TLS and no login."""

    protocol: str = "PLAINTEXT"
    tls: TlsOptions = TlsOptions()
    check_name: bool = True
    """Whether the broker's certificate has to be for the host that was dialled."""
    verify: bool = True
    """Whether the broker's certificate has to be signed by a trusted authority."""
    login: Login | None = None
    opening: bytes = b""
    """Clear bytes that come before TLS, on the peer addresses of brokers."""

    @property
    def speaks_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    def __repr__(self) -> str:
        return f"Security({self.protocol}, {self.login})"


PLAIN: Final = Security()


def read_security(properties: Mapping[str, str]) -> Security:
    """The security among ``properties``; names of other rooms are passed over.

    Raises:
        Rejected: a name or value is not Kafka's; the message has no secret.
    """
    for name in properties:
        if name.startswith(("security.", "ssl.", "sasl.")) and name not in NAMES:
            near = get_close_matches(name, NAMES, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise Rejected(f"{name}: there is no such setting of a client's security{hint}")
    given = {name: resolve(properties[name]).strip() for name in NAMES if name in properties}
    protocol = given.get("security.protocol", "PLAINTEXT").upper()
    if protocol not in SECURITY_PROTOCOLS:
        raise Rejected(f"security.protocol: {protocol!r} is not valid, expected {', '.join(SECURITY_PROTOCOLS)}")
    for name, words in _FIXED.items():
        if given.get(name, words[0]).rpartition(".")[2] not in words:
            raise Rejected(f"{name}: {given[name]!r} is not supported, expected {' or '.join(words)}")
    login = _login(given) if protocol.startswith("SASL") else None
    naming = given.get("ssl.endpoint.identification.algorithm", "https").lower()
    if naming not in ("https", "none", ""):
        raise Rejected(f"ssl.endpoint.identification.algorithm: {naming!r} is not valid, expected https or none")
    verify = given.get("enable.ssl.certificate.verification", "true").lower() != "false"
    return Security(protocol, _tls(given), verify and naming == "https", verify, login)


def _tls(given: Mapping[str, str]) -> TlsOptions:
    values: dict[str, Any] = {field: given[name] for name, field in _TLS_FIELDS.items() if given.get(name)}
    if values.get("truststore_location") == "probe":
        del values["truststore_location"]  # librdkafka's word for the system's authorities
    for kind in ("keystore_type", "truststore_type"):
        if kind in values:
            values[kind] = values[kind].upper()
    protocols = tuple(_words(given.get("ssl.enabled.protocols", ""))) or PROTOCOLS
    if not set(protocols) <= set(PROTOCOLS):
        raise Rejected(f"ssl.enabled.protocols: expected some of {', '.join(PROTOCOLS)}")
    return TlsOptions(
        **values, enabled_protocols=protocols, cipher_suites=tuple(_words(given.get("ssl.cipher.suites", "")))
    )


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _login(given: Mapping[str, str]) -> Login:
    mechanism = (given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "").upper()
    if mechanism not in MECHANISMS:
        raise Rejected(f"sasl.mechanism: {mechanism!r} is not valid, expected {', '.join(MECHANISMS)}")
    jaas = _jaas(given["sasl.jaas.config"], mechanism) if "sasl.jaas.config" in given else {}
    username = given.get("sasl.username", jaas.get("username", ""))
    password = given.get("sasl.password", jaas.get("password", ""))
    token = given.get("sasl.oauthbearer.token", jaas.get("token", ""))
    if mechanism == "OAUTHBEARER":
        endpoint = None if token else _endpoint(given, jaas)
        return Login(mechanism, token=token, endpoint=endpoint)
    if not username or not password:
        raise Rejected(f"sasl.mechanism={mechanism} needs sasl.username and sasl.password")
    return Login(mechanism, username, password)


def _endpoint(given: Mapping[str, str], jaas: Mapping[str, str]) -> TokenEndpoint:
    """Where the token comes from."""

    def value(what: str, of_jaas: str) -> str:
        java = given.get(f"sasl.oauthbearer.client.credentials.{what}", "")
        return java or given.get(f"sasl.oauthbearer.{what}", "") or jaas.get(of_jaas, "")

    url = given.get("sasl.oauthbearer.token.endpoint.url", "")
    if not url:
        raise Rejected(
            "sasl.mechanism=OAUTHBEARER needs sasl.oauthbearer.token.endpoint.url, such as file:///PATH or https://…, "
            "or sasl.oauthbearer.token, such as ${file:PATH}"
        )
    if not is_issuer_url(url):
        raise Rejected(f"sasl.oauthbearer.token.endpoint.url: expected {EXPECTED}")
    client_id, secret = value("client.id", "clientId"), value("client.secret", "clientSecret")
    if not (client_id and secret) and not file_of(url):
        raise Rejected(
            "sasl.oauthbearer.token.endpoint.url needs sasl.oauthbearer.client.credentials.client.id and …client.secret"
        )
    return TokenEndpoint(url, client_id, secret, value("scope", "scope"), given.get("https.ca.location", ""))


def token_for(login: Login) -> Token:
    """The token of a login by OAUTHBEARER. May wait for its issuer, for ten seconds.

    Raises:
        Rejected: the issuer refuses, or its answer has no token.
        Unavailable: the issuer does not answer.
    """
    return token_of(login.token) if login.endpoint is None else token_from(login.endpoint)


def _jaas(text: str, mechanism: str) -> dict[str, str]:
    """The options of a JAAS line. The module has to be that of the mechanism."""
    found = _JAAS.match(text)
    module = found[1].rpartition(".")[2] if found else ""
    if found is None or module not in _MODULES:
        raise Rejected('sasl.jaas.config: expected one line such as ….PlainLoginModule required username="…" …;')
    if not mechanism.startswith(_MODULES[module]):
        raise Rejected(f"sasl.jaas.config: {module} is not for sasl.mechanism={mechanism}")
    pairs: dict[str, str] = {}
    for name, value in _JAAS_PAIR.findall(found[2]):
        pairs[name] = re.sub(r"\\(.)", r"\1", value[1:-1]) if value.startswith('"') else value
    return pairs


def resolve(text: str) -> str:
    """``text`` with what its references stand for.

    Raises:
        Rejected: a variable or file is missing.
    """
    return _REFERENCE.sub(_referred, text)


def _referred(reference: "re.Match[str]") -> str:
    kind, name, key = reference.groups()
    if kind == "env":
        value = os.environ.get(name)
        if value is None:
            raise Rejected(f"${{env:{name}}}: the environment has no variable {name}")
        return value
    try:
        with open(name, encoding="utf-8") as file:
            text = file.read(_FILE_BYTES_MAX)
    except (OSError, UnicodeDecodeError) as error:
        raise Rejected(f"${{file:{name}}} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not key:
        return text.strip()
    value = {each: value for _, each, value in parse_properties(text)}.get(key)
    if value is None:
        raise Rejected(f"${{file:{name}:{key}}}: the file has no line {key}=…")
    return value


# Connections


def context_of(security: Security) -> ssl.SSLContext:
    """The context of a client's connections; the same one until a file changes.

    Raises:
        Rejected: the key material cannot be used.
    """
    return _context(security, tuple(map(_stamp, security.tls.files)))


@lru_cache(maxsize=32)
def _context(security: Security, stamps: tuple[tuple[int, int], ...]) -> ssl.SSLContext:
    _ = stamps
    context = client_context(read_material(security.tls), security.tls, check_name=security.check_name)
    if not security.verify:
        context.verify_mode = ssl.CERT_NONE
    return context


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_ino, found.st_mtime_ns)


def secured(sock: socket.socket, host: str, security: Security) -> socket.socket:
    """A connected socket as the security wants it. It is this function's: closed on failure.

    Raises:
        Rejected: a retry of the handshake fails, too: the certificate, the name, the protocol.
        Unavailable: the connection is lost.
    """
    if not security.speaks_tls:
        return sock
    try:
        sock.sendall(security.opening)
        return context_of(security).wrap_socket(sock, server_hostname=host)
    except Rejected:
        sock.close()
        raise
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:  # the peer is killed, or does not take TLS
        sock.close()
        raise Unavailable(f"TLS failed with {host}: {say(error)}", ErrorCode.NETWORK_EXCEPTION) from None
    except ssl.SSLError as error:
        sock.close()
        raise Rejected(f"TLS failed with {host}: {say(error)}", ErrorCode.SASL_AUTHENTICATION_FAILED) from None
    except OSError as error:
        sock.close()
        raise Unavailable(f"TLS failed with {host}: {say(error)}", ErrorCode.NETWORK_EXCEPTION) from None


def http_login(security: Security, url: str) -> dict[str, str]:
    """The header by which the same user logs in over HTTP; none where it shows a certificate, or nothing.

    Raises:
        Rejected: the password or token would cross a network in clear; or its issuer refuses.
        Unavailable: the issuer of its token does not answer.
    """
    login = security.login
    if login is None:
        return {}
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise Rejected(f"{parts.scheme}://{parts.netloc} is not encrypted, and a login would cross it in clear")
    if login.mechanism == "OAUTHBEARER":
        return {"Authorization": f"Bearer {token_for(login).text}"}
    pair = f"{login.username}:{login.password}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode()}"}


def is_brokers_host(url: str, bootstrap: str) -> bool:
    """Whether a URL is on a host of these ``host:port`` addresses, or on this machine. No other host is shown a login:
    it is for the brokers.
    """
    hosts = {address.rpartition(":")[0].strip("[] ") for address in bootstrap.split(",")}
    host = urllib.parse.urlsplit(url).hostname or ""
    return host in hosts or is_loopback(host)


class _Token:
    """Gives librdkafka a token whenever it asks: at first, and when most of the last one's time is over."""

    def __init__(self, login: Login) -> None:
        self._login = login

    def __call__(self, _: str) -> tuple[str, float]:
        return token_for(self._login)


def to_librdkafka(security: Security) -> dict[str, Any]:
    """The same security as settings of librdkafka. Key material is PEM there.

    Raises:
        Rejected: the key material cannot be used.
    """
    found: dict[str, Any] = {"security.protocol": security.protocol.lower()}
    if security.speaks_tls:
        material = read_material(security.tls)
        naming = "https" if security.check_name else "none"
        found["ssl.endpoint.identification.algorithm"] = naming
        found["enable.ssl.certificate.verification"] = security.verify
        if material.trusted:
            found["ssl.ca.pem"] = material.trusted.decode()
        if material.chain:
            found["ssl.certificate.pem"] = material.chain.decode()
            found["ssl.key.pem"] = material.key.decode()
            if material.key_password:
                found["ssl.key.password"] = material.key_password
    login = security.login
    if login is not None:
        found["sasl.mechanism"] = login.mechanism
        if login.mechanism == "OAUTHBEARER":
            found["oauth_cb"] = _Token(login)
        else:
            found["sasl.username"], found["sasl.password"] = login.username, login.password
    return found
