"""A history of brokers with a tiered topic, from one seed.

The clients and faults are those of `sim.brokers.history`. Besides, the store fails in many ways, goes away for
a while, and the caches rot. At each heal everything ends: the archive has to be complete within a stated time, each
broker has to read the whole log back, and the store alone has to give back what is archived.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from msgspec.structs import replace

from millstream.errors import MillstreamError
from millstream.format.archive import manifest_key
from millstream.format.manifest import ArchivedSegment, encode_manifest
from millstream.format.segment import parse_batch
from millstream.format.shared_object import object_key
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.objects import ObjectKey
from millstream.tiers import manifest, uploading
from millstream.wire.records import batch_crc_ok
from sim.archive.broker import DELETE_DELAY_US, TieredBroker
from sim.archive.jobs import MergeJobs
from sim.archive.judge import ArchiveJudge
from sim.archive.store import JudgedStore, Truth, WorldStore
from sim.brokers.history import BrokersHistory
from sim.brokers.settings import draw
from sim.brokers.world import GROUP
from sim.engine.histories import attempt
from sim.engine.local_storage import Stopped
from sim.engine.objects import Faults
from sim.engine.timeline import SECOND, stream
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.manifest import ArchiveId, ManifestPart
    from millstream.model.quantities import RaftGroupId
    from millstream.tiers.messages import Command
    from sim.brokers.served import Fetched
    from sim.brokers.settings import Setting
    from sim.brokers.world import Broker, Cluster
    from sim.engine.histories import Counts, Finding

BLOCK_BYTES: Final = 1_500
RUN_COUNT: Final = 4
MEMORY_BYTES: Final = 400
_FETCH_BYTES: Final = 4_000
_HEAL_US: Final = 300 * SECOND
"""An archiver that failed often waits for a minute."""


def setting_of(seed: int) -> Setting:
    """The setting of a seed: one topic whose records are kept, and batches of a size that fills segments."""
    drawn = draw(seed)
    chance = stream(seed, "archive setting")
    return replace(
        drawn,
        nodes=chance.choice((1, 3, 3)),
        groups=False,
        controlled=False,
        write_caching=False,
        size=chance.choice((100, 1_000, 2_000)),
        operations_per_s=chance.choice((30, 50)),
        round_us=max(drawn.round_us, 3 * SECOND),
        trims=chance.random() < 0.5,
    )


class TieredHistory(BrokersHistory):
    """One history. Lifecycle: made from a seed, `run` once."""

    groups: tuple[RaftGroupId, ...] = (GROUP,)
    """Of all archived partitions."""

    def __init__(self, seed: int, setting: Setting | None = None) -> None:
        chance = self.chance = stream(seed, "archive")
        truths = {group: Truth() for group in self.groups}
        self.truth = truths[GROUP]
        judged = JudgedStore(list(truths.values()), self._now_ms)
        self.judges = {group: ArchiveJudge(judged, truth) for group, truth in truths.items()}
        self.judge = self.judges[GROUP]
        self.reads = Reads(self)
        judged.on_delete = self.reads.check
        self._chances = Faults(
            error=chance.choice((0, 0.02, 0.2)),
            lost_answer=chance.choice((0, 0.05, 0.2)),
            throttled=chance.choice((0, 0.05)),
            truncated=chance.choice((0, 0.1)),
        )
        self._late = chance.choice((0.0, 0.1))
        self._flipped = chance.choice((0.0, 0.1))
        self.cache_faults = chance.choice(((0.0, 0.0), (0.2, 0.0), (0.1, 0.02)))
        self.fills_on_write = chance.random() < 0.5
        self._delay_us = chance.choice((500, 20_000, 300_000))
        self.store = WorldStore(judged, chance, Faults(), self._later)
        self._calm = True
        self._jobs = MergeJobs(self, stream(seed, "jobs"))
        super().__init__(seed, setting or setting_of(seed))
        self._kinds += [self._away, self._away]

    @staticmethod
    def replaced(seed: int) -> list[tuple[object, str, object]]:
        """Constants that are others in a history: owner, attribute, value."""
        _ = seed
        return [
            (uploading, "BLOCK_BYTES", BLOCK_BYTES),
            (manifest, "RUN_COUNT_MAX", RUN_COUNT),
            (manifest.Archive.__init__, "__defaults__", (MEMORY_BYTES,)),
            (manifest.Archive.of.__func__, "__defaults__", (MEMORY_BYTES,)),
        ]

    def grace_us(self, key: ObjectKey) -> int:
        """How long readers may keep reading an object that is removed."""
        _ = key
        return DELETE_DELAY_US

    def make(self, cluster: Cluster, node_id: int) -> Broker:
        """Make a broker for the cluster, which is being made."""
        self.cluster = cluster
        return TieredBroker(cluster, node_id, self)

    def delay_us(self) -> int:
        """Half of what a request to the store takes; now and then much longer."""
        factor = 20 if self.chance.random() < 0.02 else 1
        return 1 + int(factor * self._delay_us * self.chance.random())

    def begins_us(self, command: Command) -> int:
        """How long a command of an archive process waits before it takes effect."""
        _ = command
        return self.delay_us()

    @property
    def tiered_brokers(self) -> list[TieredBroker]:
        """The brokers that are up."""
        return [one for one in self._up() if isinstance(one, TieredBroker)]

    def _later(self, do: object) -> None:
        self.cluster.after(10 * self.delay_us(), do)  # pyright: ignore[reportArgumentType]

    def _now_ms(self) -> int:
        return self.cluster.now // 1000

    def _away(self) -> None:
        self.faults["store away"] += 1
        self.store.is_away = True
        self.cluster.after(self._duration(), self._back)

    def _back(self) -> None:
        self.store.is_away = False

    def _client(self) -> None:
        if self._calm and self.cluster.now < self._until_us:
            self._calm = False
            self.store.chances, self.store.late, self.store.flipped = self._chances, self._late, self._flipped
        self._read_history()
        if not self._calm:
            self._step_jobs()
        super()._client()

    def _step_jobs(self) -> None:
        self._jobs.step()

    def _read_history(self) -> None:
        """Reads archived records from any broker."""
        brokers = self.tiered_brokers
        if not brokers or self.truth.end <= self.truth.start:
            return
        self._read_at(self.chance.choice(brokers), self.chance.randrange(self.truth.start, self.truth.end))

    def _read_at(self, broker: TieredBroker, offset: int) -> None:
        """Read from a broker that leads or not."""

        def answered(found: Fetched) -> None:
            at = 0
            while at < len(found.data):
                batch = parse_batch(found.data, at, at, len(found.data))
                if not batch_crc_ok(memoryview(found.data)[at : at + batch.size]):
                    raise Violation(f"C4: a reader of history reads a batch at {batch.base_offset} with wrong bytes")
                self.cluster.history.on_read("a reader of history", batch)
                at += batch.size
            self.truth.note("history read" if found.data else f"history refused: {ErrorCode(found.error).name}")

        broker.fetch(Offset(offset), -1, -1, _FETCH_BYTES, answered)

    def _finish(self, limit_us: int) -> None:
        """The store and the caches are well again, and the archive becomes complete."""
        self._calm = True
        self.store.calm(Faults())
        for broker in self.cluster.brokers.values():
            assert isinstance(broker, TieredBroker)
            broker.slots.rot = broker.slots.errors = 0.0
        super()._finish(limit_us + self._slowness_us())
        self._until_us = 0
        self._complete_archive()
        for broker in self.cluster.brokers.values():
            broker.check_whole_logs()

    def _slowness_us(self) -> int:
        """What readers may take longer than those of a local log: one that reads batch by batch waits for as many
        requests, some of which take twenty times as long as most.
        """
        return 400 * self._delay_us

    def _complete_archive(self) -> None:
        """Wait until everything is archived, and check the store alone."""
        leaders: list[TieredBroker] = []

        def complete() -> bool:
            brokers = [one for one in self.cluster.brokers.values() if isinstance(one, TieredBroker)]
            leaders[:] = [one for one in brokers if one.has_archived and self._manifest_is_new(one)]
            return bool(leaders)

        if not self.cluster.run(complete, _HEAL_US):
            states = [
                (one.replica, one.archive.archive.end_offset, one.log.next_offset, one.archive.attempts.busy)
                for one in self.cluster.brokers.values()
                if isinstance(one, TieredBroker) and one.archive is not None
            ]
            raise Violation(f"G6: the archive is not complete {_HEAL_US} us after the heal: {states}")
        (leader, *_) = leaders
        archive = leader.archive
        assert archive is not None
        saved = self.judge.store.objects.get(ObjectKey(manifest_key(archive.owner)))
        if saved is not None:
            self.judge.check_store(archive, saved[0], self.cluster.history)
            self.truth.note("store checked alone")

    def _manifest_is_new(self, leader: TieredBroker) -> bool:
        """Whether the manifest object has what the leader's archive has."""
        archive = leader.archive
        assert archive is not None
        found = self.judge.store.objects.get(ObjectKey(manifest_key(archive.owner)))
        wanted = archive.archive.manifest(archive.owner, archive.log.leader_epochs)
        return archive.archive.is_empty or (found is not None and found[0] == encode_manifest(wanted))


