"""The archive process of a shard: requests to the object store, but for uploads of segments.

::

    reactor ◄──►  changes  manifests, removals, in the order they were sent
            ◄──►  uploads  shared objects, checks of objects; three of them, used in turn
            ◄──►  reads    reads of archived segments; three of them, used in turn
            ◄──►  joins    small ranges of shared objects that become larger objects, one after the other
            ◄──►  log      entries of the log in the store, one after the other

Closed segments are uploaded by a process of its own, at idle priority (`upload_process`); if uploads fill the warm
cache, it passes their blocks on to this one (`passing`).

Each lane has its own socket and thread. A read fills fragments of the shard's arena, which this process maps too. An
error is a value in the reply, an unexpected one included (`answer`); what was asked may be asked again. The process
holds nothing that must survive: the shard kills it when it stops, and stops when it ends by itself. It runs at a lower
priority than the shard.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from millstream.errors import Corruption, MillstreamError
from millstream.format.archive import part_key, segment_key
from millstream.format.epochs import decode_log_state, encode_log_state
from millstream.helper.channel import HelperChannel, channel_pair
from millstream.helper.serving import serve
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition, ShardId
from millstream.model.shared import NO_OBJECT
from millstream.objects import ABSENT, ObjectKey, Version, open_store
from millstream.objects.errors import Unsupported
from millstream.objects.hedging import Hedging
from millstream.objects.url import directory_url
from millstream.shard.process import become_ordinary, spawn
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers.hot_tier import Hint, Source, TierStats, cache_directory, open_warm_blocks
from millstream.tiers.inspection import keys_below
from millstream.tiers.joining import join
from millstream.tiers.log_worker import LogWorker
from millstream.tiers.messages import (
    LANES,
    AppendEntry,
    AskCache,
    AskNewest,
    CacheReport,
    Check,
    Checked,
    Done,
    Examine,
    Examined,
    Failed,
    Find,
    Forget,
    Found,
    Join,
    Newest,
    Put,
    Read,
    ReadDone,
    Remove,
    RemoveBelow,
    RemoveKeys,
    Replace,
    Share,
    Shared,
    Stop,
    Sweep,
    Swept,
    Upload,
    Uploaded,
    Written,
    decode_command,
    encode,
)
from millstream.tiers.newest import newest_state
from millstream.tiers.packing import pack
from millstream.tiers.part_files import BYTES_MAX as PART_FILES_BYTES_MAX
from millstream.tiers.part_files import PartFiles
from millstream.tiers.parts import Parts
from millstream.tiers.passing import BlockReceiver
from millstream.tiers.reading import ArchiveReader
from millstream.tiers.replaced_objects import check_object, part_with, require_same_gaps
from millstream.tiers.restoring import StoreView
from millstream.tiers.sweeping import Sweeper
from millstream.tiers.uploading import Pace, upload

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from millstream.config.settings import Settings
    from millstream.format.manifest import ArchiveId
    from millstream.iobuf import Arena
    from millstream.model.quantities import Offset, TimestampMs
    from millstream.model.shared import Writer
    from millstream.objects import ObjectInfo, ObjectStore
    from millstream.objects.store import Buffer
    from millstream.shard.process import Child
    from millstream.storage.disk import Disk
    from millstream.tiers.hot_tier import WarmBlocks
    from millstream.tiers.messages import Command, Reply

ArchiveProcess: TypeAlias = "tuple[Child, list[socket.socket]]"
"""The process, and the reactor's ends of its lanes."""

READ_PATIENCE_S: Final = 10.0
"""A read that the store does not answer fails after this time, well before clients give up their request."""

CHANGE_PATIENCE_S: Final = 30.0
ENTRY_PATIENCE_S: Final = 5.0
"""Producers wait for an entry of the log: one that the store does not answer is sent again soon."""

_LINES: Final = RateLimit(per_minute=6)
NICE: Final = 5
_REMOVED_AT_ONCE: Final = 500
_JOINS_SHARE: Final = 0.25
"""Of the bytes a second of uploads: what joins may write beside them."""


def store_url(settings: Settings) -> str:
    """The URL of the object store: the setting, or a directory in the data directory."""
    return settings.objects_url or directory_url(f"{os.path.abspath(settings.data_dir)}/objects")


