"""Events of a partition of this shard: checked when they are appended, fed without their data, fetched in ranges.

``check_events`` is what an event topic asks of a batch beside what any topic does. ``feed`` gives metadata and
descriptors of committed events, ``fetch_data`` the bytes that descriptors select. Both read from the log cache where
the events are still in it, else from the chunks, through the worker.

A feed has no more than what was asked for, but one event at least. A fetch ends where its bytes would pass the limit,
but has one event at least, and a descriptor that is not that of its event is refused by itself. Whatever either returns
has to be released.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from millstream.errors import MillstreamError, Rejected
from millstream.format.events.batch import decode_event_batch
from millstream.format.events.chunk import encode_descriptors, starts
from millstream.format.events.descriptor import DESCRIPTOR_BYTES, decode_descriptor
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import BytePosition, FilePosition, Offset
from millstream.partition.read import offset_error
from millstream.storage.log.event_log import BatchPlace, EventLog
from millstream.wire.batch import HEADER_BYTES, unpack_header
from millstream.wire.errors import BatchError

if TYPE_CHECKING:
    from millstream.partition.partition import Partition
    from millstream.storage.log.event_reads import EventReads, Wanted
    from millstream.storage.messages.commands import DataFetched, EventsFed
    from millstream.telemetry.metrics import StatsSlab

FEED_BYTES_MAX: Final = 4 << 20
"""Metadata and descriptors of one feed, whatever its consumer grants."""

FETCH_BYTES_MAX: Final = 16 << 20
"""Data of one fetch, whatever its consumer grants."""

_HOT_BYTES: Final = 4 << 20
_EVENT_BYTES: Final = 2 * 4 + DESCRIPTOR_BYTES
"""Bytes of a feed for each event beside its metadata."""

_SIZE_BYTES: Final = 4
_RANGES_MAX: Final = 1 << 16


class FeedAsk(msgspec.Struct, frozen=True, array_like=True):
    """What a consumer grants a feed. ``reader`` names its connection within its shard.

    ``max_wait_ms`` is not negative.
    """

    raft_group: int
    reader: int
    leader_epoch: int
    offset: int
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
        self.data_cached = stats.counter("event_data_bytes", source="cache")
        self.data_cold = stats.counter("event_data_bytes", source="segment")


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
        fed, metadata = _feed_cached(partition, log, cached, Offset(ask.offset), events_max, max_bytes)
        meters.fed_cached.inc(len(fed.metadata_sizes) // _SIZE_BYTES)
        cached.release()
        done(fed, metadata)
        return
    if cached is not None:
        cached.release()

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

    reads.feed(log, Offset(ask.offset), Offset(end), min(events_max, 1 << 30), max_bytes, read)


def _nothing(partition: Partition, *, error: int = 0, message: str = "", no_more: bool = False) -> Fed:
    return Fed(
        error=int(error),
        message=message,
        first=-1,
        high_watermark=partition.high_watermark,
        start=partition.log.start_offset,
        no_more=no_more,
    )


def _refusal(partition: Partition, ask: FeedAsk | DataAsk) -> ErrorCode:
    return partition.serving(ask.leader_epoch) if ask.leader_epoch >= 0 or partition.refusal else ErrorCode.NONE


def _feed_cached(
    partition: Partition, log: EventLog, cached: IoBuf, offset: Offset, events_max: int, max_bytes: int
) -> tuple[Fed, IoBuf]:
    """The same from whole batches in memory."""
    metadata = IoBuf()
    times: list[tuple[int, int]] = []
    meta_sizes: list[bytes] = []
    descriptors: list[bytes] = []
    count = taken = at = 0
    first = offset
    while at < len(cached) and count < events_max:
        batch = _Batch.at(cached, BytePosition(at))
        at += batch.size
        skip = offset - batch.base
        left = min(batch.events - skip, events_max - count)
        fitting = 0
        for size in batch.meta_sizes[skip : skip + left]:
            taken += size + _EVENT_BYTES
            if taken > max_bytes and (count or fitting):
                break
            fitting += 1
        place = log.place_of(Offset(batch.base))
        if place is None or not fitting:
            break
        start = batch.meta_at + sum(batch.meta_sizes[:skip])
        wanted = batch.meta_sizes[skip : skip + fitting]
        metadata.append_buf(cached.share(start, sum(wanted)))
        described = encode_descriptors(place.chunk, place.before, batch.data_sizes)
        descriptors.append(described[skip * DESCRIPTOR_BYTES : (skip + fitting) * DESCRIPTOR_BYTES])
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
        start=log.start_offset,
        times=times,
        metadata_sizes=b"".join(meta_sizes),
        descriptor_sizes=DESCRIPTOR_BYTES.to_bytes(_SIZE_BYTES, "little") * count,
        descriptors=b"".join(descriptors),
    )
    return fed, metadata


class _Batch(NamedTuple):
    """An event batch in memory: where its parts are in the buffer that it lies in."""

    base: int
    events: int
    size: int
    timestamp: int
    meta_sizes: array[int]
    meta_at: int
    data_sizes: array[int]
    data_at: int

    @classmethod
    def at(cls, buffer: IoBuf, position: BytePosition) -> _Batch:
        """The batch that begins at a byte of the buffer."""
        header = unpack_header(buffer.copy(position, HEADER_BYTES), 0)
        count = header[12]
        sizes_at = position + HEADER_BYTES
        meta_sizes = _sizes(buffer.copy(sizes_at, count * _SIZE_BYTES))
        meta_at = sizes_at + count * _SIZE_BYTES
        data_sizes_at = meta_at + sum(meta_sizes)
        data_sizes = _sizes(buffer.copy(data_sizes_at, count * _SIZE_BYTES))
        data_at = data_sizes_at + count * _SIZE_BYTES
        return cls(header[0], count, header[1] + 12, header[8], meta_sizes, meta_at, data_sizes, data_at)


def _sizes(data: bytes) -> array[int]:
    sizes = array("I")
    sizes.frombytes(data)
    return sizes


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
    refusal = _refusal(partition, ask)
    if refusal is not ErrorCode.NONE or not ask.wanted:
        done(FoundData(int(refusal)), None)
        return
    log = partition.log
    assert isinstance(log, EventLog)
    max_bytes = min(max(0, ask.max_bytes), FETCH_BYTES_MAX)
    results, found = _fetch_cached(partition, log, ask.wanted, max_bytes)
    if results:
        partition.fetched_bytes += len(found)
        meters.data_cached.inc(len(found))
        done(FoundData(results=results), found)
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

    reads.fetch(log, cold, max_bytes, room, read)


def _below(wanted: list[Wanted], end: Offset) -> list[Wanted]:
    """The first of the wanted events that are committed; the first of all is."""
    for place, (offset, _) in enumerate(wanted):
        if offset >= end:
            return wanted[:place]
    return wanted


def _selected_bytes(descriptor: bytes) -> int:
    """What a descriptor says that it selects; a wrong one is refused later."""
    return min(int.from_bytes(descriptor[:8], "little"), FETCH_BYTES_MAX)


def _fetch_cached(
    partition: Partition, log: EventLog, wanted: Sequence[Wanted], max_bytes: int
) -> tuple[list[tuple[int, int]], IoBuf]:
    """Results and bytes of the first events, as long as they are refused or in memory."""
    results: list[tuple[int, int]] = []
    found = IoBuf()
    held: _CachedBatch | None = None
    ranges_left = _RANGES_MAX
    taken = 0
    try:
        for offset, text in wanted:
            if not log.start_offset <= offset < partition.high_watermark:
                results.append((int(ErrorCode.OFFSET_OUT_OF_RANGE), 0))
                continue
            if held is None or not held.base <= offset < held.end:
                if held is not None:
                    held.give_up(found)
                held = _cached_batch(partition, log, Offset(offset))
                if held is None:
                    break
            try:
                ranges = held.selected(offset - held.base, text, ranges_left)
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


class _CachedBatch:
    """A batch in memory, and what was taken of its data. Ranges that meet are given as one."""

    __slots__ = ("_begins", "_buffer", "_described", "_end", "_sizes", "_start", "_to_chunk", "base", "end")

    def __init__(self, place: BatchPlace, batch: _Batch, buffer: IoBuf) -> None:
        self.base = batch.base
        self.end = batch.base + batch.events
        self._buffer = buffer
        self._sizes = batch.data_sizes
        self._begins = starts(FilePosition(batch.data_at), batch.data_sizes)
        self._to_chunk = place.before.data - batch.data_at
        self._described = encode_descriptors(place.chunk, place.before, batch.data_sizes)
        self._start = self._end = 0

    def selected(self, number: int, text: bytes, ranges_max: int) -> Sequence[tuple[int, int]]:
        """Where in the buffer the bytes are that a descriptor selects of event ``number`` of the batch.

        Raises:
            Rejected: it is not that event's descriptor, or selects too many ranges.
        """
        begin, size = self._begins[number], self._sizes[number]
        if text == self._described[number * DESCRIPTOR_BYTES : (number + 1) * DESCRIPTOR_BYTES]:
            return ((begin, begin + size),)  # all of it, as most consumers want it
        descriptor = decode_descriptor(text)
        if not descriptor.is_of(Offset(self.base + number), FilePosition(begin + self._to_chunk), size):
            raise Rejected(f"the descriptor is not that of event {self.base + number}")
        return [(begin + one.offset, begin + one.end) for one in descriptor.flatten(ranges_max)]

    def take(self, ranges: Sequence[tuple[int, int]], found: IoBuf) -> None:
        """Add ranges to what was found."""
        for start, end in ranges:
            if start != self._end:
                self._flush(found)
                self._start = start
            self._end = end

    def give_up(self, found: IoBuf) -> None:
        """Add what is left, and let the batch go."""
        self._flush(found)
        self._buffer.release()

    def _flush(self, found: IoBuf) -> None:
        if self._end > self._start:
            found.append_buf(self._buffer.share(self._start, self._end - self._start))
        self._start = self._end = 0


def _cached_batch(partition: Partition, log: EventLog, offset: Offset) -> _CachedBatch | None:
    """The batch with an offset; None if it is not in memory."""
    place = log.place_of(offset)
    buffer = None if place is None else log.read(offset, Offset(partition.high_watermark), 0, True)
    if buffer is None:
        return None
    assert place is not None
    return _CachedBatch(place, _Batch.at(buffer, BytePosition(0)), buffer)
