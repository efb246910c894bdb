"""Saves the controller's state: some time after a change, and at an orderly stop.

The first command after a snapshot starts a timer. When it fires, the committed state is saved, and the log is trimmed
up to the previous snapshot. A busy cluster thus writes one snapshot a minute, an idle one none, and a start replays at
most the span of two. The placement of partitions is saved at the same times. In a cluster the log keeps `KEPT_COMMANDS`
more, for brokers that were away for a while; one that needs older ones is sent a snapshot (`controller_install`).

A broker of a cluster also notes, soon after a change, how far commands are committed (`revision_marks`). Both say only
what all its shards have durably: the next start takes a partition that it finds in them and that has no files for one
that has lost them (`settled`).

A failed save costs only a longer log: it is logged and repeated after the next change. A crash during a save leaves the
other snapshot and the log.
"""

from collections.abc import Callable
from typing import Final, Protocol

from millstream.cluster.metadata import MetadataCache
from millstream.cluster.placement import Placement, save_placement
from millstream.cluster.revision_marks import write_mark
from millstream.cluster.state_files import SnapshotStore
from millstream.iobuf import ArenaFull
from millstream.model.quantities import Offset
from millstream.shard.reactor import Reactor, Timer
from millstream.storage.disk import Disk
from millstream.telemetry.log import log as operator_log

INTERVAL_US: Final = 60_000_000
"""Redpanda's interval: long enough that a burst of changes costs one snapshot, short enough that a start is fast."""

_MARK_US: Final = 2_000_000
"""Between marks (`revision_marks`) while topics change."""
_SETTLE_US: Final = 20_000
_SETTLE_TRIES: Final = 50


class TrimmableLog(Protocol):
    """The part of group 0's log that is used here."""

    def trim_prefix(self, offset: Offset) -> None: ...


KEPT_COMMANDS: Final = 10_000
"""Some hours of a busy cluster, and some MiB."""


class LaggingLog:
    """The log of a group with several voters, which keeps some commands more than this broker needs itself."""

    def __init__(self, log: TrimmableLog, kept: int = KEPT_COMMANDS) -> None:
        self._log = log
        self._kept = kept

    def trim_prefix(self, offset: Offset) -> None:
        """Trim the log to start ``kept`` commands before ``offset``. Raises ArenaFull."""
        if offset > self._kept:
            self._log.trim_prefix(Offset(offset - self._kept))


class KeptLog:
    """A log that is never trimmed, for simulated brokers, which receive no snapshot."""

    def trim_prefix(self, offset: Offset) -> None:
        """Keep what is below ``offset``."""


class CommittedMarks:
    """Notes soon after a change how far commands are committed and carried out, for the next start.

    Lifecycle: made with `Snapshots`, which tells it of changes until it stops. Shard: the controller's.
    """

    def __init__(self, reactor: Reactor, cache: MetadataCache, disk: Disk, data_dir: str) -> None:
        self._reactor = reactor
        self._cache = cache
        self._disk = disk
        self._data_dir = data_dir
        self._is_due = False
        self._stopped = False
        self.settled: Callable[[], int] | None = None
        """Revision that every shard has applied durably; None where nothing but the log says what there is."""

    @property
    def is_behind(self) -> bool:
        """Whether a shard has yet to carry out a committed command."""
        return self.settled is not None and self.settled() < self._cache.revision

    def state_changed(self) -> None:
        if self.settled is not None and not self._is_due:
            self._is_due = True
            self._reactor.call_later(_MARK_US, self._mark)

    def _mark(self) -> None:
        if self.settled is None or self._stopped:
            return
        revision = self.settled()
        if revision < self._cache.revision:
            self._reactor.call_later(_MARK_US, self._mark)
        else:
            self._is_due = False
        try:
            self.note_committed(revision)
        except OSError as error:
            operator_log.warning("what is committed of the controller's log is not noted now: %s", error)

    def note_committed(self, revision: int) -> None:
        """Make durable that the commands below ``revision`` are committed. Raises OSError."""
        write_mark(self._disk, self._data_dir, revision)

    def stop(self) -> None:
        """No mark is written by itself from now on."""
        self._stopped = True


class Snapshots:
    """The snapshot schedule of the controller.

    Lifecycle: one per broker, made before the controller. Shard: the controller's.
    """

    def __init__(
        self,
        reactor: Reactor,
        cache: MetadataCache,
        store: SnapshotStore,
        log: TrimmableLog,
        disk: Disk,
        data_dir: str,
        placement: Placement,
        interval_us: int = INTERVAL_US,
    ) -> None:
        self._reactor = reactor
        self._cache = cache
        self._store = store
        self._log = log
        self._save_placement = lambda: save_placement(disk, data_dir, placement)
        self._interval_us = interval_us
        self._count = reactor.stats.counter("controller_snapshots")
        self._timer: Timer | None = None
        self._stopping: Callable[[], None] | None = None
        self._tries = 0
        self._frozen = False
        self.marks = CommittedMarks(reactor, cache, disk, data_dir)

    def state_changed(self) -> None:
        """Note a committed change. A snapshot is due within the interval."""
        if self._frozen:
            return
        if self._timer is None and self._stopping is None:
            self._timer = self._reactor.call_later(self._interval_us, self._save)
        self.marks.state_changed()

    def freeze(self) -> None:
        """Stop writing, because the files on disk come from another broker and are newer."""
        self._frozen = True
        self.marks.stop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stop(self, done: Callable[[], None]) -> None:
        """Save now if there is a change, and never again. ``done`` is called in any case."""
        self._stopping = done
        self.marks.stop()
        if self._frozen:
            self._stopped()
            return
        if self._timer is not None:
            self._timer.cancel()
        if not self._store.saving:
            self._save()

    def _save(self) -> None:
        self._timer = None
        if self._frozen:
            return
        if self._store.saving:
            self.state_changed()
            return
        if self.marks.is_behind:
            self._tries += 1
            if self._stopping is None or self._tries < _SETTLE_TRIES:
                self._timer = self._reactor.call_later(_SETTLE_US, self._save)
            else:
                self._stopped()
            return
        self._tries = 0
        try:
            self._save_placement()
        except OSError as error:
            operator_log.warning("the placement of partitions is not remembered: %s", error)
        if self._store.revision == self._cache.revision:
            self._stopped()
        else:
            self._store.save(self._cache.state, self._saved)

    def _saved(self, error: OSError | None) -> None:
        if error is not None:
            operator_log.warning("the controller's snapshot was not saved, its log is kept: %s", error)
        else:
            self._count.inc()
            self._trim()
        if self._stopping is not None and error is None and self._store.revision != self._cache.revision:
            self._save()
        else:
            self._stopped()

    def _trim(self) -> None:
        try:
            self._log.trim_prefix(Offset(self._store.trim_before))
        except ArenaFull:
            operator_log.debug("the controller's log is trimmed with the next snapshot, there is no memory for it now")

    def _stopped(self) -> None:
        if self._stopping is not None:
            done, self._stopping = self._stopping, _nothing
            done()


def _nothing() -> None:
    """Default callback without effect."""
