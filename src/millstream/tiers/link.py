"""The reactor's side of the archive process: sends commands, routes each reply to its caller (`helper.link`).

A read takes fragments from the arena, which the process fills (`helper.fills`). A read or a look-up that is on its way
is not sent again (`joined_calls`). Callbacks never run before the call has returned. The process is forked for its
first command: most brokers have no tiered topic. Uploads of segments go to a process of their own, if the shard has one
(`upload_link`). After `stop` nothing is sent, and everything is refused retriably.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from millstream.errors import Corruption, MillstreamError, Rejected, Retriable, Unavailable
from millstream.format.epochs import encode_log_state
from millstream.helper.fills import Fills
from millstream.helper.lanes import Lanes
from millstream.helper.link import HelperLink
from millstream.iobuf.room import chain_of
from millstream.model.error_code import ErrorCode
from millstream.tiers.joined_calls import JoinedCalls
from millstream.tiers.joined_reads import JoinedReads
from millstream.tiers.messages import (
    LANES_OF,
    AppendEntry,
    AskCache,
    AskNewest,
    CacheReport,
    Check,
    Checked,
    CleanLogs,
    Done,
    EndLives,
    Examine,
    Examined,
    Failed,
    Find,
    Forget,
    Found,
    Join,
    Joined,
    Newest,
    Put,
    Read,
    ReadDone,
    Remove,
    RemoveBelow,
    RemoveKeys,
    Replace,
    Restore,
    Restored,
    Share,
    Shared,
    Stop,
    Sweep,
    Swept,
    Target,
    TrimEntries,
    Upload,
    Uploaded,
    Written,
    decode_reply,
    encode,
)
from millstream.tiers.upload_link import UploadLink

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from millstream.format.archive import AbortedSpan
    from millstream.format.epochs import LogState
    from millstream.format.manifest import ArchivedSegment, ArchiveId, ManifestPart
    from millstream.helper.link import CallId
    from millstream.iobuf import Arena, Fragment, IoBuf
    from millstream.model.cluster import NodeId
    from millstream.model.quantities import ManifestVersion, Offset, TimestampMs
    from millstream.model.replication import ReplicaId, Term
    from millstream.model.shared import ObjectId
    from millstream.shard.process import Child
    from millstream.shard.reactor import Reactor, Timer
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.joined_reads import ReadAnswer
    from millstream.tiers.messages import Command, LogPart, SharedPart, SharedStart
    from millstream.tiers.process import ArchiveProcess
    from millstream.tiers.upload_link import StartUploads

    OnDone = Callable[[MillstreamError | None], None]
    OnRead = Callable[[IoBuf | MillstreamError], None]

R = TypeVar("R", Checked, CacheReport, Examined, Found, Joined, Newest, Restored, Shared, Swept, Uploaded, Written)

_ROOM_MIN: Final = 512
_SAID: Final = (ErrorCode.INVALID_RECORD, ErrorCode.RESOURCE_NOT_FOUND)
"""What `Check` says of an object that is not what a replacement says of it."""


class _Meters:
    """What reads of archived segments count."""

    def __init__(self, stats: StatsSlab) -> None:
        self.reads = stats.counter("archive_reads")
        self.read_failures = stats.counter("archive_read_failures")
        self.read_bytes = stats.counter("read_bytes", source="archive")
        self.latency = stats.histogram("archive_read_latency")


class ArchiveLink:
    """One per shard. Lifecycle: made on the reactor after the fork; `stop` once."""

    def __init__(
        self,
        reactor: Reactor,
        arena: Arena,
        stats: StatsSlab,
        start_process: Callable[[], ArchiveProcess],
        on_ended: Callable[[str], None],
        start_uploads: StartUploads | None = None,
    ) -> None:
        """``on_ended`` is called with the reason if a process ends by itself. ``start_uploads`` forks the upload
        process; without it the archive process uploads, too.
        """
        self._reactor = reactor
        self._start_process = start_process
        self._on_ended = on_ended
        self._child: Child | None = None
        self._lanes: Lanes[Command] = Lanes(LANES_OF, encode)
        self._link: HelperLink[Command, Failed] = HelperLink(self._send)
        self._fills = Fills(reactor, arena, self._link)
        self._uploads = (
            None if start_uploads is None else UploadLink(reactor, stats, start_uploads, self._received, on_ended)
        )
        self._reads = JoinedReads(reactor, arena)
        self._finds: JoinedCalls[Found | MillstreamError] = JoinedCalls()
        self.stopped = False
        self.meters = _Meters(stats)

    def now_us(self) -> int:
        """Monotonic time, in µs."""
        return self._reactor.now_us()

    def after(self, delay_us: int, callback: Callable[[], None]) -> Timer:
        """Call ``callback`` later, unless the timer is cancelled."""
        return self._reactor.call_later(delay_us, callback)

    @property
    def has_started(self) -> bool:
        """Whether there was anything to do for the process so far."""
        return self._child is not None

    def stop(self) -> None:
        """End the process at once: all that it was doing may be repeated."""
        if self.stopped:
            return
        self.stopped = True
        if self._child is not None:
            self._reactor.remove_reader(self._child.pidfd)
            self._child.kill()
        if self._uploads is not None:
            self._uploads.stop()
        self._lanes.close()
        self._link.fail_all(_stops)
        self._fills.send_all()
        self._reads.close()

    def refuse(self, done: Callable[[MillstreamError], None]) -> None:
        """Call ``done`` later with the error of a read that the shard's stop prevents."""
        self._reactor.call_soon(done, Retriable("the shard stops", ErrorCode.KAFKA_STORAGE_ERROR))

    def _begin(self) -> None:
        """Fork the process for its first command."""
        self._child, ends = self._start_process()
        self._lanes.open(self._reactor, ends, self._received)
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
        term: Term,
        aborted: list[AbortedSpan],
        appended_ms: TimestampMs,
        done: Callable[[ArchivedSegment | MillstreamError], None],
    ) -> None:
        """`messages.Upload`."""

        def uploaded(result: Uploaded | MillstreamError) -> None:
            done(result.segment if isinstance(result, Uploaded) else result)

        number = self._link.next_id()
        command = Upload(
            number, owner, path, base_offset, from_offset, end_offset, size_bytes, term, aborted, appended_ms
        )
        self._ask(command, Uploaded, uploaded)

    def heed_uploads(self, waited_us: int, allowed_us: int) -> None:
        """The closed segment that waits longest for its upload has waited so long; see `UploadLink.heed`."""
        if self._uploads is not None:
            self._uploads.heed(waited_us, allowed_us)

    def share(
        self,
        object_id: ObjectId,
        parts: list[SharedPart],
        done: Callable[[list[ArchivedSegment] | MillstreamError], None],
    ) -> None:
        """`messages.Share`."""

        def shared(result: Shared | MillstreamError) -> None:
            done(result.segments if isinstance(result, Shared) else result)

        self._ask(Share(self._link.next_id(), object_id, parts), Shared, shared)

    def sweep(
        self,
        starts: list[SharedStart],
        topics: list[bytes],
        after: str,
        done: Callable[[Swept | MillstreamError], None],
    ) -> None:
        """`messages.Sweep`."""
        self._ask(Sweep(self._link.next_id(), starts, topics, after), Swept, done)

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
        part = target if not isinstance(target, Sequence) else None
        before = tuple(target) if isinstance(target, Sequence) else ()
        number = self._link.next_id()
        self._ask(Join(number, owner, term, before, part, target_bytes, start_offset), Joined, done)

    def put(self, key: str, data: bytes, done: OnDone) -> None:
        """`messages.Put`."""
        self._order(Put(self._link.next_id(), key, data), done)

    def examine(self, key: str, done: Callable[[Examined | MillstreamError], None]) -> None:
        """`messages.Examine`."""
        self._ask(Examine(self._link.next_id(), key), Examined, done)

    def replace(self, key: str, data: bytes, expected: str, done: Callable[[str | MillstreamError], None]) -> None:
        """`messages.Replace`; ``done`` gets the new version."""

        def replaced(result: Written | MillstreamError) -> None:
            done(result.version if isinstance(result, Written) else result)

        self._ask(Replace(self._link.next_id(), key, data, expected), Written, replaced)

    def remove(
        self,
        owner: ArchiveId,
        segments: tuple[ArchivedSegment, ...],
        parts: tuple[ManifestPart, ...],
        part_objects: tuple[ManifestPart, ...],
        done: OnDone,
    ) -> None:
        """`messages.Remove`."""
        self._order(Remove(self._link.next_id(), owner, segments, parts, part_objects), done)

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
        number = self._link.next_id()
        self._ask(Check(number, owner, before, after, version, written_after_ms, part_before), Checked, done)

    def forget(self, owner: ArchiveId, start: Offset, end: Offset) -> None:
        """`messages.Forget`. A process that was never started has nothing to forget."""
        if self._child is not None and not self.stopped:
            self._order(Forget(self._link.next_id(), owner, start, end), _ignore)

    def remove_keys(self, keys: tuple[str, ...], owner: ArchiveId, done: OnDone) -> None:
        """`messages.RemoveKeys`."""
        self._order(RemoveKeys(self._link.next_id(), keys, owner), done)

    def remove_below(self, owner: ArchiveId, offset: Offset, done: OnDone) -> None:
        """`messages.RemoveBelow`."""
        self._order(RemoveBelow(self._link.next_id(), owner, offset), done)

    def ask_cache(self, done: Callable[[CacheReport | MillstreamError], None]) -> None:
        """`messages.AskCache`."""
        self._ask(AskCache(self._link.next_id()), CacheReport, done)

    # -- the log in the store ------------------------------------------------------------------------------------------

    def append_entry(self, number: int, parts: list[LogPart], done: OnDone) -> None:
        """`messages.AppendEntry`. ``done`` gets Rejected (STALE_BROKER_EPOCH) when the log is sealed."""

        def failed(failure: Failed) -> None:
            sealed = failure.code is ErrorCode.STALE_BROKER_EPOCH
            done(Rejected(failure.message, failure.code) if sealed else error_of(failure))

        self._link.ask(AppendEntry(self._link.next_id(), number, parts), Done, lambda _: done(None), failed)

    def trim_entries(self, number: int, end: int, done: OnDone) -> None:
        """`messages.TrimEntries`."""
        self._order(TrimEntries(self._link.next_id(), number, end), done)

    def restore(
        self,
        owner: ArchiveId,
        directory: str,
        voters: tuple[ReplicaId, ...],
        done: Callable[[Restored | MillstreamError], None],
    ) -> None:
        """`messages.Restore`."""
        asked_ns = time.monotonic_ns()
        self._ask(Restore(self._link.next_id(), owner, directory, voters, asked_ns), Restored, done)

    def ask_newest(
        self, owner: ArchiveId, known: LogState, done: Callable[[Newest | MillstreamError], None], *, shared: bool
    ) -> None:
        """`messages.AskNewest`."""
        self._ask(AskNewest(self._link.next_id(), owner, encode_log_state(known), shared), Newest, done)

    def end_lives(self, node: NodeId, done: OnDone) -> None:
        """`messages.EndLives`."""
        self._order(EndLives(self._link.next_id(), node), done)

    def clean_logs(self, done: OnDone) -> None:
        """`messages.CleanLogs`."""
        self._order(CleanLogs(self._link.next_id()), done)

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
        part = Target.of(target)
        key = owner, part, timestamp, start_offset, end_offset, largest
        if self._finds.join(key, done):
            number = self._link.next_id()
            command = Find(number, owner, part, timestamp, start_offset, end_offset, largest)
            self._ask(command, Found, partial(self._found, key))

    def _found(self, key: Hashable, result: Found | MillstreamError) -> None:
        for done in self._finds.take(key):
            done(result)

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
    ) -> Callable[[], None]:
        """Whole batches from the one that holds ``offset``, below ``end_offset``, of one segment. The receiver releases
        them. ``aborted`` gets the aborted transactions among them before ``done`` is called. A read that is on its way
        is joined, and may bring more or fewer bytes than ``max_bytes``, and end before ``end_offset``.

        Returns what the caller may call to wait no longer: ``done`` is not called then. If all have left, the next
        one that asks gets what was read.
        """
        key = owner, Target.of(target), offset, minimum_one

        def answered(answer: ReadAnswer) -> None:
            result, spans = answer
            if aborted is not None:
                aborted.extend(spans)
            done(result)

        if not self._reads.join(key, answered):
            return partial(self._reads.leave, key, answered)
        kept = self._reads.take_kept(key)
        if kept is not None:
            self._reactor.call_soon(self._reads.answered, key, kept)
        else:
            then = partial(self._reads.answered, key)
            self.read_alone(owner, target, offset, end_offset, max_bytes, then, minimum_one=minimum_one)
        return partial(self._reads.leave, key, answered)

    def read_alone(
        self,
        owner: ArchiveId,
        target: ArchivedSegment | ManifestPart,
        offset: Offset,
        end_offset: Offset,
        max_bytes: int,
        done: Callable[[ReadAnswer], None],
        *,
        minimum_one: bool,
    ) -> None:
        """As `read`, but joins no other one, and cannot be left."""
        part = Target.of(target)

        def make(number: CallId, spans: list[int]) -> Read:
            return Read(number, owner, part, offset, end_offset, max(0, max_bytes), minimum_one, spans)

        limit = None if part.segment is None else part.segment.size_bytes
        self.meters.reads.inc()
        self._fills.start(_ArchiveRead(self, make, limit, max(0, max_bytes), done))

    # -- the channel ---------------------------------------------------------------------------------------------------

    def _ask(self, command: Command, kind: type[R], done: Callable[[R | MillstreamError], None]) -> None:
        """Send a command. ``done`` is called with its reply, or with the error that it failed with."""
        self._link.ask(command, kind, done, lambda failure: done(error_of(failure)))

    def _order(self, command: Command, done: OnDone) -> None:
        """Send a command whose reply says only that it was executed."""
        self._link.ask(command, Done, lambda _: done(None), lambda failure: done(error_of(failure)))

    def _send(self, command: Command) -> None:
        assert not isinstance(command, Stop), "the process is killed"
        if self.stopped:
            self._reactor.call_soon(self._link.fail, command.id, _stops(command.id))
            return
        if self._child is None:
            self._begin()
        if isinstance(command, Upload) and self._uploads is not None:
            self._uploads.send(command)
        else:
            self._lanes.send(command)

    def _received(self, message: bytes) -> None:
        reply = decode_reply(message)
        if self._uploads is not None:
            self._uploads.answered(reply.id)
        if isinstance(reply, Failed):
            self._link.fail(reply.id, reply)
        else:
            self._link.reply(reply)


