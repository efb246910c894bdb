"""Read committed batches from a partition: choose the source by offset.

The tail is in the log cache and is answered at once, as shared views, without touching a file. What is older and in the
page cache is read by the shard itself (``storage.log.page_reads``). The rest goes to the shard's helper process, which
reads the segment into fragments of this shard's arena and checks every batch; the answer comes through a callback in a
later turn. What is no longer in a local segment is read by the archive process from the object store, in the same way.
In each case the reader gets whole batches, the first of which holds the offset it asked for (and may start before it),
and owns the ``IoBuf`` it gets: it must release it once the bytes are sent.

An offset outside [log start, log end] is refused; ``offset_error`` says how. A reader that says in which epoch
its last record was written (``last_fetched_epoch``, KIP-595) learns where its log diverges from this one.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

import msgspec

from millstream.errors import MillstreamError, Rejected, Unavailable
from millstream.format.archive import AbortedSpan
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.asked import Asked
from millstream.partition.partition import Gate, Partition
from millstream.partition.read.epoch_end import epoch_end
from millstream.partition.read.headers import batch_headers
from millstream.partition.read.request import ReadRequest
from millstream.wire.batch import OVERHEAD_BYTES

Divergence = tuple[int, int]
"""(leader epoch, end offset): the last point that the reader's log and this one have in common."""

Aborted = list[tuple[int, int]]
"""Aborted transactions as (producer id, first offset), by first offset."""


class FetchResult(msgspec.Struct, frozen=True, gc=False):
    """What one read of a partition found. Offsets of a partition that is not there are -1."""

    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    data: IoBuf | None = None
    """Whole batches, which the reader must release."""
    diverging: Divergence | None = None
    aborted: Aborted | None = None
    """Aborted transactions among the batches, for a read_committed reader."""
    late: bool = False
    """There are batches in the object store, which has not answered in the request's time."""


_NONE: Final = int(ErrorCode.NONE)
_STORAGE: Final = int(ErrorCode.KAFKA_STORAGE_ERROR)


def refused(code: int) -> FetchResult:
    """Nothing was read, and nothing is said of the partition, as Kafka says nothing either."""
    return FetchResult(code)


_ABORTED_AT_ONCE: Final = 100
"""More aborted transactions than this are listed for the batches that were read only, whose end is found first."""

_COLD_SHARE: Final = 0.85
"""Of the arena: with more in use nothing is read from segments; a fetch then waits until its time is up."""


_EVENTS_BYTES_MAX: Final = 128 * 1024


class Armed(Protocol):
    """A reader that waits for the partition's next change (``partition.read.watch``)."""

    def arm(self, partition: Partition) -> None: ...


def read_here(partition: Partition, request: ReadRequest, watch: Armed) -> FetchResult | None:
    """Fetch 5/8. Read for one fetch from a partition of this shard; None: ``read_older`` has to, from the files.

    A read that finds nothing arms ``watch``.
    """
    try:
        return _read_here(partition, request, watch)
    except Exception as error:  # noqa: BLE001 - the boundary
        partition.failed("read", error)
        return refused(_STORAGE)


def _read_here(partition: Partition, request: ReadRequest, watch: Armed) -> FetchResult | None:
    offset = request.offset
    max_bytes = _limited(partition, request.max_bytes)
    start = partition.log.start_offset
    high_watermark = partition.high_watermark
    stable = partition.last_stable_offset
    end = Offset(stable if request.committed else high_watermark)
    if request.leader_epoch >= 0 or partition.refusal:
        error = partition.serving(request.leader_epoch)
        if request.near and error is ErrorCode.NOT_LEADER_OR_FOLLOWER and partition.serves_near:
            error = ErrorCode.NONE
        if error is not ErrorCode.NONE:
            return refused(int(error))
    if request.last_fetched_epoch >= 0:
        error, diverging = _divergence(partition, offset, request.last_fetched_epoch)
        if diverging is not None:
            return FetchResult(_NONE, high_watermark, stable, start, None, diverging)
        if error is not ErrorCode.NONE:
            return refused(int(error))
    error = ErrorCode.NONE if start <= offset < end else range_error(partition, offset)
    if error is not ErrorCode.NONE:
        return refused(int(error))
    if offset >= end:
        group = partition.group
        if not group.elects and not group.knows_committed:
            return refused(int(ErrorCode.OFFSET_NOT_AVAILABLE))  # a reader would take this for the end of the log
        watch.arm(partition)
        return FetchResult(_NONE, high_watermark, stable, start)
    if max_bytes <= 0 and not request.minimum_one:
        # There is something, but this answer has no room for it; the next fetch of the session looks again.
        return FetchResult(_NONE, high_watermark, stable, start)
    if request.gather:
        watch.arm(partition)
    found = read_cached(partition, offset, max_bytes, minimum_one=request.minimum_one, end=end)
    if found is None:
        found = read_pages(partition, offset, end, max_bytes, minimum_one=request.minimum_one)
        if found is None:
            scarce = _is_scarce(partition, max_bytes)
            return FetchResult(_NONE, high_watermark, stable, start) if scarce else None
    aborted = _aborted_here(partition, offset, end, found) if request.committed else None
    return FetchResult(_NONE, high_watermark, stable, start, found, None, aborted)


