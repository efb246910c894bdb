"""What a console is started with."""

from collections.abc import Mapping

import msgspec

from millstream.client.security import PLAIN, Security
from millstream.console.connect import ConnectAccess
from millstream.secure.tokens.sign_in import Provider


class Settings(msgspec.Struct, frozen=True):
    """Settings of a console.

    ``hosts`` are the names, without a port, under which it may be addressed. With ``login`` (a SASL mechanism) every
    visitor logs in with a name and a password of the cluster; without it, all of them act as ``security`` says. A
    ``read_only`` console has no page that changes the cluster. One that is ``hosted`` by a broker takes callers and
    connections from there (``console.hosted``); ``bootstrap`` is then what its pages show. ``secret`` signs cookies.
    """

    bootstrap: str
    security: Security = PLAIN
    registry: str | None = None
    login: str | None = None
    read_only: bool = False
    hosts: tuple[str, ...] = ("127.0.0.1", "localhost", "::1")
    registry_properties: Mapping[str, str] = {}
    """Confluent's, for its login and TLS."""
    hosted: bool = False
    connects_to: str = ""
    """Where a hosted console reaches its cluster; empty: through its visits. With ``security.opening`` its connections
    say for which visitor they act, else they act as anonymous.
    """
    secret: bytes = b""
    tokens: bool = False
    """Whether a hosted console's visitors may log in with a token."""
    name: str = ""
    """Of the cluster, if the console has several: its pages are under ``/NAME``. ``names`` are those of all."""
    names: tuple[str, ...] = ()
    connects: tuple[ConnectAccess, ...] = ()
    issuer: str = ""
    """The OpenID provider where visitors may sign in; empty for none. ``redirect_uri`` is where it sends browsers back
    to; empty: by the address that they use. A console of its own has the ``provider``, too.
    """
    redirect_uri: str = ""
    provider: Provider | None = None
    masks: tuple[str, ...] = ()
    """Fields of records that no visitor sees (``config.masks``)."""

    def __repr__(self) -> str:
        return f"Settings({self.bootstrap}, {self.security})"