class Counted:
    """A store whose requests are counted in the metrics of this process."""

    def __init__(self, store: ObjectStore, stats: StatsSlab) -> None:
        operations = ("put", "get", "head", "list", "delete")
        self._store = store
        self._latency = {one: stats.histogram("object_request_latency", operation=one) for one in operations}
        self._failures = {one: stats.counter("object_request_failures", operation=one) for one in operations}
        self._written = stats.counter("object_bytes", operation="put")
        self._read = stats.counter("object_bytes", operation="get")

    @property
    def url(self) -> str:
        return self._store.url

    @contextlib.contextmanager
    def _counting(self, operation: str) -> Generator[None]:
        begun_ns = time.monotonic_ns()
        try:
            yield
        except MillstreamError:
            self._failures[operation].inc()
            raise
        finally:
            self._latency[operation].observe((time.monotonic_ns() - begun_ns) // 1000)

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        with self._counting("put"):
            version = self._store.put(key, parts, expect)
        self._written.inc(sum(memoryview(part).nbytes for part in parts))
        return version

    def put_stream(self, key: ObjectKey, parts: Iterable[Buffer]) -> Version:
        size_bytes = 0

        def passed() -> Iterator[Buffer]:
            nonlocal size_bytes
            for part in parts:
                size_bytes += memoryview(part).nbytes
                yield part

        with self._counting("put"):
            version = self._store.put_stream(key, passed())
        self._written.inc(size_bytes)
        return version

    def get(self, key: ObjectKey, start: FilePosition, end: FilePosition) -> memoryview:
        with self._counting("get"):
            found = self._store.get(key, start, end)
        self._read.inc(len(found))
        return found

    def head(self, key: ObjectKey) -> ObjectInfo | None:
        with self._counting("head"):
            return self._store.head(key)

    def list(self, folder: str = "", after: str = "") -> Iterator[ObjectInfo]:
        with self._counting("list"):
            yield from self._store.list(folder, after)

    def delete(self, keys: Sequence[ObjectKey]) -> None:
        with self._counting("delete"):
            self._store.delete(keys)

    def close(self) -> None:
        self._store.close()


class Worker(Protocol):
    """What carries out commands."""

    def carry_out(self, command: Command) -> Reply: ...


class ArchiveWorker:
    """Carries out commands, one call each. It knows no threads and no sockets: tests call it directly."""

    def __init__(
        self,
        changes: ObjectStore,
        reads: ObjectStore,
        disk: Disk,
        arena: memoryview,
        bytes_per_s: float,
        warm: WarmBlocks | None = None,
        stats: StatsSlab | None = None,
        log: LogWorker | None = None,
        part_files: PartFiles | None = None,
    ) -> None:
        """``changes`` and ``reads`` are the same store, with different patience. ``log`` has the log in the store."""
        sources = ("memory", "hot_tier", "store")
        stats = stats or StatsSlab(0, "archive")
        self._served = {one: stats.counter("archive_blocks", source=one) for one in sources}
        self._dropped = stats.counter("hot_tier_dropped_fills")
        self._changes = changes
        self._disk = disk
        self._arena = arena
        self._pace = Pace(bytes_per_s)
        self._joins_pace = Pace(bytes_per_s * _JOINS_SHARE)
        self._warm = warm
        self._part_files = part_files
        looked_up = {one: stats.counter("archive_parts", source=one) for one in ("memory", "disk", "store")}
        parts = Parts(reads, part_files, lambda source: looked_up[source].inc())
        self.reader = ArchiveReader(reads, warm=warm, served=lambda source: self._served[source].inc(), parts=parts)
        self._sweeper = Sweeper(changes)
        self._handlers: dict[type[Any], Callable[[Any], Reply]] = {
            Upload: self._upload,
            Share: self._share,
            Sweep: self._sweep,
            Join: self._join,
            Put: self._put,
            Examine: self._examine,
            Replace: self._replace,
            Remove: self._remove,
            RemoveKeys: self._remove_keys,
            RemoveBelow: self._remove_below,
            Read: self._read,
            Find: self._find,
            AskCache: self._cache_report,
            Check: self._check,
            Forget: self._forget,
            AskNewest: self._newest,
        }
        if log is not None:
            self._handlers |= log.handlers

    def carry_out(self, command: Command) -> Reply:
        """Execute the command; a failure is a `Failed`."""
        assert not isinstance(command, Stop)
        try:
            return self._handlers[type(command)](command)
        except (MillstreamError, OSError) as error:
            return failed(command, error)

    def _upload(self, command: Upload) -> Reply:
        warm = self._warm
        on_block = partial(_fill, warm, command.owner) if warm is not None and warm.fills_on_write else None
        return Uploaded(command.id, upload(self._changes, self._disk, command, self._pace, on_block))

    def fill(self, owner: ArchiveId, base_offset: Offset, block: memoryview, newest: TimestampMs) -> None:
        """A block was uploaded, and may go to the warm cache."""
        if self._warm is not None:
            _fill(self._warm, owner, base_offset, block, newest)

    def _share(self, command: Share) -> Reply:
        warm = self._warm
        on_block = partial(_fill, warm) if warm is not None and warm.fills_on_write else None
        return Shared(command.id, pack(self._changes, command, self._arena, self._pace, on_block))

    def _sweep(self, command: Sweep) -> Reply:
        found = self._sweeper.sweep(command)
        return Swept(command.id, found.objects, len(found.removed), found.after)

    def _join(self, command: Join) -> Reply:
        return join(self._changes, self.reader, command, self._joins_pace)

    def _put(self, command: Put) -> Reply:
        self._changes.put(ObjectKey(command.key), [command.data])
        return Done(command.id)

    def _examine(self, command: Examine) -> Reply:
        """The version comes first: one that is older than the data costs a refused write, and no lost one."""
        info = self._changes.head(ObjectKey(command.key))
        if info is None:
            return Examined(command.id, ABSENT, b"")
        data = self._changes.get(info.key, FilePosition(0), FilePosition(info.size_bytes))
        return Examined(command.id, info.version, bytes(data))

    def _replace(self, command: Replace) -> Reply:
        key, parts = ObjectKey(command.key), [command.data]
        try:
            version = self._changes.put(key, parts, Version(command.expected))
        except Unsupported:
            version = self._changes.put(key, parts)
        return Written(command.id, version)

    def _remove(self, command: Remove) -> Reply:
        """The part object goes last: as long as it is there, the rest can be found again. Shared objects have other
        partitions' records too: they are swept when nobody needs them.
        """
        owner = command.owner
        segments = list(command.segments)
        for part in command.parts:
            if self._changes.head(ObjectKey(part_key(owner, part))) is not None:
                segments += self.reader.segments_of(owner, part)
        self._delete([segment_key(owner, one) for one in segments if one.object_id == NO_OBJECT])
        self._delete([part_key(owner, one) for one in (*command.parts, *command.part_objects)])
        if self._part_files is not None:
            self._part_files.drop(owner, (*command.parts, *command.part_objects))
        if self._warm is not None and segments:
            first = min(one.base_offset for one in segments)
            self._warm.tier.invalidate(owner, first, max(one.end_offset for one in segments))
        return Done(command.id)

    def _check(self, command: Check) -> Reply:
        missing: list[tuple[Offset, Offset]] = []
        for segment in command.after:
            missing += check_object(self._changes, command.owner, segment, command.written_after_ms, self._pace)
        require_same_gaps(self._changes, command, missing, self._pace)
        if command.part_before is None:
            return Checked(command.id)
        part, data = part_with(self._changes, command)
        self._changes.put(ObjectKey(part_key(command.owner, part)), [data])
        return Checked(command.id, part)

    def _forget(self, command: Forget) -> Reply:
        if self._warm is not None:
            self._warm.tier.replaced(command.owner, command.start, command.end)
        return Done(command.id)

    def _newest(self, command: AskNewest) -> Reply:
        known = decode_log_state(command.known)
        found = newest_state(StoreView(self._changes), command.owner, known, shared=command.shared)
        return Newest(command.id, encode_log_state(found.state), found.missing)

    def _remove_keys(self, command: RemoveKeys) -> Reply:
        for key in command.keys:
            self._delete([info.key for info in self._changes.list(key)] if key.endswith("/") else [key])
        if self._warm is not None and command.owner is not None:
            self._warm.tier.invalidate(command.owner)
        if self._part_files is not None and command.owner is not None:
            self._part_files.drop(command.owner)
        return Done(command.id)

    def _remove_below(self, command: RemoveBelow) -> Reply:
        self._delete(list(keys_below(self._changes, command.owner, command.offset)))
        return Done(command.id)

    def _delete(self, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), _REMOVED_AT_ONCE):
            self._changes.delete([ObjectKey(key) for key in keys[first : first + _REMOVED_AT_ONCE]])

    def _read(self, command: Read) -> Reply:
        spans = iter(command.spans)
        views = [self._arena[start:end] for start, end in zip(spans, spans, strict=True)]
        found = self.reader.read(command, views)
        return ReadDone(command.id, found.size_bytes, found.need_bytes, list(found.aborted))

    def _find(self, command: Find) -> Reply:
        found = self.reader.find(command)
        epoch: Any = found.leader_epoch
        return Found(command.id, found.offset, found.timestamp, epoch, found.searched_to)

    def _cache_report(self, command: AskCache) -> Reply:
        warm = self._warm
        found = TierStats() if warm is None else warm.tier.stats()
        return CacheReport(
            command.id,
            "none" if warm is None else warm.name,
            warm is not None and warm.tier.is_on,
            0 if warm is None else warm.size_bytes,
            found.size_bytes,
            found.blocks,
            found.evicted,
            {one: counter.value for one, counter in self._served.items()},
            self._dropped.value,
            self.reader.readers.gaps(),
        )


