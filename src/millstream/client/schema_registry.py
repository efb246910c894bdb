"""How a client reaches a schema registry: where it is, as whom, and what is trusted there.

::

    URL, properties, the brokers' security ──registry_access──► RegistryAccess ──ask──► document

Properties have Confluent's names (``REGISTRY_NAMES``), with or without ``schema.registry.`` before them. TLS settings
need it, because ``ssl.…`` alone is the brokers'. One login and one trust store belong to each URL:

=================================================  ==========================  ====================================
Given                                              Login                       Trust store, and own certificate
=================================================  ==========================  ====================================
``basic.auth.…``, ``bearer.auth.…``                that one                    –
``https://NAME:PASSWORD@HOST``                     that one                    –
``schema.registry.ssl.…``                          –                           these
nothing, and the host is one of the brokers'       as on their connections     as on their connections
nothing, another host                              none                        the brokers' trust store, no certificate
=================================================  ==========================  ====================================

The brokers' login and certificate are never shown to another host. Redirects are not followed, so that no
login goes where the URL does not say. A login in clear is for this machine only. A ``RegistryAccess`` is plain data and
travels to other processes; its repr and all messages are without secrets.

Bad input: an unknown name of the registry's, or settings that contradict each other, are ``Rejected`` before anything
is sent. Overload and crash: each request has a time limit and a bound on its answer; nothing is kept.
"""

import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import msgspec

from millstream.client.security import (
    NAMES,
    PLAIN,
    Login,
    Security,
    context_of,
    http_login,
    is_brokers_host,
    read_security,
    resolve,
)
from millstream.config.listeners import is_loopback
from millstream.config.urls import EXPECTED, authority_of, is_issuer_url
from millstream.errors import Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.secure.options import TlsOptions
from millstream.secure.tokens.issuer import TokenEndpoint
from millstream.secure.words import say

PREFIX: Final = "schema.registry."
REGISTRY_URL: Final = "schema.registry.url"
_LOGIN: Final = (
    "basic.auth.credentials.source",
    "basic.auth.user.info",
    "bearer.auth.credentials.source",
    "bearer.auth.token",
    "bearer.auth.issuer.endpoint.url",
    "bearer.auth.client.id",
    "bearer.auth.client.secret",
    "bearer.auth.scope",
    "bearer.auth.logical.cluster",
    "bearer.auth.identity.pool.id",
)
_TLS: Final = tuple(name for name in NAMES if name.startswith(("ssl.", "enable.ssl.")))
REGISTRY_NAMES: Final = (REGISTRY_URL, *_LOGIN, *(PREFIX + name for name in (*_LOGIN, *_TLS)))
"""Every name that is read."""

MEDIA: Final = "application/vnd.schemaregistry.v1+json"
BYTES_MAX: Final = 64 << 20
"""Maximum size of an answer. A schema has at most a megabyte; a list of subjects has one line each."""
TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.1
_AGAIN: Final = (408, 429, 500, 502, 503, 504)
"""Statuses after which the same GET may succeed."""


class RegistryRefused(Rejected):
    """The registry answered with an error: ``status`` is that of HTTP, ``error_code`` the registry's own (0: none)."""

    def __init__(self, message: str, status: int, error_code: int = 0) -> None:
        super().__init__(message, ErrorCode.INVALID_REQUEST)
        self.status = status
        self.error_code = error_code


class _Place(msgspec.Struct, frozen=True):
    """One URL of a registry, without user and password, and how to prove oneself there."""

    url: str
    security: Security
    headers: tuple[tuple[str, str], ...] = ()


class RegistryAccess(msgspec.Struct, frozen=True):
    """A registry and how to prove oneself there: the same registry at one URL or at several."""

    places: tuple[_Place, ...]

    @property
    def url(self) -> str:
        """Where it is, for people."""
        return ", ".join(place.url for place in self.places)

    def __repr__(self) -> str:
        return f"RegistryAccess({self.url})"


def is_registry_name(name: str) -> bool:
    """Whether a property is a registry's, known or not."""
    return name.startswith((PREFIX, "basic.auth.", "bearer.auth."))


def unknown_registry_name(name: str) -> str | None:
    """What is wrong with the name of a property; None if nothing is, or it is not a registry's."""
    if not is_registry_name(name) or name in REGISTRY_NAMES:
        return None
    near = get_close_matches(name, REGISTRY_NAMES, n=1)
    return f"there is no such setting of a schema registry's client{f'; did you mean {near[0]}?' if near else ''}"


def registry_access(
    url: str | None, properties: Mapping[str, str], security: Security = PLAIN, bootstrap: str | None = ""
) -> RegistryAccess:
    """The access that properties describe; those that are not a registry's are passed over.

    Args:
        url: the registry, or several URLs of it with commas; None takes ``schema.registry.url``.
        properties: by Confluent's names; ``${env:NAME}`` and ``${file:PATH}`` are resolved.
        security: the brokers'.
        bootstrap: their addresses. None: ``security`` is meant for the registry itself, wherever it is.

    Raises:
        Rejected: a name or value is not valid; the message has no secret.
    """
    given = _given(properties)
    url = url or given.get("url", "")
    urls = [text.strip().rstrip("/") for text in url.split(",") if text.strip()]
    if not urls:
        raise Rejected(f"{REGISTRY_URL} is missing")
    tls = {name: text for name, text in given.items() if name in _TLS}
    own = read_security({"security.protocol": "SSL", **tls}) if tls else None
    return RegistryAccess(tuple(_place(text, given, own, security, bootstrap) for text in urls))


