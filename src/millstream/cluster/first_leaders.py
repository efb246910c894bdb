"""Who creates partitions is answered when their first leaders lead, so that the client's next request finds them.

::

    created here ──► leader assigned ──► applied there, noted durably, started ──Leaders──► known here ──► the answer

The creation of a partition names its leader, which leads some milliseconds later: its broker has to apply the creation
and to note it durably first. A producer that came earlier would be refused. The wait ends after `WAIT_US`, or the
client's own timeout, with the same answer: the partitions exist.

A partition without a live leader is not waited for, and one that this broker has alone leads when it is created.
**Crash.** Nothing is stored. **Overload.** A wait holds the identifiers of the partitions that it waits for; the
controller bounds the requests in flight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from millstream.cluster.messages import LeaderFact
    from millstream.cluster.metadata import MetadataCache
    from millstream.cluster.topic_table import PartitionMeta
    from millstream.shard.reactor import Reactor, Timer

WAIT_US: Final = 2_000_000


class _Waiting:
    """One answer. ``missing`` has (topic id, partition index) of each partition without a leader."""

    __slots__ = ("done", "missing", "timer")

    def __init__(self, missing: set[tuple[bytes, int]], done: Callable[[], None]) -> None:
        self.missing = missing
        self.done = done
        self.timer: Timer | None = None


class FirstLeaders:
    """The answers of one shard that wait.

    Lifecycle: made with the shard's `ControllerClient`. Shard: one each. Invariant: each of ``_waiting`` lacks a leader
    and has a timer.
    """

    def __init__(self, reactor: Reactor, cache: MetadataCache) -> None:
        self._reactor = reactor
        self._cache = cache
        self._waiting: list[_Waiting] = []
        cache.on_leaders = self._known

    def when_led(self, names: Iterable[str], timeout_us: int, done: Callable[[], None]) -> None:
        """Call ``done`` when every partition of these topics has a leader that has reported itself; at once if so."""
        missing: set[tuple[bytes, int]] = set()
        for name in names:
            topic = self._cache.topic(name)
            if topic is not None:
                missing |= {(topic.topic_id, part.index) for part in topic.partitions if self._is_awaited(part)}
        if not missing or timeout_us <= 0:
            done()
            return
        waiting = _Waiting(missing, done)
        self._waiting.append(waiting)
        waiting.timer = self._reactor.call_later(min(timeout_us, WAIT_US), lambda: self._end(waiting))

    def _is_awaited(self, part: PartitionMeta) -> bool:
        if part.heard or self._cache.leader_of(part) is None:
            return False
        return part.replicas != (self._cache.node_id,)

    def _known(self, topic_id: bytes, facts: Iterable[LeaderFact]) -> None:
        """Leaders of a topic's partitions are known here."""
        if not self._waiting:
            return
        known = {(topic_id, index) for index, _, leader, _ in facts if leader >= 0}
        for waiting in list(self._waiting):
            waiting.missing -= known
            if not waiting.missing:
                self._end(waiting)

    def _end(self, waiting: _Waiting) -> None:
        self._waiting.remove(waiting)
        if waiting.timer is not None:
            waiting.timer.cancel()
        waiting.done()
