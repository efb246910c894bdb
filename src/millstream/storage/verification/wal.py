"""Checking the write-ahead logs of a data directory, without a broker: the second half of ``verify``.

A log's state is kept in two files: one that is damaged is ``mended`` by the next start, both are ``corrupt``, because
then no start is possible. Of the frames, those that are needed are checked: one that was durable and cannot be read
is ``corrupt``, so is a record that does not match its checksum; a torn last frame is ``mended``. A next start may still
find in the segments what is damaged here, and continue.

Bad input is the purpose: nothing here raises for what a disk holds. A log that the disk cannot read is reported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.format.names import WAL_DIRECTORY, wal_name
from millstream.format.wal import Kind, WalState
from millstream.format.wal_scan import judge
from millstream.model.quantities import RaftGroupId, ShardId
from millstream.storage.verification.log import CORRUPT, MENDED, NO_END, Finding, unreadable
from millstream.storage.wal.reading import read_wal_piece, scan_wal_files, wal_numbers
from millstream.storage.wal.state import look_at_wal_state, nothing_is_known

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from millstream.format.wal import WalRecord
    from millstream.storage.disk import Disk
    from millstream.storage.verification.log import Progress


def wal_bytes(disk: Disk, data_dir: str) -> int:
    """Size of all write-ahead log files."""
    return sum(
        disk.size(f"{directory}/{wal_name(number)}")
        for directory in _directories(disk, data_dir).values()
        for number in wal_numbers(disk, directory)
    )


def settled(disk: Disk, data_dir: str) -> bool:
    """Whether the last stop was an orderly one: nothing is in the write-ahead logs that is not in the segments."""
    states = [look_at_wal_state(disk, directory).state for directory in _directories(disk, data_dir).values()]
    return bool(states) and all(state is not None and state.clean for state in states)


def wal_batches(disk: Disk, data_dir: str, group: RaftGroupId) -> Iterator[bytes]:
    """The sound batches of a group that the write-ahead logs still hold, in the order in which they were written."""
    for record, where in _sound_records(disk, data_dir):
        if (record.group, record.kind) == (group, Kind.BATCH):
            yield read_wal_piece(disk, *where, record.size)


def wal_offsets(disk: Disk, data_dir: str) -> dict[int, list[tuple[int, int]]]:
    """By Raft group, the offsets of its log that the next start does not need in the segments: it writes them from
    the write-ahead log, or the log starts after them. (first, end), sorted, ends exclusive. The last ends at `NO_END`
    if the next start cuts the log where it starts.
    """
    found: dict[int, list[tuple[int, int]]] = {}
    cuts: dict[int, int] = {}
    for record, _ in _sound_records(disk, data_dir):
        if record.kind == Kind.BATCH:
            found.setdefault(record.group, []).append((record.base, record.last + 1))
        elif record.kind in (Kind.TRIM, Kind.ADOPT):
            found.setdefault(record.group, []).append((0, record.base))
            if record.kind == Kind.ADOPT:
                cuts.pop(record.group, None)  # other files take the place of those that were cut
        elif record.kind == Kind.TRUNCATE:
            cuts[record.group] = min(record.base, cuts.get(record.group, NO_END))
    merged = {group: _merged(sorted(ranges)) for group, ranges in found.items()}
    return merged | {group: [*merged.get(group, ()), (cut, NO_END)] for group, cut in cuts.items()}


def _merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    merged = ranges[:1]
    for first, end in ranges[1:]:
        if first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


def _sound_records(disk: Disk, data_dir: str) -> Iterator[tuple[WalRecord, tuple[str, int, int]]]:
    """What can be read, each with the directory, the file number and the position of its bytes."""
    for shard, directory in _directories(disk, data_dir).items():
        numbers = wal_numbers(disk, directory)
        state = look_at_wal_state(disk, directory).state or WalState()
        scans = scan_wal_files(disk, directory, ShardId(shard), numbers, state.next_sequence)
        for file, place in judge(scans, state).order:
            frame = scans[file].frames[place]
            for at, (record, position) in enumerate(frame.records()):
                if at not in frame.bad:
                    yield record, (directory, numbers[file], position)


def verify_wal(disk: Disk, data_dir: str, progress: Progress, name_of: Callable[[int], str]) -> None:
    """Check the write-ahead logs of all shards. ``name_of`` returns the name of a group's log. No broker may run."""
    for shard, directory in _directories(disk, data_dir).items():
        try:
            _verify_shard(disk, directory, shard, progress, name_of)
        except OSError as error:
            what = f"{unreadable(error)}; what is in it was not checked"
            progress.findings.append(Finding(CORRUPT, f"write-ahead log {shard}", directory, -1, -1, what))


def _directories(disk: Disk, data_dir: str) -> dict[int, str]:
    root = f"{data_dir}/{WAL_DIRECTORY}"
    try:
        names = disk.list(root)
    except FileNotFoundError:
        return {}
    return {shard: f"{root}/{shard}" for shard in sorted(int(name) for name in names if name.isdecimal())}


def _verify_shard(disk: Disk, directory: str, shard: int, progress: Progress, name_of: Callable[[int], str]) -> None:
    name = f"write-ahead log {shard}"

    def found(severity: str, file: str, position: int, offset: int, what: str, log: str = name) -> None:
        progress.findings.append(Finding(severity, log, file, position, offset, what))

    numbers = wal_numbers(disk, directory)
    known = look_at_wal_state(disk, directory)
    if known.state is None and numbers:
        found(CORRUPT, directory, -1, -1, nothing_is_known(directory, known))
    else:
        for path, reason in known.damaged.items():
            found(MENDED, path, -1, -1, f"{reason}; the next start restores it from its copy")
    state = known.state or WalState()
    scans = scan_wal_files(disk, directory, ShardId(shard), numbers, state.next_sequence)
    progress.checked(sum(disk.size(f"{directory}/{wal_name(number)}") for number in numbers))
    if state.clean:
        return  # an orderly stop: all of it is in the segments
    verdict = judge(scans, state)
    progress.tally.frames += len(verdict.order)
    for first, last in verdict.lost:
        found(CORRUPT, directory, -1, -1, f"frames {first} to {last} were durable and cannot be read")
    for file, place in verdict.order:
        frame = scans[file].frames[place]
        path = f"{directory}/{wal_name(numbers[file])}"
        if verdict.torn == (file, place):
            found(MENDED, path, frame.position, -1, "the last frame is torn; it was never acknowledged, and is cut")
            continue
        if frame.mended:
            found(MENDED, path, frame.position, -1, "one of the two copies of a frame's table is damaged")
        for at, (record, position) in enumerate(frame.records()):
            if at in frame.bad:
                what = f"a record does not match its checksum (offsets {record.base} to {record.last})"
                found(CORRUPT, path, position, record.base, what, name_of(record.group))
