"""Bit rot: what is on the disk is not what was written there. Damage may cost data; it may never be silent.

`Rot` stands at some operations of a history as `Enumeration` does, and damages the disk that a power failure would
leave in one place: a bit, a sector or a page of zeros, or one that was meant for another place (a misdirected write).
Then production recovers it, and each log must be one of two things: what was promised, to the byte; or reported, by
topic, partition and file, either at the start (the log is not served) or by the read that comes upon it, while every
batch around it is still served. Logs that the damage cannot have touched are whole.

One place is excused: the last frame of a write-ahead log, of which no later frame says that it was durable. If it does
not verify it is taken for torn. Two damages are not tried, because what lands elsewhere is sound by itself and names no
place: a small file (a state, epochs) in the place of another of its kind, and a batch of another partition in the place
of one with the same offset.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption, MillstreamError
from millstream.format.events.chunk import SIDECAR_SUFFIX, SUFFIXES, log_directory
from millstream.format.segment import WalkEnd
from millstream.format.wal import PAGE_BYTES
from millstream.format.wal_scan import scan
from millstream.model.events import PartitionIndex
from millstream.model.quantities import Offset
from millstream.storage.disk import read_file
from millstream.storage.verification.log import CORRUPT, Progress, find_logs, verify_log
from millstream.wire.errors import BatchError
from sim.engine.disk import LOST, SECTOR_BYTES, TORN, SimDisk
from sim.engine.local_storage import DATA_DIR
from sim.engine.violation import Violation
from sim.storage.judge import judge_topic
from sim.storage.life import Life

if TYPE_CHECKING:
    from millstream.storage.log.log import Log
    from sim.storage.history import History
    from sim.storage.models import TopicModel

_TRIES: Final = 20


class Rot:
    """Damages the crash points of a history: `share` of them, in one place each."""

    def __init__(self, history: History, *, share: float) -> None:
        self._history = history
        self._rng = random.Random(history.seed + 3)
        self._share = share
        self.points = 0
        self.reported = 0
        """Times that damage was reported; otherwise it was mended or hit nothing."""

        history.on_operation = self.look

    def look(self, kind: str, path: str) -> None:
        """An operation is about to be done: what if the power fails now, and the disk was damaged?"""
        if self._rng.random() >= self._share:
            return
        history = self._history
        history.notice()
        disk = history.disk.crashed(self._rng, self._rng.choice([LOST, TORN]))
        damage = self._damage(disk)
        if damage is None:
            return
        self.points += 1
        where, what = damage
        try:
            self._judge(disk, where)
        except Violation as violation:
            raise Violation(f"{what}, a crash before the {kind} of {path}: {violation}") from None

    def _damage(self, disk: SimDisk) -> tuple[str, str] | None:
        """Path of the file that was damaged, and what was done to it."""
        rng = self._rng
        for _ in range(_TRIES):
            found = [(path, size) for path, size in disk.files() if size and not path.endswith((".tmp", "/topic"))]
            kinds = sorted({_kind(path) for path, _ in found})
            if not kinds:
                return None
            kind = rng.choice(kinds)
            path, size = rng.choice([one for one in found if _kind(one[0]) == kind])
            position = rng.randrange(size)
            if kind == "wal" and _in_last_frame(disk, path, position):
                continue
            how = rng.choice(["bit", "zeros", "misdirected"])
            if how == "bit":
                disk.flip(path, position)
            else:
                piece = rng.choice([SECTOR_BYTES, PAGE_BYTES])
                position -= position % piece
                if kind == "wal" and _in_last_frame(disk, path, position, piece):
                    continue
                data = bytes(piece)
                if how == "misdirected":
                    other = rng.choice([one for one, _ in found if one.endswith(".wal")] or [path])
                    data = bytes(read_file(disk, other)[:piece])
                disk.damage(path, position, data)
                how = f"{how}, {piece} bytes,"
            return path, f"{how} at byte {position} of {path}"
        return None

    def _judge(self, disk: SimDisk, damaged: str) -> None:
        history = self._history
        try:
            life = Life(
                disk,
                self._rng,
                history.topics.values(),
                shards=1,
                now_ms=history.now_ms,
                settings=history.settings_of_judge,
            )
        except Corruption as error:
            raise Violation(f"the start ends: {error.message}") from error
        faults = "\n".join(life.report.faults)
        for topic in history.topics.values():
            touched = "/wal/" in damaged or damaged.startswith(_directory(topic) + "/")
            fault = life.fault(topic)
            if fault:
                self.reported += 1
                if not touched:
                    raise Violation(f"{topic!r} is not served, and nothing happened to it: {fault}")
                if f"{topic.name}/0" not in f"{fault}\n{faults}" and DATA_DIR not in fault:
                    raise Violation(f"{topic!r} is not served, and no report names the file: {fault}")
                continue
            try:
                judge_topic(life, disk, topic)
            except (Violation, WalkEnd, BatchError) as violation:
                if not touched or not self._read_around(life, disk, topic, damaged):
                    raise Violation(f"unreported: {violation}") from None
                self.reported += 1

    def _read_around(self, life: Life, disk: SimDisk, topic: TopicModel, damaged: str) -> bool:
        """Whether reads tell of the damage, by file, and every other batch is served as it was written.

        No read reaches what lies before the log's start: the check of all files has to report that.
        """
        if topic.internal or topic.compacted or damaged.endswith(".producers"):
            return damaged.endswith((".log", ".producers"))
        log: Log = life.partition(topic).log
        if log.next_offset < topic.promised_end or not damaged.endswith((".log", *SUFFIXES, SIDECAR_SUFFIX)):
            return False
        named = _directory(topic) if topic.has_events else damaged
        reported = 0
        for one in topic.batches:
            offset = max(one.base, log.start_offset)
            if not offset < one.next <= log.next_offset:
                continue
            found = log.read(Offset(offset), Offset(one.next), 1, True)
            if found is None:
                found = life.shard(topic.group).call(log.read_cold, offset, one.next, 1, True)
            if isinstance(found, MillstreamError):
                reported += 1
                if named not in found.message:
                    raise Violation(f"{log!r}: a read at {one.base} does not say which file: {found.message}")
                continue
            assert found is not None
            data = bytes(found)
            found.release()
            if data != one.data:
                raise Violation(f"{log!r}: other bytes at {one.base}, unreported")
        return reported > 0 or _verify_tells(disk, named)


def _directory(topic: TopicModel) -> str:
    return log_directory(DATA_DIR, topic.topic_id, topic.name, PartitionIndex(0), events=topic.has_events)


def _verify_tells(disk: SimDisk, damaged: str) -> bool:
    """Whether ``millstream log verify`` names the file; of a chunk its directory will do."""
    progress = Progress()
    for log in find_logs(disk, DATA_DIR):
        verify_log(disk, log, progress)
    return any(
        one.severity == CORRUPT and (one.file == damaged or one.file.startswith(damaged + "/"))
        for one in progress.findings
    )


def _kind(path: str) -> str:
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2] if "." in name else name


def _in_last_frame(disk: SimDisk, path: str, position: int, size: int = 1) -> bool:
    """Whether some of these bytes lie in the newest frame of a write-ahead log, or in the header of its file."""
    directory = path.rpartition("/")[0]
    newest = (0, "", 0, 0)
    for name in disk.list(directory):
        if name.endswith(".wal"):
            frames = scan(memoryview(read_file(disk, f"{directory}/{name}"))).frames
            if frames:
                newest = max(newest, (frames[-1].sequence, name, frames[-1].position, frames[-1].end))
    _, name, begin, end = newest
    touched = position < SECTOR_BYTES or (position < end and begin < position + size)
    return touched and bool(name) and path.endswith(name)
