"""The open logs of one shard: opening a log from its files, and finding it by its Raft group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from millstream.errors import Corruption
from millstream.format.events.chunk import log_directory
from millstream.format.names import controller_directory
from millstream.model.events import PartitionIndex
from millstream.model.quantities import RaftGroupId
from millstream.storage.log.event_log import limits_of, open_event_log
from millstream.storage.log.log import Log, LogShard
from millstream.storage.log.lost import NO_END, load_replica, put_aside
from millstream.storage.log.open_log import LogFacts
from millstream.storage.log.opening import repair_note
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.set_aside import is_set_aside, replay_set_aside, vote_set_aside
from millstream.storage.recovery.summary import open_summarized, read_opened

if TYPE_CHECKING:
    from millstream.config.topic_properties import TopicConfig
    from millstream.storage.disk import Disk
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.opening import Note
    from millstream.telemetry.metrics import StatsSlab


class RegistryHost(LogShard, Protocol):
    """What the registry needs of its shard's storage."""

    stats: StatsSlab
    data_dir: str


class LogRegistry:
    """The open logs of one shard.

    Invariant: a log in ``dirty`` is in ``logs``, and is not closed.
    """

    def __init__(self, storage: RegistryHost) -> None:
        self._storage = storage
        self.logs: dict[int, Log] = {}
        """By Raft group."""
        self.dirty: dict[OpenLog, None] = {}
        """Logs that the next checkpoint covers, in the order in which they changed."""
        self._summaries = read_opened(storage.disk, storage.data_dir)

    def open_partition_log(
        self,
        group: RaftGroupId,
        topic_id: bytes,
        topic: str,
        partition: int,
        config: TopicConfig,
        *,
        clean: bool,
        replicated: bool = False,
        expected: bool = False,
        alone: bool = False,
    ) -> Log:
        """``open_log`` for a partition of a topic; group 0, the controller's log, is opened with ``controller_log``."""
        data_dir = self._storage.data_dir
        directory = log_directory(data_dir, topic_id, topic, PartitionIndex(partition), events=config.has_events)
        name, several = f"{topic}/{partition}", {"replicated": replicated, "expected": expected, "alone": alone}
        return self.open_log(group, directory, name, config, clean, **several)

    def open_controller_log(
        self, config: TopicConfig, *, clean: bool, replicated: bool = False, expected: bool = False
    ) -> Log:
        """The log of group 0."""
        directory = controller_directory(self._storage.data_dir)
        group = RaftGroupId(0)
        return self.open_log(group, directory, "controller", config, clean, replicated=replicated, expected=expected)

    def open_log(
        self,
        group: RaftGroupId,
        directory: str,
        name: str,
        config: TopicConfig,
        clean: bool,
        *,
        replicated: bool = False,
        expected: bool = False,
        alone: bool = False,
    ) -> Log:
        """Open the log of a group; an empty one if it has no files yet. Blocks for a few file reads.

        Args:
            group: number of the Raft group, unique in the cluster's life.
            directory: where its files are or will be.
            name: its name for people, "topic/partition".
            config: of the topic.
            clean: the last stop was orderly, or the log is new: the summary of that stop may be used.
            replicated: its group has several voters, or had.
            expected: one of several replicas that was here before, so that it must have files (``lost``).
            alone: several brokers held it, this one alone does now, and it was here before (``lost``).

        Raises:
            Corruption: its durable files are damaged; the log must not be served.
        """
        if group in self.logs:
            raise AssertionError(f"group {group} is opened twice")
        storage = self._storage
        note = repair_note(name, storage.stats)
        try:
            self.replay_set_aside(directory, name, config, replicated=replicated)
        except Corruption as error:
            if not (replicated and expected) or config.has_events:
                raise
            _put_aside(storage.disk, directory, error, note)
        summary = self._summaries.pop(group, None)
        loaded = open_summarized(storage.disk, directory, summary) if clean and summary is not None else None
        if loaded is None:
            loaded = load_replica(
                storage.disk,
                directory,
                storage.now_ms(),
                note,
                replicated=replicated,
                expected=expected,
                aside=not config.has_events,
                alone=alone,
                archived=config.is_archived,
                noted_end=summary.end_offset if clean and summary is not None else NO_END,
            )
        facts = LogFacts(RaftGroupId(group), directory, name)
        log = self.logs[group] = (open_event_log if config.has_events else Log)(storage, facts, config, loaded)
        storage.meters.partitions.add(1)
        if log.refresh().size_bytes:
            storage.segment_began(log, log.files.segments.active)
        return log

    def is_summarized(self, group: RaftGroupId) -> bool:
        """Whether the orderly stop before this start has noted where the log of a group ended."""
        return group in self._summaries

    def forget_summaries(self) -> None:
        """The start is over: a log that is opened from now on may have been elsewhere, or cut, since the last stop."""
        self._summaries = {}

    def replay_set_aside(self, directory: str, name: str, config: TopicConfig, *, replicated: bool) -> None:
        """Put the records that a failure of the log has set aside into its segments.

        Raises:
            Corruption: they and the segments are not one log.
            OSError: the disk failed.
        """
        storage = self._storage
        if not is_set_aside(storage.disk, directory):
            return
        limits = limits_of(config) if config.has_events else None
        place = LogPlace(directory, name, config.segment_bytes, replicated, limits, config.is_archived)
        replay_set_aside(storage.disk, storage.data_dir, place, storage.now_ms(), repair_note(name, storage.stats))

    def changed(self, log: OpenLog) -> None:
        """The next checkpoint has to cover a log."""
        if not log.files.dirty and not log.closed:
            log.files.dirty = True
            self.dirty[log] = None

    def forget(self, log: Log) -> None:
        """The log is closed."""
        self.logs.pop(log.group, None)
        self.dirty.pop(log, None)
        self._storage.meters.partitions.add(-1)


def _put_aside(disk: Disk, directory: str, error: Corruption, note: Note) -> None:
    """The other replicas have what was in it. Raises ``error`` if the disk fails."""
    try:
        put_aside(disk, directory, error.message, note, vote_set_aside(disk, directory))
    except OSError:
        raise error from None
