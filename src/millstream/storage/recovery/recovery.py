"""Recovery: what the write-ahead logs of an earlier run still hold goes into the segments, before anything is served.

One process of the supervisor runs ``recover`` before the shards are forked. It reads every WAL directory that is there,
however many shards will run now, the controller's group 0 first, because only its log says where the others are
(``locate``). Then everything is synced, the ``state`` files make the frames void, and each shard finds logs that are
exactly as long as they should be.

After an orderly stop there is nothing to replay: the summaries that the shards left are gathered for those that will
run now, and no WAL file is read. After a crash, one line in the log per repair:

- a torn last frame is cut: it was never acknowledged (``format.wal.judge``);
- damage inside the durable prefix that the segments can mend, or one readable copy of a frame's table, is mended;
- other damage is reported and fences the logs it touches (``replay``); the rest is served.

A crash during recovery is a crash: the next start does it again, with the same result. For that the frames have to be
there again. One whose sync did not return may stand in the page cache only, when just the process ended and not the
machine, so it is written once more and synced before anything is done with it.

**One partition's fault.** A replay that raises ends for that partition: its files stay as they are, its records go to a
file beside them (``set_aside``), and the shard that opens it tries that replay again. An OSError about
the write-ahead log or the controller's log ends the start, and so does a full disk; nothing is lost.
"""

from __future__ import annotations

import time
import traceback
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from millstream.errors import Corruption
from millstream.format.names import (
    DELETED_SUFFIX,
    OPENED_FILE,
    STAGED_SUFFIX,
    TEMPORARY_SUFFIX,
    TOPIC_FILE,
    TOPICS_DIRECTORY,
    WAL_DIRECTORY,
    controller_directory,
    resumable,
    wal_name,
)
from millstream.format.wal import FILE_HEADER_BYTES, RECORD, Kind, WalRecord, WalState
from millstream.format.wal_scan import Scan, Verdict, judge
from millstream.model.quantities import Offset, RaftGroupId, ShardId
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import FULL, is_of_one_log, read_at, remove_file, write_all
from millstream.storage.recovery.adoptions import Adoptions
from millstream.storage.recovery.place import LogPlace
from millstream.storage.recovery.replay import LogReplay
from millstream.storage.recovery.replayed_state import Truncation
from millstream.storage.recovery.set_aside import is_set_aside, set_aside
from millstream.storage.recovery.summary import LogSummary, decode_summaries, write_opened
from millstream.storage.segments.files import remove_deleted
from millstream.storage.wal.reading import read_wal_file, scan_wal_files, wal_numbers
from millstream.storage.wal.state import read_wal_state, write_wal_state
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.storage.disk import Disk

CONTROLLER_GROUP = 0
_CONTROLLER_SEGMENT_BYTES = 64 * 1024 * 1024


class Repair(msgspec.Struct, frozen=True):
    """Something that was mended; ``kind`` is a value of the metric's label."""

    kind: str
    message: str


class RecoveryReport(msgspec.Struct, frozen=True):
    """What a recovery found and did."""

    clean: bool
    """The last stop was an orderly one (or there was none)."""

    frames: int = 0
    records: int = 0
    bytes: int = 0
    logs: int = 0
    """Logs that had records to replay."""

    repairs: tuple[Repair, ...] = ()
    faults: tuple[str, ...] = ()
    aside: tuple[str, ...] = ()
    """Partitions whose replay raised, each with the traceback. Their records are put aside."""
    """Logs that are fenced, and damage that is not known to belong to a log: name and reason."""

    duration_ms: int = 0


class _Directory(NamedTuple):
    """One shard's write-ahead log as it was found."""

    path: str
    shard: int
    state: WalState
    files: list[int]
    scans: list[Scan]
    verdict: Verdict


