"""Requests to a broker's HTTP port. The broker announces its URL in its configuration."""

from __future__ import annotations

import json
from typing import Any

from millstream.cli.connect import admin_client, broker_configs
from millstream.cli.failure import CommandFailed
from millstream.model.endpoint_setting import HTTP_ENDPOINT


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
    request = urllib.request.Request(url, body, headers)  # noqa: S310 (a broker's own address)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            return json.load(answer)
    except urllib.error.HTTPError as refusal:
        raise CommandFailed(f"{url}: {_message(refusal.read())}") from None
    except (OSError, ValueError) as error:
        raise CommandFailed(f"{url}: {getattr(error, 'reason', None) or error}") from None


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()
