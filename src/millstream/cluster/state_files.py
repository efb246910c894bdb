"""The controller's state on disk: snapshots, and the log that they shorten.

::

    <data>/controller/snapshot.a      two slots; the older one is replaced, so that the newer is never touched
    <data>/controller/snapshot.b
    <data>/controller/log/…           group 0's segments, like any partition's

    snapshot = magic 4 | CRC-32C 4 | bytes of the state 8 | the state (``core.controller.state``)

The state is the newest complete snapshot plus the log after it. The log is trimmed only up to the *older* snapshot, so
a damaged snapshot costs a log line and not the cluster. A slot is replaced by temporary file, sync, rename and sync of
the directory; a crash at any step leaves a state that was durable before.

``load_state`` reads files that recovery has put in order (torn tails cut, the write-ahead log replayed into segments).
It needs no shard and changes nothing, so recovery, the supervisor and tools may call it. If another process appends to
the log at that time, it sees a prefix. Invalid bytes are ``Corruption`` with file and position: a broker must not start
with half a cluster.
"""

import os
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final, NamedTuple

from crc32c import crc32c

from millstream.cluster.revision_marks import read_mark
from millstream.core.controller.commands import AnyCommand, ReplicasChanged, TopicCreated, TopicDeleted, decode_command
from millstream.core.controller.state import ControllerState, TopicState, decode_state, encode_state
from millstream.errors import Corruption, MillstreamError
from millstream.format.names import SEGMENT_SUFFIX, parse_offset
from millstream.format.segment import Batch, WalkEnd, parse_batch
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import Disk, read_file, replace_file
from millstream.telemetry.log import log as operator_log
from millstream.wire.records import batch_crc_ok, iter_records

CONTROLLER_DIRECTORY: Final = "controller"
LOG_DIRECTORY: Final = os.path.join(CONTROLLER_DIRECTORY, "log")
SLOTS: Final = ("snapshot.a", "snapshot.b")

_MAGIC: Final = b"MSC1"
_HEAD: Final = struct.Struct("<4sIQ")
_NO_END: Final = 1 << 63

Replace = Callable[[str, bytes, Callable[[OSError | None], None]], None]
"""``replace(path, data, done)``: durably replace the content of the file by ``data``, then call ``done``, now or
later.
"""


def controller_log_directory(data_dir: str) -> str:
    """Directory of group 0's segments."""
    return os.path.join(data_dir, LOG_DIRECTORY)


def load_state(disk: Disk, data_dir: str) -> tuple[ControllerState, int]:
    """The state of the controller, and the offset of the first record that is not in it.

    Raises:
        Corruption: a record, or both snapshots, are damaged.
        OSError: the files cannot be read.
    """
    state = load_snapshot(disk, data_dir)
    _replay(disk, controller_log_directory(data_dir), state)
    return state, state.revision


def load_snapshot(disk: Disk, data_dir: str) -> ControllerState:
    """The newest snapshot that is intact; without one the state without a cluster. All of it is committed.

    Raises:
        OSError: the files cannot be read.
    """
    snapshots = read_snapshots(disk, data_dir)
    for slot, found in snapshots:
        if isinstance(found, MillstreamError):
            operator_log.error("controller snapshot %s: %s; the other one and the log are used", slot, found.message)
    return next((found for _, found in snapshots if isinstance(found, ControllerState)), ControllerState())


def load_committed(disk: Disk, data_dir: str) -> ControllerState:
    """What a broker of a cluster starts from: the newest intact snapshot, and the log after it as far as this broker
    has noted that it is committed (`revision_marks`).

    Raises:
        Corruption: a record of the log is damaged.
        OSError: the files cannot be read.
    """
    state = load_snapshot(disk, data_dir)
    mark = read_mark(disk, data_dir)
    if mark > state.revision:
        _replay(disk, controller_log_directory(data_dir), state, until=mark)
    return state


def groups_in_log(disk: Disk, data_dir: str, node: int | None = None) -> dict[int, tuple[TopicState, int]]:
    """The topic and partition of every Raft group that the state or the log after it knows, also those whose deletion
    the log has but is not noted as committed: it is carried out when it is. With ``node`` only those that this broker
    holds, or has held since what it has noted as committed.

    Raises:
        Corruption, OSError: as in ``load_state``.
    """
    known = look_at_groups(disk, data_dir, node)
    return known.groups if node is None else known.held


class KnownGroups(NamedTuple):
    """Raft groups with their topic and partition, from one reading of the controller's files."""

    groups: dict[int, tuple[TopicState, int]]
    held: dict[int, tuple[TopicState, int]]
    """Those that a broker holds, or has held since what it has noted as committed."""

    elected: frozenset[int]
    """Those that elect their leader: several brokers hold the partition, or have held it."""

    is_complete: bool
    """Whether the log reaches what this broker has noted as committed."""


