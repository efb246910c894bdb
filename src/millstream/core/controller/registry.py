"""The registered brokers in the controller's state, and the commands that change them.

::

    (unknown) ──BrokerRegistered──► fenced ──BrokerUnfenced──► alive
                                     ▲  ▲ │                      │
                    BrokerRegistered ┘  │ └──BrokerReplaced──┐   │
                    (same disk)         └────────────────────┘   │
                                        ◄──BrokerFenced──────────┘
                                        ◄──BrokerRegistered (a restart)

    fenced or alive ──BrokerUnregistered──► (unknown; the disk never comes back)

Each registration gives the broker a new epoch, so that what was said by or about an earlier life cannot be taken for
the present one. A command that contradicts the registry is ``Corruption``, like any other.
"""

import msgspec

from millstream.core.controller.commands import (
    BrokerFenced,
    BrokerLogsInStore,
    BrokerMode,
    BrokerModeChanged,
    BrokerRegistered,
    BrokerReplaced,
    BrokerUnfenced,
    BrokerUnregistered,
)
from millstream.core.controller.profile import BrokerProfile
from millstream.errors import Corruption
from millstream.model.cluster import INCARNATION_BYTES, BrokerEpoch, Incarnation, NodeId
from millstream.model.replication import ReplicaId, replica_id

LOST_PREFIX = b"\xff" * 8
"""Prefix of the incarnation that stands for a disk that was declared lost; that of a real one is random."""


class BrokerState(msgspec.Struct, frozen=True):
    """One registered broker. A broker that changes is a new value."""

    node: NodeId
    incarnation: Incarnation
    replacement: int
    """Tells this disk from others that were registered under the same id; 0 for a broker that formed the cluster."""
    epoch: BrokerEpoch
    profile: BrokerProfile
    fenced: bool

    @property
    def replica(self) -> ReplicaId:
        """The broker's identity in the configuration of Raft groups; another disk is another replica."""
        return replica_id(self.node, self.replacement)

    @property
    def is_lost(self) -> bool:
        """Whether the broker's disk was declared lost, and no other has taken its place."""
        return self.incarnation.startswith(LOST_PREFIX)


