"""A history of brokers with two shared topics, from one seed.

Both topics have producers; readers follow one of them, and read its history. One topic may be deleted. Whenever an
object was removed or replaced, the store alone must have everything that is archived (F8). At each heal everything is
uploaded and joined within a stated time, and shared objects that no log needs are deleted.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Final, cast

from millstream.core.shared import BacklogLimits, JoinLimits, joins
from millstream.format.shared_object import SHARED_FOLDER
from millstream.model.quantities import Offset
from millstream.tiers import joining, packing, shared_joins, shared_objects, sweeping
from millstream.tiers.messages import Read
from sim.archive import history
from sim.archive.history import BLOCK_BYTES, TieredHistory
from sim.brokers.clients import Producer
from sim.brokers.world import GROUP
from sim.engine.timeline import SECOND as SECOND_US
from sim.engine.timeline import stream
from sim.engine.violation import Violation
from sim.shared.broker import SECOND, SharedBroker, owner_of, topic_id_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from millstream.model.quantities import RaftGroupId
    from millstream.objects import ObjectKey
    from millstream.tiers.messages import Command
    from sim.brokers.served import ServedBroker
    from sim.brokers.settings import Setting
    from sim.brokers.world import Broker, Cluster
    from sim.engine.histories import Counts, Finding
    from sim.engine.requests import Produced

LARGE_BYTES: Final = 6_000
RANGES_MAX: Final = 6
_HEAL_US: Final = 1_300 * SECOND_US
"""A join that failed often waits for ten minutes."""


_LOOK_US: Final = 300_000
"""Between two looks at what the store has."""


class SecondProducer(Producer):
    """A producer for the other topic, which ends with it."""

    def _produce(self, broker: ServedBroker, data: bytes, reply: Callable[[Produced], None]) -> None:
        assert isinstance(broker, SharedBroker)
        if broker.second is not None:
            broker.append_to(broker.second, data, -1, reply)

    def stop(self) -> None:
        """The topic is deleted."""
        self.in_flight = 0
        self.unacked.clear()
        self.disconnect()


class SharedHistory(TieredHistory):
    """One history. Lifecycle: as `TieredHistory`."""

    groups = (GROUP, SECOND)

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        chance = self._shape = stream(seed, "shared")
        self.second_deleted = False
        self.sweep_us: int = chance.choice((100_000, 1_000_000, 3_000_000))
        self.join_limits = JoinLimits(chance.choice((2_000, 8_000, 1 << 20)), chance.choice((300, 3_000)))
        self.backlog_limits = BacklogLimits(
            chance.choice((8_000, 1 << 20)), chance.choice((1, 4_000, 50_000)), chance.choice((100, 1_000)), LARGE_BYTES
        )
        self.object_bytes_max: int = chance.choice((2_500, 20_000))
        self._slow_reads = chance.random() < 0.5
        self._tick_ms: int = chance.choice((1, 1, 500))
        super().__init__(seed, setting)
        self.judge.store.on_change = self._changed
        timeout_us = 2 * self.setting.options.election_timeout_us
        self._second = SecondProducer(self.cluster, 900, SECOND, timeout_us, self.setting.in_flight)
        self._producers.append(self._second)
        self._deletes_at = chance.random() if chance.random() < 0.5 else 2.0

    @staticmethod
    def replaced(seed: int) -> list[tuple[object, str, object]]:
        """Constants, and what is random, are others in a history."""
        chance = stream(seed, "numbers")
        few = chance.random() < 0.5  # two brokers often choose the same number for an object

        def randbits(count: int) -> int:
            return chance.getrandbits(1 if few else count)

        numbers = SimpleNamespace(randbits=randbits, randbelow=chance.randrange, token_bytes=chance.randbytes)
        return [
            *TieredHistory.replaced(seed),
            (packing, "BLOCK_BYTES", BLOCK_BYTES),
            (joining, "BLOCK_BYTES", BLOCK_BYTES),
            (joining, "_READ_AT_ONCE", 1),
            (joins, "LARGE_BYTES", LARGE_BYTES),
            (sweeping, "LARGE_BYTES", LARGE_BYTES),
            (joins, "RANGES_MAX", RANGES_MAX),
            (sweeping, "READ_AT_ONCE", 3),
            (shared_objects, "secrets", numbers),
            (shared_joins, "secrets", numbers),
            (joining, "secrets", numbers),
        ]

    def grace_us(self, key: ObjectKey) -> int:
        """How long readers may keep reading an object that is removed."""
        return self.sweep_us if key.startswith(SHARED_FOLDER) else super().grace_us(key)

    def begins_us(self, command: Command) -> int:
        """How long a command of an archive process waits before it takes effect; some reads for as long as a sweep."""
        slow = isinstance(command, Read) and self._slow_reads and self._shape.random() < 0.2
        return self.delay_us() + (int(self.sweep_us * self._shape.random()) if slow else 0)

    def _slowness_us(self) -> int:
        """As there, with reads that take as long as a sweep."""
        return super()._slowness_us() + 20 * self.sweep_us

    def make(self, cluster: Cluster, node_id: int) -> Broker:
        """Make a broker for the cluster, which is being made."""
        self.cluster = cluster
        return SharedBroker(cluster, node_id, self)

    def clock_ms(self) -> int:
        """The wall clock, which is a coarse one in some histories."""
        now_ms = self.cluster.now // 1000
        return now_ms - now_ms % self._tick_ms

    def _changed(self, keys: Sequence[ObjectKey]) -> None:
        """Objects were removed, or manifests replaced: the store alone still has everything."""
        _ = keys
        for group, judge in self.judges.items():
            if not judge.truth.deleted:
                judge.check_recovery(owner_of(group))

    def _step_jobs(self) -> None:
        """Jobs leave shared topics alone; instead of them the other topic is trimmed and deleted."""
        chance = self._shape
        if self.second_deleted:
            return
        if self.setting.trims and chance.random() < 0.02:
            self._trim_second()
        left = (self._until_us - self.cluster.now) / self.setting.round_us
        if chance.random() < 0.02 and 1 - left >= self._deletes_at:
            self._delete_second()

    def _trim(self) -> None:
        """Delete records that readers have just started to read."""
        if self.truth.end > self.truth.start:
            for broker in self.tiered_brokers:
                self._read_at(broker, self.truth.start)
        super()._trim()

    def _trim_second(self) -> None:
        brokers = [cast("SharedBroker", one) for one in self._up()]
        ends = [one.second.group.committed_offset for one in brokers if one.second is not None]
        if len(ends) < len(self.cluster.brokers):
            return
        wanted = self._shape.randint(0, min(ends))
        for broker in brokers:
            if broker.leads(SECOND) and broker.second is not None:
                self.cluster.histories[SECOND].trimmed = max(self.cluster.histories[SECOND].trimmed, wanted)
                broker.second.group.propose_log_start(Offset(wanted))

    def _delete_second(self) -> None:
        self.faults["topic deleted"] += 1
        self.second_deleted = self.judges[SECOND].truth.deleted = True
        self.cluster.histories[SECOND].delete()
        self._second.stop()
        for broker in self.cluster.brokers.values():
            at_us = self.cluster.now + self.delay_us()
            self.cluster.send_at(at_us, broker.replica, lambda arrived: cast("SharedBroker", arrived).delete_second())

    def _complete_archive(self) -> None:
        """All is uploaded and joined, objects that no log needs are deleted, and the store alone has everything."""
        brokers = [cast("SharedBroker", one) for one in self.cluster.brokers.values()]
        wanted = sorted(self._live())

        def complete() -> bool:
            led = sorted(archive.log.group for one in brokers for archive in one.led)
            return led == wanted and all(one.has_uploaded for one in brokers)

        if not self.cluster.run(complete, _HEAL_US):
            ends = [(one.replica, [each.archive.end_offset for each in one.led]) for one in brokers]
            raise Violation(f"G6: not everything is uploaded {_HEAL_US} us after the heal: {ends}")
        looked_us = 0

        def is_tidy() -> bool:
            nonlocal looked_us
            if self.cluster.now < looked_us + _LOOK_US:
                return False
            looked_us = self.cluster.now
            return not self._superfluous() or any(one.gave_up for one in brokers)

        if not self.cluster.run(is_tidy, _HEAL_US):
            raise Violation(f"G6: shared objects that no log needs stay: {self._superfluous()[:5]}")
        for group in self._live():
            self.judges[group].check_recovery(owner_of(group), self.cluster.histories[group])
            self.truth.note("store checked alone")

    def _live(self) -> list[RaftGroupId]:
        return [group for group in self.groups if group != SECOND or not self.second_deleted]

    def _superfluous(self) -> list[str]:
        """Shared objects without a large range that a log still needs, and what is left of a deleted topic."""
        store = self.judge.store
        needed = {topic_id_of(group): self.judges[group].truth.start for group in self._live()}
        found: list[str] = []
        for info in store.list(SHARED_FOLDER):
            ends = sweeping._range_ends(sweeping.read_index(store, sweeping.parse_shared_key(info.key)))  # pyright: ignore[reportArgumentType]
            large = [one for one in ends if one.is_large and one.partition.topic_id in needed]
            described = any(one.partition.topic_id not in needed for one in ends) and bool(self._left_of_second())
            if not described and not any(one.end_offset > needed[one.partition.topic_id] for one in large):
                found.append(info.key)
        late = self._late or any(judge.truth.seen.get("command of a dead broker") for judge in self.judges.values())
        return found if late else [*found, *self._left_of_second()]

    def _left_of_second(self) -> list[str]:
        """What the store has of the deleted topic. A write that comes after its removal stays."""
        folder = f"topics/{owner_of(SECOND).topic_id.hex}/"
        return [info.key for info in self.judge.store.list(folder)] if self.second_deleted else []


def play(seed: int, counts: Counts, setting: Setting | None = None) -> Finding | None:
    """Play the history of a seed; a finding is in ``counts``, too."""
    return history.play(seed, counts, setting, SharedHistory)
