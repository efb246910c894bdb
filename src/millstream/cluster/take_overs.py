"""The active controller takes over what dead brokers have in the object store (``shared.wal=object``), by itself.

::

    dead for dead.broker.take.over.after.ms ─► seal its logs in the store ─► RestorePartitions ─► its partitions are led
                                                  by live brokers: the next ones, 50 at a time   ◄─┘

The seal comes first: a broker that is only paused, or cut off, acknowledges nothing after it. A broker that comes back
between the two registers again, and the request is refused (`core.controller.restoring`).

**Crash.** Nothing here is durable, and each step may be repeated. A new active controller counts the time from its
beginning, and seals again. A broker that dies while it restores partitions is taken over like any other. **The store
is away.** The seal is tried again every `AGAIN_US`, and the partitions wait. **Pace.** The brokers that restore are
given the next partitions when the ones before have a leader, or after `PATIENCE_US`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from millstream.core.controller.commands import RESTORING_PARTITIONS
from millstream.core.controller.requests import RestorePartitions
from millstream.core.controller.restoring import AT_ONCE, held_alone, takers
from millstream.errors import MillstreamError
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.cluster.metadata import MetadataCache
    from millstream.core.controller.requests import AnyRequest, Results
    from millstream.core.controller.state import ControllerState
    from millstream.model.cluster import BrokerEpoch, NodeId
    from millstream.telemetry.metrics import Gauge

AGAIN_US: Final = 5_000_000
PATIENCE_US: Final = 20_000_000


class EndLives(Protocol):
    """Seals every log that a broker has in the object store; ``done`` gets the error, if any."""

    def __call__(self, node: NodeId, done: Callable[[MillstreamError | None], None], /) -> None: ...


class _Dead:
    """One broker that is not alive. Invariant: partitions are given away only while ``sealed``."""

    def __init__(self, epoch: BrokerEpoch, since_us: int) -> None:
        self.epoch = epoch
        """Epoch of the registration that has ended."""
        self.since_us = since_us
        self.sealed = False
        self.busy = False
        """A seal or a request is in flight."""
        self.next_us = 0
        """Nothing is tried before."""
        self.given: list[tuple[bytes, int]] = []
        """Partitions of the last request: topic id and index."""
        self.taken = 0
        self.revision = -1
        self.left: list[tuple[bytes, int]] = []
        """What the broker has alone in the state of ``revision``."""


class TakeOvers:
    """The take-overs of one broker, which carries them out while it is the active controller.

    Shard: the controller's.
    """

    def __init__(
        self,
        cache: MetadataCache,
        now_us: Callable[[], int],
        submit: Callable[[AnyRequest, Callable[[Results | MillstreamError], None]], None],
        waiting: Gauge,
    ) -> None:
        """``waiting`` shows the partitions that are to be taken over."""
        self._cache = cache
        self._now_us = now_us
        self._submit = submit
        self._waiting = waiting
        self.end_lives: EndLives | None = None
        """Set where this broker has a log in the store."""
        self._dead: dict[NodeId, _Dead] = {}

    def begin(self) -> None:
        """This broker is the active controller from now on."""
        self._dead = {}

    def end(self) -> None:
        """It is no longer."""
        self._waiting.set(0)

    def carry_out(self, state: ControllerState) -> None:
        """One tick. ``state`` is that of the leader, which runs ahead of the commit."""
        after_ms = self._cache.settings.dead_broker_take_over_after_ms
        now_us = self._now_us()
        self._note_dead(state, now_us)
        waiting = 0
        if after_ms >= 0 and state.feature_level >= RESTORING_PARTITIONS:
            for node, dead in self._dead.items():
                if now_us - dead.since_us >= after_ms * 1000:
                    if dead.revision != state.revision:
                        found = held_alone(state, node, self._cache.settings)
                        dead.left = [(topic.topic_id, index) for topic, index in found]
                        dead.revision = state.revision
                    waiting += len(dead.left)
                    if now_us >= dead.next_us and not dead.busy and takers(state):
                        self._go_on(node, dead)
        self._waiting.set(waiting)

    def _note_dead(self, state: ControllerState, now_us: int) -> None:
        before, self._dead = self._dead, {}
        for node, broker in state.registry.brokers.items():
            if broker.fenced and broker.profile.log_in_store:
                known = before.get(node)
                again = known is None or known.epoch != broker.epoch
                self._dead[node] = _Dead(broker.epoch, now_us) if known is None or again else known

    def _go_on(self, node: NodeId, dead: _Dead) -> None:
        """The next step for one broker."""
        following = dead.left[:AT_ONCE]
        if not following and not dead.given:
            return  # it has nothing alone
        patient = not following or self._now_us() < dead.next_us + PATIENCE_US
        if patient and not all(map(self._is_led, dead.given)):
            return
        dead.given = []
        if not following:
            operator_log.warning(
                "broker %d: %d shared partitions that it had alone are led by live brokers", node, dead.taken
            )
        elif dead.sealed:
            dead.busy, dead.next_us, dead.given = True, self._now_us(), following
            self._submit(RestorePartitions(node, dead.epoch), partial(self._answered, node, dead))
        elif self.end_lives is None:
            dead.next_us = self._now_us() + PATIENCE_US
            operator_log.error("broker %d is not taken over: the controller, this broker, has shared.wal=disk", node)
        else:
            operator_log.warning(
                "broker %d has not been alive for %d s: live brokers restore the shared partitions that it has alone",
                node,
                (self._now_us() - dead.since_us) // 1_000_000,
            )
            dead.busy = True
            self.end_lives(node, partial(self._sealed, node, dead))

    def _is_led(self, place: tuple[bytes, int]) -> bool:
        """Whether a partition has a leader again, or was deleted."""
        topic = self._cache.topic_by_id(place[0])
        part = None if topic is None else topic.partitions[place[1]]
        return part is None or (part.leader in part.replicas and self._cache.leader_of(part) is not None)

    def _sealed(self, node: NodeId, dead: _Dead, error: MillstreamError | None) -> None:
        dead.busy, dead.sealed = False, error is None
        if error is not None:
            dead.next_us = self._now_us() + AGAIN_US
            operator_log.warning(
                "the take-over of broker %d waits: its logs in the object store cannot be sealed: %s",
                node,
                error.message,
            )

    def _answered(self, node: NodeId, dead: _Dead, results: Results | MillstreamError) -> None:
        dead.busy = False
        error = results.message if isinstance(results, MillstreamError) else results[0].message
        if error is not None:
            dead.next_us, dead.given = self._now_us() + AGAIN_US, []
            operator_log.warning("the take-over of broker %d waits: %s", node, error)
        elif not isinstance(results, MillstreamError):
            dead.taken += results[0].partitions