def recover(
    disk: Disk,
    data_dir: str,
    locate: Callable[[int], LogPlace | None],
    *,
    shards: int,
    now_ms: int | None = None,
    in_cluster: bool = False,
) -> RecoveryReport:
    """Bring the logs under ``data_dir`` into the state that the last run promised.

    Args:
        disk: where they are.
        data_dir: of the broker.
        locate: where a group's log is, None if no such group exists; called after group 0 was replayed.
        shards: how many will run; directories of more are removed.
        now_ms: wall clock, for segments whose creation time is not known.
        in_cluster: the controller's log is replicated.

    Raises:
        OSError: the disk failed.
        Corruption: the controller's own log is damaged: without it nothing can be served. Or nothing says which
            frames of a write-ahead log are void (``wal_state``).
    """
    begun = time.monotonic()
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    root = f"{data_dir}/{WAL_DIRECTORY}"
    make_directories_durably(disk, root, 1)
    disk.watch(data_dir)
    repairs: list[Repair] = []
    numbers = sorted(int(name) for name in disk.list(root) if name.isdecimal())
    states = {number: _read_state(disk, f"{root}/{number}", repairs) for number in numbers}
    if all(state.clean for state in states.values()):
        _open_clean(disk, data_dir, states, shards)
        return RecoveryReport(clean=True, repairs=tuple(repairs), duration_ms=int((time.monotonic() - begun) * 1000))
    remove_file(disk, f"{root}/{OPENED_FILE}")
    run = _Recovery(disk, data_dir, now_ms, repairs)
    directories = [_read_directory(disk, f"{root}/{number}", number, state) for number, state in states.items()]
    for directory in directories:
        _make_durable(disk, directory)
        run.report_wal(directory)
        run.ahead.read(directory)
    if CONTROLLER_GROUP in run.ahead.groups:
        controller = _controller(data_dir, in_cluster)
        run.replay(directories, lambda group: controller if group == CONTROLLER_GROUP else None)
    if CONTROLLER_GROUP in run.replays and run.replays[CONTROLLER_GROUP].fault:
        raise Corruption(run.replays[CONTROLLER_GROUP].fault)
    run.replay(directories, lambda group: None if group == CONTROLLER_GROUP else locate(group))
    run.remove_stale_topics()
    disk.sync_all(data_dir)
    begin = {one.shard: WalState(one.verdict.next_sequence, one.verdict.next_generation) for one in directories}
    _begin(disk, root, begin, shards, 1 + _term(states))
    return run.report(directories, int((time.monotonic() - begun) * 1000))


def _controller(data_dir: str, replicated: bool) -> LogPlace:
    return LogPlace(controller_directory(data_dir), "controller", _CONTROLLER_SEGMENT_BYTES, replicated)


def _read_state(disk: Disk, directory: str, repairs: list[Repair]) -> WalState:
    """The state; a damaged copy of it is mended when the recovery is through, like everything else it says."""
    state, damaged = read_wal_state(disk, directory)
    for path, reason in damaged.items():
        repairs.append(Repair("other", f"{path} is damaged ({reason}) and is restored from its copy"))
    return state


def _open_clean(disk: Disk, data_dir: str, states: dict[int, WalState], shards: int) -> None:
    """Hand what the last stop noted to the shards of this start, then make sure that it is not taken for news again."""
    summaries: list[LogSummary] = []
    for state in states.values():
        summaries += decode_summaries(state.logs)
    write_opened(disk, data_dir, summaries)
    begin = {number: WalState(state.next_sequence, state.next_generation) for number, state in states.items()}
    _begin(disk, f"{data_dir}/{WAL_DIRECTORY}", begin, shards, _term(states))


def _term(states: dict[int, WalState]) -> int:
    """The term of the last start."""
    return max((state.term for state in states.values()), default=0)


def _begin(disk: Disk, root: str, states: dict[int, WalState], shards: int, term: int) -> None:
    """Say where the write-ahead log of each shard of this start starts, and in which term; remove the directories of
    shards that no longer run, the name first: half of one would mislead.
    """
    _remove_deleted(disk, root)  # what a crash has left, before a directory needs that name again
    for shard in range(shards):
        make_directories_durably(disk, f"{root}/{shard}", 1)
    for number in {*states, *range(shards)}:
        state = states.get(number, WalState())
        write_wal_state(disk, f"{root}/{number}", msgspec.structs.replace(state, term=term))
    for number in [number for number in states if number >= shards]:
        disk.rename(f"{root}/{number}", f"{root}/{number}{DELETED_SUFFIX}")
    disk.sync_directory(root)
    _remove_deleted(disk, root)


def _remove_deleted(disk: Disk, root: str) -> None:
    for name in disk.list(root):
        if name.endswith(DELETED_SUFFIX):
            remove_deleted(disk, f"{root}/{name}")


def _read_directory(disk: Disk, path: str, shard: int, state: WalState) -> _Directory:
    files = wal_numbers(disk, path)
    scans = scan_wal_files(disk, path, ShardId(shard), files, state.next_sequence)
    return _Directory(path, shard, state, files, scans, judge(scans, state))


def _make_durable(disk: Disk, directory: _Directory) -> None:
    """Write the frames that are not known to be durable again, as they are: what is replayed from them into the
    segments must not outlive them. A sync alone does not do it: after one that failed the kernel takes the pages for
    clean.
    """
    verdict = directory.verdict
    for file, place in verdict.order:
        frame = directory.scans[file].frames[place]
        if frame.sequence <= verdict.durable_sequence:
            continue
        begin = 0 if frame.position == FILE_HEADER_BYTES else frame.position
        path = f"{directory.path}/{wal_name(directory.files[file])}"
        opened = disk.open(path)
        try:
            write_all(opened, [read_at(opened, begin, frame.end - begin)], begin)
            opened.sync()
        finally:
            opened.close()