def _is_scarce(partition: Partition, max_bytes: int) -> bool:
    """Old data can wait: the memory that is left is for what is being written."""
    arena = partition.log.host.arena
    return arena.in_use_bytes + max_bytes > _COLD_SHARE * arena.capacity_bytes


def read_older(partition: Partition, request: ReadRequest, done: Callable[[FetchResult], None]) -> int:
    """What ``read_here`` left: ``done`` is called when the helper process has read, or when the request's patience with
    the object store is at its end. The same read is joined if it is repeated before the store has answered. Returns how
    much of the request's room the read may take, in bytes.
    """
    if request.patience_us == 0 and partition.archive is not None and partition.archive.has(request.offset):
        ends = partition.high_watermark, partition.last_stable_offset, partition.log.start_offset
        done(FetchResult(_NONE, *ends, late=True))
        return 0
    asked = Asked(partition, "read", done, refused(_STORAGE))
    if partition.gate & Gate.EVENTS and request.max_bytes > _EVENTS_BYTES_MAX:
        request = msgspec.structs.replace(request, max_bytes=_EVENTS_BYTES_MAX)
    asked.run(_read_older, partition, request, asked)
    return max(request.max_bytes, 1)


def _read_older(partition: Partition, request: ReadRequest, done: Asked[FetchResult]) -> None:
    high_watermark = partition.high_watermark
    stable = partition.last_stable_offset
    end = Offset(stable if request.committed else high_watermark)
    archived: list[AbortedSpan] = []

    def read(result: IoBuf | MillstreamError | None) -> None:
        if result is None:
            done(FetchResult(_NONE, high_watermark, stable, partition.log.start_offset, late=True))
        elif isinstance(result, MillstreamError):
            done(refused(int(result.code)))
        elif not done.is_open:
            result.release()  # the partition has failed since
        else:
            data = _within(result, request)
            aborted = None
            if data is not None:
                partition.fetched_bytes += len(data)
                with released_unless_kept(data):
                    aborted = _aborted(partition, request.offset, end, data, archived) if request.committed else None
            done(FetchResult(_NONE, high_watermark, stable, partition.log.start_offset, data, None, aborted))

    then = partial(done.run, read)
    read_cold(partition, request, end, then, archived)


def _within(data: IoBuf, request: ReadRequest) -> IoBuf | None:
    """The batches that the request has room for; the rest is released. A read that was joined may have more."""
    if len(data) <= request.max_bytes:
        return data
    end = 0
    with released_unless_kept(data):
        for position, header in batch_headers(data):
            batch_end = position + header[1] + OVERHEAD_BYTES
            if batch_end > request.max_bytes and (end or not request.minimum_one):
                break
            end = batch_end
    part = data.share(0, end) if end else None
    data.release()
    return part


def _limited(partition: Partition, max_bytes: int) -> int:
    """Events are made into records on the reactor: so many bytes of them at once, which take a millisecond or two."""
    return min(max_bytes, _EVENTS_BYTES_MAX) if _has_events(partition) else max_bytes


def _has_events(partition: Partition) -> bool:
    """Whether it is an event topic's. The gate of most partitions is 0: ``&`` of flags is a function of Python's."""
    return bool(partition.gate and partition.gate & Gate.EVENTS)


def _aborted(
    partition: Partition, offset: Offset, end: Offset, data: IoBuf, archived: Sequence[AbortedSpan] = ()
) -> Aborted | None:
    """The aborted transactions that a read_committed reader has to know for ``data``, which was read from ``offset``
    on and ends at ``end`` or before. ``archived`` are those that the archive named for it: a replica may have come by
    a log without its old part.
    """
    transactions = partition.transactions
    if archived:
        here = transactions.aborted_between(offset, _end_of(data))
        return [one[:2] for one in sorted({*archived, *here}, key=_first_offset)]
    if not transactions:
        return None
    start = offset
    found = transactions.aborted_between(start, end)
    if len(found) > _ABORTED_AT_ONCE:
        found = transactions.aborted_between(start, _end_of(data))
    return [one[:2] for one in found]


def _aborted_here(partition: Partition, offset: Offset, end: Offset, data: IoBuf) -> Aborted | None:
    """The same for data of this replica's log, which are released if that raises."""
    if not partition.transactions:
        return None
    with released_unless_kept(data):
        return _aborted(partition, offset, end, data)