class _ArchiveRead:
    """One read, from `ArchiveLink.read` to its callback (`helper.fills.Fill`)."""

    __slots__ = ("_done", "_limit", "_link", "_make", "_room", "begun_us", "fragments")
    reply = ReadDone

    def __init__(
        self,
        link: ArchiveLink,
        make: Callable[[CallId, list[int]], Read],
        limit: int | None,
        max_bytes: int,
        done: Callable[[ReadAnswer], None],
    ) -> None:
        """``limit`` is the size of the segment in bytes; None if it is not known."""
        self._link = link
        self._make = make
        self._limit = limit
        self._room = max_bytes
        self._done = done
        self.begun_us = link.now_us()
        self.fragments: list[Fragment] = []

    def prepare(self) -> int:
        """Bytes to allocate; 0 if the shard stops."""
        if self._link.stopped:
            self._link.refuse(self.fail)
            return 0
        size_bytes = max(self._room, _ROOM_MIN)
        return size_bytes if self._limit is None else min(size_bytes, self._limit)

    def command(self, number: CallId, spans: list[int]) -> Read:
        """The command, which may fill these spans."""
        return self._make(number, spans)

    def finish(self, reply: ReadDone) -> bool:
        """The reply. False: the first batch needs more memory."""
        if reply.need_bytes:
            self._room = reply.need_bytes
            return False
        meters = self._link.meters
        meters.latency.observe(self._link.now_us() - self.begun_us)
        meters.read_bytes.inc(reply.size_bytes)
        self._done((chain_of(self.fragments, reply.size_bytes), list(reply.aborted)))
        return True

    def fail(self, error: MillstreamError) -> None:
        """There was no memory for it, or the shard stops."""
        self._done((error, []))

    def failed(self, failure: Failed) -> None:
        """The read has failed in the archive process."""
        meters = self._link.meters
        meters.latency.observe(self._link.now_us() - self.begun_us)
        meters.read_failures.inc()
        self._done((error_of(failure), []))


def _ignore(_: MillstreamError | None) -> None:
    """Callback of a command whose result is not used."""


def _stops(number: CallId) -> Failed:
    return Failed(number, ErrorCode.KAFKA_STORAGE_ERROR, "the shard stops")


def error_of(reply: Failed) -> MillstreamError:
    """The error that callers get for a failed command."""
    if reply.code in _SAID:
        return Rejected(reply.message, reply.code)
    kind = Corruption if reply.corrupt else Unavailable
    # Clients repeat a storage error; any other code would end a consumer.
    return kind(reply.message, ErrorCode.KAFKA_STORAGE_ERROR)
