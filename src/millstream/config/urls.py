"""URLs of issuers of tokens: which may be asked at all; and the hosts that strangers' URLs and headers name.

``https:``, because keys and secrets come over it; ``http:`` on this machine, for a process beside it; ``file:``.
"""

from __future__ import annotations

import re
import urllib.parse
from typing import Final

from millstream.config.listeners import is_loopback

_AUTHORITY: Final = re.compile(r"[^:/?#]*://([^/?#]*)")

EXPECTED = "https://HOST/PATH without a user, http:// on this machine, or file:///PATH"


def is_issuer_url(url: str) -> bool:
    """Whether ``url`` may be asked, or is a file's."""
    try:
        parts = urllib.parse.urlsplit(url)
        if parts.scheme == "file":
            return parts.netloc in ("", "localhost") and parts.path.startswith("/") and not (parts.query or "")
        encrypted = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
        return encrypted and bool(parts.hostname) and parts.port != 0 and parts.username is None and not parts.fragment
    except ValueError:
        return False


def file_of(url: str) -> str:
    """The path of a ``file:`` URL; empty for another one."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.unquote(parts.path) if parts.scheme == "file" else ""


def authority_of(url: str) -> str:
    """``HOST:PORT`` of a URL that a stranger sent, in lower case; empty without one. Any text is taken."""
    found = _AUTHORITY.match(url)
    return found[1].rpartition("@")[2].lower() if found else ""


def split_authority(authority: str) -> tuple[str, str]:
    """Host, without brackets, and port of a ``Host`` header, in lower case; either may be empty. Any text is taken."""
    if authority.startswith("["):
        host, _, rest = authority[1:].partition("]")
        return host.lower(), rest.removeprefix(":")
    host, _, port = authority.partition(":")
    return host.lower(), port
