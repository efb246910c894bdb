"""Uploads of one shard's shared partitions: many partitions in one object, commits in order, producers that wait.

::

    committed batches ──note──► backlog ──take──► pack ──read──► object ──► archive process: written, read back
                                                                                       │ in the order of the objects
                                       local copy goes ◄── archive ◄── commit ◄── an entry for each partition

A pack is what is open when an upload is due; a large one becomes several objects. Batches are read from the log cache,
or by the worker from the segment files, and stay in memory until their object is verified: at most `OBJECTS_AT_ONCE`
objects. An entry in the log of its partition commits a range. Entries follow the order of the objects, so that an
archive has no gap, and are taken up once however often they come. An object is written when those before it that have
records of the same partitions are verified, so that neither has the store alone.

A crash at any point loses nothing: what is not committed is in the write-ahead log or in a segment file, and is
uploaded again. An object that no entry names leaves with the records that it has (`sweeping`). While the store fails,
the same object is sent again after a wait that doubles; until then the backlog grows, and from its limit on `is_full`
refuses producers of shared topics. A partition whose local bytes are damaged is uploaded no more, which is logged; the
others continue. In a cluster the leader of a partition uploads. One that leads no more gives up what its group did not
commit, and the next leader starts where the archive ends.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.core.shared import Backlog, Uploads
from millstream.errors import Corruption, MillstreamError
from millstream.format.archive import Archived
from millstream.iobuf import ArenaFull, IoBuf
from millstream.model.quantities import BytePosition, Offset
from millstream.model.shared import SharedPartition
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log
from millstream.tiers.describing import Descriptions
from millstream.tiers.packing import end_of
from millstream.tiers.shared_filling import Filled, Packing, SharedObject, leads
from millstream.tiers.shared_objects import ObjectNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.core.shared import BacklogLimits, Pack
    from millstream.core.shared.backlog import Part
    from millstream.format.archive import TopicDescription
    from millstream.format.manifest import ArchivedSegment
    from millstream.model.replication import Term
    from millstream.shard.reactor import Reactor
    from millstream.storage.log.log import Log
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.partition_archive import PartitionArchive
    from millstream.tiers.shared_wal import SharedWal

PERIOD_US: Final = 100_000
"""Between two looks at all shared partitions."""

OBJECTS_AT_ONCE: Final = 2
PARTS_MAX: Final = 5000
"""Partitions in one object."""

_PIECE_BYTES: Final = 128 * 1024
_SHARE: Final = 0.05
_COMMIT_POLL_US: Final = 2_000
_WAIT_US: Final = 500_000
_WAIT_MAX_US: Final = 30_000_000
_NUMBER_AGE_US: Final = 1_800_000_000
"""Age of an object's number after which a failed upload takes another one."""

_LINES: Final = RateLimit(per_minute=10)


class _Meters:
    """What the metrics say of one shard's uploads."""

    __slots__ = ("failures", "lag_us", "objects", "uncommitted_bytes", "uploaded_bytes")

    def __init__(self, stats: StatsSlab) -> None:
        self.uncommitted_bytes = stats.gauge("shared_uncommitted_bytes")
        self.lag_us = stats.gauge("shared_upload_lag")
        self.objects = stats.counter("shared_objects")
        self.uploaded_bytes = stats.counter("archive_uploaded_bytes")
        self.failures = stats.counter("archive_upload_failures")


