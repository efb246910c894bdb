"""URLs of issuers of tokens: which may be asked at all.

``https:``, because keys and secrets come over it; ``http:`` on this machine, for a process beside it; ``file:``.
"""

from __future__ import annotations

import urllib.parse

from millstream.config.listeners import is_loopback

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