class Registry:
    """All registered brokers by node id, and the lost disks. Changed by the ``apply`` of the state only.

    Invariants: an incarnation belongs to at most one broker; none in ``retired`` belongs to any; ``modes`` has
    registered brokers only, and none that serves.
    """

    __slots__ = ("brokers", "modes", "retired")

    def __init__(self) -> None:
        self.brokers: dict[NodeId, BrokerState] = {}
        self.retired: dict[Incarnation, NodeId] = {}
        """Disks that were replaced or whose broker has left, and whose they were."""
        self.modes: dict[NodeId, BrokerMode] = {}

    def copy(self) -> "Registry":
        """A registry of its own with the same brokers."""
        other = Registry()
        other.brokers = dict(self.brokers)
        other.retired = dict(self.retired)
        other.modes = dict(self.modes)
        return other

    def owner(self, incarnation: Incarnation) -> NodeId | None:
        """The broker that is registered with this disk."""
        return next((node for node, broker in self.brokers.items() if broker.incarnation == incarnation), None)

    def nodes(self) -> tuple[NodeId, ...]:
        """All registered brokers in the order of their ids."""
        return tuple(sorted(self.brokers))

    def alive(self) -> tuple[NodeId, ...]:
        """Those that are not fenced, in the order of their ids."""
        return tuple(node for node in self.nodes() if not self.brokers[node].fenced)

    def mode(self, node: NodeId) -> BrokerMode:
        """What is asked of a registered broker."""
        return self.modes.get(node, "serving")

    def has_left(self, node: NodeId) -> bool:
        """Whether a broker had this id, and none has it now."""
        return node not in self.brokers and node in self.retired.values()

    def why_retired(self, incarnation: Incarnation) -> str:
        """Why a disk in ``retired`` never comes back, and what to do, in words for an operator."""
        node = self.retired[incarnation]
        if self.has_left(node):
            return (
                f"broker {node} has left this cluster: what its data directory holds is outdated; to let it join "
                "again, start it with an empty directory"
            )
        return (
            f"the data directory of broker {node} was replaced or declared lost: what it holds is outdated; start with "
            "an empty directory, and with --replace if no other broker has this id"
        )

    # Commands

    def register(self, command: BrokerRegistered, epoch: BrokerEpoch) -> None:
        before = self.brokers.get(command.node)
        if before is None:
            self._check_new(command.incarnation)
        else:
            _require(
                before.incarnation == command.incarnation, f"broker {command.node} is registered with another disk"
            )
        replacement = before.replacement if before is not None else command.replacement
        self._put(command, replacement, epoch)

    def replace(self, command: BrokerReplaced, epoch: BrokerEpoch) -> None:
        before = self.brokers.get(command.node)
        _require(before is not None, f"broker {command.node}, whose disk was replaced, is not registered")
        assert before is not None
        _require(
            before.incarnation == command.previous, f"broker {command.node} had another disk than the replaced one"
        )
        _require(before.fenced, f"the disk of broker {command.node} was replaced while the broker was alive")
        self._check_new(command.incarnation)
        self.retired[before.incarnation] = command.node
        self._put(command, command.replacement if command.version else before.replacement + 1, epoch)

    def _put(self, command: BrokerRegistered | BrokerReplaced, replacement: int, epoch: BrokerEpoch) -> None:
        self.brokers[command.node] = BrokerState(
            command.node, command.incarnation, replacement, epoch, command.profile, fenced=True
        )

    def fence(self, command: BrokerFenced | BrokerUnfenced) -> None:
        """Set or lift the fence."""
        before = self.brokers.get(command.node)
        _require(before is not None, f"broker {command.node} is not registered")
        assert before is not None
        _require(before.epoch == command.epoch, f"epoch {command.epoch} of broker {command.node} is over")
        fenced = isinstance(command, BrokerFenced)
        _require(before.fenced != fenced, f"broker {command.node} is {'fenced' if fenced else 'alive'} already")
        self.brokers[command.node] = msgspec.structs.replace(before, fenced=fenced)

    def log_in_store(self, command: BrokerLogsInStore) -> None:
        before = self.brokers.get(command.node)
        _require(before is not None, f"broker {command.node} is not registered")
        assert before is not None
        _require(before.epoch == command.epoch, f"epoch {command.epoch} of broker {command.node} is over")
        profile = msgspec.structs.replace(before.profile, log_in_store=True)
        self.brokers[command.node] = msgspec.structs.replace(before, profile=profile)

    def change_mode(self, command: BrokerModeChanged) -> None:
        _require(command.node in self.brokers, f"broker {command.node} is not registered")
        _require(self.mode(command.node) != command.mode, f"broker {command.node} is {command.mode} already")
        if command.mode == "serving":
            del self.modes[command.node]
        else:
            self.modes[command.node] = command.mode

    def unregister(self, command: BrokerUnregistered) -> None:
        before = self.brokers.get(command.node)
        _require(before is not None, f"broker {command.node}, which leaves, is not registered")
        assert before is not None
        _require(before.epoch == command.epoch, f"epoch {command.epoch} of broker {command.node} is over")
        self.retired[before.incarnation] = command.node
        del self.brokers[command.node]
        self.modes.pop(command.node, None)

    def _check_new(self, incarnation: Incarnation) -> None:
        _require(len(incarnation) == INCARNATION_BYTES, f"an incarnation has {INCARNATION_BYTES} bytes")
        _require(incarnation not in self.retired, f"the disk {incarnation.hex()} was replaced before")
        _require(self.owner(incarnation) is None, f"the disk {incarnation.hex()} belongs to another broker")


def _require(condition: bool, otherwise: str) -> None:
    if not condition:
        raise Corruption(f"the controller's log contradicts itself: {otherwise}")
