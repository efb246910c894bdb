"""How a broker that joins a cluster registers: it is no member of group 0 yet, and learns of no leader.

::

    joining broker ──WHO_LEADS──► a contact ──► node and address of the leader
                   ──CONTROLLER_REQUEST────────► the leader: registers it, and makes it a learner of group 0

From then on it follows the leader like any other broker. **Failure.** A contact that does not answer, or knows no
leader, is followed by the next one; so is a leader that leads no more. Nothing is kept, and asking twice is harmless.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.core.controller.requests import decode_results, encode_request
from millstream.errors import MillstreamError, Retriable
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.peers.hello import Seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.metadata import MetadataCache
    from millstream.core.controller.requests import RegisterBroker, Results
    from millstream.model.replication import ReplicaId
    from millstream.peers.calls import CallDone
    from millstream.peers.network import Network

WHO_LEADS: Final = 5
"""Method of ``peers.calls``: which broker leads group 0, and where is it reached?"""

_TIMEOUT_MS: Final = 3_000
_END: Final = struct.Struct("<Q")
"""First field of the answer to a forwarded request (`quorum_controller`)."""


class _Leader(msgspec.Struct, frozen=True, array_like=True):
    node: int
    host: str
    port: int


def serve_who_leads(network: Network, cache: MetadataCache, leader: Callable[[], NodeId | None]) -> None:
    """Answer other brokers."""

    def answer(sender: ReplicaId, payload: bytes, timeout_ms: int, done: CallDone) -> None:
        _ = sender, payload, timeout_ms
        node = leader()
        broker = cache.state.registry.brokers.get(node) if node is not None else None
        if broker is None:
            raise Retriable("this broker knows no controller", ErrorCode.NOT_CONTROLLER)
        peer = broker.profile.peer
        done(msgspec.msgpack.encode(_Leader(broker.node, peer.host, peer.port)))

    network.calls.serve(WHO_LEADS, answer)


class Joining:
    """The registration of one broker that joins.

    Shard: the controller's.
    """

    def __init__(self, network: Network, contacts: dict[NodeId, Seed], method: int) -> None:
        """``contacts`` are brokers of the cluster and where they are reached; the leader is entered there, too.
        ``method`` is that of requests to the controller.
        """
        self._network = network
        self._contacts = contacts
        self._method = method
        self._next = 0

    def register(self, request: RegisterBroker, done: Callable[[Results | MillstreamError], None]) -> None:
        """Register through the next contact."""
        nodes = sorted(self._contacts)
        contact = nodes[self._next % len(nodes)]
        self._next += 1

        def found(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done(answer)
                return
            leader = msgspec.msgpack.decode(answer, type=_Leader)
            node = NodeId(leader.node)
            self._contacts[node] = Seed(leader.host, leader.port)
            self._network.calls.call(node, self._method, encode_request(request), _TIMEOUT_MS, answered)

        def answered(answer: bytes | MillstreamError) -> None:
            done(answer if isinstance(answer, MillstreamError) else decode_results(memoryview(answer)[_END.size :]))

        self._network.calls.call(contact, WHO_LEADS, b"", _TIMEOUT_MS, found)
