"""Requests to a broker's HTTP port. The broker announces its URL in its configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, cast

from millstream.cli import identity
from millstream.cli.connect import admin_client, broker_configs, explained
from millstream.cli.failure import CommandFailed, WrongUsage
from millstream.cli.options import REGISTRY_DEFAULT
from millstream.model.endpoint_setting import HTTP_ENDPOINT

if TYPE_CHECKING:
    import ssl
    from urllib.error import HTTPError

    from millstream.client.schema_registry import RegistryAccess

_REFUSAL_BYTES: Final = 1 << 16


def http_url(bootstrap: str, timeout_s: float, path: str, lacks: str) -> str:
    """The URL of ``path`` on the HTTP port of a broker. ``lacks`` completes the error for a broker without one.

    Raises:
        CommandFailed: the broker has no HTTP port, or does not answer.
    """
    entry = broker_configs(admin_client(bootstrap), bootstrap, timeout_s).get(HTTP_ENDPOINT)
    if entry is None or not entry.value:
        raise CommandFailed(f"the broker at {bootstrap} {lacks}; it has no HTTP port, or it is no Millstream")
    return f"{entry.value.rstrip('/')}{path}"


def http_url_of(bootstrap: str, node: int, timeout_s: float, path: str, lacks: str) -> str:
    """The URL of ``path`` on the HTTP port of the broker with the id ``node``, in the cluster of ``bootstrap``.

    Raises:
        CommandFailed: there is no such broker, it has no HTTP port, or it does not answer.
    """
    with explained("the brokers", bootstrap):
        brokers = admin_client(bootstrap).list_topics(timeout=timeout_s).brokers
    if node not in brokers:
        known = ", ".join(map(str, sorted(brokers)))
        raise CommandFailed(f"the cluster at {bootstrap} has no live broker {node}; it has {known}")
    return http_url(f"{brokers[node].host}:{brokers[node].port}", timeout_s, path, lacks)


def http_address(text: str) -> str:
    """The URL of an HTTP port that a person names: a URL, or ``HOST:PORT``, with TLS if the command speaks it."""
    if "://" in text:
        return text.rstrip("/")
    return f"{'https' if identity.security().speaks_tls else 'http'}://{text}"


def ask_http(url: str, timeout_s: float, body: bytes | None = None) -> dict[str, Any]:
    """What a broker answers to GET, or to POST of a JSON ``body``.

    Raises:
        CommandFailed: the broker refuses (with its message), or does not answer.
    """
    import urllib.error
    import urllib.request
    from http.client import HTTPException

    headers = {"Content-Type": "application/json"} if body is not None else {}
    headers |= login_headers(url)
    request = urllib.request.Request(url, body, headers)  # noqa: S310 (a broker's own address)
    context = https_context() if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:  # noqa: S310
            found = json.load(answer)
    except urllib.error.HTTPError as refusal:
        raise CommandFailed(f"{url}: {_message(refusal)}") from None
    except (OSError, ValueError, RecursionError, HTTPException) as error:
        raise CommandFailed(f"{url}: {getattr(error, 'reason', None) or error}") from None
    if not isinstance(found, dict):
        raise CommandFailed(f"{url} answers something that is no document of a broker")
    return cast("dict[str, Any]", found)


def login_headers(url: str) -> dict[str, str]:
    """How the command logs in over HTTP: as on its connections to brokers."""
    from millstream.client.security import http_login
    from millstream.errors import MillstreamError

    try:
        return http_login(identity.security(), url)
    except MillstreamError as error:
        raise CommandFailed(error.message) from None


def registry_of(url: str | None, bootstrap: str | None = None) -> RegistryAccess:
    """The schema registry of a command and how it logs in there: by the registry's own properties, else as it does at
    the brokers, if the registry is on a host of theirs.

    Args:
        url: of ``--registry``; None for ``schema.registry.url`` among the properties, or the default.
        bootstrap: the brokers' addresses. None where the command's only address is the registry's: the properties may
            name brokers, as each profile does, and if they name none, their login is meant for the registry.
    """
    from millstream.client.schema_registry import REGISTRY_URL, registry_access
    from millstream.errors import Rejected

    found = identity.properties()
    known = identity.bootstrap() if bootstrap is None else bootstrap
    try:
        return registry_access(url or found.get(REGISTRY_URL) or REGISTRY_DEFAULT, found, identity.security(), known)
    except Rejected as error:
        raise WrongUsage(error.message) from None


def https_context() -> ssl.SSLContext:
    """What the command trusts, and shows of itself, on HTTPS: as on its connections to brokers."""
    from millstream.client.security import context_of
    from millstream.errors import Rejected

    try:
        return context_of(identity.security())
    except Rejected as error:
        raise CommandFailed(error.message) from None


def _message(refusal: HTTPError) -> str:
    from http.client import HTTPException

    body = b""
    try:
        body = refusal.read(_REFUSAL_BYTES)
        return str(json.loads(body)["message"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, HTTPException):
        return body.decode(errors="replace").strip() or f"{refusal.code} {refusal.reason}"