def _given(properties: Mapping[str, str]) -> dict[str, str]:
    """The registry's properties without their prefix, resolved."""
    given: dict[str, str] = {}
    for name in sorted(properties):  # names with the prefix come later, and win
        if not is_registry_name(name):
            continue
        if (fault := unknown_registry_name(name)) is not None:
            raise Rejected(f"{name}: {fault}")
        given[name.removeprefix(PREFIX)] = resolve(properties[name]).strip()
    return given


def _place(
    text: str, given: Mapping[str, str], own: Security | None, security: Security, bootstrap: str | None
) -> _Place:
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        parts, host, port = urllib.parse.SplitResult("", "", "", "", ""), "", None
    if parts.scheme not in ("http", "https") or not host:
        shown = text.rpartition("@")[2]
        raise Rejected(f"{shown!r} is no URL of a schema registry such as http://127.0.0.1:9644")
    literal = f"[{host}]" if ":" in host else host
    url = urllib.parse.urlunsplit((parts.scheme, literal if port is None else f"{literal}:{port}", parts.path, "", ""))
    is_brokers = bootstrap is None or is_brokers_host(url, bootstrap)
    login = _login(given, parts, security.login, is_brokers=is_brokers)
    trusted = own or (security if is_brokers else _without_certificate(security))
    found = Security("SASL_SSL" if login else "SSL", trusted.tls, trusted.check_name, trusted.verify, login)
    headers = {
        "target-sr-cluster": given.get("bearer.auth.logical.cluster", ""),
        "Confluent-Identity-Pool-Id": given.get("bearer.auth.identity.pool.id", ""),
    }
    return _Place(url, found, tuple((name, value) for name, value in headers.items() if value))


def _without_certificate(security: Security) -> Security:
    """What it trusts, and nothing that it shows of itself."""
    tls = security.tls
    kept = TlsOptions(
        truststore_type=tls.truststore_type,
        truststore_location=tls.truststore_location,
        truststore_password=tls.truststore_password,
        truststore_certificates=tls.truststore_certificates,
        enabled_protocols=tls.enabled_protocols,
        cipher_suites=tls.cipher_suites,
    )
    return Security("SSL", kept, security.check_name, security.verify)


