"""Histories on a disk that fails or is full.

`FaultHistory` adds to a history: an operation some way ahead that is answered with EIO or ENOSPC, once or several
times, whichever it is (reads, writes, syncs, renames, creations, deletions); a full disk, and space again; reads by
consumers. The disks of odd seeds copy what is overwritten: full, they have no room for the write-ahead log either. What
may follow is narrow:

- the shard stops and says why (`EXIT_STORAGE`), and the next start finds all that was promised; it never stops because
  a disk is full, or could not be read;
- a start that cannot read its disk ends, or would not serve a log, and the next one finds all that was promised;
- a read is answered with an error, and is right the next time;
- with a full disk producers get a retriable error, what is committed can be read, and once there is space the
  broker lets producers in again by itself.

Anything else, an uncaught OSError above all, is a violation.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption, MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.append.internal import InternalLog
from millstream.shard.process import EXIT_STORAGE
from sim.engine.local_storage import Stopped
from sim.engine.violation import Violation
from sim.storage.history import OPERATIONS, SETTLED_US, History, Shape

if TYPE_CHECKING:
    from collections.abc import Callable

FAULTY: Final = Shape(weights={**OPERATIONS, "fault": 6, "space": 4, "read": 10, "hang": 1})

_KINDS: Final = (
    "write",
    "sync",
    "read",
    "rename",
    "create",
    "unlink",
    "truncate",
    "sync_directory",
    "sync_all",
)
_TAKE_SPACE: Final = ("write", "create", "truncate", "rename", "unlink", "sync_directory")
_AGAIN_US: Final = 30_000_000
"""A broker lets producers in again so soon after there is space."""


class FaultHistory(History):
    """A history on a disk that fails and fills up."""

    def __init__(self, seed: int, shape: Shape = FAULTY) -> None:
        super().__init__(seed, shape)
        self.disk.fail = self._fail
        self.disk.copies = bool(seed & 1)
        self._due = -1
        self._kinds: tuple[str, ...] = ()
        self._errno = 0
        self._times = 0
        self._excuse = False
        """Something failed since the last start."""

        self._broken = False
        """And that was no read, and not for want of space."""

        self._was_full = False
        self.faults = self.stops = self.failed_starts = self.full_disks = self.waits = self.failed_partitions = 0

    # -- the disk ------------------------------------------------------------------------------------------------------

    def _fail(self, kind: str, path: str) -> int:
        del path
        if self._times <= 0 or kind not in self._kinds:
            return 0
        self._due -= 1
        if self._due > 0:
            return 0
        self._times -= 1
        self.faults += 1
        self._excuse = True
        self._broken = self._broken or (kind != "read" and self._errno != errno.ENOSPC)
        return self._errno

    def fault(self) -> None:
        """An operation some way ahead will fail."""
        rng = self.rng
        self._errno = rng.choice([errno.EIO, errno.EIO, errno.ENOSPC])
        kinds = _TAKE_SPACE if self._errno == errno.ENOSPC else _KINDS
        self._kinds = (rng.choice(kinds),) if rng.random() < 0.7 else kinds
        self._due = rng.randint(1, 12)
        self._times = rng.choice([1, 1, 4])

    def _mend(self) -> None:
        self._times = 0

    # -- what may follow -----------------------------------------------------------------------------------------------

    def stopped(self, stopped: Stopped) -> None:
        """The disk failed, and the shard stopped: it says why, and what was promised is there after a start."""
        if not self._broken:
            raise Violation(f"the shard stopped though the disk is well, or merely full: {stopped}") from stopped
        if stopped.code != EXIT_STORAGE or not stopped.reason:
            raise Violation(f"the shard stopped and does not say why: {stopped}") from stopped
        self.stops += 1
        self._mend()
        self.trail.append(str(stopped))
        (self.kill if self.rng.random() < 0.5 else self.crash)()

    def start(self) -> None:
        """Recover, open, judge; a disk that fails during the start ends it, and the next one is well.

        A full disk ends the start only if recovery needs room.
        """
        self._excuse = self._broken = self._was_full = False
        try:
            super().start()
        except (OSError, Corruption, Violation, Stopped) as error:
            failed = isinstance(error, OSError) or (isinstance(error, Stopped) and error.code == EXIT_STORAGE)
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            # Judged as damage of a partition, which it is not: it can be read and opened now.
            refused = failed or "could not be read" in str(error) or "could not be opened: OSError" in str(error)
            if not full and not (self._excuse and refused):
                raise
            self.failed_starts += 1
            self._mend()
            self.disk.capacity_bytes = None
            self.end()
            super().start()

    def survive(self, operation: Callable[[], None]) -> None:
        """As ever; only an orderly stop may end with the error of a disk that failed, and only a partition whose files
        the disk could not read may fail. A start serves it again.
        """
        try:
            super().survive(operation)
        except OSError as error:
            if operation.__name__ != "restart" or not self._excuse:
                raise Violation(f"uncaught: {error!r}") from error
            self._mend()
            self.kill()
        except AssertionError:
            if not self._excuse or not self._failed():
                raise
        if self._excuse and (failed := self._failed()):
            self.failed_partitions += len(failed)
            self._mend()
            self.trail += failed
            self.kill()

    def _failed(self) -> list[str]:
        """Partitions that are open no more, and why."""
        faults = {topic: self.life.fault(topic) for topic in self.topics.values()}
        return [f"{topic!r}: {fault}" for topic, fault in faults.items() if fault]

    def adopt(self) -> None:
        """Judge without further faults: what failed has failed, and what found no room is opened now that there is."""
        self._mend()
        topics = list(self.topics.values())
        if not self.life.open_waiting(topics, 0):
            self.waits += 1
            self.disk.capacity_bytes = None
            if not self.life.open_waiting(topics, SETTLED_US):
                raise Violation("there is room, and a partition is still not open")
        super().adopt()

    def cut(self) -> None:
        """Raft is not cut short by a disk that is full: it waits."""
        self._space_again()
        super().cut()

    def restart(self) -> None:
        """With a full disk an orderly stop is not possible."""
        self._space_again()
        super().restart()

    def kill(self) -> None:
        """The next start has space."""
        self.disk.capacity_bytes = None
        super().kill()

    def refused(self, topic: object, error: ErrorCode) -> None:
        """While the disk is full, or was reported full, producers get KAFKA_STORAGE_ERROR."""
        full = self._was_full or self._excuse  # a write that found it full may be answered once it has space again
        if error is not ErrorCode.NOT_ENOUGH_REPLICAS and not (full and error is ErrorCode.KAFKA_STORAGE_ERROR):
            raise Violation(f"a producer of {topic!r} got {error.name}")

    def settle(self) -> None:
        """With a full disk it may take until there is space."""
        if self.disk.capacity_bytes is None and not self._times:
            super().settle()

    # -- full ----------------------------------------------------------------------------------------------------------

    def space(self) -> None:
        """The disk is full, or nearly, or has space again."""
        if self.disk.capacity_bytes is None:
            used = (1 << 40) - self.disk.free_bytes("")
            self.disk.capacity_bytes = used + self.rng.choice([0, 2_000, 20_000])
            self.full_disks += 1
            self._was_full = True
        else:
            self._space_again()

    def _space_again(self) -> None:
        """Producers are let in by themselves."""
        self._mend()
        if self.disk.capacity_bytes is None:
            return
        self.disk.capacity_bytes = None
        for cell in self.life.cells:
            storage = cell.shard.storage
            cell.shard.run(lambda storage=storage: storage.accepts_writes, _AGAIN_US + SETTLED_US)
            if not storage.accepts_writes:
                raise Violation("there is space, and producers are still refused")

    # -- consumers -----------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """A consumer reads what is committed, from anywhere; a disk that fails is an error to him, no wrong bytes."""
        topic = self.any_topic()
        partition = self.life.partition(topic)
        known = [
            one
            for one in topic.batches
            if one.base >= partition.log.start_offset and one.next <= partition.high_watermark
        ]
        if not known or topic.compacted or partition.log.ends.cutting:
            return
        one = self.rng.choice(known)
        answers: list[list[bytes] | MillstreamError] = []
        InternalLog(partition).read(Offset(one.base), 1, answers.append)
        self.life.shard(topic.group).run(lambda: bool(answers), SETTLED_US)
        if not answers:
            raise Violation(f"{topic!r}: a read at {one.base} was never answered")
        answer = answers[0]
        if isinstance(answer, MillstreamError):
            if not self._excuse and one.base >= partition.log.start_offset:
                raise Violation(f"{topic!r}: a read at {one.base} was answered {answer.message}")
        elif b"".join(answer)[: len(one.data)] != one.data:
            raise Violation(f"{topic!r}: a read at {one.base} was answered with other bytes")
