"""Events of a partition of this shard: checked when they are appended, fed without their data, fetched in ranges.

``check_events`` is what an event topic asks of a batch beside what any topic does. ``feed`` gives metadata and
descriptors of committed events, ``fetch_data`` the bytes that descriptors select. Both read from the log cache where
the events are still in it, else from the chunks, through the worker; what no longer has a local chunk, from the object
store. Descriptors of such events name them by their ids, and one that was given while there was a chunk stays good.

A feed has no more than what was asked for, but one event at least. A fetch ends where its bytes would pass the limit,
but has one event at least, and a descriptor that is not that of its event is refused by itself. All that either returns
has to be released.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from millstream.errors import MillstreamError
from millstream.format.events.batch import decode_event_batch
from millstream.format.events.descriptor import DESCRIPTOR_BYTES
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import BytePosition, Offset
from millstream.partition.asked import Asked
from millstream.partition.events.batches import EventBatchView, HeldBatch, ReadBatches, described
from millstream.partition.read.batches import offset_error
from millstream.partition.read.request import STORE_PATIENCE_US
from millstream.storage.log.event_log import BatchPlace, EventLog
from millstream.wire.errors import BatchError

if TYPE_CHECKING:
    from millstream.partition.partition import Partition
    from millstream.storage.log.event_reads import EventReads, Wanted
    from millstream.storage.messages.commands import DataFetched, EventsFed
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.partition_archive import PartitionArchive

Answer = TypeVar("Answer")

FEED_BYTES_MAX: Final = 4 << 20
"""Metadata and descriptors of one feed, even if its consumer grants more."""

FETCH_BYTES_MAX: Final = 16 << 20
"""Data of one fetch, even if its consumer grants more."""

_HOT_BYTES: Final = 4 << 20
_ARCHIVED_BYTES: Final = 1 << 20
"""Of the object store at once, unless one batch is larger: what is read has the data of its events, wanted or not."""

_EVENT_BYTES: Final = 2 * 4 + DESCRIPTOR_BYTES
"""Bytes of a feed for each event beside its metadata."""

_SIZE_BYTES: Final = 4

EVENT_DESCRIPTOR_BYTES: Final = _SIZE_BYTES + DESCRIPTOR_BYTES
"""Bytes of a feed for each event's descriptor and its size."""

_RANGES_MAX: Final = 1 << 16


class FeedAsk(msgspec.Struct, frozen=True, array_like=True):
    """What a consumer grants a feed. ``reader`` names its connection within its shard.

    ``max_wait_ms`` is not negative.
    """

    raft_group: int
    reader: int
    leader_epoch: int
    offset: Offset
    events_max: int
    max_bytes: int
    max_wait_ms: int
    stop: bool


class Fed(msgspec.Struct, frozen=True, array_like=True):
    """A feed without its metadata, which travel beside it."""

    error: int = 0
    message: str = ""
    first: int = -1
    high_watermark: int = -1
    start: int = -1
    no_more: bool = False
    times: list[tuple[int, int]] = []
    metadata_sizes: bytes = b""
    descriptor_sizes: bytes = b""
    descriptors: bytes = b""
    late: bool = False
    """There are events in the object store, which has not answered in time."""


class DataAsk(msgspec.Struct, frozen=True, array_like=True):
    """Data wanted of one partition: event ids, and the descriptors that select."""

    raft_group: int
    leader_epoch: int
    max_bytes: int
    wanted: list[tuple[int, bytes]]


class FoundData(msgspec.Struct, frozen=True, array_like=True):
    """Error code and size of the first events of a fetch; the bytes travel beside it."""

    error: int = 0
    message: str = ""
    results: list[tuple[int, int]] = []


class EventMeters:
    """Counters of one shard: what consumers read, from memory and from files."""

    def __init__(self, stats: StatsSlab) -> None:
        self.fed_cached = stats.counter("events_fed", source="cache")
        self.fed_cold = stats.counter("events_fed", source="segment")
        self.fed_archived = stats.counter("events_fed", source="archive")
        self.data_cached = stats.counter("event_data_bytes", source="cache")
        self.data_cold = stats.counter("event_data_bytes", source="segment")
        self.data_archived = stats.counter("event_data_bytes", source="archive")