def _first_offset(span: AbortedSpan) -> int:
    return span[1]


def _end_of(data: IoBuf) -> Offset:
    """End offset (exclusive) of the batches in ``data``."""
    end = 0
    for _, header in batch_headers(data):
        end = header[0] + header[6] + 1
    return Offset(end)


def _divergence(partition: Partition, offset: Offset, last_fetched_epoch: int) -> tuple[ErrorCode, Divergence | None]:
    """Where a reader whose last record is of ``last_fetched_epoch`` left this log; the rules are KIP-595's."""
    error, epoch, end = epoch_end(partition, -1, last_fetched_epoch)
    if error:
        return ErrorCode(error), None
    if end < 0 or offset < partition.log.start_offset:
        return ErrorCode.OFFSET_OUT_OF_RANGE, None
    return ErrorCode.NONE, (epoch, end) if epoch < last_fetched_epoch or end < offset else None


def offset_error(partition: Partition, offset: Offset) -> ErrorCode:
    """NONE when ``offset`` may be read. From the high watermark on it is the empty read at the end: a leader that has
    just been elected may know less committed than the reader has seen.
    """
    return partition.refusal or range_error(partition, offset)


def range_error(partition: Partition, offset: Offset) -> ErrorCode:
    """NONE when the log has ``offset`` or ends there. Who leads the partition does not matter."""
    if partition.log.start_offset <= offset <= partition.log.next_offset:
        return ErrorCode.NONE
    return ErrorCode.OFFSET_OUT_OF_RANGE


def read_cached(
    partition: Partition, offset: Offset, max_bytes: int, *, minimum_one: bool, end: Offset | None = None
) -> IoBuf | None:
    """Fetch 6/8. Batches below ``end`` (the high watermark) from the log cache, or None when they are colder than
    that.
    """
    limit = Offset(partition.high_watermark) if end is None else end
    found = partition.log.read(offset, limit, max_bytes, minimum_one)
    if found is not None:
        partition.fetched_bytes += len(found)
    return found


def read_pages(partition: Partition, offset: Offset, end: Offset, max_bytes: int, *, minimum_one: bool) -> IoBuf | None:
    """Batches below ``end`` from a segment that is in the page cache, or None if the helper process has to read, or
    memory is scarce. The helper process puts the batches of events together.
    """
    if _has_events(partition) or _is_scarce(partition, max_bytes):
        return None
    found = partition.log.read_pages(offset, end, max_bytes, minimum_one)
    if found is not None:
        partition.fetched_bytes += len(found)
    return found


@contextmanager
def released_unless_kept(data: IoBuf) -> Generator[None]:
    """Release data that were read if what follows raises."""
    try:
        yield
    except BaseException:
        data.release()
        raise


def read_cold(
    partition: Partition,
    request: ReadRequest,
    end: Offset,
    done: Callable[[IoBuf | MillstreamError | None], None],
    aborted: list[AbortedSpan] | None = None,
) -> None:
    """Batches below ``end`` from a segment file, through the helper process, or from the archive, which has no batch of
    a transaction that has not ended. Then ``aborted`` gets the aborted transactions that the archive has among them.
    ``done`` gets None if the object store has not answered within the request's patience.
    """
    archive, offset, minimum_one = partition.archive, request.offset, request.minimum_one
    if archive is not None and archive.has(offset):
        patience_us = request.patience_us
        archive.read(offset, request.max_bytes, done, minimum_one=minimum_one, aborted=aborted, patience_us=patience_us)
        return
    partition.log.read_cold(offset, end, request.max_bytes, minimum_one, done)


def read(partition: Partition, offset: Offset, max_bytes: int, done: Callable[[IoBuf | MillstreamError], None]) -> None:
    """Read from wherever the batches are; ``done`` may be called before this returns."""
    refusal = Unavailable(f"{partition.log.name}: the partition failed")
    asked = Asked[IoBuf | MillstreamError](partition, "read", done, refusal)
    asked.run(_read, partition, offset, max_bytes, asked)


def _read(partition: Partition, offset: Offset, max_bytes: int, done: Asked[IoBuf | MillstreamError]) -> None:
    error = offset_error(partition, offset)
    if error is not ErrorCode.NONE:
        done(Rejected(f"offset {offset} is not in [{partition.log.start_offset}, {partition.high_watermark}]", error))
        return
    found = read_cached(partition, offset, max_bytes, minimum_one=True)
    if found is not None:
        done(found)
        return

    def read(result: IoBuf | MillstreamError | None) -> None:
        assert result is not None, "the request has patience"
        if not done.is_open and isinstance(result, IoBuf):
            result.release()  # the partition has failed since
        done(result)

    read_cold(partition, ReadRequest(offset, max_bytes), Offset(partition.high_watermark), read)
