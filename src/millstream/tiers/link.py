"""The reactor's side of the archive process: sends commands, gives each answer to who asked, finds memory for reads.

A read takes fragments from the arena, which the process fills. While the arena has none, it waits
(`storage.log.waiting_reads`). Callbacks never come before the call returned. The process is forked when there is
something to do for it for the first time: most brokers have no tiered topic. After `stop` nothing is sent, and
everything is refused retriably.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millstream.errors import Corruption, MillstreamError, Rejected, Retriable, Unavailable
from millstream.iobuf.room import allocate_room, chain_of, release_all, spans_of
from millstream.model.error_code import ErrorCode
from millstream.storage.log.waiting_reads import WaitingReads
from millstream.storage.messages.channel import ReactorChannel
from millstream.tiers.messages import (
    CHANGES_LANE,
    JOINS_LANE,
    LOG_LANE,
    READS_LANE,
    UPLOADS_LANE,
    AppendEntry,
    AskCache,
    CacheReport,
    Check,
    Checked,
    CleanLogs,
    EndLives,
    Examine,
    Failed,
    Find,
    Forget,
    Found,
    Join,
    Put,
    Read,
    ReadDone,
    Remove,
    RemoveBelow,
    RemoveKeys,
    Replace,
    Restore,
    Share,
    Sweep,
    Target,
    TrimEntries,
    Upload,
    Uploaded,
    decode_reply,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.archive import AbortedSpan
    from millstream.format.manifest import ArchivedSegment, ArchiveId, ManifestPart
    from millstream.iobuf import Arena, Fragment, IoBuf
    from millstream.model.cluster import NodeId
    from millstream.model.quantities import ManifestVersion, Offset, TimestampMs
    from millstream.model.replication import ReplicaId, Term
    from millstream.model.shared import ObjectId
    from millstream.shard.process import Child
    from millstream.shard.reactor import Reactor
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.messages import (
        Examined,
        Joined,
        LogPart,
        Reply,
        Restored,
        Shared,
        SharedPart,
        SharedStart,
        Swept,
        Written,
    )
    from millstream.tiers.process import ArchiveProcess

    OnDone = Callable[[MillstreamError | None], None]
    OnRead = Callable[[IoBuf | MillstreamError], None]

_ROOM_MIN: Final = 512
_SAID: Final = (ErrorCode.INVALID_RECORD, ErrorCode.RESOURCE_NOT_FOUND)
"""What `Check` says of an object that is not what a replacement says of it."""


class _ReadCall:
    """One read, from `ArchiveLink.read` to its callback."""

    __slots__ = (
        "aborted",
        "begun_us",
        "done",
        "end_offset",
        "fragments",
        "max_bytes",
        "minimum_one",
        "offset",
        "owner",
        "room",
        "target",
    )

    def __init__(
        self,
        owner: ArchiveId,
        target: Target,
        offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        minimum_one: bool,
        done: OnRead,
        begun_us: int,
        aborted: list[AbortedSpan] | None,
    ) -> None:
        self.aborted = aborted
        self.owner = owner
        self.target = target
        self.offset = offset
        self.end_offset = end_offset
        self.max_bytes = max_bytes
        self.minimum_one = minimum_one
        self.done = done
        self.begun_us = begun_us
        self.room = max_bytes
        self.fragments: list[Fragment] = []


class ArchiveLink:
    """One per shard. Lifecycle: made on the reactor after the fork; `stop` once."""

    def __init__(
        self,
        reactor: Reactor,
        arena: Arena,
        stats: StatsSlab,
        start_process: Callable[[], ArchiveProcess],
        on_ended: Callable[[str], None],
    ) -> None:
        """``on_ended`` hears with a reason that the process ended by itself."""
        self._reactor = reactor
        self._arena = arena
        self._start_process = start_process
        self._child: Child | None = None
        self._lanes: list[ReactorChannel] = []
        self._calls: dict[int, Callable[[Any], None]] = {}
        self._next_id = 1
        self._reader = self._uploader = 0
        self._waiting: WaitingReads[_ReadCall] = WaitingReads(reactor, self._start, _fail)
        self._stopped = False
        self._reads = stats.counter("archive_reads")
        self._read_failures = stats.counter("archive_read_failures")
        self._read_bytes = stats.counter("read_bytes", source="archive")
        self._latency = stats.histogram("archive_read_latency")
        self._on_ended = on_ended

    def now_us(self) -> int:
        """Monotonic time, in µs."""
        return self._reactor.now_us()

    @property
    def has_started(self) -> bool:
        """Whether there was anything to do for the process so far."""
        return self._child is not None

    def stop(self) -> None:
        """End the process at once: whatever it was doing may be repeated."""
        if self._stopped:
            return
        self._stopped = True
        if self._child is not None:
            self._reactor.remove_reader(self._child.pidfd)
            self._child.kill()
        for lane in self._lanes:
            lane.close()
        calls, self._calls = self._calls, {}
        for answered in calls.values():
            answered(Failed(0, ErrorCode.KAFKA_STORAGE_ERROR, "the shard stops"))
        self._waiting.start_all()

    def _begin(self) -> None:
        """Fork the process: something is to be done for the first time."""
        self._child, ends = self._start_process()
        self._lanes = [ReactorChannel(self._reactor, end, self._heard) for end in ends]
        self._reactor.add_reader(self._child.pidfd, self._ended)

    def _ended(self) -> None:
        assert self._child is not None
        self._reactor.remove_reader(self._child.pidfd)
        self._on_ended(f"{self._child.name} {self._child.poll()}")

    # -- changes -------------------------------------------------------------------------------------------------------

    def upload(
        self,
        owner: ArchiveId,
        path: str,
        base_offset: Offset,
        from_offset: Offset,
        end_offset: Offset,
        size_bytes: int,
        term: Any,
        aborted: list[AbortedSpan],
        appended_ms: TimestampMs,
        done: Callable[[ArchivedSegment | MillstreamError], None],
    ) -> None:
        """`messages.Upload`."""

        def answered(reply: Uploaded | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply.segment)

        number = self._expect(answered)
        self._send(
            self._next_uploader(),
            Upload(number, owner, path, base_offset, from_offset, end_offset, size_bytes, term, aborted, appended_ms),
        )

    def share(
        self,
        object_id: ObjectId,
        parts: list[SharedPart],
        done: Callable[[list[ArchivedSegment] | MillstreamError], None],
    ) -> None:
        """`messages.Share`."""

        def answered(reply: Shared | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply.segments)

        number = self._expect(answered)
        self._send(self._next_uploader(), Share(number, object_id, parts))

    def sweep(
        self,
        starts: list[SharedStart],
        topics: list[bytes],
        after: str,
        done: Callable[[Swept | MillstreamError], None],
    ) -> None:
        """`messages.Sweep`."""

        def answered(reply: Swept | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply)

        self._send(CHANGES_LANE, Sweep(self._expect(answered), starts, topics, after))

    def join(
        self,
        owner: ArchiveId,
        term: Term,
        target: Sequence[ArchivedSegment] | ManifestPart,
        target_bytes: int,
        start_offset: Offset,
        done: Callable[[Joined | MillstreamError], None],
    ) -> None:
        """`messages.Join`."""

        def answered(reply: Joined | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply)

        part = target if not isinstance(target, Sequence) else None
        before = tuple(target) if isinstance(target, Sequence) else ()
        self._send(JOINS_LANE, Join(self._expect(answered), owner, term, before, part, target_bytes, start_offset))

    def put(self, key: str, data: bytes, done: OnDone) -> None:
        """`messages.Put`."""
        self._send(CHANGES_LANE, Put(self._expect(partial(_settle, done)), key, data))

    def examine(self, key: str, done: Callable[[Examined | MillstreamError], None]) -> None:
        """`messages.Examine`."""

        def answered(reply: Examined | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply)

        self._send(CHANGES_LANE, Examine(self._expect(answered), key))

    def replace(self, key: str, data: bytes, expected: str, done: Callable[[str | MillstreamError], None]) -> None:
        """`messages.Replace`; ``done`` gets the new version."""

        def answered(reply: Written | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply.version)

        self._send(CHANGES_LANE, Replace(self._expect(answered), key, data, expected))

    def remove(
        self,
        owner: ArchiveId,
        segments: tuple[ArchivedSegment, ...],
        parts: tuple[ManifestPart, ...],
        part_objects: tuple[ManifestPart, ...],
        done: OnDone,
    ) -> None:
        """`messages.Remove`."""
        self._send(CHANGES_LANE, Remove(self._expect(partial(_settle, done)), owner, segments, parts, part_objects))

    def check(
        self,
        owner: ArchiveId,
        before: tuple[ArchivedSegment, ...],
        after: tuple[ArchivedSegment, ...],
        version: ManifestVersion,
        written_after_ms: int,
        part_before: ManifestPart | None,
        done: Callable[[Checked | MillstreamError], None],
    ) -> None:
        """`messages.Check`."""

        def answered(reply: Checked | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply)

        number = self._expect(answered)
        self._send(self._next_uploader(), Check(number, owner, before, after, version, written_after_ms, part_before))

    def forget(self, owner: ArchiveId, start: Offset, end: Offset) -> None:
        """`messages.Forget`. A process that was never started has nothing to forget."""
        if self._child is not None and not self._stopped:
            self._send(CHANGES_LANE, Forget(self._expect(_ignore), owner, start, end))

    def remove_keys(self, keys: tuple[str, ...], owner: ArchiveId, done: OnDone) -> None:
        """`messages.RemoveKeys`."""
        self._send(CHANGES_LANE, RemoveKeys(self._expect(partial(_settle, done)), keys, owner))

    def remove_below(self, owner: ArchiveId, offset: Offset, done: OnDone) -> None:
        """`messages.RemoveBelow`."""
        self._send(CHANGES_LANE, RemoveBelow(self._expect(partial(_settle, done)), owner, offset))

    def ask_cache(self, done: Callable[[CacheReport | MillstreamError], None]) -> None:
        """`messages.AskCache`."""

        def answered(reply: CacheReport | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply)

        self._send(self._next_reader(), AskCache(self._expect(answered)))

    # -- the log in the store ------------------------------------------------------------------------------------------

    def append_entry(self, number: int, parts: list[LogPart], done: OnDone) -> None:
        """`messages.AppendEntry`. ``done`` gets Rejected (STALE_BROKER_EPOCH) when the log is sealed."""

        def answered(reply: Reply) -> None:
            if isinstance(reply, Failed) and reply.code is ErrorCode.STALE_BROKER_EPOCH:
                done(Rejected(reply.message, reply.code))
            else:
                _settle(done, reply)

        self._send(LOG_LANE, AppendEntry(self._expect(answered), number, parts))

    def trim_entries(self, number: int, end: int, done: OnDone) -> None:
        """`messages.TrimEntries`."""
        self._send(CHANGES_LANE, TrimEntries(self._expect(partial(_settle, done)), number, end))

    def restore(
        self,
        owner: ArchiveId,
        directory: str,
        voters: tuple[ReplicaId, ...],
        done: Callable[[Restored | MillstreamError], None],
    ) -> None:
        """`messages.Restore`."""

        def answered(reply: Restored | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply)

        asked_ns = time.monotonic_ns()
        self._send(CHANGES_LANE, Restore(self._expect(answered), owner, directory, voters, asked_ns))

    def end_lives(self, node: NodeId, done: OnDone) -> None:
        """`messages.EndLives`."""
        self._send(CHANGES_LANE, EndLives(self._expect(partial(_settle, done)), node))

    def clean_logs(self, done: OnDone) -> None:
        """`messages.CleanLogs`."""
        self._send(CHANGES_LANE, CleanLogs(self._expect(partial(_settle, done))))

    # -- reads ---------------------------------------------------------------------------------------------------------

    def find(
        self,
        owner: ArchiveId,
        target: ArchivedSegment | ManifestPart,
        timestamp: TimestampMs,
        start_offset: Offset,
        end_offset: Offset,
        done: Callable[[Found | MillstreamError], None],
        *,
        largest: bool = False,
    ) -> None:
        """`messages.Find`."""

        def answered(reply: Found | Failed) -> None:
            done(_error(reply) if isinstance(reply, Failed) else reply)

        number = self._expect(answered)
        self._send(
            self._next_reader(), Find(number, owner, Target.of(target), timestamp, start_offset, end_offset, largest)
        )

    def read(
        self,
        owner: ArchiveId,
        target: ArchivedSegment | ManifestPart,
        offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        done: OnRead,
        *,
        minimum_one: bool,
        aborted: list[AbortedSpan] | None = None,
    ) -> None:
        """Whole batches from the one that holds ``offset``, below ``end_offset``, of one segment. The receiver releases
        them. ``aborted`` gets the aborted transactions among them before ``done`` is called.
        """
        call = _ReadCall(
            owner,
            Target.of(target),
            offset,
            end_offset,
            max(0, max_bytes),
            minimum_one,
            done,
            self._reactor.now_us(),
            aborted,
        )
        self._reads.inc()
        self._waiting.begin(call)

    def _start(self, call: _ReadCall) -> bool:
        """Send the read; False when there is no memory for it."""
        if self._stopped:
            self._reactor.call_soon(call.done, Retriable("the shard stops", ErrorCode.KAFKA_STORAGE_ERROR))
            return True
        room = max(call.room, _ROOM_MIN)
        if call.target.segment is not None:
            room = min(room, call.target.segment.size_bytes)
        fragments = allocate_room(self._arena, room)
        if fragments is None:
            return False
        call.fragments = fragments
        spans = spans_of(fragments)
        number = self._expect(partial(self._finished, call))
        self._send(
            self._next_reader(),
            Read(
                number, call.owner, call.target, call.offset, call.end_offset, call.max_bytes, call.minimum_one, spans
            ),
        )
        return True

    def _finished(self, call: _ReadCall, reply: ReadDone | Failed) -> None:
        if isinstance(reply, ReadDone) and reply.need_bytes:
            call.room = reply.need_bytes
            release_all(call.fragments)
            self._waiting.again(call)
            return
        self._latency.observe(self._reactor.now_us() - call.begun_us)
        if isinstance(reply, Failed):
            release_all(call.fragments)
            self._read_failures.inc()
            call.done(_error(reply))
            return
        self._read_bytes.inc(reply.size_bytes)
        if call.aborted is not None:
            call.aborted += reply.aborted
        call.done(chain_of(call.fragments, reply.size_bytes))

    # -- the channel ---------------------------------------------------------------------------------------------------

    def _expect(self, answered: Callable[[Any], None]) -> int:
        number = self._next_id
        self._next_id += 1
        self._calls[number] = answered
        return number

    def _next_uploader(self) -> int:
        lane = UPLOADS_LANE + self._uploader
        self._uploader = (self._uploader + 1) % (READS_LANE - UPLOADS_LANE)
        return lane

    def _next_reader(self) -> int:
        lane = READS_LANE + self._reader
        self._reader = (self._reader + 1) % (JOINS_LANE - READS_LANE)
        return lane

    def _send(self, lane: int, command: Any) -> None:
        if self._stopped:
            answered = self._calls.pop(command.id)
            stops = Failed(command.id, ErrorCode.KAFKA_STORAGE_ERROR, "the shard stops")
            self._reactor.call_soon(answered, stops)
            return
        if self._child is None:
            self._begin()
        self._lanes[lane].send(encode(command))

    def _heard(self, message: bytes) -> None:
        reply: Reply = decode_reply(message)
        self._calls.pop(reply.id)(reply)


def _ignore(_: Reply) -> None:
    """Nobody waits for it."""


def _settle(done: OnDone, reply: Reply) -> None:
    done(_error(reply) if isinstance(reply, Failed) else None)


def _error(reply: Failed) -> MillstreamError:
    if reply.code in _SAID:
        return Rejected(reply.message, reply.code)
    kind = Corruption if reply.corrupt else Unavailable
    # Clients repeat a storage error; any other code would end a consumer.
    return kind(reply.message, ErrorCode.KAFKA_STORAGE_ERROR)


def _fail(call: _ReadCall, error: MillstreamError) -> None:
    call.done(error)
