"""Who may ask the HTTP port: programs and people, but no web page of another site.

A browser sends what any page asks it to send, to any address that it reaches, a loopback address included. Three
checks keep such a page out. They need no login, and programs that are no browser do not notice them.

============  ===============================================  =========================================================
Check         Stops                                            How
============  ===============================================  =========================================================
Host          a name of the page's own, which its owner lets   the name is a loopback name, an IP address, the name of a
              point at the broker (DNS rebinding)              listener, or one of ``http.allowed.hosts``
Origin        a form or a script of another site               the header is absent, or names the host that is asked
Content-Type  a body that a browser sends without a question   a route that changes anything takes JSON only
============  ===============================================  =========================================================

A route that is ``open`` skips them: a probe or a scraper reaches a broker by any name, and learns no more than figures.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from email.message import Message
from typing import Final

from millstream.admin.routing import JSON, HttpError
from millstream.config.urls import authority_of, split_authority

ANY: Final = "*"
_LOOPBACK: Final = "localhost"


class Access:
    """The names by which this port may be asked. Immutable; used by many threads."""

    def __init__(self, names: Iterable[str]) -> None:
        """``names`` are host names, ``*.SUFFIX`` for all names below one, or ``*`` for any. Case does not matter."""
        lowered = [_folded(name) for name in names]
        self._any = ANY in lowered
        self._names = frozenset(name for name in lowered if not name.startswith("*"))
        self._suffixes = tuple(name[1:] for name in lowered if name.startswith("*."))

    def check(self, hosts: Sequence[str], headers: Mapping[str, str]) -> None:
        """Refuse a request by its Host and Origin. ``hosts`` are the values of all Host headers; ``headers`` have
        lower-case names.

        Raises:
            HttpError: 400 for several hosts, 403 for a strange host or a foreign origin.
        """
        if len(hosts) > 1:
            raise HttpError(400, "INVALID_HOST", "the request has several Host headers, expected one")
        host = hosts[0].strip() if hosts else ""
        if hosts and not self.knows(host):
            raise HttpError(
                403,
                "HOST_NOT_ALLOWED",
                f"the broker does not answer as {host!r}; ask it by its address, or add the name to http.allowed.hosts",
            )
        origin = headers.get("origin")
        if origin is not None and (not host or authority_of(origin) != host.lower()):
            raise HttpError(
                403, "FOREIGN_ORIGIN", f"pages of {origin!r} may not use this port; ask it by a program of your own"
            )

    def knows(self, host: str) -> bool:
        """Whether ``HOST`` or ``HOST:PORT`` is a name of this port."""
        name = _without_port(host)
        if self._any or name in self._names or name.endswith(self._suffixes):
            return True
        return name == _LOOPBACK or name.endswith(f".{_LOOPBACK}") or _is_address(name)


def check_json(headers: Mapping[str, str]) -> None:
    """Refuse a change whose body is not declared as JSON.

    Raises:
        HttpError: 415.
    """
    given = headers.get("content-type", "")
    message = Message()
    message["content-type"] = given[:500]
    if not given.strip() or message.get_content_type() != JSON:
        raise HttpError(
            415, "UNSUPPORTED_MEDIA_TYPE", f"Content-Type is {given[:100]!r}, expected {JSON}, for every change"
        )


def _folded(name: str) -> str:
    return name.strip().rstrip(".").lower()


def _without_port(host: str) -> str:
    """The name or address of a Host header, in lower case."""
    return _folded(split_authority(host)[0])


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
