"""What a broker does when the cluster asks something of it, or when the brokers of the cluster change.

- *Drained*, or about to leave: no replica here stands for election, and those that lead hand over, until that is so.
  A partition that this broker has alone continues.
- No longer a member: the broker stops in an orderly way, and the supervisor says why. The others close all connections
  with a broker that has left. If it does not know, it finds that out when it dials them again.
- Another broker joined: it is dialled. One left: its connections are closed. One has another disk: so are those with
  the disk of before, whose process may be paused, and the broker is dialled where it is now.

Each shard has one of these for its own groups and connections.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.cluster.metadata import MetadataListener, Steps
from millstream.model.cluster import NodeId

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.peers.network import Network
    from millstream.raft.shard import RaftShard
    from millstream.shard.control import ControlEnd
    from millstream.shard.reactor import Reactor

HAS_LEFT: Final = "has_left"
"""On the control channel: this broker has left the cluster."""

_AGAIN_US: Final = 200_000
_TIMEOUT_US: Final = 10_000_000


class BrokerModeListener(MetadataListener):
    """One shard's side of it.

    Lifecycle: ``start`` once, before the reactor runs. Shard: one each.
    """

    def __init__(
        self, reactor: Reactor, metadata: MetadataCache, raft: RaftShard, network: Network, control: ControlEnd
    ) -> None:
        self._reactor = reactor
        self._metadata = metadata
        self._raft = raft
        self._network = network
        self._control = control
        self._node = NodeId(metadata.node_id)
        self._handing_over = False
        self._was_member = False

    def start(self) -> None:
        """Follow the metadata from now on."""
        self._metadata.subscribe(self)
        self._was_member = self._node in self._metadata.state.registry.brokers
        self._follow()

    def broker_changed(self, node: NodeId) -> Steps:
        """A broker is there, has another mode, or has left."""
        registry = self._metadata.state.registry
        if node != self._node:
            if node in registry.brokers:
                self._network.drop_retired(node, registry.retired)
                self._network.connect(node)
            else:
                self._network.forget(node)
                self._network.drop_retired(node, registry.retired)
            return
        if node in registry.brokers:
            self._was_member = True
            self._follow()
        elif self._was_member:
            self._has_left()

    def refused(self) -> bool:
        """Other brokers refuse this one permanently. Returns whether that is because it has left, as it was to: the end
        of its membership has not arrived here, because the others closed their connections first.
        """
        if self._metadata.state.registry.mode(self._node) != "leaving":
            return not self._was_member
        if self._was_member:
            self._has_left()
        return True

    def _has_left(self) -> None:
        self._was_member = False
        self._control.ask(HAS_LEFT, None, _ignore, _TIMEOUT_US)

    @property
    def _is_to_lead(self) -> bool:
        return self._metadata.state.registry.mode(self._node) == "serving"

    def _follow(self) -> None:
        self._raft.forbid_leadership(not self._is_to_lead)
        if not self._is_to_lead and not self._handing_over:
            self._handing_over = True
            self._hand_over()

    def _hand_over(self) -> None:
        """Hand over what leads here, again and again: a group may have no replica that can take over yet."""
        if self._is_to_lead:
            self._handing_over = False
            return
        self._raft.hand_over()
        self._reactor.call_later(_AGAIN_US, self._hand_over)


def _ignore(_: Any) -> None:
    """The supervisor knows."""
