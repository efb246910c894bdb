"""Listeners: the named addresses on which Kafka clients connect, and the addresses that clients receive.

::

    listeners                      PLAINTEXT://127.0.0.1:9092,LAN://0.0.0.0:9093,SIX://[::1]:9092
    listener.security.protocol.map PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT,SIX:PLAINTEXT
    advertised.listeners           LAN://broker-1.example.org:9093

A client receives the advertised address of the listener that it connected to; if none is advertised, the listener's own
host where that is a name, which the certificate has, too, else the address that it reached. Names and rules are
Kafka's: a listener's name is in the protocol map, names and ports are unique (one IPv4 and one IPv6 address may share a
port), and an address that means every interface cannot be advertised, because no client can connect to it. With SSL in
its protocol a listener speaks TLS (``secure``), with SASL its clients log in (``kafka.logins``).
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from millstream.config.errors import ConfigError
from millstream.config.forms import TYPE_LIST, Endpoint, Form, Words, parse_endpoint

if TYPE_CHECKING:
    from collections.abc import Iterable

PLAINTEXT: Final = "PLAINTEXT"
SSL: Final = "SSL"
_PROTOCOLS: Final = ("SASL_SSL", PLAINTEXT, SSL, "SASL_PLAINTEXT")
PROTOCOL_OF_NAME: Final = tuple((name, name) for name in _PROTOCOLS)
"""Kafka's default of ``listener.security.protocol.map``: the protocols' own names."""

HTTP_LISTENER: Final = "HTTP"
"""Name of the HTTP port in ``listener.name.http.…``."""

PEER_LISTENER: Final = "PEER"
"""Name of the peer address in ``listener.name.peer.…``."""

SEEDS_MAX: Final = 64

_NAME: Final = re.compile(r"[A-Z0-9_.-]+")
_HOST_PATTERN: Final = re.compile(r"\*|(\*\.)?[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}")


class Listener(NamedTuple):
    """An address with a name."""

    name: str
    host: str
    port: int

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)

    def __str__(self) -> str:
        return f"{self.name}://{self.endpoint}"


class Listeners(Form["tuple[Listener, ...]"]):
    """``[NAME://]HOST:PORT``, several with commas. The default name is PLAINTEXT. ``optional``: the list may be
    empty.
    """

    kafka_type = TYPE_LIST

    def __init__(self, *, lowest_port: int = 0, optional: bool = False) -> None:
        self.lowest_port = lowest_port
        self.optional = optional

    def read_plain(self, text: str) -> tuple[Listener, ...]:
        if not text.strip() and self.optional:
            return ()
        return tuple(self._one(part.strip()) for part in text.split(","))

    def _one(self, text: str) -> Listener:
        name, separator, address = text.rpartition("://")
        name = name.strip().upper() if separator else PLAINTEXT
        host, port = parse_endpoint(address)
        if _NAME.fullmatch(name) is None or port < self.lowest_port:
            raise ValueError
        return Listener(name, host, port)

    def accepts(self, value: object) -> bool:
        return isinstance(value, tuple) and bool(value or self.optional) and all(isinstance(x, Listener) for x in value)

    def write(self, value: tuple[Listener, ...]) -> str | None:
        return ",".join(map(str, value)) if value else None

    def expected(self) -> str:
        ports = "a port" if self.lowest_port else "a port (0 picks a free one)"
        nothing = "nothing, or " if self.optional else ""
        return (
            f"{nothing}HOST:PORT with {ports}, such as 127.0.0.1:9092, or several such as "
            "PLAINTEXT://127.0.0.1:9092,LAN://[::1]:9093"
        )


class Seeds(Form["tuple[Endpoint, ...]"]):
    """``HOST:PORT``, several with commas; may be empty. No address twice."""

    kafka_type = TYPE_LIST

    def read_plain(self, text: str) -> tuple[Endpoint, ...]:
        if not text.strip():
            return ()
        found = tuple(parse_endpoint(part.strip()) for part in text.split(","))
        if len(found) > SEEDS_MAX or len(set(found)) != len(found):
            raise ValueError
        if any(not each.port or is_every_interface(each.host) for each in found):
            raise ValueError
        return found

    def accepts(self, value: object) -> bool:
        return isinstance(value, tuple) and all(isinstance(x, Endpoint) for x in value)

    def write(self, value: tuple[Endpoint, ...]) -> str | None:
        return ",".join(map(str, value)) if value else None

    def expected(self) -> str:
        return f"nothing, or up to {SEEDS_MAX} different HOST:PORT with commas, such as broker-1:9192,broker-2:9192"


class Hosts(Words):
    """Host names, several with commas; may be empty. ``*.SUFFIX`` is every name below one, ``*`` any name."""

    def accepts_words(self, words: tuple[str, ...]) -> bool:
        return all(_HOST_PATTERN.fullmatch(word) for word in words)

    def write(self, value: tuple[str, ...]) -> str | None:
        return super().write(value) or None

    def expected(self) -> str:
        return "nothing, or host names without ports, with commas, such as kafka.example.org,*.brokers.example.org"


class ProtocolMap(Form["tuple[tuple[str, str], ...]"]):
    """``NAME:PROTOCOL``, several with commas."""

    def read_plain(self, text: str) -> tuple[tuple[str, str], ...]:
        found = tuple(self._one(part.strip()) for part in text.split(","))
        if len(dict(found)) != len(found):
            raise ValueError
        return found

    def _one(self, text: str) -> tuple[str, str]:
        name, _, protocol = (part.strip().upper() for part in text.partition(":"))
        if _NAME.fullmatch(name) is None or protocol not in _PROTOCOLS:
            raise ValueError
        return name, protocol

    def accepts(self, value: object) -> bool:
        return isinstance(value, tuple) and all(isinstance(pair, tuple) and len(pair) == 2 for pair in value)

    def write(self, value: tuple[tuple[str, str], ...]) -> str:
        return ",".join(f"{name}:{protocol}" for name, protocol in value)

    def expected(self) -> str:
        return "NAME:PROTOCOL, several with commas, such as PLAINTEXT:PLAINTEXT,LAN:PLAINTEXT"


def check_listeners(
    listen: tuple[Listener, ...], advertised: tuple[Listener, ...], protocols: tuple[tuple[str, str], ...]
) -> None:
    """Raise ConfigError for the first rule that the three settings break."""
    _check_distinct("listeners", listen)
    _check_distinct("advertised.listeners", advertised)
    by_name = dict(protocols)
    for each in listen:
        protocol = by_name.get(each.name)
        if protocol is None:
            raise ConfigError(
                "listeners",
                f"no security protocol is defined for {each.name}; add {each.name}:{PLAINTEXT} to "
                "listener.security.protocol.map",
            )
    _check_ports(listen)
    names = [each.name for each in listen]
    for each in advertised:
        if each.name not in names:
            raise ConfigError("advertised.listeners", f"{each.name} is not one of the listeners {', '.join(names)}")
        if is_every_interface(each.host):
            raise ConfigError(
                "advertised.listeners", f"nobody can connect to {each.endpoint}, expected an address or a host name"
            )


def protocol_of(name: str, protocols: Iterable[tuple[str, str]]) -> str:
    """The security protocol of a listener that was checked."""
    return dict(protocols)[name]


def demands_login(protocol: str) -> bool:
    """Whether clients log in by SASL under a security protocol."""
    return protocol.startswith("SASL_")


def speaks_tls(protocol: str) -> bool:
    """Whether a security protocol encrypts."""
    return protocol.endswith(SSL)


def is_every_interface(host: str) -> bool:
    """Whether ``host`` stands for every address of the machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    """Whether ``host`` is reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_name(host: str) -> bool:
    """Whether ``host`` is a name, which clients and certificates have, and no address."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


def name_in(host: str) -> str:
    """``host`` if it is a name; empty for an address."""
    return host if is_name(host) else ""


def _check_distinct(setting: str, listeners: Iterable[Listener]) -> None:
    seen: set[str] = set()
    for each in listeners:
        if each.name in seen:
            raise ConfigError(setting, f"{each.name} is given twice, expected a name of its own for each listener")
        seen.add(each.name)


def _check_ports(listen: tuple[Listener, ...]) -> None:
    by_port: dict[int, list[Listener]] = {}
    for each in listen:
        if each.port:
            by_port.setdefault(each.port, []).append(each)
    for port, sharing in by_port.items():
        families = sorted(":" in each.host for each in sharing)
        if len(sharing) > 1 and families != [False, True]:
            raise ConfigError(
                "listeners",
                f"port {port} is given twice, expected a port of its own for each (or one IPv4 and one IPv6 address)",
            )
