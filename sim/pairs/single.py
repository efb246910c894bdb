"""The world of a pair with one broker: one life after another over one disk, with a perfect controller."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.core.controller.commands import FEATURE_LEVEL, ClusterCreated, FeatureLevelRaised
from millstream.core.controller.decide import decide
from millstream.core.controller.rules import Rules
from millstream.core.controller.state import ControllerState
from millstream.core.controller.topic_names import GROUP_METADATA, TRANSACTION_STATE
from millstream.errors import MillstreamError
from millstream.model.cluster import NodeId
from millstream.partition.table import Waiting
from millstream.tiers.wal_lives import begin_life
from sim.engine.disk import SimDisk
from sim.engine.objects import Faults
from sim.engine.timeline import SECOND
from sim.pairs.broker import Broker
from sim.pairs.kinds import INTERNAL
from sim.pairs.sharing import Sharing
from sim.pairs.world import MINUTE, Refused, World

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.coordinator.local_groups import LocalGroups
    from millstream.model.shared import Writer
    from millstream.partition.partition import Partition
    from sim.pairs.kinds import Kind

_NODE: Final = NodeId(1)
_START_TRIES: Final = 30


class Single(World):
    """One history's. Lifecycle: made with the broker up."""

    def __init__(self, seed: str, kind: Kind) -> None:
        self.now_us = 1_700_000_000 * SECOND
        self.wall_offset_ms = 0
        self.broker: Broker | None = None
        self._ids = 1_000
        self._on_the_way: list[Callable[[], None]] = []
        """Requests to the store of a broker that died."""
        super().__init__(seed, kind)

    def found(self) -> None:
        """Make a cluster of an empty disk; the store stays."""
        self._decided = ControllerState()
        self._decided.apply(ClusterCreated("world", 1))
        self._decided.apply(FeatureLevelRaised(FEATURE_LEVEL))
        self.disk = SimDisk(self.chance)
        self.start()
        for name in (GROUP_METADATA, TRANSACTION_STATE):
            self.create(name, self.kind.configs if name == self.kind.name else INTERNAL)
        self.committed.clear()
        self.sharing = Sharing(self)

    @property
    def controller(self) -> ControllerState:
        """What the controller has decided."""
        return self._decided

    # What the parts of a broker ask for

    def topic_ids(self) -> list[bytes]:
        """Of all topics."""
        return list(self.controller.topics.by_id)

    def next_producer_id(self, done: Callable[[Any], None]) -> None:
        """An id that no producer ever had."""
        self._ids += 1
        done(self._ids)

    # The broker

    @property
    def up(self) -> Broker:
        """The broker, which is up."""
        assert self.broker is not None
        return self.broker

    def lives(self) -> list[Any]:
        """The broker, if it is up."""
        return [] if self.broker is None else [self.broker]

    def disks(self) -> list[SimDisk]:
        """The only one."""
        return [self.disk]

    @property
    def clock_is_back(self) -> bool:
        """Whether the wall clock was set back."""
        return self.wall_offset_ms < 0

    def wall_ms(self) -> int:
        """The wall clock."""
        if self.broker is not None:
            return self.broker.shard.reactor.wall_ms()
        return self.now_us // 1000 + self.wall_offset_ms

    def set_wall_clock(self, by_ms: int) -> None:
        """Move the wall clock alone."""
        self.wall_offset_ms += by_ms
        self.up.shard.reactor.jump_ms = self.wall_offset_ms

    def run(self, holds: Callable[[], bool], limit_us: int) -> None:
        """Let things happen until something holds."""
        self.up.shard.run(holds, limit_us)

    def wait(self, duration_us: int) -> None:
        """Let time pass."""
        over: list[int] = []
        self.up.shard.reactor.call_later(duration_us, lambda: over.append(1))
        self.run(lambda: bool(over), 2 * duration_us + SECOND)

    def start(self) -> None:
        """Start the broker. Requests of its last run may reach the store before or after."""
        late, self._on_the_way = self._on_the_way, []
        after = [one for one in late if self.chance.random() < 0.5 or one()]
        self.broker = Broker(self, self._begin_life())
        for one in after:
            self.up.shard.reactor.call_later(self.delay_us(), one)

    def _begin_life(self) -> Writer | None:
        """A broker whose acknowledgements wait for the store starts as soon as the store is there."""
        if self.settings.shared_wal != "object":
            return None
        for _ in range(_START_TRIES):
            try:
                return begin_life(self.faulty, _NODE, "", 1)
            except MillstreamError:
                self.now_us += SECOND
        self.set_store(Faults())
        return begin_life(self.faulty, _NODE, "", 1)

    def kill(self, *, torn: bool) -> None:
        """The power fails. What is on its way to the store may arrive."""
        self._down()
        self.disk.crash(torn=torn)

    def stop(self) -> None:
        """An orderly stop."""
        broker = self.up
        broker.stop_coordinators()
        broker.archiver.stop()
        done: list[int] = []
        broker.shard.storage.stop(lambda: done.append(1))
        self.until(lambda: bool(done), "the broker does not stop")
        self._down()

    def _down(self) -> None:
        self._on_the_way += self.up.cluster.on_the_way()
        self.now_us = self.up.shard.reactor.now_us()
        self.up.is_up = False
        self.broker = None

    def heal(self) -> None:
        """There is no other broker."""

    # The controller

    def decide(self, request: Any) -> Any:
        """Have the controller decide. Raises Refused with its sentence."""
        rules = Rules(0, self.settings, self.settings, lambda: self.chance.randbytes(16))
        decision = decide(self.controller, request, rules)
        first = decision.results[0]
        if first.error:
            raise Refused(first.message or first.error.name)
        for command in decision.commands:
            self._decided.apply(command)
        return first

    def opens(self, name: str, index: int) -> None:
        """The controller has made a partition."""
        self.up.open(name, index, fresh=True)

    def configures(self, name: str) -> None:
        """The controller has changed properties of a topic."""
        self.up.configure(name, self.config(name))

    def deletes(self, name: str, topic_id: bytes) -> None:
        """The controller has deleted a topic."""
        self.up.delete(name, topic_id)

    # Where clients ask

    def serving(self, name: str, index: int = 0) -> Partition:
        """A partition, once it is served. Raises Refused for one that asks the store, which is away, for its files."""
        if self.config(name).is_archived:
            self.run(lambda: self.up.partition(name, index) is not None, MINUTE)
            if isinstance(self.up.table.find(name, index), Waiting):
                raise Refused("REQUEST_TIMED_OUT")
        self.until(
            lambda: self.up.partition(name, index) is not None,
            f"{name}/{index} is not served: {getattr(self.up.table.find(name, index), 'reason', 'it is not there')}",
        )
        found = self.up.partition(name, index)
        assert found is not None
        return found

    def broker_of(self, name: str, index: int) -> Any:
        """The only one."""
        _ = name, index
        return self.up

    def coordinate(self, request: Callable[[Any], Any], done: Callable[[Any], None]) -> None:
        """Ask the coordinator of transactions."""
        self.up.coordinate(request, done)

    def groups(self) -> LocalGroups:
        """Of the broker."""
        return self.up.groups