def _doubt(replays: dict[int, LogReplay], directory: _Directory, first: int, last: int) -> None:
    """Frames are missing that were durable: they may have held the next records of any of these logs."""
    for one in replays.values():
        one.uncertain = (
            f"frames {first} to {last} of the write-ahead log of shard {directory.shard} cannot be read and may have"
            " held records of this log"
        )


class _Ahead:
    """What all write-ahead logs say of each log, read before the replay: the segments may show it already."""

    def __init__(self) -> None:
        self.groups: set[int] = set()
        """Those with records in the write-ahead logs."""
        self.adoptions = Adoptions()
        self.trims: dict[int, Offset] = {}
        """The largest log start that was asked for."""
        self.truncations: dict[int, list[Truncation]] = {}

    def read(self, directory: _Directory) -> None:
        """Collect what the records of one shard's write-ahead log say."""
        for file, place in directory.verdict.order:
            frame = directory.scans[file].frames[place]
            durable = frame.sequence <= directory.verdict.durable_sequence
            torn: set[int] = set()
            for number, entry in enumerate(RECORD.iter_unpack(frame.table)):
                kind, _, _, group, _, base, last, _, _ = entry
                self.groups.add(group)
                if number in frame.bad and not durable:
                    torn.add(group)  # as in the replay
                if group in torn:
                    continue
                if kind == Kind.TRIM:
                    self.trims[group] = max(base, self.trims.get(group, 0))
                elif kind == Kind.ADOPT:
                    self.adoptions.note(group, (frame.sequence, number), last)
                    self.trims.pop(group, None)
                    self.truncations.pop(group, None)
                elif kind == Kind.TRUNCATE:
                    self.truncations.setdefault(group, []).append(Truncation(base, last))


