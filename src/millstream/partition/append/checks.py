"""Append one producer batch to a partition: check it, give it offsets, hand it to the group.

The broker looks at the batch's 61-byte header and its checksum, not at its records. What is checked, in this order,
and the error that the client gets when it does not hold:

===========================================  =====================================
exactly one batch, whole, of format 2        INVALID_RECORD (CORRUPT_MESSAGE: a
                                             format or length that cannot be)
no larger than ``max.message.bytes`` and     MESSAGE_TOO_LARGE,
``segment.bytes``                            RECORD_LIST_TOO_LARGE
CRC-32C over everything after the epoch      CORRUPT_MESSAGE
base offset 0, count matches the offset      INVALID_RECORD
deltas, a codec that exists
no control batch; one of a transaction has   INVALID_RECORD
a producer and a sequence number, and its    TRANSACTIONAL_ID_AUTHORIZATION_FAILED
request names the transaction
this replica leads                           NOT_LEADER_OR_FOLLOWER
the topic is not one of the broker's own     INVALID_TOPIC_EXCEPTION
at an event topic: events that are not too   INVALID_RECORD, MESSAGE_TOO_LARGE,
large, and the topic is not complete; no     POLICY_VIOLATION,
part of a transaction                        INVALID_TXN_STATE
timestamp inside the topic's bounds          INVALID_TIMESTAMP
a producer whose transaction is open here    INVALID_TXN_STATE
writes to it only
idempotent sequence is the next one          OUT_OF_ORDER_SEQUENCE_NUMBER, … or the first answer again
===========================================  =====================================

A batch that the header does not settle is ``Blocked``, and ``append.admission`` knows what it needs. The records have
to be inspected if the topic has a codec of its own or asks something of every record, or if the largest timestamp is
out of bounds. The first batch of a transaction needs its coordinator's verdict. Records of other topics are stored
unread: that they fill their batch as its header says is between producer and consumer, guarded by the checksum. (Apache
Kafka walks over every record, which here would double the cost of a batch.)

A refused or blocked batch leaves no trace. A lack of memory and a full disk are retriable errors, found before an
offset is given. The base offset and the leader epoch are written in the log's own copy, outside the checksum; nothing
else changes, but for topics with LogAppendTime, whose header is rewritten and summed again.

Source: KIP-98 (batch format, idempotence), KIP-32 and KIP-937 (timestamps).
"""

import struct
from collections.abc import Sequence
from typing import Final

from crc32c import crc32c

from millstream.core.producer_state import Append, Duplicate
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Retriable, Unavailable
from millstream.format.events.batch import EVENTS, push_sizes
from millstream.iobuf import ArenaFull
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, ProducerEpoch, ProducerId, SlotIndex
from millstream.model.quantities import Sequence as SequenceNumber
from millstream.partition.append.batch import AppendCall, AppendResult, Blocked, Outcome
from millstream.partition.events.feeds import check_events
from millstream.partition.events.partition import EventsPartition
from millstream.partition.partition import Gate, Partition
from millstream.wire.compression import CODECS, Codec
from millstream.wire.records import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    MAGIC,
    OVERHEAD_BYTES,
    RECORD_BYTES_MIN,
    TRANSACTIONAL,
    checksum,
    unpack_header,
)

_REFUSING: Final = int(Gate.CLOSED | Gate.FOLLOWING | Gate.INTERNAL | Gate.FAILED)
_CODEC: Final = int(Gate.CODEC)
_EVENTS: Final = int(Gate.EVENTS)
_SHARED: Final = int(Gate.SHARED)
_SPECIAL: Final = CONTROL | TRANSACTIONAL | EVENTS

_ATTRIBUTES_AND_DELTA: Final = struct.Struct(">hi")
_CRC_AT: Final = 17
_MAX_TIMESTAMP_AT: Final = 35
_LAST_CODEC: Final = int(Codec.ZSTD)
_NONE: Final = int(ErrorCode.NONE)


def _refused(code: ErrorCode) -> Outcome:
    return Outcome(int(code))