def _fill(warm: WarmBlocks, owner: ArchiveId, base_offset: Offset, block: memoryview, newest: TimestampMs) -> None:
    warm.filling.put(owner, base_offset, block, Hint(newest, Source.WRITE))


def failed(command: Command, error: MillstreamError | OSError) -> Failed:
    """The reply to a command that could not be carried out."""
    assert not isinstance(command, Stop)
    if isinstance(error, MillstreamError):
        return Failed(command.id, error.code, error.message, corrupt=isinstance(error, Corruption))
    message = f"{error.filename or 'a file'}: {error.strerror}"
    return Failed(command.id, ErrorCode.KAFKA_STORAGE_ERROR, message)


def start_archive_process(
    shard_id: int,
    arena: Arena,
    disk: Disk,
    settings: Settings,
    stats: StatsSlab,
    usable_cores: Sequence[int],
    life: Writer | None = None,
    blocks: socket.socket | None = None,
) -> ArchiveProcess:
    """Fork the process, from the shard or before it exists. It keeps no descriptor of the shard but the standard ones,
    so that no connection, file or lock outlives the shard in it, and has the cores and the priority of helpers.
    ``life`` is that in which the broker writes its log in the store; None without one. ``blocks`` brings blocks
    of uploads for the warm cache.
    """
    pairs = [channel_pair() for _ in range(LANES)]

    def main() -> int:
        gc.freeze()  # objects of the shard stay as they are: their descriptors are closed here
        kept = {theirs.fileno() for _, theirs in pairs}
        close_all_but(kept if blocks is None else kept | {blocks.fileno()})
        os.sched_setaffinity(0, usable_cores)
        if settings.shard_realtime:
            become_ordinary()
        operator_log.who(f"shard {shard_id} archive", stats)
        stats.started()
        os.nice(NICE)
        channels = [HelperChannel(theirs) for _, theirs in pairs]
        return _serve(channels, arena.view, disk, settings, stats, life, blocks)

    child = spawn(f"archive {shard_id}", main)
    for _, theirs in pairs:
        theirs.close()
    return child, [ours for ours, _ in pairs]


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor but these and the standard ones."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _serve(
    channels: list[HelperChannel],
    arena: memoryview,
    disk: Disk,
    settings: Settings,
    stats: StatsSlab,
    life: Writer | None,
    blocks: socket.socket | None,
) -> int:
    """One thread per lane, each until `Stop` or until the shard is gone. The store is opened by the first command:
    most brokers have no tiered topic.
    """
    lock = threading.Lock()
    made: list[ArchiveWorker] = []

    def worker() -> ArchiveWorker:
        with lock:
            if not made:
                url = store_url(settings)
                changes = Counted(open_store(url, CHANGE_PATIENCE_S), stats)
                reads = Hedging(
                    Counted(open_store(url, READ_PATIENCE_S), stats), stats.counter("object_hedged_reads").inc
                )
                rate = settings.objects_upload_max_bytes_per_second / settings.shards
                warm = open_warm_blocks(settings, stats.shard, stats)
                log = None
                if life is not None:
                    entries = Counted(open_store(url, ENTRY_PATIENCE_S), stats)
                    log = LogWorker(entries, changes, disk, arena, life, ShardId(stats.shard))
                files = PartFiles(
                    f"{cache_directory(settings)}/parts-{stats.shard}",
                    PART_FILES_BYTES_MAX // settings.shards,
                    settings.cache_min_free_percent / 100,
                )
                made.append(ArchiveWorker(changes, reads, disk, arena, rate, warm, stats, log, files))
            return made[0]

    if blocks is not None:
        receiver = BlockReceiver(lambda owner, base, block, newest: worker().fill(owner, base, block, newest))
        threading.Thread(target=receiver.receive, args=(blocks,), daemon=True).start()
    serve(channels, decode_command, Stop, lambda command: encode(answer(worker, command)))
    return 0


def answer(worker: Callable[[], Worker], command: Command) -> Reply:
    """Carry out a command, behind the boundary of its partition: an exception that no handler expects is a `Failed`,
    with its stack in the log. Its partition tries again or names it, and others notice nothing: handlers share caches
    alone, which they leave whole. An entry of the log in the store is sent again as it is, which its number makes
    harmless. One that is out of order ends the process, and with it the shard.
    """
    assert not isinstance(command, Stop), "a lane ends itself"
    try:
        return worker().carry_out(command)
    except MillstreamError as error:  # the store could not be opened
        return Failed(command.id, error.code, error.message)
    except Exception as error:
        if isinstance(command, AppendEntry) and isinstance(error, AssertionError):
            raise
        what = type(command).__name__
        if _LINES.allows():
            left_out = _LINES.left_out()
            operator_log.error("%s failed in the archive process, which should not happen%s", what, left_out)
            traceback.print_exc()
        return Failed(command.id, ErrorCode.KAFKA_STORAGE_ERROR, f"{what} failed: {type(error).__name__}: {error}")
