"""How clients of a broker's own reach its cluster: the schema registry, and questions about the tables of topics.

===========================================  ===========================================================
A single broker with controlled access       its socket file
A single broker, all its listeners secured   its socket file
A cluster with TLS between brokers           the peer addresses, with the certificate of brokers, if access is
                                             controlled or no listener is clear
Any other with a clear listener              that listener
Any other                                    not at all
===========================================  ===========================================================

Their callers have proved their rights before, at the HTTP port.
"""

import os
from collections.abc import Mapping
from typing import Final, NamedTuple

from millstream.app.listening import literal
from millstream.app.socket_file import SOCKET_FILE
from millstream.app.tls import tls_options
from millstream.client.security import PLAIN, Security
from millstream.config.listeners import PEER_LISTENER, PLAINTEXT
from millstream.config.properties.security import SSL
from millstream.config.settings import Settings
from millstream.kafka.access import controls_access
from millstream.peers.secured import CLIENT_OPENING

NO_WAY: Final = (
    "where every listener demands TLS or a login, a cluster needs TLS between its brokers for it "
    "(peer.security.protocol=SSL)"
)


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