def _login(
    given: Mapping[str, str], parts: urllib.parse.SplitResult, brokers: Login | None, *, is_brokers: bool
) -> Login | None:
    """The login at one URL; None for none."""
    basic, bearer = _source(given, "basic", "user.info"), _source(given, "bearer", "token")
    if basic and bearer:
        raise Rejected("basic.auth.… and bearer.auth.… of a schema registry exclude each other: give one")
    if basic == "USER_INFO":
        name, colon, password = given.get("basic.auth.user.info", "").partition(":")
        if not (name and colon):
            raise Rejected("basic.auth.user.info: expected NAME:PASSWORD")
        if parts.username:
            raise Rejected("basic.auth.user.info, and a user in the URL of the schema registry: give one")
        return Login("PLAIN", name, password)
    if basic == "SASL_INHERIT" or bearer == "SASL_OAUTHBEARER_INHERIT":
        return _inherited(brokers, f"{'basic' if basic else 'bearer'}.auth.credentials.source", is_brokers=is_brokers)
    if basic not in ("", "URL"):
        raise Rejected(
            f"basic.auth.credentials.source: {basic!r} is not supported, expected URL, USER_INFO or SASL_INHERIT"
        )
    if bearer:
        return _bearer(given, bearer)
    if parts.username:
        return Login("PLAIN", urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
    if basic == "URL":
        raise Rejected("basic.auth.credentials.source=URL: the URL of the schema registry has no user")
    return brokers if is_brokers and _is_for_http(brokers) else None


def _source(given: Mapping[str, str], kind: str, short: str) -> str:
    """The credentials source of one kind of login: as it is set, or as its one property implies."""
    implied = {"basic": "USER_INFO", "bearer": "STATIC_TOKEN"}[kind]
    return given.get(f"{kind}.auth.credentials.source", "").upper() or (
        implied if given.get(f"{kind}.auth.{short}") else ""
    )


def _inherited(brokers: Login | None, setting: str, *, is_brokers: bool) -> Login:
    if not is_brokers:
        raise Rejected(f"{setting}: the brokers' login goes to no schema registry on another host than theirs")
    if not _is_for_http(brokers):
        raise Rejected(f"{setting}: there is no login of the brokers' to inherit")
    assert brokers is not None
    return brokers


def _is_for_http(login: Login | None) -> bool:
    return login is not None and bool(login.username or login.token or login.endpoint)


def _bearer(given: Mapping[str, str], source: str) -> Login:
    if source == "STATIC_TOKEN":
        if not (token := given.get("bearer.auth.token", "")):
            raise Rejected("bearer.auth.credentials.source=STATIC_TOKEN needs bearer.auth.token")
        return Login("OAUTHBEARER", token=token)
    if source != "OAUTHBEARER":
        known = "STATIC_TOKEN, OAUTHBEARER or SASL_OAUTHBEARER_INHERIT"
        raise Rejected(f"bearer.auth.credentials.source: {source!r} is not supported, expected {known}")
    url = given.get("bearer.auth.issuer.endpoint.url", "")
    names = ("bearer.auth.issuer.endpoint.url", "bearer.auth.client.id", "bearer.auth.client.secret")
    if missing := [name for name in names if not given.get(name)]:
        raise Rejected(f"bearer.auth.credentials.source=OAUTHBEARER needs {' and '.join(missing)}")
    if not is_issuer_url(url):
        raise Rejected(f"bearer.auth.issuer.endpoint.url: expected {EXPECTED}")
    authorities = given.get("ssl.ca.location", "") or given.get("ssl.truststore.location", "")
    endpoint = TokenEndpoint(
        url,
        given["bearer.auth.client.id"],
        given["bearer.auth.client.secret"],
        given.get("bearer.auth.scope", ""),
        authorities,
    )
    return Login("OAUTHBEARER", endpoint=endpoint)


# Requests


def ask(
    access: RegistryAccess,
    method: str,
    path: str,
    body: Any = None,
    *,
    timeout_s: float = TIMEOUT_S,
    tries: int = 1,
) -> Any:
    """The document that the registry answers with. A GET is sent to the next URL where one fails to answer.

    Args:
        access: the registry.
        method: of HTTP.
        path: starts with a slash; its parts are quoted.
        body: what is sent as JSON; None for nothing.
        timeout_s: limit of each wait for the network.
        tries: how often a GET is sent at most, with growing pauses, if the reason may pass.

    Raises:
        RegistryRefused: it answers with an error.
        Rejected: TLS or login cannot be used, or the login would cross a network in clear.
        Unavailable: nothing answers, or what answers is no registry.
    """
    assert tries >= 1
    data = None if body is None else json.dumps(body).encode()
    pause_s = _FIRST_PAUSE_S
    while True:
        tries -= 1
        failed: RegistryRefused | Unavailable | None = None
        for place in access.places:
            try:
                return _ask(place, method, path, data, timeout_s)
            except RegistryRefused as error:
                failed = error
                if error.status not in _AGAIN:
                    raise
            except Unavailable as error:
                failed = error
            if method != "GET":
                break  # it may have been carried out
        assert failed is not None
        if not tries or method != "GET":
            raise failed
        time.sleep(pause_s)
        pause_s *= 4


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it is an error like others."""

    def redirect_request(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        return None


def _ask(place: _Place, method: str, path: str, data: bytes | None, timeout_s: float) -> Any:
    handlers: list[urllib.request.BaseHandler] = [_Stay()]
    if place.url.startswith("https:"):
        handlers.append(urllib.request.HTTPSHandler(context=context_of(place.security)))
    if is_loopback(urllib.parse.urlsplit(place.url).hostname or ""):
        handlers.append(urllib.request.ProxyHandler({}))
    headers = {"Accept": MEDIA, "Content-Type": MEDIA, **dict(place.headers), **http_login(place.security, place.url)}
    request = urllib.request.Request(place.url + path, data, headers, method=method)  # noqa: S310 (checked)
    try:
        with urllib.request.build_opener(*handlers).open(request, timeout=timeout_s) as answer:
            read = answer.read(BYTES_MAX + 1)
            if len(read) > BYTES_MAX:
                raise ValueError(f"its answer has more than {BYTES_MAX} bytes")
            return json.loads(read) if read else None
    except urllib.error.HTTPError as error:
        raise _refusal(place, error) from None
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        reason = getattr(error, "reason", None) or error
        if isinstance(reason, ssl.SSLError) and not isinstance(reason, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            raise Rejected(
                f"TLS failed with {place.url}: {say(reason)}", ErrorCode.SASL_AUTHENTICATION_FAILED
            ) from None
        words = reason.strerror.lower() if isinstance(reason, OSError) and reason.strerror else reason
        raise Unavailable(f"no schema registry answers at {place.url} ({words})", ErrorCode.NETWORK_EXCEPTION) from None


def _refusal(place: _Place, error: urllib.error.HTTPError) -> RegistryRefused:
    with error:
        try:
            said: Any = json.loads(error.read(1 << 16))
            message, code = str(said["message"]), int(said.get("error_code") or 0)
        except (ValueError, KeyError, TypeError, AttributeError, OSError, http.client.HTTPException, RecursionError):
            message, code = f"{error.code} {error.reason}", 0
    if http.client.MULTIPLE_CHOICES <= error.code < http.client.BAD_REQUEST:
        to = authority_of(error.headers.get("Location", ""))
        message = f"{place.url} answers {error.code} and points to {to or 'another place'}, which is not followed"
    return RegistryRefused(message, error.code, code)
