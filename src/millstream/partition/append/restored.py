"""RestoreBatches on a partition's home shard: batches of a backup go to the end of the log, with their own offsets.

::

    restore_batches ─► all batches are checked ─► append each (`Group.replicate`) ─► the last is committed ─► done
                                                   └ no memory now: continues in its turn, before producers' batches

A batch keeps everything but its leader epoch: records, codec, timestamps, headers, producer. What a producer's batch is
asked (``append.checks``) is not asked again: sequences, the age of records, transactions, keys. Markers are taken as
they are, and end their transactions here. The state of producers is entered as on a replica that follows.

A batch may be empty: no record, but a last offset delta, as compaction leaves them. So a backup has the offsets that a
compacted log lacks, and those before the first record of a log.

**Bad input.** A batch that is not whole, has a wrong checksum or a header that contradicts itself, does not continue
the log, or is not of the topic's kind refuses the request; nothing is appended then. **Crash.** As of a produce: what
was answered is committed. A client that got no answer asks for the end of the log. **Overload.** The request waits for
memory like the broker's own appends, and holds its bytes; a client has one outstanding request a partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.core.producer_state import LAST_SEQUENCE
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Retriable
from millstream.format.events.batch import EVENTS
from millstream.format.segment import WalkEnd, whole_batches
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.append.known_producers import enter_batch
from millstream.partition.asked import Asked
from millstream.partition.events.feeds import check_events
from millstream.partition.partition import Gate, Partition, own_append
from millstream.wire.batch import CODEC_LAST, HEADER_BYTES, RECORD_BYTES_MIN, parse_header
from millstream.wire.records import CONTROL, batch_crc_ok, marker_of, unpack_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.segment import Batch
    from millstream.wire.batch import BatchHeader

_OF_THE_BROKER: Final = int(Gate.INTERNAL)
_EVENTS: Final = int(Gate.EVENTS)


def restore_batches(
    partition: Partition, data: bytes, now_ms: int, done: Callable[[int | MillstreamError], None]
) -> None:
    """Call ``done`` once, with the end of the log when the batches in ``data`` are committed, or with why they are not
    appended. ``now_ms`` is the wall clock.
    """
    refusal = OutcomeUnknown(f"{partition.log.name}: the partition failed", ErrorCode.REQUEST_TIMED_OUT)
    asked = Asked["int | MillstreamError"](partition, "restoring", done, refusal)
    asked.run(_restore_batches, partition, data, now_ms, asked)


def _restore_batches(partition: Partition, data: bytes, now_ms: int, asked: Asked[int | MillstreamError]) -> None:
    view = memoryview(data)
    try:
        batches = _checked(partition, view)
    except MillstreamError as error:
        asked(error)
        return
    restoring = _Restoring(partition, view, batches, now_ms, asked)
    own_append(partition.admission, restoring.attempt)
    if partition.admission is None and not restoring.ended:
        asked(Retriable(f"{partition.log.name}: no memory now", ErrorCode.NOT_ENOUGH_REPLICAS))


def _checked(partition: Partition, view: memoryview) -> list[Batch]:
    """The batches in ``view``. Raises MillstreamError."""
    name = partition.log.name
    _check_leads(partition)
    if partition.gate & _OF_THE_BROKER:
        raise Rejected(f"{name} is the broker's own topic", ErrorCode.INVALID_TOPIC_EXCEPTION)
    batches: list[Batch] = []
    expected = partition.log.next_offset
    try:
        for one in whole_batches(view):
            if one.base_offset != expected:
                what = f"{name} ends at offset {expected}, the batch starts at {one.base_offset}"
                raise Rejected(what, ErrorCode.OFFSET_OUT_OF_RANGE)
            _check_batch(partition, view[one.position : one.position + one.size], one)
            batches.append(one)
            expected = Offset(one.last_offset + 1)
    except WalkEnd as end:
        raise Rejected(f"{name}: byte {end.position} of the request: {end.reason}", ErrorCode.CORRUPT_MESSAGE) from None
    if not batches:
        raise Rejected(f"{name}: the request has no batch", ErrorCode.INVALID_RECORD)
    return batches


def _check_leads(partition: Partition) -> None:
    if partition.refusal:
        raise Retriable(f"{partition.log.name} does not lead here", partition.refusal)
    if partition.archive is not None and partition.config.is_shared and partition.archive.is_full():
        raise Retriable(f"{partition.log.name}: too much is not uploaded", ErrorCode.NOT_ENOUGH_REPLICAS)


def _check_batch(partition: Partition, batch: memoryview, one: Batch) -> None:
    what = f"{partition.log.name}: the batch at offset {one.base_offset}"
    if not batch_crc_ok(batch):
        raise Rejected(f"{what} has a wrong checksum", ErrorCode.CORRUPT_MESSAGE)
    if one.size > partition.config.segment_bytes:
        raise Rejected(f"{what} is larger than a segment", ErrorCode.RECORD_LIST_TOO_LARGE)
    if one.last_offset - one.base_offset >= LAST_SEQUENCE:
        raise Rejected(f"{what} has more offsets than a batch has records", ErrorCode.INVALID_RECORD)
    header = parse_header(batch)
    if contradiction := _contradiction(header):
        raise Rejected(f"{what} has {contradiction}", ErrorCode.INVALID_RECORD)
    events = bool(header.attributes & EVENTS)
    if events != bool(partition.gate & _EVENTS):
        kind = "events" if events else "records"
        raise Rejected(f"{what} has {kind}, the topic is of the other kind", ErrorCode.INVALID_RECORD)
    if events and (code := check_events(partition, (batch,))) is not ErrorCode.NONE:
        raise Rejected(f"{what} has events that the topic does not take: {code.name}", code)


def _contradiction(header: BatchHeader) -> str:
    """What contradicts itself in the header of a batch of a log; empty if nothing does. Compaction leaves fewer records
    than offsets.
    """
    count, offsets = header.record_count, header.last_offset_delta + 1
    if not 0 <= count <= offsets:
        return f"{count} records in {offsets} offsets"
    if header.attributes & EVENTS:
        return ""
    if header.codec > CODEC_LAST:
        return f"the unknown codec {header.codec}"
    if header.codec == 0 and count * RECORD_BYTES_MIN > header.size - HEADER_BYTES:
        return f"{count} records in {header.size} bytes"
    if header.producer_id >= 0 and header.producer_epoch < 0:
        return f"producer {header.producer_id} without an epoch"
    return ""


class _Restoring:
    """The batches of one request on their way into the log, and who waits for the commit of the last
    (``partition.AckWaiter``).
    """

    __slots__ = ("_asked", "_batches", "_next", "_now_ms", "_partition", "_view", "ended")

    def __init__(
        self,
        partition: Partition,
        view: memoryview,
        batches: list[Batch],
        now_ms: int,
        asked: Asked[int | MillstreamError],
    ) -> None:
        self._partition = partition
        self._view = view
        self._batches = batches
        self._now_ms = now_ms
        self._asked = asked
        self._next = 0
        self.ended = False
        """All batches are in the log, or none of the rest will be."""

    def attempt(self) -> bool:
        """Append what is left; False: no memory now."""
        try:
            self.ended = self._append()
        except Exception as error:  # noqa: BLE001 - the boundary
            self._partition.failed("restoring", error)
            self._asked.refuse()
            self.ended = True
        return self.ended

    def _append(self) -> bool:
        partition = self._partition
        while self._next < len(self._batches):
            one = self._batches[self._next]
            try:
                _check_leads(partition)
                if partition.log.next_offset != one.base_offset:
                    what = f"{partition.log.name}: another client has appended at offset {one.base_offset}"
                    raise Rejected(what, ErrorCode.OFFSET_OUT_OF_RANGE)
                self._replicate(one)
            except ArenaFull:
                return False
            except MillstreamError as error:
                self._asked(error)
                return True
            self._next += 1
        end = partition.log.next_offset
        if end <= partition.high_watermark:
            self.acked(0)
        else:
            partition.waiters.acks.append((end, self, 0))
        return True

    def _replicate(self, one: Batch) -> None:
        partition = self._partition
        batch = self._view[one.position : one.position + one.size]
        count = one.last_offset - one.base_offset + 1
        base = partition.group.replicate((batch,), one.size, count, one.max_timestamp)
        assert base == one.base_offset, "the offset was compared in this very turn"
        header = list(unpack_header(batch, 0))
        if header[5] & CONTROL:
            header += marker_of(batch)
        enter_batch(partition.producers, header, self._now_ms)
        partition.meters.accepted(one.size, one.records)

    def acked(self, slot: int) -> None:
        """The last batch is committed."""
        assert slot == 0
        self._asked(self._batches[-1].last_offset + 1)

    def expire(self, now_us: int) -> None:
        """The broker's own appends wait for as long as it takes."""

    def failed(self, slot: int, error: ErrorCode) -> None:
        """The outcome is unknown."""
        assert slot == 0
        self._asked(OutcomeUnknown(f"{self._partition.log.name}: the batches may be in the log or not", error))
