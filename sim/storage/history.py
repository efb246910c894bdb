"""Random histories: what clients and time do to a broker's storage, crashes and faults among it, from one seed.

A `History` has a disk, a few topics (deleted by age or size, compacted, the groups' own) and the `Life` that runs over
them. `play` does so many operations; between two of them helpers and reactor take some steps, in an order that is
drawn. `on_operation` is called before every operation of the disk, with the models as they are at that moment:
`SimDisk.crashed` (`points`) says what a power failure there would leave.
"""

from __future__ import annotations

import contextlib
import random
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.format.epochs import StoredVote
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, TimestampMs
from millstream.model.replication import ReplicaId, Term
from millstream.partition.append.batch import Blocked, Outcome
from millstream.partition.append.checks import append
from millstream.partition.delete_records import delete_records
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.storage.messages.commands import LANES
from millstream.wire.records import build_batch
from sim.engine.disk import SimDisk
from sim.engine.lanes import Lanes
from sim.engine.local_storage import WRITER_LANE, Stopped
from sim.engine.violation import Violation
from sim.storage.batches import events_batch, opaque_batch
from sim.storage.event_topics import events_config
from sim.storage.judge import adopt, judge
from sim.storage.life import Life
from sim.storage.models import NOBODY, Batch, OffsetsModel, Producer, TopicModel, replayed

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.partition import Partition

START_MS: Final = 1_700_000_000_000
SETTLED_US: Final = 120_000_000
"""What is appended is durable after so much time at the latest, even if a helper hung."""

OPERATIONS: Final = {
    "produce": 50,
    "repeat": 4,
    "settle": 10,
    "commit": 12,
    "checkpoint": 5,
    "roll": 5,
    "delete_records": 4,
    "vote": 2,
    "cut": 2,
    "wait": 8,
    "hang": 3,
    "replace_topic": 1,
    "restart": 1,
    "kill": 1,
    "crash": 1,
}


class Shape(NamedTuple):
    """What kind of histories."""

    operations: int = 80
    rest_share: float = 0.3
    """Of the operations of the disk, those before which a helper may rest while others run."""

    weights: dict[str, int] = OPERATIONS
    events: bool = False
    """Whether the topics that are deleted by age or size are event topics."""


ORDINARY: Final = Shape()


class _Waiting:
    """Who waits for a batch to be committed."""

    def __init__(self, topic: TopicModel) -> None:
        self._topic = topic

    def acked(self, slot: int) -> None:
        self._topic.promised_end = max(self._topic.promised_end, slot)

    def failed(self, slot: int, error: ErrorCode) -> None:
        """Nothing was promised."""

    def expire(self, now_us: int) -> None:
        """Let everything settle."""