class SharedUploads:
    """The shared partitions of one shard. Lifecycle: made with the shard; `stop` before its storage."""

    def __init__(
        self,
        reactor: Reactor,
        now_ms: Callable[[], int],
        link: ArchiveLink,
        stats: StatsSlab,
        limits: BacklogLimits,
        object_bytes_max: int,
        describe: Callable[[bytes], TopicDescription | None],
        wal: SharedWal | None = None,
    ) -> None:
        """``now_ms`` is the wall clock, for the numbers of objects. ``describe`` gives what is to be known of the topic
        with that id. ``wal`` is the log in the store, if acknowledgements wait for that.
        """
        self.wal = wal
        self._reactor = reactor
        self._link = link
        self._descriptions = Descriptions(link, describe)
        self._numbers = ObjectNumbers(now_ms)
        self._object_bytes_max = object_bytes_max
        self.archives: dict[SharedPartition, PartitionArchive] = {}
        """The partitions, with what is committed of them. Written by `open` and `close`."""
        self.backlog = Backlog(limits)
        self._noted: dict[SharedPartition, tuple[Offset, BytePosition, Term]] = {}
        """End of what the backlog has got of each partition that is led here, the place in the log's stream of bytes,
        and the term.
        """
        self._given_up: set[SharedPartition] = set()
        self._packs: deque[Pack] = deque()
        self._packing: Packing | None = None
        self._filling: SharedObject | None = None
        self._uploads = Uploads()
        self._objects: deque[SharedObject] = deque()
        """Those of `_uploads`, in the same order."""
        self._read_failures = 0
        self._ticking = self._polls = self._stopped = False
        self._meters = _Meters(stats)

    # -- partitions ----------------------------------------------------------------------------------------------------

    def open(self, archive: PartitionArchive) -> None:
        """A shared partition is served from now on."""
        self.archives[_key(archive)] = archive
        if self.wal is not None:
            self.wal.open(archive)
        self._tick_later()

    def close(self, archive: PartitionArchive) -> None:
        """It is no longer."""
        if self.wal is not None:
            self.wal.close(archive)
        key = _key(archive)
        if self.archives.get(key) is archive:
            del self.archives[key]
            self._given_up.discard(key)
            self._forget(key)

    def _forget(self, key: SharedPartition) -> None:
        """Start again with what is not committed, if the partition is led here."""
        if self._noted.pop(key, None) is not None:
            self.backlog.leave(key)

    def is_full(self) -> bool:
        """Whether producers of shared topics have to wait."""
        pending_bytes = 0 if self.wal is None else self.wal.pending_bytes
        return self.backlog.size_bytes + pending_bytes >= self.backlog.limits.bytes_max

    @property
    def lag_ms(self) -> int:
        """Age of the oldest record that no object has; 0 without one."""
        return self.backlog.age_ms(self._reactor.now_us() // 1000)

    def stop(self) -> None:
        """Start nothing more. Comes before the link's end, which answers what is in flight."""
        self._stopped = True
        if self.wal is not None:
            self.wal.stop()
        if self._filling is not None:
            self._filling.release()
            self._filling = None
        for one in self._objects:
            if one.is_held:
                one.release()

    # -- the look ------------------------------------------------------------------------------------------------------

    def _tick_later(self) -> None:
        if not self._ticking and not self._stopped:
            self._ticking = True
            self._reactor.call_later(PERIOD_US, self._tick)

    def _tick(self) -> None:
        if self._stopped or not (self.archives or self._objects):
            self._ticking = False
        else:
            self._reactor.background("housekeeping", self._note_all(), _SHARE, self._noted_all)

    def _noted_all(self) -> None:
        self._ticking = False
        self._meters.uncommitted_bytes.set(self.backlog.size_bytes)
        self._meters.lag_us.set(self.lag_ms * 1000)
        self._advance()
        self._tick_later()

    def _note_all(self) -> Generator[None, None, None]:
        for key, archive in list(self.archives.items()):
            if not archive.closed and not archive.log.closed and key not in self._given_up:
                archive.log.guard("archive", self._note, key, archive)
            yield

    def _note(self, key: SharedPartition, archive: PartitionArchive) -> None:
        """Put what was committed since the last look into the backlog. Bytes of transactions that have not ended are
        estimated, because they are not counted by offset.
        """
        log, limit, term = archive.log, Offset(archive.limit()), archive.group.term
        noted = self._noted.get(key)
        if noted is not None and (noted[2] != term or not leads(archive)):
            self._forget(key)
            noted = None
        if noted is None:
            if not leads(archive):
                return
            start = max(archive.archive.end_offset, log.start_offset)
            noted = self._noted[key] = start, _position(log, start), term
        if limit > noted[0]:
            position = _position(log, limit)
            size = max(1, position - noted[1])
            self.backlog.append(key, noted[0], limit, size, self._reactor.now_us() // 1000)
            self._noted[key] = limit, BytePosition(max(position, noted[1])), term

    # -- filling objects -----------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Start to fill the next object, if one is due."""
        if self._stopped or self._filling is not None or len(self._uploads) >= OBJECTS_AT_ONCE:
            return
        if self._packing is None:
            if not self._packs and self.backlog.is_due(self._reactor.now_us() // 1000):
                self._packs += self.backlog.take()
            if not self._packs:
                return
            self._packing = Packing(self._packs.popleft())
        self._filling = SharedObject(self._packing)
        self._read_on()

    def _read_on(self) -> None:
        """Read the next piece into the object that is being filled."""
        one = self._filling
        if one is None:
            return  # stopped
        packing = one.packing
        while (part := packing.part) is not None and not self._guarded(part, packing):
            packing.next()
        begins = part is not None and (not one.parts or one.parts[-1].partition != part.partition)
        room = self._object_bytes_max - one.size_bytes
        if part is None or (one.parts and room <= 0) or (begins and len(one.parts) >= PARTS_MAX):
            self._full(one)
            return
        log = self.archives[part.partition].log
        try:
            self._read(one, part, log, room)
        except Exception as error:  # noqa: BLE001 - the boundary
            log.failed("archive", error)
            self._reactor.call_soon(self._read_on)

    def _read(self, one: SharedObject, part: Part, log: Log, room: int) -> None:
        """Read the next piece of a partition."""
        offset, size = one.packing.offset, max(1, min(_PIECE_BYTES, room))
        found = log.read(offset, part.end_offset, size, minimum_one=True)
        if found is not None:
            self._taken(one, part, found)
        else:
            log.read_cold(offset, part.end_offset, max(1, room), True, partial(self._taken, one, part))

    def _guarded(self, part: Part, packing: Packing) -> bool:
        """`_is_wanted`, behind the partition's boundary."""
        try:
            return self._is_wanted(packing, part)
        except Exception as error:  # noqa: BLE001 - the boundary
            self.archives[part.partition].log.failed("archive", error)
            return False

    def _is_wanted(self, packing: Packing, part: Part) -> bool:
        archive = self.archives.get(part.partition)
        if archive is None or archive.closed or archive.log.closed or part.partition in self._given_up:
            return False
        if part.partition not in self._noted or not leads(archive):
            return False
        start = max(archive.log.start_offset, archive.archive.end_offset)
        if start > packing.offset:  # deleted, or archived by what an earlier leadership had on its way
            if self._filling is not None:
                self._filling.drop(part.partition)  # it would end before a gap
            packing.offset = start
        return packing.offset < part.end_offset

    def _taken(self, one: SharedObject, part: Part, result: IoBuf | MillstreamError) -> None:
        if isinstance(result, MillstreamError):
            if self._filling is one:
                self._not_read(part, result)
            return
        if self._filling is one:
            self._reactor.call_soon(self._read_on)
        archive = self.archives.get(part.partition)
        if self._filling is not one or archive is None:
            result.release()
            return
        packing = one.packing
        if not one.parts or one.parts[-1].partition != part.partition:
            one.parts.append(Filled(archive, part.partition, packing.offset))
        filled = one.parts[-1]
        packing.offset = filled.end_offset = end_of(result)
        one.size_bytes += len(result)
        filled.chain.append_buf(result)
        self._read_failures = 0

    def _not_read(self, part: Part, error: MillstreamError) -> None:
        archive = self.archives.get(part.partition)
        if isinstance(error, Corruption) and archive is not None:
            self._given_up.add(part.partition)
            self._forget(part.partition)
            operator_log.at(archive.log.name).error("uploaded no more until the next start: %s", error.message)
            self._reactor.call_soon(self._read_on)
            return
        self._read_failures += 1
        self._reactor.call_later(min(_WAIT_US << min(self._read_failures, 6), _WAIT_MAX_US), self._read_on)

    def _full(self, one: SharedObject) -> None:
        """Nothing more goes into the object: send it, and fill the next one."""
        packing = one.packing
        self._filling = None
        if packing.part is None:
            self._packing = None
        if one.parts:
            packing.objects += 1
            one.numbered_us = self._reactor.now_us()
            one.upload = self._uploads.begin(
                self._numbers.next(), packing.pack, frozenset(part.partition for part in one.parts)
            )
            self._objects.append(one)
            self._send(one)
        self._settle_pack(packing)
        self._advance()

    def _settle_pack(self, packing: Packing) -> None:
        if packing.part is None and not packing.objects:
            self.backlog.committed(packing.pack)

    # -- one object ----------------------------------------------------------------------------------------------------

    def _send(self, one: SharedObject) -> None:
        """Have the object written; before that the description of each topic, by which its records are found when this
        broker is lost.
        """
        if self._stopped:
            one.release()
            return
        if self._descriptions.write_next((part.archive.owner for part in one.parts), partial(self._wrote_topic, one)):
            return
        assert one.upload is not None, "an object is sent under its number"
        one.is_held = not self._uploads.may_store(one.upload)
        if one.is_held:
            return
        self._link.share(one.upload.object_id, [part.message() for part in one.parts], partial(self._answered, one))

    def _wrote_topic(self, one: SharedObject, error: MillstreamError | None) -> None:
        if error is not None:
            self._failed(one, error)
        else:
            self._send(one)

    def _answered(self, one: SharedObject, result: list[ArchivedSegment] | MillstreamError) -> None:
        if isinstance(result, MillstreamError):
            self._failed(one, result)
            return
        one.release()
        if one.failures:
            operator_log.info("the object store takes shared objects again")
        for part, segment in zip(one.parts, result, strict=True):
            part.segment = segment
        assert one.upload is not None, "an object is answered under its number"
        one.upload.verified = True
        for later in [each for each in self._objects if each.is_held]:
            self._send(later)
        self._commit()

    def _failed(self, one: SharedObject, error: MillstreamError) -> None:
        if self._stopped:
            one.release()
            return
        assert one.upload is not None, "an object is answered under its number"
        self._meters.failures.inc()
        one.failures += 1
        if (one.failures == 1 or isinstance(error, Corruption)) and _LINES.allows():
            operator_log.warning("a shared object could not be stored, that is tried again: %s", error.message)
        if isinstance(error, Corruption) or self._reactor.now_us() - one.numbered_us > _NUMBER_AGE_US:
            # What is there under the old one may be damaged, or swept.
            one.upload.object_id = self._numbers.next()
            one.numbered_us = self._reactor.now_us()
        wait_us = min(_WAIT_US << min(one.failures - 1, 6), _WAIT_MAX_US)
        self._reactor.call_later(wait_us, partial(self._send, one))

    def _commit(self) -> None:
        """Propose the ranges of the oldest object if it is verified, and continue when they are committed."""
        while not self._stopped and (upload := self._uploads.next_commit()) is not None:
            one = self._objects[0]
            if not self._propose(one) or not all(part.settled for part in one.parts):
                self._poll()
                return
            self._uploads.committed(upload)
            self._objects.popleft()
            self._meters.objects.inc()
            self._meters.uploaded_bytes.inc(one.size_bytes)
            one.packing.objects -= 1
            self._settle_pack(one.packing)
        self._advance()

    def _propose(self, one: SharedObject) -> bool:
        """Propose what is not proposed; False if that is not possible now. A range that does not follow the archive,
        because another replica led in between, is given up.
        """
        for part in one.parts:
            if part.term is not None or part.settled or part.segment is None:
                continue
            archive = part.archive.archive
            follows = archive.is_empty or part.segment.base_offset == archive.end_offset
            if not follows or part.segment.base_offset > archive.end_offset:
                part.segment = None
                self._forget(part.partition)
                continue
            try:
                part.archive.propose(Archived(part.segment, part.archive.log.start_offset))
            except (ArenaFull, MillstreamError):
                return False
            except Exception as error:  # noqa: BLE001 - the boundary
                part.archive.log.failed("archive", error)
                part.segment = None
                continue
            part.term = part.archive.group.term
        return True

    def _poll(self) -> None:
        if not self._polls:
            self._polls = True
            self._reactor.call_later(_COMMIT_POLL_US, self._look_at_commit)

    def _look_at_commit(self) -> None:
        self._polls = False
        self._commit()


def _key(archive: PartitionArchive) -> SharedPartition:
    return SharedPartition(archive.owner.topic_id.bytes, archive.owner.partition_index)


def _position(log: Log, offset: Offset) -> BytePosition:
    """About where an offset is in the log's stream of bytes: exact at the durable end and where segments start."""
    if offset >= log.durable_offset:
        return log.ends.durable_position
    log.refresh()
    segment = log.files.segments.find(offset)
    if segment is None:
        return log.files.segments.first.stream
    part = (offset - segment.base_offset) / max(1, segment.end_offset - segment.base_offset)
    return BytePosition(segment.stream + int(part * segment.size_bytes))