class _Recovery:
    """The replays of one recovery, by group."""

    def __init__(self, disk: Disk, data_dir: str, now_ms: int, repairs: list[Repair]) -> None:
        self._disk = disk
        self._data_dir = data_dir
        self._now_ms = now_ms
        self._repairs = repairs
        self._faults: list[str] = []
        self.replays: dict[int, LogReplay] = {}
        self.ahead = _Ahead()
        self._finished: set[int] = set()
        self._aside: dict[int, str] = {}
        """Directories of the partitions whose records are put aside, by group."""
        self._broken: list[str] = []

    def report_wal(self, directory: _Directory) -> None:
        """Report damage of the write-ahead log itself."""
        verdict = directory.verdict
        where = f"write-ahead log of shard {directory.shard}"
        if verdict.torn is not None or any(one.torn for one in directory.scans):
            self._note("torn_wal", f"{where}: the last frame is torn and cut; nothing in it was acknowledged")
        for first, last in verdict.lost:
            self._faults.append(
                f"{where}: frames {first} to {last} were durable and cannot be read; logs whose last records were"
                " there may end early"
            )
        for file, place in verdict.order:
            frame = directory.scans[file].frames[place]
            if frame.mended and frame.sequence <= verdict.durable_sequence:
                self._note("other", f"{where}: one table of frame {frame.sequence} is damaged; the other copy is good")

    def _note(self, kind: str, message: str) -> None:
        self._repairs.append(Repair(kind, message))

    def replay(self, directories: list[_Directory], locate: Callable[[int], LogPlace | None]) -> None:
        """Replay the groups that ``locate`` knows, then finish them."""
        for directory in directories:
            self._replay_directory(directory, locate)
        fresh = [group for group in self.replays if group not in self._finished]
        for group in fresh:
            one = self.replays[group]
            self._guard(group, one.finish)
            self._finished.add(group)
            if one.fault:
                self._faults.append(one.fault)
        self._disk.sync_all(self._data_dir)
        written: list[tuple[int, str]] = []
        for group in fresh:
            self._guard(group, self._describe, group, written)
        self._disk.sync_all(self._data_dir)
        for group, path in written:
            self._guard(group, self._disk.rename, path + TEMPORARY_SUFFIX, path)
        for directory in directories:
            if self._aside:
                state = directory.state
                set_aside(self._disk, directory.path, ShardId(directory.shard), self._aside, state=state)

    def _describe(self, group: int, written: list[tuple[int, str]]) -> None:
        written += [(group, path) for path in self.replays[group].describe()]

    def _guard(self, group: int, step: Callable[..., None], *arguments: object) -> None:
        """A step of one partition's replay: if it raises, that partition's records are put aside."""
        if group in self._aside:
            return
        try:
            step(*arguments)
        except Exception as error:
            full = isinstance(error, OSError) and error.errno in FULL
            if group == CONTROLLER_GROUP or full:
                raise
            self._put_aside(group, self.replays[group].place, error)

    def _put_aside(self, group: int, place: LogPlace, error: Exception) -> None:
        """The replay of a partition has raised ``error``, which is being handled."""
        self._aside[group] = place.directory
        if isinstance(error, Corruption):
            self._faults.append(f"{place.name}: {error.message}")
        else:
            self._broken.append(f"{place.name}: {type(error).__name__}: {error}\n{traceback.format_exc()}")

    def _replay_directory(self, directory: _Directory, locate: Callable[[int], LogPlace | None]) -> None:
        unknown: set[int] = set()
        here: dict[int, LogReplay] = {}
        open_file = -1
        data = memoryview(b"")
        expected = directory.verdict.needed_sequence
        for file, place in directory.verdict.order:
            frame = directory.scans[file].frames[place]
            if frame.sequence > expected:
                _doubt(here, directory, expected, frame.sequence - 1)
            expected = frame.sequence + 1
            if file != open_file:
                for number, one in here.items():
                    self._guard(number, one.flush)
                data = memoryview(read_wal_file(self._disk, directory.path, directory.files[file]))
                open_file = file
            durable = frame.sequence <= directory.verdict.durable_sequence
            torn: set[int] = set()
            at = frame.payload_position
            for number, entry in enumerate(RECORD.iter_unpack(frame.table)):
                kind, _, _, group, epoch, base, last, size, crc = entry
                start, at = at, at + size
                if (
                    group in unknown
                    or group in torn
                    or self.ahead.adoptions.void(kind, group, (frame.sequence, number))
                ):
                    continue
                one = here.get(group)
                if one is None:
                    one = self._open(group, locate)
                    if one is None:
                        unknown.add(group)
                        continue
                    here[group] = one
                good = number not in frame.bad
                if not good:
                    one.damaged_at = f"{directory.path}/{wal_name(directory.files[file])}, byte {start}"
                if good or durable:
                    record = WalRecord(kind, group, epoch, base, last, size, crc)
                    self._guard(group, one.apply, record, data[start:at] if good else None)
                else:
                    torn.add(group)  # the rest of its records in this frame cannot stand without this one
        if expected <= directory.verdict.durable_sequence:
            _doubt(here, directory, expected, directory.verdict.durable_sequence)
        for number, one in here.items():
            self._guard(number, one.flush)

    def _open(self, group: int, locate: Callable[[int], LogPlace | None]) -> LogReplay | None:
        if group in self._finished or group in self._aside:
            return None
        one = self.replays.get(group)
        if one is None:
            place = locate(group)
            if place is None:
                return None
            try:
                if group != CONTROLLER_GROUP and is_set_aside(self._disk, place.directory):
                    self._aside[group] = place.directory  # its shard replays all of it when it opens it
                    return None
                self.ahead.adoptions.complete(self._disk, RaftGroupId(group), place.directory)
                cuts = self.ahead.truncations.get(group, [])
                one = LogReplay(
                    self._disk, place, self.ahead.trims.get(group, Offset(0)), cuts, self._now_ms, self._note
                )
            except Exception as error:
                full = isinstance(error, OSError) and error.errno in FULL
                if group == CONTROLLER_GROUP or full:
                    raise
                self._put_aside(group, place, error)
                return None
            self.replays[group] = one
        return one

    def remove_stale_topics(self) -> None:
        """Remove what a deletion left behind when the crash came."""
        root = f"{self._data_dir}/{TOPICS_DIRECTORY}"
        try:
            topics = self._disk.list(root)
        except FileNotFoundError:
            return
        for topic in topics:
            try:
                self._remove_stale_partitions(f"{root}/{topic}")
            except NotADirectoryError:
                continue  # what a person put there a person removes
            except OSError as error:
                if not is_of_one_log(error):
                    raise
                operator_log.warning("what a deletion left in %s/%s stays: %s", root, topic, error)

    def _remove_stale_partitions(self, directory: str) -> None:
        for name in self._disk.list(directory):
            if name.endswith(DELETED_SUFFIX) or (name.endswith(STAGED_SUFFIX) and not resumable(name)):
                remove_deleted(self._disk, f"{directory}/{name}")
        if self._disk.list(directory) == [TOPIC_FILE]:
            self._disk.unlink(f"{directory}/{TOPIC_FILE}")
            self._disk.remove_directory(directory)

    def report(self, directories: list[_Directory], duration_ms: int) -> RecoveryReport:
        """Summarize the recovery."""
        replays = self.replays.values()
        records = sum(one.records for one in replays)
        if records:
            self._note("wal_replayed", f"{records} records of {len(replays)} logs were replayed into their segments")
        return RecoveryReport(
            clean=False,
            frames=sum(len(directory.verdict.order) for directory in directories),
            records=records,
            bytes=sum(one.bytes for one in replays),
            logs=len(replays),
            repairs=tuple(self._repairs),
            faults=tuple(self._faults),
            aside=tuple(self._broken),
            duration_ms=duration_ms,
        )
