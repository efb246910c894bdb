"""The clients of one shard: their connections from the handover by the supervisor to the last response.

::

    handover ──► TLS handshake, where the listener has TLS ──► connection ──► login, where it demands one ──► dispatcher

The parts are made here and know each other through this class only. Bad input and overload: as `net.intake` and
`net.handshakes` promise. At the shard's stop, `drain` answers the requests in progress and closes all connections.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from millstream.app.drain import Drain
from millstream.config.listeners import HTTP_LISTENER
from millstream.kafka.audit import Audit
from millstream.kafka.dispatch import Dispatcher
from millstream.kafka.logins.gate import put_gate
from millstream.kafka.logins.guard_link import GuardLink
from millstream.kafka.logins.logins import Logins, mechanisms_of
from millstream.kafka.quotas import Quotas
from millstream.net.connection import Connection
from millstream.net.handshakes import Handshakes
from millstream.net.intake import Intake

if TYPE_CHECKING:
    from millstream.app.shared import Shared
    from millstream.kafka.context import Node
    from millstream.secure.endpoint import Credentials
    from millstream.shard.context import Shard
    from millstream.shard.handover import Arrival


class ClientEdge:
    """Lifecycle: made with the shard; ``drain`` once. Shard: its own."""

    def __init__(self, shared: "Shared", shard: "Shard", node: "Node", audit: Audit | None) -> None:
        """``node`` is what handlers see. ``audit`` records logins and refusals; None where nothing is recorded."""
        settings = shared.settings
        dispatcher = Dispatcher(node, audit)
        gated = bool(mechanisms_of(settings))
        self.intake = Intake(
            shard.reactor,
            shard.arena,
            shard.stats,
            settings.socket_request_max_bytes,
            settings.connections_max_idle_ms,
            settings.socket_frame_timeout_ms,
            dispatcher.on_gated_frame if gated else dispatcher.on_frame,
            dispatcher.on_gated_chain if gated else dispatcher.on_chain,
        )
        Quotas(shard, settings, node.metadata).attach(dispatcher, self.intake)
        listeners = {name: one.server() for name, one in shared.tls.credentials.items() if name != HTTP_LISTENER}
        self._handshakes = Handshakes(self.intake, listeners, shard.stats)
        guard = None if shared.guard is None else GuardLink(shard.reactor, shared.guard.keep_shard_end(shard.id))
        self.logins = Logins(shard, settings, node.metadata, guard)
        self.logins.audit = audit
        self.intake.on_change = self._connection_changed
        self._node = node
        self._drain = Drain(shard.reactor, self.intake)

    def _connection_changed(self, connection: Connection) -> None:
        """A connection has opened or closed."""
        if connection.closed:
            self._node.share_sessions.connection_closed(connection)
        else:
            put_gate(connection, self.logins)

    def open(self, sock: Any, arrival: "Arrival") -> None:
        """Take over a client's socket."""
        peer = (arrival.peer_host, arrival.peer_port)
        local = (arrival.local_host, arrival.local_port)
        takes = self._handshakes.begin if arrival.listener in self._handshakes.listeners else self.intake.open
        takes(sock, peer, local, arrival.listener, arrival.principal)

    def count_by_address(self, arguments: Any, answer: Callable[[dict[str, int]], None]) -> None:
        """Answer the number of open connections of each client's address, TLS handshakes included."""
        _ = arguments
        found = Counter(connection.client.host for connection in self.intake.connections)
        found.update(self._handshakes.hosts())
        answer(dict(found))

    def renew(self, credentials: Mapping[str, "Credentials"]) -> None:
        """Use new key material for handshakes from now on."""
        for name in self._handshakes.listeners:
            self._handshakes.listeners[name] = credentials[name].server()

    def end_logins(self) -> None:
        """The shard stops: record what the audit has summed up."""
        if self.logins.audit is not None:
            self.logins.audit.end_sums()

    def drain(self, done: Callable[[], None]) -> None:
        """Answer the requests in progress, close all connections, then call ``done``."""
        self._handshakes.close_all()
        self._drain.start(done)
