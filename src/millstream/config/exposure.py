"""Which addresses of a broker others can reach without proving who they are, or with what they say in clear.

An address beyond this machine is refused unless its clients prove themselves (a certificate or a login), and unless
HTTP and brokers of a cluster are encrypted, too. ``insecure.listeners=allow`` is the way round. The rule is checked at
the start, before anything is bound or written: an upgrade must not open what was thought closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.config.errors import ConfigError
from millstream.config.listeners import HTTP_LISTENER, PLAINTEXT, is_loopback, protocol_of

if TYPE_CHECKING:
    from millstream.config.settings import Settings

_NOT_ASKED = "does not ask who its clients are"


def exposed(settings: Settings) -> list[tuple[str, str]]:
    """Addresses that others reach, each with what is wrong with it."""
    found: list[tuple[str, str]] = []
    for each in settings.listen:
        protocol = protocol_of(each.name, settings.listener_security_protocol_map)
        if is_loopback(each.host) or protocol.startswith("SASL"):
            continue
        if protocol == PLAINTEXT:
            found.append((str(each), f"is clear, and {_NOT_ASKED}"))
        elif settings.for_listener(each.name).ssl_client_auth != "required":
            found.append(
                (str(each), f"{_NOT_ASKED} (ssl.client.auth={settings.for_listener(each.name).ssl_client_auth})")
            )
    http = settings.http_listen
    host = settings.listen[0].host if http is None else http.host
    if not is_loopback(host):
        shown = f"the HTTP port on {host}"
        if settings.http_security_protocol == PLAINTEXT:
            found.append((shown, f"is clear, and {_NOT_ASKED}"))
        elif settings.for_listener(HTTP_LISTENER).ssl_client_auth == "none" and not _asks_for_logins(settings):
            found.append((shown, f"{_NOT_ASKED} (listener.name.http.ssl.client.auth)"))
    peer = settings.peer_listen
    if peer is not None and not is_loopback(peer.host) and settings.peer_security_protocol == PLAINTEXT:
        found.append((f"peer.listen={peer}", "is clear, and takes any host for a broker"))
    return found


def _asks_for_logins(settings: Settings) -> bool:
    """Whether access is controlled, so that HTTP asks who its callers are."""
    return bool(settings.authorizer_class_name) or any(
        protocol_of(each.name, settings.listener_security_protocol_map).startswith("SASL") for each in settings.listen
    )


def check_exposure(settings: Settings) -> None:
    """Raise ConfigError for the first address that is exposed, unless that is allowed."""
    if settings.insecure_listeners == "allow":
        return
    for address, what in exposed(settings):
        raise ConfigError(
            "insecure.listeners",
            f"{address} {what}. Make keys with 'millstream security init DIR' and start with --config "
            "DIR/NODE/broker.properties and --listen SSL://HOST:PORT; or use 127.0.0.1; or, where only friends reach "
            "it, set insecure.listeners=allow",
        )
