"""Requests to a broker's HTTP port. The broker announces its URL in its configuration."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from millstream.cli import identity
from millstream.cli.connect import admin_client, broker_configs
from millstream.cli.failure import CommandFailed
from millstream.model.endpoint_setting import HTTP_ENDPOINT

if TYPE_CHECKING:
    import ssl


def http_url(bootstrap: str, timeout_s: float, path: str, lacks: str) -> str:
    """The URL of ``path`` on the HTTP port of a broker. ``lacks`` completes the error for a broker without one.

    Raises:
        CommandFailed: the broker has no HTTP port, or does not answer.
    """
    entry = broker_configs(admin_client(bootstrap), bootstrap, timeout_s).get(HTTP_ENDPOINT)
    if entry is None or not entry.value:
        raise CommandFailed(f"the broker at {bootstrap} {lacks}; it has no HTTP port, or it is no Millstream")
    return f"{entry.value.rstrip('/')}{path}"


def ask_http(url: str, timeout_s: float, body: bytes | None = None) -> dict[str, Any]:
    """What a broker answers to GET, or to POST of a JSON ``body``.

    Raises:
        CommandFailed: the broker refuses (with its message), or does not answer.
    """
    import urllib.error
    import urllib.request

    headers = {"Content-Type": "application/json"} if body is not None else {}
    headers |= login_headers(url)
    request = urllib.request.Request(url, body, headers)  # noqa: S310 (a broker's own address)
    context = https_context() if url.startswith("https:") else None
    try:
        with urllib.request.urlopen(request, timeout=timeout_s, context=context) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        raise CommandFailed(f"{url}: {_message(refusal.read())}") from None
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{url}: {getattr(error, 'reason', None) or error}") from None


def login_headers(url: str) -> dict[str, str]:
    """How the command logs in over HTTP: as on its connections to brokers."""
    from millstream.client.security import http_login
    from millstream.errors import MillstreamError

    try:
        return http_login(identity.security(), url)
    except MillstreamError as error:
        raise CommandFailed(error.message) from None


def registry_conf(url: str) -> dict[str, Any]:
    """Settings of a client of a schema registry, which logs in as the command does if the registry is a broker's."""
    from millstream.client.security import is_brokers_host

    security, found = identity.security(), {"url": url}
    is_own = is_brokers_host(url, identity.bootstrap() or "")
    if security.login is not None and security.login.username and is_own:
        login_headers(url)  # refuses a login in clear
        found["basic.auth.user.info"] = f"{security.login.username}:{security.login.password}"
    if url.startswith("https:") and security.tls.truststore_location and security.tls.truststore_type == "PEM":
        found["ssl.ca.location"] = security.tls.truststore_location
    return found


def registry_headers(url: str) -> dict[str, str]:
    """How a command whose only address is a registry's logs in there. An address among its properties, as each profile
    has, says which hosts the login is for: no other one gets it.
    """
    from millstream.client.security import is_brokers_host

    known = identity.bootstrap()
    return login_headers(url) if known is None or is_brokers_host(url, known) else {}


def https_context() -> ssl.SSLContext:
    """What the command trusts, and shows of itself, on HTTPS: as on its connections to brokers."""
    from millstream.client.security import context_of
    from millstream.errors import Rejected

    try:
        return context_of(identity.security())
    except Rejected as error:
        raise CommandFailed(error.message) from None


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