class Reads:
    """The reads of archived objects that run."""

    def __init__(self, world: TieredHistory) -> None:
        self._world = world
        self._open: dict[int, tuple[str, TieredBroker, int, int]] = {}
        """Key of the object, the broker and its life, and since when, by number."""
        self._next = 0

    def begin(
        self, broker: TieredBroker, owner: ArchiveId, target: ArchivedSegment | ManifestPart
    ) -> Callable[[], None]:
        """A broker starts to read; the result is called when it is done."""
        number, self._next = self._next, self._next + 1
        if isinstance(target, ArchivedSegment):
            key = object_key(owner, target)
            if any(truth.known.get(key) == target and truth.needs(target) for truth in self._truths()):
                self._open[number] = key, broker, broker.life, self._world.cluster.now
        return lambda: self._open.pop(number, None) and None

    def _truths(self) -> list[Truth]:
        return [one.truth for one in self._world.judges.values()]

    def check(self, key: ObjectKey) -> None:
        """An object is about to be removed: those that read it had their time (F4)."""
        for number, (read, broker, life, since_us) in list(self._open.items()):
            if broker.life != life or not broker.is_up:
                del self._open[number]
            elif read == key and self._world.cluster.now < since_us + self._world.grace_us(key):
                raise Violation(f"F4: {key} is removed, and {broker.replica} reads it since {since_us}")


def play(
    seed: int, counts: Counts, setting: Setting | None = None, make: type[TieredHistory] = TieredHistory
) -> Finding | None:
    """Play the history of a seed; a finding is in ``counts``, too."""
    with ExitStack() as small:
        for owner, attribute, value in make.replaced(seed):
            small.enter_context(patch.object(owner, attribute, value))
        history = make(seed, setting)
        finding = attempt(seed, counts, history.run, (AssertionError, Stopped, MillstreamError), history.setting)
    history.count(counts)
    counts.faults.update(history.store.faults)
    counts.seen += history.cluster.history.seen
    for judge in history.judges.values():
        counts.seen.update(judge.truth.seen)
    return finding
