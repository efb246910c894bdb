"""What a log needs of the shard that it lives on: ``ShardStorage`` in production."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.helper.link import CallId
    from millstream.iobuf import Arena
    from millstream.storage.disk import Disk
    from millstream.storage.log.cache import CacheMemory
    from millstream.storage.log.log_staging import LogStaging
    from millstream.storage.log.meters import LogMeters
    from millstream.storage.log.open_log import OpenLog
    from millstream.storage.log.segment_list import Segment
    from millstream.storage.messages.commands import Cut, Remove, WorkerLink
    from millstream.storage.wal.wal import Wal


class LogHost(Protocol):
    """The part of a shard's storage that its logs use."""

    worker: WorkerLink
    wal: Wal
    memory: CacheMemory
    disk: Disk
    meters: LogMeters

    @property
    def arena(self) -> Arena:
        """The memory of the shard."""
        ...

    @property
    def staging(self) -> LogStaging:
        """The worker's part of receiving logs."""
        ...

    write_bytes_min: int
    """Durable bytes of a busy log that are written to its segment in one piece, at least."""

    def now_ms(self) -> int:
        """Wall clock."""
        ...

    def change_files(self, log: OpenLog, command: Callable[[CallId], Cut | Remove]) -> None:
        """Have files of the log cut or removed by the command made of the number given. Until that is durable, the
        write-ahead log keeps the note that stands for the change.
        """
        ...

    def keep_note(self, log: OpenLog, *, keep: bool) -> None:
        """Keep the note of a cut that was just added in the write-ahead log, until this is called again: the log is cut
        in memory, and the changes of its files are ordered (``change_files``).
        """
        ...

    def when_files_rest(self, log: OpenLog, callback: Callable[[], None]) -> None:
        """Call back when the cleaner does nothing with the log: at once, or after it has given up its work."""
        ...

    def when_no_checkpoint(self, callback: Callable[[], None]) -> None:
        """Call back when no checkpoint is on its way to the disk: at once, or when this one is over."""
        ...

    def wrote(self, log: OpenLog) -> None:
        """Bytes of a log are in its segment."""
        ...

    def write_refused(self, log: OpenLog, errno: int) -> None:
        """A segment write found the disk full; ``log.behind.advance`` follows once there may be space."""
        ...

    def changed(self, log: OpenLog) -> None:
        """The next checkpoint has to cover the log."""
        ...

    def segment_began(self, log: OpenLog, segment: Segment) -> None:
        """A segment got its first batch, or its age limit changed."""
        ...

    def rolled(self, log: OpenLog) -> None:
        """A segment was sealed."""
        ...
