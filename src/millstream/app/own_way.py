"""How clients of a broker's own reach its cluster: the schema registry, and questions about the tables of topics.

===========================================  ===========================================================
A single broker with controlled access       its socket file
A single broker, all its listeners secured   its socket file
A cluster with TLS between brokers           the peer addresses, with the certificate of brokers, if access is
                                             controlled or no listener is clear
Any other with a clear listener              that listener
Any other                                    not at all
===========================================  ===========================================================

Their callers have proved their rights before, at the HTTP port. The console acts as its callers instead:

===========================================  ===========================================================
A single broker                              connections that the supervisor makes (``app.console_requests``)
A cluster with TLS between brokers, if       the peer addresses; its connections say for whom they act
access is controlled or no listener is clear
A cluster that controls no access            its clear listener, as anonymous
Any other cluster                            not at all: only TLS between brokers tells a broker that says for whom it
                                             acts from a stranger
===========================================  ===========================================================

Who may say for whom it acts may do everything. A secret of the cluster could prove that without TLS, but brokers would
send each other the secret itself in clear, and a connection in clear can be taken over after its proof. So no
such secret is taken, and the error names the remedy.
"""

import os
import socket
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import msgspec

from millstream.app.listening import literal
from millstream.app.socket_file import SOCKET_FILE
from millstream.app.tls import tls_options
from millstream.client.security import PLAIN, Security
from millstream.config.listeners import PEER_LISTENER, PLAINTEXT
from millstream.config.properties.security import SSL
from millstream.config.settings import Settings
from millstream.kafka.access import controls_access
from millstream.peers.secured import CALLER_OPENING, CLIENT_OPENING

NO_WAY: Final = (
    "where every listener demands TLS or a login, a cluster needs TLS between its brokers for it "
    "(peer.security.protocol=SSL with the certificates that 'millstream security init' makes)"
)


Connect = Callable[[str, str, bool], socket.socket]
"""Makes a connection to this broker that acts as a principal from a host. The last argument is whether what the caller
sends is encrypted. Raises MillstreamError.
"""


class OwnWay(NamedTuple):
    """Where, and with what security. ``bootstrap`` is empty where there is no way."""

    bootstrap: str
    security: Security = PLAIN


def own_way(settings: Settings, reached: Mapping[str, str]) -> OwnWay:
    """The way; ``reached`` has the address of each listener by its name."""
    protocols = dict(settings.listener_security_protocol_map)
    clear = next((address for name, address in reached.items() if protocols[name] == PLAINTEXT), "")
    if clear and not controls_access(settings):
        return OwnWay(clear)
    peer = settings.peer_listen
    if peer is None:
        return OwnWay(os.path.join(os.path.abspath(settings.data_dir), SOCKET_FILE))
    if settings.peer_security_protocol == SSL:
        security = Security("SSL", tls_options(settings, PEER_LISTENER), opening=CLIENT_OPENING)
        return OwnWay(f"{literal(peer.host)}:{peer.port}", security)
    return OwnWay(clear)


def callers_way(settings: Settings, way: OwnWay) -> OwnWay:
    """The way of a client that acts for callers, from that of the others. Its login is ``wire.sasl.ON_BEHALF`` where it
    has an opening. ``bootstrap`` is empty where there is no way, and for a single broker.
    """
    if settings.peer_listen is None:
        return OwnWay("")
    if way.security.opening:
        return OwnWay(way.bootstrap, msgspec.structs.replace(way.security, protocol="SASL_SSL", opening=CALLER_OPENING))
    return OwnWay("") if controls_access(settings) else way
