"""One life of a broker's storage: from recovery to the crash, with the production code of every floor above the files.

A `Life` recovers a disk, opens shards over it and on them what a broker has there: `Lifecycle` with its partitions,
their Raft groups and idempotent producers, appends that wait, housekeeping, compaction, and the coordinator of
``__consumer_offsets``. The reactor and the helper processes are those of `local_storage`; the controller is a perfect
one, which never forgets a topic. The world writes, commits and deletes through the same functions that the Kafka edge
calls.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from millstream.coordinator.asks import OFFSET_COMMIT, OFFSET_FETCH, Ask
from millstream.coordinator.hashing import OFFSETS_TOPIC
from millstream.coordinator.local_groups import LocalGroups
from millstream.coordinator.state_partition import State
from millstream.core.group.outputs import GroupSettings
from millstream.format.events.chunk import log_directory
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId
from millstream.partition.append.admission import Admission
from millstream.partition.append.internal import InternalLog, InternalLogs
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.partition import Partition
from millstream.partition.table import Faulty, PartitionTable, Waiting
from millstream.storage.chunks import ChunkDisk
from millstream.storage.log.event_log import limits_of
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import RecoveryReport, recover
from sim.engine.local_storage import DATA_DIR, LocalShard
from sim.engine.requests import commit_error, commit_request, fetch_request, fetched_offsets
from sim.storage.event_topics import TurnChunkDisk

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable

    from sim.engine.disk import SimDisk
    from sim.engine.lanes import Lanes
    from sim.storage.models import Place, TopicModel

_TOPIC: Final[dict[str, Any]] = {
    "max_message_bytes": 1 << 20,
    "compression_type": "producer",
    "message_timestamp_type": "CreateTime",
    "message_timestamp_before_max_ms": 2**63 - 1,
    "message_timestamp_after_max_ms": 2**63 - 1,
    "write_caching": False,
    "segment_bytes": 16_000,
}
_SNAPSHOT_BYTES: Final = 3000
"""A history is too short for what a log of a broker waits for before its producers are saved."""

_LOAD_US: Final = 10_000_000


class _Cell:
    """One shard and what stands on it."""

    def __init__(self, shard: LocalShard, *, clean: bool) -> None:
        self.shard = shard
        shard.storage.checkpointer.snapshot_bytes = _SNAPSHOT_BYTES
        context = shard.context
        settings: Any = SimpleNamespace(producer_id_expiration_ms=2**62, producer_ids_max=10_000, data_dir=DATA_DIR)
        self.table = PartitionTable()
        self.admission = Admission(context.reactor, shard.storage)
        self.lifecycle = Lifecycle(context, settings, shard.storage, self.table, self.admission, clean=clean)
        self.groups = LocalGroups(context, GroupSettings(), 600_000)
        logs = InternalLogs(self.table)
        logs.on_open(lambda partition: _if_offsets(partition, self.groups.opened))
        logs.on_close(lambda partition: _if_offsets(partition, self.groups.closed))


def _ask(api: int) -> Ask:
    return Ask(api, 0, 8, "world", "world", require_stable=False, body=b"")


def _if_offsets(partition: InternalLog, then: Callable[[InternalLog], None]) -> None:
    if partition.name == OFFSETS_TOPIC:
        then(partition)


class Life:
    """One run of a broker's storage, from its start on. The start raises OSError and PowerFailure of the disk, and
    Stopped.
    """

    def __init__(
        self,
        disk: SimDisk,
        rng: random.Random,
        topics: Iterable[TopicModel],
        *,
        shards: int,
        now_ms: int,
        settings: dict[str, Any],
        lanes: Lanes | None = None,
    ) -> None:
        known = {topic.group: topic for topic in topics}
        self.shard_count = shards
        self.report: RecoveryReport = recover(
            ChunkDisk(disk), DATA_DIR, lambda group: _place(known.get(group)), shards=shards, now_ms=now_ms
        )
        self.cells = [
            _Cell(
                LocalShard(
                    ChunkDisk(disk),
                    rng,
                    shard_id=number,
                    now_ms=now_ms,
                    memory_bytes=2 << 20,
                    clean=self.report.clean,
                    settings=settings,
                    lanes=lanes,
                    processes_disk=ChunkDisk(disk) if lanes is None else TurnChunkDisk(disk, lanes),
                ),
                clean=self.report.clean,
            )
            for number in range(shards)
        ]
        self.opened_at: dict[int, int] = {}
        """Where each log started when it was opened; retention moves on from there."""

        for topic in known.values():
            self.open(topic, fresh=False)

    # -- topics --------------------------------------------------------------------------------------------------------

    def cell(self, group: int) -> _Cell:
        """The shard that a group lives on."""
        return self.cells[group % self.shard_count]

    def shard(self, group: int) -> LocalShard:
        """The same, only the shard."""
        return self.cell(group).shard

    def open(self, topic: TopicModel, *, fresh: bool) -> None:
        """Open a topic's partition."""
        cell = self.cell(topic.group)
        made: Any = cell.shard.config(**{**_TOPIC, "is_compacted": topic.compacted, **topic.config})
        cell.lifecycle.open(
            topic.name, topic.topic_id, 0, RaftGroupId(topic.group), cell.shard.context.id, made, fresh=fresh
        )
        self._note_start(topic)

    def _note_start(self, topic: TopicModel) -> None:
        partition = self.cell(topic.group).table.local(topic.name, 0)
        self.opened_at[topic.group] = 0 if partition is None else partition.log.start_offset

    def open_waiting(self, topics: Iterable[TopicModel], limit_us: int) -> bool:
        """Let the partitions be opened that found the disk full; whether all of them are within ``limit_us``."""
        waiting = [topic for topic in topics if self._waits(topic)]
        self.run(lambda: not any(map(self._waits, waiting)), limit_us)
        for topic in waiting:
            self._note_start(topic)
        return not any(map(self._waits, waiting))

    def _waits(self, topic: TopicModel) -> bool:
        return isinstance(self.cell(topic.group).table.find(topic.name, 0), Waiting)

    def delete(self, topic: TopicModel) -> None:
        """The topic is deleted, as the controller says."""
        self.cell(topic.group).lifecycle.delete(topic.name, topic.topic_id)
        for cell in self.cells:
            cell.groups.topic_deleted(topic.name, topic.topic_id)

    def partition(self, topic: TopicModel) -> Partition:
        """The open partition of a topic."""
        found = self.cell(topic.group).table.find(topic.name, 0)
        assert isinstance(found, Partition), f"{topic!r} is not open: {self.fault(topic)}"
        return found

    def fault(self, topic: TopicModel) -> str:
        """Why a topic is not served; empty if it is."""
        found = self.cell(topic.group).table.find(topic.name, 0)
        return found.reason if isinstance(found, Faulty) else ""

    def stop(self) -> None:
        """An orderly stop."""
        for cell in self.cells:
            cell.groups.stop()
        for cell in self.cells:
            cell.shard.stop()

    def run(self, until: Callable[[], bool], limit_us: int) -> None:
        """Run all shards until something holds."""
        for _ in range(3):
            for cell in self.cells:
                if until():
                    return
                cell.shard.run(until, limit_us)

    # -- groups --------------------------------------------------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        """Whether the groups can be asked."""
        return all(
            groups.state is not State.LOADING for cell in self.cells for groups in cell.groups.partitions.values()
        )

    def load(self) -> str:
        """Let the groups be loaded; what went wrong."""
        self.run(lambda: self.loaded, _LOAD_US)
        states = [groups.state for cell in self.cells for groups in cell.groups.partitions.values()]
        return "" if all(one is State.ACTIVE for one in states) else f"groups are {states}"

    def commit(self, group: int, place: Place, offset: int, done: Callable[[], None]) -> None:
        """Commit an offset as a consumer without membership does; `done` when it was acknowledged."""
        name, topic = place
        request = commit_request(name, topic, offset)

        def answered(answer: object) -> None:
            if not commit_error(answer):
                done()

        self.cell(group).groups.ask(_ask(OFFSET_COMMIT), request, answered)

    def committed(self, group: int, name: str) -> dict[str, int]:
        """What a group has committed, by topic."""
        answers: list[object] = []
        self.cell(group).groups.ask(_ask(OFFSET_FETCH), fetch_request(name), answers.append)
        error, offsets = fetched_offsets(answers[0])
        assert not error, error
        return offsets


def _place(topic: TopicModel | None) -> LogPlace | None:
    if topic is None:
        return None
    events = topic.has_events
    directory = log_directory(DATA_DIR, topic.topic_id, topic.name, PartitionIndex(0), events=events)
    made: Any = SimpleNamespace(**topic.config)
    return LogPlace(
        directory,
        f"{topic.name}/0",
        topic.config.get("segment_bytes", _TOPIC["segment_bytes"]),
        chunk_limits=limits_of(made) if events else None,
    )