def check_events(partition: Partition, views: Sequence[memoryview]) -> ErrorCode:
    """What is wrong with a batch for an event topic; NONE if nothing is."""
    if partition.config.events_complete:
        return ErrorCode.POLICY_VIOLATION
    data = views[0] if len(views) == 1 else memoryview(b"".join(views))
    try:
        decode_event_batch(data, event_bytes_max=partition.config.events_max_bytes, verify=False)
    except BatchError as error:
        return error.code
    return ErrorCode.NONE


# -- feed --------------------------------------------------------------------------------------------------------------


def feed(
    partition: Partition,
    reads: EventReads,
    ask: FeedAsk,
    done: Callable[[Fed, IoBuf | None], None],
    meters: EventMeters,
) -> None:
    """Call ``done`` once, now or when the worker has read; with an empty feed where there is nothing yet."""
    failed = int(ErrorCode.KAFKA_STORAGE_ERROR)
    asked = Asked[tuple[Fed, IoBuf | None]](partition, "feed", _apart(done), (Fed(failed), None))
    asked.run(_feed, partition, reads, ask, _once(asked), meters, asked)


def _apart(done: Callable[[Answer, IoBuf | None], None]) -> Callable[[tuple[Answer, IoBuf | None]], None]:
    return lambda answer: done(*answer)


def _once(asked: Asked[tuple[Answer, IoBuf | None]]) -> Callable[[Answer, IoBuf | None], None]:
    """Answers a request; bytes for one that was answered before are released."""

    def done(answer: Answer, data: IoBuf | None) -> None:
        if data is not None and not asked.is_open:
            data.release()
        asked((answer, data))

    return done


