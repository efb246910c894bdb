"""The visits of a console inside a broker: who asks, and what a page may ask of the broker for that caller.

A ``Visit`` is all that a page has of the broker. What it reaches, it reaches with the caller's rights. Connections are
kept for each caller and address, of at most ``CALLERS_MAX`` of them.
"""

import socket
import threading
import urllib.parse
from collections import OrderedDict
from typing import Any, Final, Protocol

import msgspec
from flask import request

from millstream.client.schema_registry import RegistryAccess
from millstream.client.security import Login, Security
from millstream.console.access import Access
from millstream.console.registry import Registry
from millstream.model.principal import ANONYMOUS
from millstream.wire.sasl import ON_BEHALF

PREFIX: Final = "/console"
VISIT: Final = "millstream.visit"
"""Where the WSGI environment has the visit."""
CALLERS_MAX: Final = 64


class Visit(Protocol):
    """One request, and what it may ask of the broker. Used by the thread of that request."""

    principal: str
    """Who asks. Empty without a login; ``login`` says whether one is needed."""
    login: bool
    host: str

    def get(self, path: str) -> Any:
        """The document at a path of the broker's HTTP port. Raises Rejected with the reason, or Unavailable."""
        ...

    def connect(self) -> socket.socket:
        """A connection to the broker that acts as the caller. Raises MillstreamError."""
        ...

    def sees_all(self, kind: str) -> bool:
        """Whether the caller may describe everything of a kind (``console.seeing``)."""
        ...

    def log_in(self, name: str, password: str, token: str) -> str:
        """The value of the cookie for a user with a password, or for a token. Raises Rejected if it may not log in, or
        not this way.
        """
        ...

    def log_out(self) -> None:
        """Forget the login of this request."""
        ...

    def sign_in_address(self, redirect_uri: str, state: str, nonce: str, challenge: str) -> str:
        """Where the browser goes to sign in at the OpenID provider. Raises Unavailable."""
        ...

    def sign_in(self, code: str, verifier: str, redirect_uri: str, nonce: str) -> str:
        """The value of the cookie for whom the provider's code is about. Raises Rejected if that may not log in, or
        Unavailable.
        """
        ...

    def sign_out_address(self, back: str) -> str:
        """Where the browser ends its session at the provider; empty if there is no such page. Raises Unavailable."""
        ...


def visit() -> Visit:
    """The visit of the request that is answered now."""
    found: Visit = request.environ[VISIT]
    return found


class BrokersRegistry(Registry):
    """The registry of the broker itself, asked with the rights of the caller."""

    def __init__(self) -> None:
        super().__init__(RegistryAccess(()))

    @property
    def url(self) -> str:
        return f"{request.scheme}://{request.host}"

    @url.setter
    def url(self, value: str) -> None:
        """Where it is follows from the request."""

    def get(self, *parts: str, query: str = "") -> Any:
        """As ``Registry.get``."""
        return visit().get("/" + "/".join(urllib.parse.quote(part, safe="") for part in parts) + query)


class Callers:
    """Connections of the callers. Safe for threads."""

    def __init__(self, bootstrap: str, security: Security) -> None:
        """``bootstrap`` is empty where connections come from the visits. With an opening, ``security`` is the brokers'
        own, and every connection says for whom it acts.
        """
        self._bootstrap = bootstrap
        self._security = security
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], tuple[Access, Registry]] = OrderedDict()

    def of(self, visit: Visit) -> tuple[Access, Registry]:
        """Those of the caller."""
        key = visit.principal, visit.host
        with self._lock:
            found = self._known.get(key)
            if found is None:
                found = self._known[key] = self._access(*key), BrokersRegistry()
            self._known.move_to_end(key)
            dropped = self._known.popitem(last=False)[1] if len(self._known) > CALLERS_MAX else None
        if dropped is not None:
            dropped[0].close()
        return found

    def _access(self, principal: str, host: str) -> Access:
        if not self._bootstrap:
            return Access("", dial=_connect)
        if not self._security.opening:
            return Access(self._bootstrap)
        login = Login(ON_BEHALF, (principal or ANONYMOUS).removeprefix("User:"), host=host)
        return Access(self._bootstrap, msgspec.structs.replace(self._security, login=login))

    def close(self) -> None:
        """Close every connection."""
        with self._lock:
            every = list(self._known.values())
            self._known.clear()
        for access, _ in every:
            access.close()


def _connect() -> socket.socket:
    return visit().connect()
