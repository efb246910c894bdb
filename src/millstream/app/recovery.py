"""Runs recovery in a child of the supervisor, before anything is served.

The child's memory is freed when it ends, so the supervisor that forks the shards stays small; the report comes back
through a pipe. Every fault is one log line, and so is every repair. Repairs that every crash needs (``_EXPECTED``) are
INFO, and only the first few of each kind are logged. A failed recovery ends the start: nothing is served from a
directory that could not be read, and a retry loses nothing.
"""

import gc
import os
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

import msgspec

from millstream.app.missing_parts import check_parts
from millstream.app.stale_topics import forget_note, remove_left_partitions, remove_stale_topics
from millstream.cluster.revision_marks import read_note
from millstream.cluster.state_files import KnownGroups, load_state, look_at_groups
from millstream.cluster.topic_table import resolved_config
from millstream.config.settings import Settings
from millstream.errors import MillstreamError, Unavailable
from millstream.format.events.chunk import log_directory
from millstream.model.events import PartitionIndex
from millstream.shard.process import EXIT_OK, EXIT_STORAGE, spawn
from millstream.storage.disk import Disk
from millstream.storage.log.event_log import limits_of
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.recovery import RecoveryReport, Repair, recover
from millstream.telemetry.log import log
from millstream.telemetry.metrics import StatsSlab

_EXPECTED: Final = frozenset(("torn_wal", "torn_segment", "wal_replayed"))
"""Kinds of repairs that a crash alone explains. Any other kind means that the disk returned other bytes than were
written.
"""

_LOGGED_OF_A_KIND: Final = 3


class Recovered(msgspec.Struct, frozen=True):
    """The result of recovery for the rest of the broker."""

    clean: bool
    """Whether the last stop was orderly; what it noted is then valid."""

    repairs: dict[str, int] = {}
    """Number of repairs of each kind (label values of the metric)."""

    faults: int = 0


class RecoveryChild:
    """Recovers ``settings.data_dir`` from its creation on, while the supervisor does something else."""

    def __init__(self, settings: Settings, disk: Disk) -> None:
        self._data_dir = settings.data_dir
        self._answer, write_end = os.pipe()
        self._child = spawn("recovery", lambda: self._main(settings, disk, write_end))
        os.close(write_end)

    def _main(self, settings: Settings, disk: Disk, write_end: int) -> int:
        """The child: writes its result into the pipe, if it has one."""
        os.close(self._answer)
        gc.freeze()
        gc.enable()  # see ``shard.collector``
        log.who("recovery")
        try:
            report = _recover(settings, disk)
        except MillstreamError as error:
            log.error("recovery failed: %s", error.message)
            return EXIT_STORAGE
        except OSError as error:
            log.error("recovery failed: %s", error)
            return EXIT_STORAGE
        with open(write_end, "wb") as pipe:
            pipe.write(msgspec.msgpack.encode(report))
        return EXIT_OK

    def wait(self) -> Recovered:
        """Wait for the result. Called once.

        Raises:
            Unavailable: recovery failed; the reason is in the log.
        """
        with open(self._answer, "rb") as pipe:
            answer = pipe.read()
        status = self._child.wait()
        if status is None or status.code or not answer:
            raise Unavailable(f"the data in {self._data_dir} could not be recovered: the log says why")
        report = msgspec.msgpack.decode(answer, type=RecoveryReport)
        return Recovered(report.clean, Counter(repair.kind for repair in report.repairs), len(report.faults))


def count(recovered: Recovered, stats: StatsSlab) -> None:
    """Count the repairs and faults in the metrics."""
    for kind, repairs in recovered.repairs.items():
        stats.counter("recovery_repairs", kind=kind).inc(repairs)
    stats.counter("storage_faults", kind="corruption").inc(recovered.faults)


def _recover(settings: Settings, disk: Disk) -> RecoveryReport:
    """In the child: replay, and log the result."""
    begun = time.monotonic()
    check_parts(disk, settings.data_dir)
    known: KnownGroups | None = None

    def locate(group: int) -> LogPlace | None:
        nonlocal known
        if known is None:  # the controller's log has been recovered by now
            known = _groups(settings, disk)
        found = known.held.get(group)
        if found is None:
            return None
        topic, index = found
        config = resolved_config(topic.name, topic.configs, settings)
        events = config.has_events
        directory = log_directory(settings.data_dir, topic.topic_id, topic.name, PartitionIndex(index), events=events)
        limits = limits_of(config) if events else None
        name, is_elected = f"{topic.name}/{index}", group in known.elected
        return LogPlace(directory, name, config.segment_bytes, is_elected, limits, config.is_archived)

    report = recover(disk, settings.data_dir, locate, shards=settings.shards, in_cluster=bool(settings.seeds))
    in_cluster = bool(settings.seeds)
    if not report.clean or (in_cluster and read_note(disk, settings.data_dir) is not None):
        archives = bool(settings.objects_url) or os.path.isdir(f"{settings.data_dir}/objects")
        remove_stale_topics(disk, settings.data_dir, in_cluster=in_cluster, archives=archives)
    if in_cluster:
        remove_left_partitions(disk, settings.data_dir, settings.node_id)
        forget_note(disk, settings.data_dir)
    tell_repairs(report.repairs)
    for fault in report.faults:
        log.error("not served: %s", fault)
    for broken in report.aside:
        words, _, stack = broken.partition("\n")
        log.error("not replayed, its records are put aside: %s", words)
        log.error("%s", " | ".join(stack.split("\n")[-8:]))
    if not report.clean:
        took_ms = (time.monotonic() - begun) * 1000
        log.info(
            "the last stop was not an orderly one: recovered %d logs from %d records (%d bytes)"
            " of the write-ahead log in %d ms",
            report.logs,
            report.records,
            report.bytes,
            took_ms,
        )
    return report


def _groups(settings: Settings, disk: Disk) -> KnownGroups:
    """The Raft groups that may have records in the write-ahead log."""
    if settings.seeds:
        return look_at_groups(disk, settings.data_dir, settings.node_id)
    state, _ = load_state(disk, settings.data_dir)
    return KnownGroups(state.groups(), state.groups(), frozenset(), is_complete=True)


def tell_repairs(repairs: Sequence[Repair]) -> None:
    """Log one line per repair, but only the first few of each kind that a crash leaves in every log."""
    logged: Counter[str] = Counter()
    for repair in repairs:
        if repair.kind == "wal_replayed":
            continue  # the line at the end has their number
        logged[repair.kind] += 1
        if repair.kind not in _EXPECTED:
            log.warning("repaired: %s", repair.message)
        elif logged[repair.kind] <= _LOGGED_OF_A_KIND:
            log.info("repaired: %s", repair.message)
    for kind in sorted(_EXPECTED & logged.keys()):
        if (more := logged[kind] - _LOGGED_OF_A_KIND) > 0:
            log.info("repaired: %d more of this kind (%s)", more, kind)