def look_at_groups(disk: Disk, data_dir: str, node: int | None) -> KnownGroups:
    """What `groups_in_log` says of all groups and of those of ``node``. Raises as that."""
    state = load_snapshot(disk, data_dir)
    mark = read_mark(disk, data_dir)
    groups: dict[int, tuple[TopicState, int]] = {}
    held: dict[int, tuple[TopicState, int]] = {}

    def take() -> None:
        for group, (topic, index) in state.groups().items():
            groups[group] = topic, index
            if node in topic.partitions[index].replicas:
                held[group] = topic, index

    def note(command: AnyCommand) -> None:
        if isinstance(command, TopicDeleted | ReplicasChanged) and state.revision >= mark:
            take()

    _replay(disk, controller_log_directory(data_dir), state, note)
    take()
    several = [group for group, (topic, index) in groups.items() if len(topic.partitions[index].replicas) > 1]
    return KnownGroups(groups, held, frozenset((*several, *state.origins)), state.revision >= mark)


def apply_following(state: ControllerState, batches: Iterable[bytes]) -> None:
    """Apply batches of the log that are not in its segments yet, as far as each follows the one before. For tools that
    read what a crash left, before recovery.

    Raises:
        Corruption: a record is damaged.
    """
    for data in batches:
        view = memoryview(data)
        batch = parse_batch(view, 0, 0, len(view))
        if batch.base_offset > state.revision:
            return
        _replay_batch("the write-ahead log", 0, batch.base_offset, batch.last_offset, view, state)


def deleted_topics(disk: Disk, data_dir: str, until: int = _NO_END) -> set[bytes]:
    """Ids of the topics that the log deletes before ``until``, as far back as it reaches. Their files may still exist.
    A topic that is created again under its id, as one that is recovered from the object store, is not deleted; also not
    if its creation comes after ``until``, because its files may be there already.

    Raises:
        Corruption, OSError: as in ``load_state``.
    """
    directory = controller_log_directory(data_dir)
    names = sorted(name for name in disk.list(directory) if parse_offset(name, SEGMENT_SUFFIX) is not None)
    found: set[bytes] = set()
    for name in names:
        path = os.path.join(directory, name)
        for _, data in _batches(path, memoryview(read_file(disk, path)), last=name == names[-1]):
            for record in iter_records(data):
                command = decode_command(record.value or b"")
                if isinstance(command, TopicCreated):
                    found.discard(command.topic_id)
                elif isinstance(command, TopicDeleted) and record.offset < until:
                    found.add(command.topic_id)
    return found


def read_snapshots(disk: Disk, data_dir: str) -> list[tuple[str, ControllerState | Corruption]]:
    """Content of each slot, newest first, damaged ones last. A slot that was never written is left out."""
    found: list[tuple[str, ControllerState | Corruption]] = []
    for slot in SLOTS:
        try:
            data = read_file(disk, os.path.join(data_dir, CONTROLLER_DIRECTORY, slot))
        except FileNotFoundError:
            continue
        try:
            found.append((slot, unpack_snapshot(data)))
        except Corruption as error:
            found.append((slot, error))
    found.sort(key=lambda each: each[1].revision if isinstance(each[1], ControllerState) else -1, reverse=True)
    return found


def newest_snapshot_file(disk: Disk, data_dir: str) -> tuple[int, memoryview] | None:
    """Revision and bytes of the newest snapshot that is intact; None without one. Raises OSError."""
    newest = next((slot for slot, found in read_snapshots(disk, data_dir) if isinstance(found, ControllerState)), None)
    if newest is None:
        return None
    data = read_file(disk, os.path.join(data_dir, CONTROLLER_DIRECTORY, newest))
    return unpack_snapshot(data).revision, memoryview(bytes(data))


def unpack_snapshot(data: bytearray) -> ControllerState:
    """The state in the bytes of a snapshot file. Raises Corruption."""
    if len(data) < _HEAD.size:
        raise Corruption(f"has {len(data)} bytes, too few for a snapshot")
    magic, crc, size = _HEAD.unpack_from(data)
    payload = memoryview(data)[_HEAD.size :]
    if magic != _MAGIC or size != len(payload) or crc32c(payload) != crc:
        raise Corruption("does not match its checksum")
    return decode_state(payload)


def pack_snapshot(state: ControllerState) -> bytes:
    """The bytes of a snapshot file."""
    payload = encode_state(state)
    return _HEAD.pack(_MAGIC, crc32c(payload), len(payload)) + payload


