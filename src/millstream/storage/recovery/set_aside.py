"""What the write-ahead log holds of partitions that failed goes to a file beside their segments, and back.

::

    a verb of a partition raised ──► its log is closed ──next checkpoint──► ``quarantine`` file ──► frames are released
    a start could not replay it  ──────────────────────────────────────────┘
                                                              next start, or a repair: `replay_set_aside` ──► segments

So a partition that failed holds no frame of the write-ahead log, and loses none of its records. The file says which
frames it has, so that a crash between its sync and the release of the frames takes nothing twice.

**Bad input.** A chunk that is torn is void until its frame is set aside again. What does not verify when the file is
replayed is damage: the replay is refused, and the file stays. Damaged records are kept as damaged ones, and fault the
replay unless a segment has them. **A directory that cannot be written.** The records go to a file in the directory
``quarantine`` of the data directory, and to the partition's own before they are replayed (`bring_home`). **Crash.**
`set_aside` may be repeated; so may `replay_set_aside`, whose last step removes the file. **Full disk.** OSError; the
frames stay until it succeeds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from millstream.errors import Corruption
from millstream.format.epochs import StoredVote
from millstream.format.names import PARTITION_LEVELS, QUARANTINE_FILE, TEMPORARY_SUFFIX, quarantine_elsewhere
from millstream.format.quarantine import HEAD, Chunk, chunks, encode_chunk
from millstream.format.wal import RECORD_BYTES, FrameSequence, Kind, WalRecord, WalState
from millstream.format.wal_scan import judge
from millstream.model.quantities import Offset, ShardId
from millstream.model.replication import RaftPosition, ReplicaId
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import FULL, exists, read_file, remove_file, replace_file, write_all
from millstream.storage.recovery.adoptions import Adoptions
from millstream.storage.recovery.replay import LogReplay
from millstream.storage.recovery.replayed_state import Truncation
from millstream.storage.wal.reading import read_wal_file, scan_wal_files, wal_numbers
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from millstream.format.wal import Frame
    from millstream.storage.disk import Disk
    from millstream.storage.recovery.place import LogPlace


def is_set_aside(disk: Disk, directory: str) -> bool:
    """Whether records were set aside that a partition's segments may lack. Raises OSError."""
    return exists(disk, quarantine_elsewhere(directory)) or exists(disk, _path(directory))


def set_aside(
    disk: Disk,
    wal_directory: str,
    shard: ShardId,
    directories: Mapping[int, str],
    *,
    state: WalState,
    upto: FrameSequence | None = None,
) -> None:
    """Copy what the files of a write-ahead log hold of some groups to their ``quarantine`` files, durably.

    Args:
        disk: where they are.
        wal_directory: of the shard.
        shard: its number.
        directories: of the partitions, by group.
        state: says which frames are needed.
        upto: last frame to take; None for all that a crash leaves.

    Raises:
        OSError: the disk failed or is full; what was copied stays.
    """
    files = wal_numbers(disk, wal_directory)
    scans = scan_wal_files(disk, wal_directory, shard, files, state.next_sequence)
    verdict = judge(scans, state)
    known = {group: _covered(disk, directory).get(shard, 0) for group, directory in directories.items()}
    found: dict[int, list[bytes]] = {group: [] for group in directories}
    expected, doubtful = verdict.needed_sequence, False
    data, open_file = memoryview(b""), -1
    for file, place in verdict.order:
        frame = scans[file].frames[place]
        if upto is not None and frame.sequence > upto:
            break
        doubtful = doubtful or frame.sequence > expected
        expected = frame.sequence + 1
        if file != open_file:
            _append(disk, directories, found)
            data, open_file = memoryview(read_wal_file(disk, wal_directory, files[file])), file
        for group, records in _records(frame, FrameSequence(verdict.durable_sequence), data, directories).items():
            if frame.sequence > known[group]:
                found[group].append(encode_chunk(shard, FrameSequence(frame.sequence), records, doubtful=doubtful))
    if upto is None and expected <= verdict.durable_sequence:
        for group in directories:
            if verdict.durable_sequence > known[group]:
                found[group].append(encode_chunk(shard, FrameSequence(verdict.durable_sequence), [], doubtful=True))
    _append(disk, directories, found)