class History:
    """Operations of one seed on one storage, and the models of what they promise."""

    def __init__(self, seed: int, shape: Shape = ORDINARY) -> None:
        self.seed = seed
        self.shape = shape
        self.rng = random.Random(seed)
        self.disk = SimDisk(random.Random(seed + 1))
        self.disk.direct_block_bytes = (512, 512, 4096, 0)[seed % 4]
        self.disk.before = self._before
        self.on_operation: Callable[[str, str], None] | None = None
        self.topics: dict[int, TopicModel] = {}
        self.offsets = OffsetsModel()
        self.offsets_group = 1
        self._add_topic(OFFSETS_TOPIC, cleanup_policy=("compact",), segment_bytes=2000, **self._compaction())
        self._add_topic("compacted", cleanup_policy=("compact",), segment_bytes=2500, **self._compaction())
        self._add_topic("short", retention_bytes=self.rng.choice([-1, 20_000]), segment_bytes=8000)
        self._add_topic("long", segment_bytes=16_000, index_interval_bytes=4096)
        self.now_ms = START_MS
        self.starts = self.crashes = self.done = 0
        self._next_commit = 0
        self._steps = 0
        self.lanes: Lanes | None = None
        self.life: Any = None
        self.judged = False
        """Whether what the life over the disk found was judged: from then on its word counts."""

        self.settings_of_judge: dict[str, Any] = {"wal_file_bytes": 32_768, "wal_bytes": 4 * 32_768}
        self.trail: list[str] = []
        """What was done, to explain a failure."""

    def _compaction(self) -> dict[str, Any]:
        return {
            "min_cleanable_dirty_ratio": self.rng.choice([0.0, 0.3]),
            "delete_retention_ms": self.rng.choice([0, 50]),
            "file_delete_delay_ms": self.rng.choice([0, 100]),
        }

    def _add_topic(self, name: str, **config: Any) -> TopicModel:
        if self.shape.events and "cleanup_policy" not in config:
            config |= events_config(self.rng)
        topic = TopicModel(len(self.topics) + 1 if name != "fresh" else self._fresh_group(), name, config)
        self.topics[topic.group] = topic
        return topic

    def _fresh_group(self) -> int:
        return max(self.topics) + 1 + self.rng.randrange(2)

    # -- life and death ------------------------------------------------------------------------------------------------

    def play(self) -> None:
        """The whole history, and an orderly stop and a start at its end.

        Raises:
            Violation: something is not as it was promised.
        """
        try:
            self.start()
            names, weights = list(self.shape.weights), list(self.shape.weights.values())
            while self.done < self.shape.operations:
                self.done += 1
                self.survive(getattr(self, self.rng.choices(names, weights)[0]))
            self.survive(self.crash)
            self.survive(self.restart)
        finally:
            self.end()

    def survive(self, operation: Callable[[], None]) -> None:
        """Do something and let the helpers get on; a stop of the shard is followed by a start."""
        self.trail.append(operation.__name__)
        try:
            operation()
            for _ in range(self.rng.randint(0, 8)):
                self.rng.choice(self.life.cells).shard.step()
        except Stopped as stopped:
            self.stopped(stopped)

    def stopped(self, stopped: Stopped) -> None:
        """The shard stopped by itself. Nothing that a disk without faults does explains that."""
        raise Violation(f"the shard stopped: {stopped}")

    def start(self) -> None:
        """Recover, open, judge."""
        self.starts += 1
        self.judged = False
        self.life = None
        self.lanes = Lanes(self.rng, self.shape.rest_share)
        self.life = Life(
            self.disk,
            self.rng,
            self.topics.values(),
            shards=self.rng.choice([1, 1, 2]),
            now_ms=self.now_ms,
            settings=self.settings(),
            lanes=self.lanes,
        )
        self.adopt()

    def adopt(self) -> None:
        """What was found is judged, and true from now on."""
        adopt(judge(self.life, self.disk, self.topics, self.offsets), self.topics, self.offsets)
        self.judged = True

    def settings(self) -> dict[str, Any]:
        """Of the broker, for this start."""
        rng = self.rng
        return {
            "wal_pacing_us": rng.choice([0, 500]),
            "wal_bytes": rng.choice([3, 4, 6]) * 32_768,
            "wal_file_bytes": 32_768,
            "checkpoint_bytes": rng.choice([6_000, 20_000, 1 << 30]),
            "log_retention_check_interval_ms": 500,
            "log_cleaner_backoff_ms": rng.choice([1, 20, 200]),
            "log_cleaner_dedupe_buffer_size": rng.choice([24 * 12, 1 << 16]),
        }

    def end(self) -> None:
        """The process is no more."""
        if self.lanes is not None:
            self.lanes.close()
            self.lanes = None
        if self.life is not None:
            self.now_ms = max(self.now_ms, *(cell.shard.reactor.wall_ms() for cell in self.life.cells))
            self.notice()

    def notice(self) -> None:
        """How far retention may go was asked for, and what readers were shown is promised, once it was judged."""
        if self.life is None:
            return
        for topic in self.topics.values():
            partition = self.life.cell(topic.group).table.local(topic.name, 0)
            if partition is not None:
                # Retention does not say where it will move the start before it has.
                retained = topic.config.get("retention_bytes", -1) >= 0
                asked = partition.high_watermark if retained else partition.log.start_offset
                topic.asked_start = max(topic.asked_start, asked)
                if self.judged:
                    durable = len(partition.log.raft.controls.before(partition.log.ends.durable.raft_position))
                    if not partition.log.ends.cutting:
                        topic.promised_controls = max(topic.promised_controls, durable)
                    topic.promised_end = max(topic.promised_end, partition.high_watermark)
                    topic.start = max(topic.start, min(topic.asked_start, partition.log.ends.durable_start))

    def _before(self, kind: str, path: str) -> None:
        if self.lanes is not None:
            self.lanes.rest(kind, path)
        if kind != "read" and self.on_operation is not None:
            self.on_operation(kind, path)

    def crash(self) -> None:
        """The power fails."""
        self.crashes += 1
        self.end()
        self.disk.capacity_bytes = None
        self.disk.crash(torn=self.rng.random() < 0.8)
        self.start()

    def kill(self) -> None:
        """Only the process ends: what it wrote is in the page cache."""
        self.crashes += 1
        self.end()
        self.start()

    def restart(self) -> None:
        """An orderly stop and a start: nothing may be missing."""
        self.life.stop()
        for topic in self.topics.values():
            topic.promised_end = max([topic.promised_end, *(one.next for one in topic.batches[-1:])])
            topic.votes = topic.votes[-1:]
        self.end()
        self.start()

    # -- producers -----------------------------------------------------------------------------------------------------

    def any_topic(self) -> TopicModel:
        """One that clients may write to."""
        return self.rng.choice([topic for topic in self.topics.values() if topic.name != OFFSETS_TOPIC])

    def produce(self) -> None:
        """A few batches, of an idempotent producer or of another."""
        topic = self.any_topic()
        for _ in range(self.rng.choice([1, 1, 2, 5])):
            partition = self.life.partition(topic)
            if partition.log.ends.cutting:
                return
            self._send(topic, partition, *self._batch(topic))

    def _batch(self, topic: TopicModel) -> tuple[bytes, Producer, int, tuple[tuple[bytes, bytes | None], ...]]:
        rng = self.rng
        producer = NOBODY
        if rng.random() < 0.7:
            number = rng.randint(1, 3)
            known = {one[0]: one for one in replayed(topic.batches).active()}.get(number)
            if known is None:
                producer = Producer(number, 0, 0)
            elif rng.random() < 0.05:
                producer = Producer(number, known[1] + 1, 0)
            else:
                producer = Producer(number, known[1], (known[2] + 1) & 0x7FFF_FFFF)
        stamp = rng.randint(1000, 9000)
        if topic.compacted:
            records = tuple(
                (b"%d" % rng.randrange(8), None if rng.random() < 0.1 else rng.randbytes(20))
                for _ in range(rng.randint(1, 3))
            )
            data = build_batch(
                [(key, value, (), stamp) for key, value in records],
                producer_id=producer.id,
                producer_epoch=producer.epoch,
                base_sequence=producer.sequence,
            )
            return data, producer, stamp, records
        if topic.has_events:
            return events_batch(rng, producer, TimestampMs(stamp)), producer, stamp, ()
        return opaque_batch(rng, producer, stamp), producer, stamp, ()

    def _send(
        self,
        topic: TopicModel,
        partition: Partition,
        data: bytes,
        producer: Producer,
        stamp: int,
        records: tuple[tuple[bytes, bytes | None], ...],
    ) -> None:
        cut = self.rng.randint(0, len(data)) if self.rng.random() < 0.3 else 0
        views = [memoryview(data)[:cut], memoryview(data)[cut:]] if cut else [memoryview(data)]
        shard = self.life.shard(topic.group)
        outcome = append(
            partition,
            views,
            len(data),
            shard.reactor.wall_ms(),
            accepts_writes=shard.storage.accepts_writes,
            inspected=topic.compacted,
        )
        if isinstance(outcome, Blocked):
            if outcome is not Blocked.NO_MEMORY:
                raise Violation(f"a batch of {topic!r} needs more than memory: {outcome.value}")
            return
        if outcome.error_code:
            self.refused(topic, ErrorCode(outcome.error_code))
            return
        base, end = outcome.base_offset, outcome.end_offset
        stored = bytearray(data)
        struct.pack_into(">q", stored, 0, base)
        struct.pack_into(">i", stored, 12, partition.leader_epoch)
        topic.take(Batch(base, end, bytes(stored), producer, stamp, records))
        if end > partition.high_watermark:
            partition.waiters.acks.append((end, _Waiting(topic), end))

    def refused(self, topic: TopicModel, error: ErrorCode) -> None:
        """A producer got an error: no room just now, or, while the disk is full, that the disk is full."""
        full = error is ErrorCode.KAFKA_STORAGE_ERROR and self.disk.capacity_bytes is not None
        if error is not ErrorCode.NOT_ENOUGH_REPLICAS and not full:
            raise Violation(f"a producer of {topic!r} got {error.name}")

    def repeat(self) -> None:
        """A producer that had no answer sends a batch again: it is not stored twice."""
        topic = self.any_topic()
        partition = self.life.partition(topic)
        recent = {one.producer.id: one for one in topic.batches if one.producer.id >= 0}
        mine = [one for one in recent.values() if one.base >= partition.log.start_offset]
        if not mine or partition.log.ends.cutting:
            return
        one = self.rng.choice(mine)
        outcome = append(
            partition, [memoryview(bytes(8) + one.data[8:])], len(one.data), 0, accepts_writes=True, inspected=True
        )
        answer = None
        if isinstance(outcome, Outcome):
            answer = (outcome.error_code, outcome.base_offset, outcome.end_offset)
        if answer != (0, one.base, one.next):
            raise Violation(f"{one[:2]} of {topic!r} came again and was answered {answer}")

    # -- logs ----------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait until what was appended is committed; it has to be in the end."""
        topic = self.any_topic()
        log = self.life.partition(topic).log
        self.life.shard(topic.group).run(lambda: log.durable_offset == log.next_offset, limit_us=SETTLED_US)
        if log.durable_offset != log.next_offset:
            raise Violation(f"{log!r} is not durable after {SETTLED_US // 1_000_000} s")

    def wait(self) -> None:
        """Time goes by: retention, compaction, checkpoints, timers of all kinds."""
        for cell in self.life.cells:
            cell.shard.run(lambda: False, self.rng.choice([10_000, 600_000, 3_000_000]))

    def checkpoint(self) -> None:
        """Start one."""
        self.life.shard(self.any_topic().group).storage.checkpointer.request()

    def roll(self) -> None:
        """Seal a segment, as its age does."""
        log = self.life.partition(self.rng.choice(list(self.topics.values()))).log
        if log.refresh().size_bytes and not log.ends.cutting:
            log.roll()

    def delete_records(self) -> None:
        """Delete records of a topic that allows it."""
        topic = self.any_topic()
        partition = self.life.partition(topic)
        if topic.compacted or partition.log.ends.cutting:
            return
        offset = self.rng.choice([-1, self.rng.randint(partition.log.start_offset, partition.high_watermark)])
        topic.asked_start = max(topic.asked_start, partition.high_watermark if offset < 0 else offset)

        def done(deleted: tuple[int, int]) -> None:
            if not deleted[0]:
                topic.start = max(topic.start, deleted[1])

        delete_records(partition, Offset(offset), done)

    def vote(self) -> None:
        """The replication layer has something kept."""
        topic = self.any_topic()
        data = self.rng.randbytes(self.rng.randint(1, 20))
        vote = StoredVote(Term(data[0]), ReplicaId(int.from_bytes(data[-6:], "big")))
        with contextlib.suppress(ArenaFull):
            self.life.partition(topic).log.save_vote(vote, lambda: topic.kept(vote))
            topic.asked(vote)

    def control(self) -> None:
        """The group appends a control entry: a term starts, or something is agreed on."""
        topic = self.any_topic()
        partition = self.life.partition(topic)
        if (log := partition.log).ends.cutting or topic.compacted:
            return
        if self.rng.random() < 0.3 and not partition.waiters.acks and log.durable_offset == log.next_offset:
            partition.group = SoleVoterGroup(log, partition.group.term + 1)
            partition.group.events.on_commit = partition.on_commit
        with contextlib.suppress(ArenaFull):
            payload = self.rng.randbytes(self.rng.choice([0, 5, 300]))
            topic.controls.append(log.append_control(Term(partition.group.term), payload))

    def cut(self) -> None:
        """Truncate a suffix, as Raft will: what was cut is no longer promised, and Raft waits before it continues."""
        topic = self.any_topic()
        partition = self.life.partition(topic)
        log = partition.log
        self.notice()
        bases = [one.base for one in topic.batches if one.base >= max(log.start_offset, topic.asked_start)]
        if not bases or log.ends.cutting or topic.compacted:
            return
        offset = self.rng.choice(bases[-6:])
        end = log.raft.controls.position_of(Offset(offset))
        late = [one for one in topic.controls if one.offset >= max(log.start_offset, topic.asked_start)]
        if late and self.rng.random() < 0.5:
            end, offset = (one := self.rng.choice(late[-4:])).position, one.offset
        done: list[int] = []
        try:
            log.truncate_to(end, lambda: done.append(1))
        except ArenaFull:
            return
        topic.promised_controls = min(topic.promised_controls, sum(one.position < end for one in topic.controls))
        partition.waiters.acks.clear()
        topic.promised_end = partition.high_watermark = min(topic.promised_end, offset)
        log.owner.on_durable = None
        self.life.shard(topic.group).run(lambda: bool(done), limit_us=SETTLED_US)
        if not done:
            raise Violation(f"a cut of {log!r} never became durable")
        topic.batches = [one for one in topic.batches if one.base < offset]
        topic.controls = [one for one in topic.controls if one.position < end]
        # The replica that comes out of it leads in a later term and knows the producers that are left.
        partition.group = SoleVoterGroup(log, partition.group.term + 1)
        partition.group.events.on_commit = partition.on_commit
        partition.high_watermark = partition.group.high_watermark
        partition.producers.load(replayed(topic.batches).snapshot())

    def hang(self) -> None:
        """A helper makes no progress for a while."""
        shard = self.rng.choice(self.life.cells).shard
        shard.processes.hang(
            self.rng.choice([WRITER_LANE, *range(LANES + 1)]), self.rng.choice([10_000, 1_000_000, 20_000_000])
        )

    def replace_topic(self) -> None:
        """A topic is deleted and another created, maybe while the crash is near."""
        old = [topic for topic in self.topics.values() if topic.name.startswith("fresh")]
        if old:
            topic = self.rng.choice(old)
            self.life.delete(topic)
            del self.topics[topic.group]
            for place in [place for place in self.offsets.asked if place[1] == topic.name]:
                self.offsets.ask(place, -1)
        group = max(self.topics) + 1 + self.done
        config = events_config(self.rng) if self.shape.events else {"segment_bytes": 8000}
        fresh = self.topics[group] = TopicModel(group, f"fresh{group}", config)
        self.life.open(fresh, fresh=True)

    # -- groups --------------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Groups commit how far they have read."""
        for _ in range(self.rng.choice([1, 1, 3])):
            topic = self.any_topic()
            place = (f"group{self.rng.randint(1, 2)}", topic.name)
            self._next_commit += 1
            offset = self._next_commit
            self.offsets.ask(place, offset)
            self.life.commit(self.offsets_group, place, offset, partial(self.offsets.acked, place, offset))