_CORRUPT: Final = _refused(ErrorCode.CORRUPT_MESSAGE)
_MALFORMED: Final = _refused(ErrorCode.INVALID_RECORD)
_INVALID: Final = _refused(ErrorCode.INVALID_RECORD)
_TOO_LARGE: Final = _refused(ErrorCode.MESSAGE_TOO_LARGE)
_LARGER_THAN_SEGMENT: Final = _refused(ErrorCode.RECORD_LIST_TOO_LARGE)
_NOT_LEADER: Final = _refused(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_CLOSED: Final = _refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
_UNKNOWN: Final = _refused(ErrorCode.REQUEST_TIMED_OUT)
_STORAGE: Final = _refused(ErrorCode.KAFKA_STORAGE_ERROR)
_TOO_LATE: Final = _refused(ErrorCode.INVALID_TIMESTAMP)
_OWN_TOPIC: Final = _refused(ErrorCode.INVALID_TOPIC_EXCEPTION)
_OUTSIDE: Final = _refused(ErrorCode.INVALID_TXN_STATE)
_TRANSACTIONAL: Final = _refused(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)

_FULL: Final = _refused(ErrorCode.NOT_ENOUGH_REPLICAS)
"""The object store lacks too much of the shared topics. Its clients try again; no other client waits for it."""

_SAYS_NO_START: Final = frozenset(
    int(code)
    for code in (
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    )
)


def reported_start_offset(partition: Partition, outcome: Outcome) -> int:
    """The log start offset that goes with a refusal; Kafka sends it with some and not with others."""
    return -1 if outcome is _MALFORMED or outcome.error_code in _SAYS_NO_START else partition.log.start_offset


def append(
    partition: Partition,
    views: Sequence[memoryview],
    size: int,
    now_ms: int,
    *,
    accepts_writes: bool,
    inspected: bool = False,
    transactional: bool = False,
) -> Outcome | Blocked:
    """Produce 5/8. Check the batch in ``views`` (``size`` bytes in all) and propose it.

    ``views`` are borrowed: they are copied before this returns. ``now_ms`` is the wall clock for timestamp rules.
    ``inspected``: the records were inspected and found good. ``transactional``: the request names a transaction.
    """
    try:
        return _append(partition, views, size, now_ms, accepts_writes, inspected, transactional)
    except Exception as error:  # noqa: BLE001 - the boundary
        partition.failed("append", error)
        return _UNKNOWN


def _append(  # noqa: C901 - a list of checks reads best as one
    partition: Partition,
    views: Sequence[memoryview],
    size: int,
    now_ms: int,
    accepts_writes: bool,
    inspected: bool,
    transactional: bool,
) -> Outcome | Blocked:
    if not accepts_writes:
        partition.gaps.expect(now_ms)
        return _STORAGE
    if size < HEADER_BYTES:
        return _MALFORMED
    head = views[0]
    if len(head) < HEADER_BYTES:
        head = memoryview(b"".join(views))[:HEADER_BYTES]
    first, length, _, magic, crc, attributes, last_delta, _, newest, pid, epoch, sequence, count = unpack_header(head)
    if magic != MAGIC or length + OVERHEAD_BYTES != size:
        # As Kafka: one that clients do not try again for what cannot get better.
        return _CORRUPT if magic > MAGIC or length + OVERHEAD_BYTES < HEADER_BYTES else _MALFORMED
    if size > partition.batch_bytes_max:
        return _TOO_LARGE if size > partition.config.max_message_bytes else _LARGER_THAN_SEGMENT
    if (crc32c(head[CRC_START:]) if len(views) == 1 else checksum(views)) != crc:
        return _CORRUPT
    codec = attributes & CODEC_MASK
    too_many = not codec and count * RECORD_BYTES_MIN > size - HEADER_BYTES
    if count < 1 or last_delta != count - 1 or codec > _LAST_CODEC or first or too_many:
        return _INVALID
    if attributes & _SPECIAL and (stop := _special(partition, attributes, pid, epoch, sequence, transactional)):
        return stop
    if partition.gate & _EVENTS:
        if stop := _at_events(partition, views, attributes, newest, now_ms, inspected):
            return stop
        inspected = True
    elif (partition.gate or attributes & LOG_APPEND_TIME) and (stop := _stopped(partition, attributes, inspected)):
        return stop
    config = partition.config
    append_time = -1
    if config.message_timestamp_type != "CreateTime":
        append_time = newest = now_ms
        views = _stamp_append_time(views, now_ms)
    elif newest - now_ms > config.message_timestamp_after_max_ms and not inspected:
        return Blocked.NEEDS_INSPECTION  # which of the records are to blame, and whether it is true
    if pid >= 0:
        verdict = partition.producers.check(pid, epoch, sequence, count)
        expected = now_ms < partition.gaps.until_ms and partition.gaps.is_expected(now_ms)
        if verdict is not Append or (expected and _overtakes(partition, pid, epoch, sequence)):
            return _sequence_verdict(partition, verdict, now_ms)
        if partition.transactions.open and not attributes & TRANSACTIONAL and pid in partition.transactions.open:
            return _OUTSIDE
    try:
        base = partition.group.replicate(views, size, count, newest)
    except ArenaFull:
        return Blocked.NO_MEMORY
    except MillstreamError as error:
        partition.gaps.expect(now_ms)
        return _refused(error.code)
    if pid >= 0:
        partition.producers.record(pid, epoch, sequence, count, base, newest, now_ms)
        if attributes & TRANSACTIONAL:
            partition.transactions.began(pid, base)
    if attributes & EVENTS:
        assert isinstance(partition, EventsPartition), "a topic's kind never changes"
        partition.lease_until_committed(Offset(base + count))
    partition.meters.accepted(size, count)
    return Outcome(_NONE, base, base + count, append_time)


def settle(partition: Partition, outcome: Outcome, call: AppendCall, slot: SlotIndex, *, own_sync: bool) -> None:
    """Enter the outcome of an append into its slot, which is settled now or when a commit covers the batch.
    ``own_sync``: the leader's own disk is enough (acks=1).
    """
    try:
        waits = _settle(partition, outcome, call, slot)
        if waits:
            partition.park((outcome.end_offset, call, slot), own_sync=own_sync)
    except Exception as error:  # noqa: BLE001 - the boundary
        partition.failed("acknowledgement", error)
        call.failed(slot, ErrorCode.REQUEST_TIMED_OUT)
        return
    if not waits:
        call.acked(slot)


def _settle(partition: Partition, outcome: Outcome, call: AppendCall, slot: SlotIndex) -> bool:
    """Enter the outcome of an append. Returns whether the slot waits for a commit."""
    error, base, append_time = outcome.error_code, outcome.base_offset, outcome.log_append_time_ms
    if error:
        partition.meters.rejected.inc()
        start = reported_start_offset(partition, outcome)
    else:
        start = partition.log.start_offset
    call.results[slot] = AppendResult(error, base, append_time, start)
    return not error and outcome.end_offset > partition.high_watermark


def _stopped(partition: Partition, attributes: int, inspected: bool) -> Outcome | Blocked | None:
    """What is in the way of a batch that is not ordinary, or at a partition that is not; None: continue."""
    gate = partition.gate
    if gate & _REFUSING:
        if gate & Gate.FAILED:
            return _STORAGE
        if gate & Gate.FOLLOWING:
            return _NOT_LEADER
        return _CLOSED if partition.closed else _OWN_TOPIC
    if gate & _SHARED:
        if partition.archive is not None and partition.archive.is_full():
            partition.gaps.expect(partition.log.host.now_ms())
            return _FULL
        gate &= ~_SHARED
    if inspected:
        return None
    codec = CODECS.get(partition.config.compression_type, 0)
    as_wanted = not gate or (gate == _CODEC and attributes & CODEC_MASK == codec)
    claims_time = attributes & LOG_APPEND_TIME
    return None if as_wanted and not claims_time else Blocked.NEEDS_INSPECTION


def _at_events(
    partition: Partition, views: Sequence[memoryview], attributes: int, newest: int, now_ms: int, inspected: bool
) -> Outcome | Blocked | None:
    """What becomes of a batch at an event topic whose header and checksum are good; None: continue. Records of a Kafka
    producer are made into events first (``format.events.from_records``).
    """
    assert isinstance(partition, EventsPartition), "a topic's kind never changes"
    if stop := _stopped(partition, attributes, inspected=True):
        return stop
    if attributes & EVENTS and not inspected and partition.pools.waits_behind():
        return Blocked.NEEDS_BUFFERS
    if partition.gate & Gate.ORDER and not inspected:
        return Blocked.NEEDS_INSPECTION
    if not attributes & EVENTS:
        return _INVALID if inspected else Blocked.NEEDS_INSPECTION
    if newest - now_ms > partition.config.message_timestamp_after_max_ms:
        return _TOO_LATE
    code = check_events(partition, views)
    if code is not ErrorCode.NONE:
        return _refused(code)
    if inspected:
        partition.pools.exempt()
        return None
    return None if partition.pools.admits(*push_sizes(views)) else Blocked.NEEDS_BUFFERS


def _special(
    partition: Partition, attributes: int, producer_id: int, epoch: int, sequence: int, named: bool
) -> Outcome | Blocked | None:
    """What is in the way of a control batch, one of events, or one of a transaction; None: continue."""
    if attributes & EVENTS and not partition.gate & _EVENTS:
        return _INVALID
    if not attributes & (CONTROL | TRANSACTIONAL):
        return None
    if attributes & TRANSACTIONAL and not named:
        return _TRANSACTIONAL
    if attributes & CONTROL or producer_id < 0 or sequence < 0:
        return _INVALID
    if partition.gate & _EVENTS and not partition.gate & _REFUSING:
        return _OUTSIDE
    if partition.gate & _REFUSING or partition.transactions.accepts(producer_id, epoch):
        return None
    return Blocked.NEEDS_VERDICT


def append_trusted(partition: Partition, batch: bytes) -> tuple[int, int] | MillstreamError:
    """Append a batch of the broker's own; (base offset, end offset) or what prevented it. A transactional one opens
    its producer's transaction here; its coordinator has said that the partition is part of it.
    """
    try:
        return _append_trusted(partition, batch)
    except Exception as error:  # noqa: BLE001 - the boundary
        partition.failed("append", error)
        return OutcomeUnknown(f"{partition.log.name}: the partition failed", ErrorCode.REQUEST_TIMED_OUT)


def _append_trusted(partition: Partition, batch: bytes) -> tuple[int, int] | MillstreamError:
    if partition.refusal:
        why = "closed" if partition.closed else "led by another replica"
        return Unavailable(f"{partition.log.name}: the partition is {why}", partition.refusal)
    header = unpack_header(batch, 0)
    count, max_timestamp = header[12], header[8]
    assert header[1] + OVERHEAD_BYTES == len(batch)
    if header[5] & TRANSACTIONAL:
        error = partition.producers.check_epoch(header[9], header[10])
        if error is not ErrorCode.NONE:
            return Rejected(f"{partition.log.name}: producer {header[9]} is fenced", error)
        if not partition.transactions.accepts(header[9], header[10]):
            why = f"{partition.log.name}: the transaction of producer {header[9]} has ended"
            return Rejected(why, ErrorCode.INVALID_TXN_STATE)
    try:
        base = partition.group.replicate((memoryview(batch),), len(batch), count, max_timestamp)
    except ArenaFull:
        return Retriable("no memory for the batch now", ErrorCode.COORDINATOR_NOT_AVAILABLE)
    except MillstreamError as error:
        return error
    if header[5] & TRANSACTIONAL:
        partition.producers.record_epoch(header[9], header[10], base + count, max_timestamp)
        partition.transactions.began(header[9], base)
    return base, base + count


def _stamp_append_time(views: Sequence[memoryview], now_ms: int) -> tuple[memoryview]:
    """The batch with ``now_ms`` as its timestamp, as LogAppendTime wants it, and a fresh checksum."""
    batch = bytearray().join(views)
    attributes, delta = _ATTRIBUTES_AND_DELTA.unpack_from(batch, CRC_START)
    _ATTRIBUTES_AND_DELTA.pack_into(batch, CRC_START, attributes | LOG_APPEND_TIME, delta)
    struct.pack_into(">q", batch, _MAX_TIMESTAMP_AT, now_ms)
    struct.pack_into(">I", batch, _CRC_AT, crc32c(memoryview(batch)[CRC_START:]))
    return (memoryview(batch),)


def _overtakes(partition: Partition, producer_id: ProducerId, epoch: ProducerEpoch, sequence: SequenceNumber) -> bool:
    """Whether the batch may have overtaken the first one of its producer; asked while gaps are expected."""
    known = partition.producers.epoch_of(producer_id) is not None
    return not known and partition.gaps.refuses(producer_id, epoch, sequence)


def _sequence_verdict(partition: Partition, verdict: object, now_ms: int) -> Outcome:
    """A sequence that is not the next one: the answer that was given before, or why not.

    A client has several batches in flight. When the first is refused because the leader hands over, or waits at the
    leader before this one, those after it arrive with a gap before them. They come again in order, so they are refused
    retriably, too. After OUT_OF_ORDER_SEQUENCE_NUMBER librdkafka would start a new producer epoch and send in it what
    is in the log already.
    """
    if isinstance(verdict, Duplicate):
        partition.meters.duplicates.inc()
        # The response has the timestamp of the stored batch, whether producer or broker set it, as in Kafka.
        end = verdict.base_offset + verdict.record_count
        return Outcome(_NONE, verdict.base_offset, end, verdict.timestamp)
    if verdict is Append:
        return _NOT_LEADER  # it may have overtaken the first batch of a producer of whom nothing is known
    if verdict is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and partition.gaps.is_expected(now_ms):
        return _NOT_LEADER
    assert isinstance(verdict, ErrorCode)
    return _refused(verdict)
