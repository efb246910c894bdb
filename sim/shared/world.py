"""One history of shared storage: steps drawn from a seed, judged after each one.

The store loses answers, throttles, refuses without cause, cuts reads short, and now and then keeps only a part of what
it was given. Brokers crash, are fenced while they live and go on as zombies, hand partitions over, and compact.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from millstream.core.shared.catalogue import Writer
from millstream.errors import Corruption, MillstreamError, OutcomeUnknown, Rejected, Unavailable
from millstream.format.shared_object import shared_key
from millstream.model.cluster import BrokerEpoch, NodeId
from millstream.model.quantities import Offset, TimestampMs
from millstream.objects import ObjectKey
from sim.engine.histories import Finding
from sim.engine.objects import Faults
from sim.shared.broker import Broker
from sim.shared.compaction import compact
from sim.shared.judge import Judge
from sim.shared.logs import Disk, DiskWal, Entry, StoreWal, sealed_entries
from sim.shared.readers import Readers
from sim.shared.scene import Scene, Wrong

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.model.shared import SharedPartition
    from sim.shared.logs import Wal

STEPS: Final = 400
_NODES: Final = 3


class World(Scene):
    """One history."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._rng = self.rng
        self.trace: list[str] = []
        self._on_disk = self._rng.random() < 0.5
        self._values = 0
        self._epoch = 0
        self._disks: dict[Writer, Disk] = {}
        self._lives: list[Writer] = []
        self.brokers: list[Broker] = []
        self.zombies: list[Broker] = []
        self.judge = Judge(self)
        self.readers = Readers(self)
        for node in range(_NODES):
            self._start(node)

    # -- lives ---------------------------------------------------------------------------------------------------------

    def _start(self, node: int) -> Broker:
        self._epoch += 1
        writer = Writer(NodeId(node), BrokerEpoch(self._epoch))
        self.catalogue.register(writer, self.now_ms)
        self._lives.append(writer)
        wal: Wal
        if self._on_disk:
            self._disks[writer] = Disk(writer)
            wal = DiskWal(self._disks[writer], writer)
        else:
            wal = StoreWal(self.faulty, writer)
        broker = Broker(writer, wal, self.faulty, self.catalogue)
        self.brokers.append(broker)
        return broker

    def _end(self, broker: Broker, why: str) -> None:
        self._say(f"broker {broker.writer.node_id}/{broker.writer.broker_epoch} ends: {why}")
        self.seen[why] += 1
        broker.is_down = True
        if broker in self.zombies:
            self.zombies.remove(broker)
            return
        self.brokers.remove(broker)
        self.catalogue.fence(broker.writer, self.now_ms)
        self._start(broker.writer.node_id)

    def _say(self, line: str) -> None:
        self.trace.append(f"{self.now_ms:>7} {line}")

    # -- steps ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All steps, and the end. Raises Wrong."""
        steps: list[tuple[Callable[[], None], int]] = [
            (self._produce, 30),
            (self._upload, 30),
            (self._commit, 20),
            (self._take_over, 12),
            (self._crash, 2),
            (self._lose_sight, 2),
            (self._zombie, 10),
            (self._usurp, 2),
            (self._move, 4),
            (self._compact, 14),
            (self._trim, 3),
            (self._remove, 10),
            (self.readers.begin, 10),
            (self.readers.go_on, 20),
        ]
        chosen = self._rng.choices([one for one, _ in steps], [weight for _, weight in steps], k=STEPS)
        for step in chosen:
            self.now_ms = TimestampMs(self.now_ms + self._rng.choice((1, 10, 100, 1_000)))
            step()
            self.judge.look()
        self._heal()

    def _attempt(self, broker: Broker, what: str, action: Callable[[], None]) -> bool:
        """Whether it worked. A refusal, and a log of unknown outcome, end the broker's life."""
        try:
            action()
        except Unavailable:
            return False
        except OutcomeUnknown:
            if what in ("produce", "take over"):
                self._end(broker, "log of unknown outcome")
            return False
        except Corruption:
            return False  # a read that was cut short
        except Rejected as error:
            self._say(f"{what}: {error.message}")
            self._end(broker, "refused")
            return False
        self.seen[what] += 1
        return True

    def _produce(self, broker: Broker | None = None) -> None:
        broker = broker or self._rng.choice(self.brokers)
        if not broker.led:
            return
        partition = self._rng.choice(sorted(broker.led))
        values = tuple(range(self._values, self._values + self._rng.randint(1, 4)))
        self._values += len(values)

        def action() -> None:
            base = broker.produce(partition, values, self.now_ms)
            if base is None:
                self.seen["producer waits"] += 1
            else:
                self._say(f"{broker.writer.node_id}/{broker.writer.broker_epoch} acks {partition[1]} {base} {values}")
                self.judge.acked(partition, base, values)

        self._attempt(broker, "produce", action)

    def _upload(self, broker: Broker | None = None) -> None:
        broker = broker or self._rng.choice(self.brokers)
        waiting = [one for one in broker.uploads.all if not one.verified]
        if waiting and self._rng.random() < 0.8:
            upload = self._rng.choice(waiting)
            self._attempt(broker, "upload", lambda: broker.advance(upload))
        elif broker.backlog.is_due(self.now_ms):
            self._attempt(broker, "prepare", broker.prepare)

    def _commit(self, broker: Broker | None = None) -> None:
        broker = broker or self._rng.choice(self.brokers)
        upload = broker.uploads.next_commit()
        if upload is None:
            return
        commit = broker.commit_of(upload)

        def action() -> None:
            self.catalogue.commit(commit, self.now_ms)
            self._say(f"object {commit.object_id} committed")
            self.judge.committed(commit.object_id)
            if self._rng.random() < 0.2:
                raise Unavailable("the answer of the controller was lost")
            broker.committed(upload)

        self._attempt(broker, "commit", action)

    def _take_over(self) -> None:
        orphaned = [one for one in self.partitions if self._is_orphaned(one)]
        if orphaned:
            self._take(self._rng.choice(self.brokers), self._rng.choice(orphaned))

    def _is_orphaned(self, partition: SharedPartition) -> bool:
        leader, _ = self.catalogue.leader(partition)
        return leader is None or not self.catalogue.is_alive(leader)

    def _take(self, broker: Broker, partition: SharedPartition) -> None:
        """End the logs of all fenced lives, then lead with what they have."""

        def action() -> None:
            entries = [
                one
                for life in self._lives
                if not self.catalogue.is_alive(life)
                for one in self._entries(life)
                if one.partition == partition
            ]
            broker.lead(partition, entries, self.now_ms)
            self._say(f"{broker.writer.node_id}/{broker.writer.broker_epoch} leads {partition[1]} {partition[0][0]}")

        self._attempt(broker, "take over", action)

    def _entries(self, life: Writer) -> list[Entry]:
        return self._disks[life].take_over() if self._on_disk else sealed_entries(self.faulty, life)

    def _crash(self) -> None:
        self._end(self._rng.choice(self.brokers), "crash")

    def _lose_sight(self) -> None:
        """The controller fences a broker that lives and does not know."""
        broker = self._rng.choice(self.brokers)
        self.zombies.append(broker)
        self.brokers.remove(broker)
        self.catalogue.fence(broker.writer, self.now_ms)
        self._say(f"broker {broker.writer.node_id}/{broker.writer.broker_epoch} is fenced and does not know")
        self.seen["zombie"] += 1
        self._start(broker.writer.node_id)

    def _zombie(self) -> None:
        if self.zombies:
            broker = self._rng.choice(self.zombies)
            self._rng.choice((self._produce, self._produce, self._upload, self._commit))(broker)

    def _usurp(self) -> None:
        """A broker asks for a partition of one that lives; the controller refuses."""
        broker, partition = self._rng.choice(self.brokers), self._rng.choice(self.partitions)
        if not self._is_orphaned(partition) and partition not in broker.led:
            entries = [one for disk in self._disks.values() for one in disk.entries if one.partition == partition]
            try:
                broker.lead(partition, entries, self.now_ms)
            except MillstreamError:
                self.seen["usurper refused"] += 1

    def _move(self) -> None:
        broker, to = self._rng.choice(self.brokers), self._rng.choice(self.brokers)
        if not broker.led or broker is to:
            return
        partition = self._rng.choice(sorted(broker.led))
        try:
            broker.resign(partition)
        except Rejected:
            return
        self.seen["moved"] += 1
        self._take(to, partition)

    def _compact(self) -> None:
        broker = self._rng.choice(self.brokers)
        if compact(self, self.judge, broker.writer):
            self.seen["compacted"] += 1

    def _trim(self) -> None:
        partition = self._rng.choice(self.partitions)
        start, end = self.catalogue.bounds(partition)
        self.catalogue.trim(partition, Offset(self._rng.randint(start, start + (end - start) // 2)), self.now_ms)

    def _remove(self) -> None:
        due = self.catalogue.removable(self.now_ms)
        try:
            self.faulty.delete([ObjectKey(shared_key(one)) for one in due])
        except MillstreamError:
            return
        self.seen["removed"] += len(due)
        self.catalogue.removed(due)

    def _heal(self) -> None:
        """The store answers, every broker that was there is lost; others take everything over and upload it."""
        self.faulty.chances = Faults()
        self.memory.is_torn = False
        for zombie in list(self.zombies):
            for _ in range(3):
                if zombie in self.zombies:
                    self._produce(zombie)
        self.zombies.clear()
        for broker in list(self.brokers):
            self._end(broker, "crash")
        for partition in self.partitions:
            self._take(self.brokers[0], partition)
        broker = self.brokers[0]
        self.now_ms = TimestampMs(self.now_ms + 100_000)
        for _ in range(60):
            if broker.is_down:
                raise Wrong("G1: a broker that took over does not live")
            self._upload(broker)
            self._commit(broker)
            if not broker.backlog.size_bytes:
                break
        self.judge.at_the_end()


def play(seed: int, seen: Counter[str]) -> Finding | None:
    """One history; what it found, if anything."""
    world = World(seed)
    try:
        world.run()
    except Wrong as wrong:
        return Finding(seed, str(wrong), tuple(world.trace[-40:]))
    finally:
        seen.update(world.seen)
        seen["histories"] += 1
    return None