def _feed(
    partition: Partition,
    reads: EventReads,
    ask: FeedAsk,
    done: Callable[[Fed, IoBuf | None], None],
    meters: EventMeters,
    asked: Asked[tuple[Fed, IoBuf | None]],
) -> None:
    refusal = _refusal(partition, ask) or offset_error(partition, ask.offset)
    if refusal is not ErrorCode.NONE:
        done(_nothing(partition, error=refusal), None)
        return
    log, end = partition.log, partition.high_watermark
    assert isinstance(log, EventLog)
    if ask.offset >= end:
        complete = partition.config.events_complete and end == log.next_offset
        done(_nothing(partition, no_more=ask.stop or complete), None)
        return
    events_max, max_bytes = max(1, ask.events_max), min(max(0, ask.max_bytes), FEED_BYTES_MAX)
    cached = log.read(Offset(ask.offset), Offset(end), _HOT_BYTES, True)
    if cached is not None and log.place_of(Offset(ask.offset)) is not None:
        fed, metadata = _feed_batches(partition, cached, Offset(ask.offset), events_max, max_bytes, log.place_of)
        meters.fed_cached.inc(len(fed.metadata_sizes) // _SIZE_BYTES)
        cached.release()
        done(fed, metadata)
        return
    if cached is not None:
        cached.release()
    if partition.archive is not None and partition.archive.has(Offset(ask.offset)):

        def read_archived(batches: IoBuf | MillstreamError | None) -> None:
            if batches is None:
                done(_nothing(partition, late=True), None)
                return
            if isinstance(batches, MillstreamError):
                done(_nothing(partition, error=batches.code, message=batches.message), None)
                return
            fed, metadata = _feed_batches(partition, batches, Offset(ask.offset), events_max, max_bytes, None)
            batches.release()
            meters.fed_archived.inc(len(fed.metadata_sizes) // _SIZE_BYTES)
            done(fed, metadata)

        offset, then = Offset(ask.offset), partial(asked.run, read_archived)
        partition.archive.read(offset, _ARCHIVED_BYTES, then, minimum_one=True, patience_us=STORE_PATIENCE_US)
        return

    def read(found: tuple[EventsFed, IoBuf] | MillstreamError) -> None:
        if isinstance(found, MillstreamError):
            done(_nothing(partition, error=found.code, message=found.message), None)
            return
        answered, data = found
        sizes_at = answered.meta_bytes + answered.count * _SIZE_BYTES
        descriptors_at = sizes_at + answered.count * _SIZE_BYTES
        fed = Fed(
            first=ask.offset,
            high_watermark=partition.high_watermark,
            start=log.start_offset,
            times=answered.times,
            metadata_sizes=data.copy(answered.meta_bytes, answered.count * _SIZE_BYTES),
            descriptor_sizes=data.copy(sizes_at, answered.count * _SIZE_BYTES),
            descriptors=data.copy(descriptors_at, answered.bytes - descriptors_at),
        )
        metadata = data.share(0, answered.meta_bytes)
        data.release()
        partition.fetched_bytes += answered.bytes
        meters.fed_cold.inc(answered.count)
        done(fed, metadata)

    then = partial(asked.run, read)
    reads.feed(log, Offset(ask.offset), Offset(end), min(events_max, 1 << 30), max_bytes, then)


def _nothing(
    partition: Partition, *, error: int = 0, message: str = "", no_more: bool = False, late: bool = False
) -> Fed:
    return Fed(
        error=int(error),
        message=message,
        first=-1,
        high_watermark=partition.high_watermark,
        start=partition.log.start_offset,
        no_more=no_more,
        late=late,
    )


def _refusal(partition: Partition, ask: FeedAsk | DataAsk) -> ErrorCode:
    return partition.serving(ask.leader_epoch) if ask.leader_epoch >= 0 or partition.refusal else ErrorCode.NONE


def _feed_batches(
    partition: Partition,
    cached: IoBuf,
    offset: Offset,
    events_max: int,
    max_bytes: int,
    place_of: Callable[[Offset], BatchPlace | None] | None,
) -> tuple[Fed, IoBuf]:
    """The same from whole batches in memory. ``place_of`` gives their places in chunks; without it they have none."""
    metadata = IoBuf()
    times: list[tuple[int, int]] = []
    meta_sizes: list[bytes] = []
    descriptors: list[bytes] = []
    count = taken = at = 0
    first = offset
    while at < len(cached) and count < events_max:
        batch = EventBatchView.at(cached, BytePosition(at))
        at += batch.size
        skip = offset - batch.base
        left = min(batch.events - skip, events_max - count)
        fitting = 0
        for size in batch.meta_sizes[skip : skip + left]:
            taken += size + _EVENT_BYTES
            if taken > max_bytes and (count or fitting):
                break
            fitting += 1
        place = None if place_of is None else place_of(Offset(batch.base))
        if (place is None and place_of is not None) or not fitting:
            break
        start = batch.meta_at + sum(batch.meta_sizes[:skip])
        wanted = batch.meta_sizes[skip : skip + fitting]
        metadata.append_buf(cached.share(start, sum(wanted)))
        every = described(place, batch)
        descriptors.append(every[skip * DESCRIPTOR_BYTES : (skip + fitting) * DESCRIPTOR_BYTES])
        meta_sizes.append(wanted.tobytes())
        times.append((fitting, batch.timestamp))
        count += fitting
        offset = Offset(offset + fitting)
        if fitting < left:
            break
    partition.fetched_bytes += len(metadata) + count * _EVENT_BYTES
    fed = Fed(
        first=first,
        high_watermark=partition.high_watermark,
        start=partition.log.start_offset,
        times=times,
        metadata_sizes=b"".join(meta_sizes),
        descriptor_sizes=DESCRIPTOR_BYTES.to_bytes(_SIZE_BYTES, "little") * count,
        descriptors=b"".join(descriptors),
    )
    return fed, metadata


# -- data --------------------------------------------------------------------------------------------------------------


def fetch_data(
    partition: Partition,
    reads: EventReads,
    ask: DataAsk,
    done: Callable[[FoundData, IoBuf | None], None],
    meters: EventMeters,
) -> None:
    """Call ``done`` once, now or when the worker has read, with the first of the wanted events: those that are in
    memory, or those of one chunk that are not.
    """
    failed = int(ErrorCode.KAFKA_STORAGE_ERROR)
    asked = Asked[tuple[FoundData, IoBuf | None]](partition, "event data", _apart(done), (FoundData(failed), None))
    asked.run(_fetch_data, partition, reads, ask, _once(asked), meters, asked)


def _fetch_data(
    partition: Partition,
    reads: EventReads,
    ask: DataAsk,
    done: Callable[[FoundData, IoBuf | None], None],
    meters: EventMeters,
    asked: Asked[tuple[FoundData, IoBuf | None]],
) -> None:
    refusal = _refusal(partition, ask)
    if refusal is not ErrorCode.NONE or not ask.wanted:
        done(FoundData(int(refusal)), None)
        return
    log = partition.log
    assert isinstance(log, EventLog)
    max_bytes = min(max(0, ask.max_bytes), FETCH_BYTES_MAX)
    results, found = _fetch_held(partition, ask.wanted, max_bytes, partial(_cached_batch, partition, log))
    if results:
        partition.fetched_bytes += len(found)
        meters.data_cached.inc(len(found))
        done(FoundData(results=results), found)
        return
    if partition.archive is not None and partition.archive.has(Offset(ask.wanted[0][0])):
        _fetch_archived(partition, partition.archive, ask.wanted, max_bytes, done, meters, asked)
        return
    cold = _below(ask.wanted, Offset(partition.high_watermark))
    room = sum(_selected_bytes(one) for _, one in cold)

    def read(answer: tuple[DataFetched, IoBuf] | MillstreamError) -> None:
        if isinstance(answer, MillstreamError):
            done(FoundData(int(answer.code), answer.message), None)
            return
        fetched, data = answer
        partition.fetched_bytes += len(data)
        meters.data_cold.inc(len(data))
        done(FoundData(results=fetched.results), data)

    reads.fetch(log, cold, max_bytes, room, partial(asked.run, read))


def _fetch_archived(
    partition: Partition,
    archive: PartitionArchive,
    wanted: Sequence[Wanted],
    max_bytes: int,
    done: Callable[[FoundData, IoBuf | None], None],
    meters: EventMeters,
    asked: Asked[tuple[FoundData, IoBuf | None]],
) -> None:
    """The first of the wanted events, and those after it that one read of the object store has as well."""

    def read(batches: IoBuf | MillstreamError | None) -> None:
        assert batches is not None, "the data are waited for"
        if isinstance(batches, MillstreamError):
            done(FoundData(int(batches.code), batches.message), None)
            return
        held = ReadBatches(batches)
        results, found = _fetch_held(partition, wanted, max_bytes, held.batch_of)
        batches.release()
        partition.fetched_bytes += len(found)
        meters.data_archived.inc(len(found))
        done(FoundData(results=results), found)

    archive.read(Offset(wanted[0][0]), _ARCHIVED_BYTES, partial(asked.run, read), minimum_one=True)


def _below(wanted: list[Wanted], end: Offset) -> list[Wanted]:
    """The first of the wanted events that are committed; the first of all is."""
    for place, (offset, _) in enumerate(wanted):
        if offset >= end:
            return wanted[:place]
    return wanted


def _selected_bytes(descriptor: bytes) -> int:
    """What a descriptor says that it selects; a wrong one is refused later."""
    return min(int.from_bytes(descriptor[:8], "little"), FETCH_BYTES_MAX)


def _fetch_held(
    partition: Partition,
    wanted: Sequence[Wanted],
    max_bytes: int,
    batch_of: Callable[[Offset], HeldBatch | None],
) -> tuple[list[tuple[int, int]], IoBuf]:
    """Results and bytes of the first events, as long as they are refused or ``batch_of`` has their batch."""
    results: list[tuple[int, int]] = []
    found = IoBuf()
    held: HeldBatch | None = None
    ranges_left = _RANGES_MAX
    taken = 0
    try:
        for offset, text in wanted:
            if not partition.log.start_offset <= offset < partition.high_watermark:
                results.append((int(ErrorCode.OFFSET_OUT_OF_RANGE), 0))
                continue
            if held is None or not held.base <= offset < held.end:
                if held is not None:
                    held.give_up(found)
                held = batch_of(Offset(offset))
                if held is None:
                    break
            try:
                ranges = held.selected(Offset(offset), text, ranges_left)
            except MillstreamError as error:
                results.append((int(error.code), 0))
                continue
            selected = sum([end - start for start, end in ranges])
            if results and taken + selected > max_bytes:
                break
            ranges_left -= len(ranges) - 1
            taken += selected
            held.take(ranges, found)
            results.append((0, selected))
    finally:
        if held is not None:
            held.give_up(found)
    return results, found


def _cached_batch(partition: Partition, log: EventLog, offset: Offset) -> HeldBatch | None:
    """The batch with an offset; None if it is not in memory."""
    place = log.place_of(offset)
    buffer = None if place is None else log.read(offset, Offset(partition.high_watermark), 0, True)
    if buffer is None:
        return None
    assert place is not None
    return HeldBatch(place, EventBatchView.at(buffer, BytePosition(0)), buffer)