def _records(
    frame: Frame, durable: FrameSequence, data: memoryview, groups: Mapping[int, str]
) -> dict[int, list[tuple[WalRecord, memoryview | None]]]:
    """The records of some groups in a frame, as a replay takes them: of a last frame that was never promised, none from
    the first one on that is torn.
    """
    found: dict[int, list[tuple[WalRecord, memoryview | None]]] = {}
    torn: set[int] = set()
    for number, (record, at) in enumerate(frame.records()):
        if record.group not in groups or record.group in torn:
            continue
        good = number not in frame.bad
        if good or frame.sequence <= durable:
            payload = data[at : at + record.size] if good else None
            found.setdefault(record.group, []).append((record, payload))
        else:
            torn.add(record.group)
    return found


def _append(disk: Disk, directories: Mapping[int, str], found: dict[int, list[bytes]]) -> None:
    """Append chunks to the files of their groups, durably, and forget them."""
    for group, parts in found.items():
        if not parts:
            continue
        directory = directories[group]
        elsewhere = quarantine_elsewhere(directory)
        try:
            if exists(disk, elsewhere):
                _append_to(disk, elsewhere, parts, 1)
            else:
                _append_to(disk, _path(directory), parts, PARTITION_LEVELS)
        except OSError as error:
            if error.errno in FULL or exists(disk, elsewhere):
                raise
            operator_log.error("%s cannot be written (%s): %s has it", _path(directory), error.strerror, elsewhere)
            _append_to(disk, elsewhere, parts, 1)
        parts.clear()


def _append_to(disk: Disk, path: str, parts: list[bytes], levels: int) -> None:
    directory = os.path.dirname(path)
    make_directories_durably(disk, directory, levels)
    end = sum(map(_size, chunks(_read(disk, path))))
    file = disk.open(path, create=True)
    try:
        file.truncate(end)
        write_all(file, list(parts), end)
        file.sync()
    finally:
        file.close()
    disk.sync_directory(directory)


def bring_home(disk: Disk, directory: str) -> None:
    """Move what was set aside elsewhere to the partition's own file. Raises OSError if that cannot be written yet."""
    elsewhere = quarantine_elsewhere(directory)
    if not exists(disk, elsewhere):
        return
    make_directories_durably(disk, directory, PARTITION_LEVELS)
    found: dict[tuple[int, int], bytes] = {}  # a write that failed may have reached the file
    for one in (*chunks(_read(disk, _path(directory))), *chunks(_read(disk, elsewhere))):
        found[one.shard, one.sequence] = encode_chunk(one.shard, one.sequence, one.records, doubtful=one.doubtful)
    replace_file(disk, _path(directory), b"".join(found.values()))
    remove_file(disk, elsewhere)


def _size(chunk: Chunk) -> int:
    return HEAD.size + sum(RECORD_BYTES + (0 if payload is None else record.size) for record, payload in chunk.records)


def _covered(disk: Disk, directory: str) -> dict[int, int]:
    """The last frame that a partition's file has, by shard."""
    covered: dict[int, int] = {}
    for path in (_path(directory), quarantine_elsewhere(directory)):
        try:
            data = _read(disk, path)
        except OSError:
            continue  # its records are set aside once more
        for chunk in chunks(data):
            covered[chunk.shard] = max(chunk.sequence, covered.get(chunk.shard, 0))
    return covered


def _undamaged(disk: Disk, directory: str) -> list[Chunk]:
    """The chunks that were set aside of a partition, in its own file from now on.

    Raises:
        Corruption: one does not verify.
        OSError: the disk failed, or the partition's directory cannot be written yet.
    """
    bring_home(disk, directory)
    data = _read(disk, _path(directory))
    found = list(chunks(data))
    sound = sum(map(_size, found))
    if sound < len(data):
        raise Corruption(f"{_path(directory)} is damaged at byte {sound}")
    return found