class SnapshotStore:
    """Writes snapshots, alternating between the slots.

    ``trim_before`` is where the log may start after the last save: the revision of the older snapshot.

    Lifecycle: one per broker, with the controller; one save at a time. Shard: the controller's. Replacing a file syncs
    it; ``replace`` may hand that to a helper process.
    """

    def __init__(self, disk: Disk, data_dir: str, replace: Replace | None = None) -> None:
        self._disk = disk
        self._directory = os.path.join(data_dir, CONTROLLER_DIRECTORY)
        self._replace = replace or self._replace_now
        self._slots: list[str] = list(SLOTS)  # the next slot to replace first
        self.revision = -1
        """Revision of the newest snapshot; -1 without one."""
        self.trim_before = 0
        self.saving = False
        good = [(slot, found) for slot, found in read_snapshots(disk, data_dir) if isinstance(found, ControllerState)]
        if good:
            newest, state = good[0]
            self.revision = state.revision
            self._slots.remove(newest)
            self._slots.append(newest)
        if len(good) > 1:
            self.trim_before = good[1][1].revision
        make_directories_durably(self._disk, self._directory, 1)

    def save(self, state: ControllerState, done: Callable[[OSError | None], None]) -> None:
        """Replace the older snapshot by one of ``state``. ``done`` gets None when it is durable, or the error."""
        assert not self.saving
        self.saving = True
        revision = state.revision

        def replaced(error: OSError | None) -> None:
            self.saving = False
            if error is None:
                self.trim_before = max(self.revision, 0)
                self.revision = revision
                self._slots.reverse()
            done(error)

        self._replace(os.path.join(self._directory, self._slots[0]), pack_snapshot(state), replaced)

    def replace_all(self, state: ControllerState) -> None:
        """Replace both snapshots by one of ``state``, which another broker has sent. Raises OSError."""
        data = pack_snapshot(state)
        for slot in self._slots:
            replace_file(self._disk, os.path.join(self._directory, slot), data)
        self.revision = self.trim_before = state.revision

    def _replace_now(self, path: str, data: bytes, done: Callable[[OSError | None], None]) -> None:
        try:
            replace_file(self._disk, path, data)
        except OSError as error:
            done(error)
            return
        done(None)


def _nothing(_: AnyCommand) -> None:
    """Default callback without effect."""


def _replay(
    disk: Disk,
    directory: str,
    state: ControllerState,
    before: Callable[[AnyCommand], None] = _nothing,
    until: int = _NO_END,
) -> None:
    """Apply the records of the log from ``state.revision`` on and before ``until``; ``before`` gets each command before
    it is applied.
    """
    try:
        names = disk.list(directory)
    except FileNotFoundError:
        names = []
    bases = sorted(base for base in (parse_offset(name, SEGMENT_SUFFIX) for name in names) if base is not None)
    needed = [base for base, end in pairwise(bases) if end > state.revision] + bases[-1:]
    if needed and needed[0] > state.revision:
        raise Corruption(
            f"{directory} starts at offset {needed[0]}, but the newest readable snapshot ends at {state.revision}"
        )
    for number, base in enumerate(needed):
        path = os.path.join(directory, f"{base:020d}{SEGMENT_SUFFIX}")
        view = memoryview(read_file(disk, path))
        for batch, data in _batches(path, view, last=number == len(needed) - 1):
            if batch.base_offset >= until:
                return
            _replay_batch(path, batch.position, batch.base_offset, batch.last_offset, data, state, before, until)


def _batches(path: str, view: memoryview, *, last: bool) -> Iterator[tuple[Batch, memoryview]]:
    """The batches of a segment with their bytes. In the last segment, an incomplete batch ends them."""
    position = 0
    while position < len(view):
        try:
            batch = parse_batch(view, position, position, len(view))
        except WalkEnd as end:
            if last and _is_unfinished(view, position):
                return
            raise Corruption(f"{path}, byte {position}: {end}") from None
        data = view[position : position + batch.size]
        if not batch_crc_ok(data):
            raise Corruption(f"{path}, byte {position}: a batch does not match its checksum")
        yield batch, data
        position += batch.size


def _replay_batch(
    path: str,
    position: int,
    base_offset: int,
    last_offset: int,
    data: memoryview,
    state: ControllerState,
    before: Callable[[AnyCommand], None] = _nothing,
    until: int = _NO_END,
) -> None:
    if last_offset < state.revision:
        return
    if base_offset > state.revision:
        raise Corruption(f"{path}, byte {position}: offset {base_offset} where {state.revision} was expected")
    try:
        for record in iter_records(data):
            if state.revision <= record.offset < until:
                command = decode_command(record.value or b"")
                before(command)
                state.apply(command)
    except MillstreamError as error:
        raise Corruption(f"{path}, byte {position}: {error.message}") from error


def _is_unfinished(view: memoryview, position: int) -> bool:
    """Whether the remaining bytes may be the beginning of a batch that is being written (or zeros before it)."""
    left = view[position:]
    if len(left) < _BATCH_LEAST_BYTES:
        return True
    size = int.from_bytes(left[8:12], "big") + 12
    return not any(left[:_BATCH_LEAST_BYTES]) or (left[16] == 2 and size > len(left))


_BATCH_LEAST_BYTES: Final = 61
