"""Which brokers are alive, as the active controller sees it: silence fences, a sign of life lifts the fence.

::

    beat(node, epoch, revision, now_us) ──► Liveness ──due(state, now_us)──► FenceBroker / UnfenceBroker requests

A broker is fenced after ``timeout_us`` without a beat of its present epoch (Redpanda's ``node_alive_timeout``, 5 s),
and unfenced by a beat that says that it has applied the controller's log up to its own registration. A new active
controller knows no beats: every broker that was alive has a whole time-out to send one. Time is handed in, on one
monotonic clock in µs. Beats of unknown brokers and of earlier epochs change nothing.
"""

from typing import Final

import msgspec

from millstream.core.controller.requests import AnyRequest, FenceBroker, UnfenceBroker
from millstream.core.controller.state import ControllerState
from millstream.model.cluster import BrokerEpoch, NodeId, Revision

ALIVE_TIMEOUT_US: Final = 5_000_000


class _Beat(msgspec.Struct, frozen=True, gc=False):
    epoch: BrokerEpoch
    revision: Revision
    at_us: int


class Liveness:
    """The last sign of life of every broker.

    Lifecycle: made when this broker becomes the active controller, dropped when it resigns.
    Invariant: holds at most one beat for each broker that was registered when it came.
    """

    def __init__(self, node: NodeId, now_us: int, timeout_us: int = ALIVE_TIMEOUT_US) -> None:
        """``node`` is this broker, which is alive."""
        self._node = node
        self._since_us = now_us
        self._timeout_us = timeout_us
        self._beats: dict[NodeId, _Beat] = {}
        self.left_revision = Revision(0)
        """No replica has left a broker by a command after this."""

    def beat(self, state: ControllerState, node: NodeId, epoch: BrokerEpoch, revision: Revision, now_us: int) -> None:
        """A broker reports that it is alive as ``epoch`` and has applied the controller's log up to ``revision``."""
        broker = state.registry.brokers.get(node)
        if broker is not None and broker.epoch == epoch:
            self._beats[node] = _Beat(epoch, revision, now_us)

    def is_behind(self, applied: Revision, node: NodeId) -> bool:
        """Whether a broker may not know yet that replicas left it; this one has ``applied`` so much."""
        beat = self._beats.get(node)
        known = applied if node == self._node else Revision(-1) if beat is None else beat.revision
        return known < self.left_revision

    def leave(self, node: NodeId) -> None:
        """A broker says that it stops: its earlier beats count no more."""
        self._beats.pop(node, None)

    def due(self, state: ControllerState, now_us: int) -> list[AnyRequest]:
        """The fences to set and to lift now, in order of node id."""
        found: list[AnyRequest] = []
        for node in state.registry.nodes():
            broker = state.registry.brokers[node]
            beat = self._beats.get(node)
            if beat is not None and beat.epoch != broker.epoch:
                beat = None
                del self._beats[node]
            heard_us = beat.at_us if beat is not None else self._since_us
            silent = now_us - heard_us >= self._timeout_us and node != self._node
            if not broker.fenced and silent:
                found.append(FenceBroker(node, broker.epoch))
            elif broker.fenced and not silent and self._is_ready(beat, broker.epoch, node):
                found.append(UnfenceBroker(node, broker.epoch))
        return found

    def next_due_us(self, state: ControllerState) -> int | None:
        """When ``due`` may have something that no beat announces: the earliest end of a broker's time-out."""
        alive = [node for node in state.registry.alive() if node != self._node]
        last_beats = [self._beats[node].at_us if node in self._beats else self._since_us for node in alive]
        return min(last_beats) + self._timeout_us if last_beats else None

    def _is_ready(self, beat: _Beat | None, epoch: BrokerEpoch, node: NodeId) -> bool:
        return node == self._node or (beat is not None and beat.revision >= epoch)