def _path(directory: str) -> str:
    return f"{directory}/{QUARANTINE_FILE}"


def _read(disk: Disk, path: str) -> bytes:
    try:
        return bytes(read_file(disk, path))
    except FileNotFoundError:
        return b""


# -- back --------------------------------------------------------------------------------------------------------------


def replay_set_aside(disk: Disk, data_dir: str, place: LogPlace, now_ms: int, note: Callable[[str, str], None]) -> None:
    """Bring a partition's records from its ``quarantine`` file into its segments, durably, and remove the file. No
    effect without one. The partition's log is not open.

    Raises:
        Corruption: the records and the segments are not one log; the partition is fenced, its file stays.
        OSError: the disk failed.
    """
    directory = place.directory
    found = _undamaged(disk, directory)
    if not found:
        forget_set_aside(disk, directory)
        return
    adoptions, trimmed, truncations = Adoptions(), Offset(0), list[Truncation]()
    records = [
        (record, payload, (at, n)) for at, one in enumerate(found) for n, (record, payload) in enumerate(one.records)
    ]
    for record, _, where in records:
        if record.kind == Kind.TRIM:
            trimmed = max(record.base, trimmed)
        elif record.kind == Kind.ADOPT:
            adoptions.note(record.group, where, RaftPosition(record.last))
            trimmed = Offset(0)
            truncations.clear()
        elif record.kind == Kind.TRUNCATE:
            truncations.append(Truncation(record.base, record.last))
    if records:
        adoptions.complete(disk, records[0][0].group, directory)
    replay = LogReplay(disk, place, trimmed, truncations, now_ms, note)
    for at, chunk in enumerate(found):
        if chunk.doubtful:
            replay.uncertain = "frames of the write-ahead log that may have held records of this log cannot be read"
        for number, (record, payload) in enumerate(chunk.records):
            if adoptions.void(record.kind, record.group, (at, number)):
                continue
            if payload is None:
                replay.damaged_at = _path(directory)
            replay.apply(record, payload)
    replay.flush()
    replay.finish()
    disk.sync_all(data_dir)
    written = replay.describe()
    disk.sync_all(data_dir)
    for path in written:
        disk.rename(path + TEMPORARY_SUFFIX, path)
    if replay.fault:
        raise Corruption(replay.fault)
    disk.sync_directory(directory)
    forget_set_aside(disk, directory)


def vote_set_aside(disk: Disk, directory: str) -> StoredVote | None:
    """The newest vote of a replica that was put aside. None if its ``epochs`` file has it; `StoredVote` () if it is
    not known, because what was set aside is damaged. Raises OSError, as the file is brought home.
    """
    try:
        found = _undamaged(disk, directory)
    except Corruption:
        return StoredVote()
    records = [record for chunk in found for record, _ in chunk.records if record.kind == Kind.VOTE]
    return StoredVote(records[-1].leader_epoch, ReplicaId(records[-1].base)) if records else None


def keep_batches(disk: Disk, directory: str) -> None:
    """Leave in the ``quarantine`` file what a log with other Raft positions can take up: batches, and changes of its
    start and end. What is damaged goes, with all after it. Raises OSError; the file is replaced as a whole.
    """
    bring_home(disk, directory)
    if exists(disk, _path(directory)):
        replace_file(disk, _path(directory), b"".join(map(_batches_of, chunks(_read(disk, _path(directory))))))


def _batches_of(chunk: Chunk) -> bytes:
    records = [one for one in chunk.records if one[0].kind not in (Kind.CONTROL, Kind.VOTE)]
    return encode_chunk(chunk.shard, chunk.sequence, records, doubtful=chunk.doubtful)


def forget_set_aside(disk: Disk, directory: str) -> None:
    """Remove the ``quarantine`` file, durably: its records are in the segments, or the log is another one now."""
    remove_file(disk, _path(directory))
