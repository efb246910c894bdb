"""Produce: append record batches to partitions, and answer when they are as durable as ``acks`` demands.

One request names many partitions, whose home shards may differ. Each is a *slot* of a ``ProduceCall``. A slot is
settled when its partition has refused the batch, or has it as durable as ``acks`` demands. The call is answered when
all slots are settled. acks=all waits for the commit, acks=1 for the leader's own disk, which is the same with one
replica. acks=0 is never answered and never waits.

A partition whose commit takes longer than the request's ``timeout_ms`` is answered REQUEST_TIMED_OUT: the batch may
well be in the log, and an idempotent producer's retry will be recognised. A shorter time-out than ``MIN_TIMEOUT_US``
counts as ``MIN_TIMEOUT_US``: in Kafka the time for followers starts after the leader's own write, and here the leader's
own sync is part of the wait, so that a time-out of 0 would fail on a healthy broker. Batches that were appended stay
when the connection closes.
"""

import struct
from collections.abc import Sequence
from typing import Final

from millstream.iobuf import IoBuf
from millstream.kafka.authorize.data import produce_error, transaction_error
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.readable import missing_to_write
from millstream.kafka.rights import Asker
from millstream.kafka.timeouts import bounded_ms
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import SlotIndex
from millstream.partition.append.batch import AppendResult, Batch, Blocked, Outcome, ProducerTransaction
from millstream.partition.append.checks import settle
from millstream.partition.partition import ALL, Acks, Partition
from millstream.partition.table import Remote
from millstream.wire.batch import CODEC_MASK, HEADER_BYTES, MAGIC, TRANSACTIONAL
from millstream.wire.compression import Codec
from millstream.wire.inspection import Refusal
from millstream.wire.messages.produce import (
    BatchIndexAndErrorMessage,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)

MIN_TIMEOUT_US: Final = 5_000_000
"""Shortest time for a commit before its slot is answered REQUEST_TIMED_OUT: far more than a healthy disk's sync."""

_NONE: Final = int(ErrorCode.NONE)
_PENDING: Final = AppendResult(int(ErrorCode.REQUEST_TIMED_OUT))

_BY_ID_FROM: Final = 13
"""First version that names topics by id."""

_ZSTD_FROM: Final = 7
"""First version of Produce that may carry zstd."""

_MAGIC_AT: Final = 16
_ATTRIBUTES_AT: Final = 22
"""Place of the attributes' low byte in a batch."""


class ProduceCall:
    """A produce in progress: its slots in request order and how many are not settled."""

    __slots__ = ("context", "refusals", "request", "results", "transaction", "unsettled")

    def __init__(self, context: RequestContext, request: ProduceRequest, slots: int) -> None:
        self.context = context
        self.request = request
        self.results: list[AppendResult] = [_PENDING] * slots
        self.unsettled = slots
        self.transaction: ProducerTransaction | None = None
        if request.transactional_id is not None:
            self.transaction = ProducerTransaction(request.transactional_id, context.api_version)
        self.refusals: dict[int, Refusal] | None = None  # by slot, of batches whose records were inspected

    def acked(self, slot: SlotIndex) -> None:
        """Settle the slot with the result that was entered when the batch was appended."""
        _ = slot
        self.unsettled -= 1
        if self.unsettled:
            return
        if not self.context.done:
            self.answer()
        elif (
            self.request.acks == 0
            and self.request is not _NO_REQUEST
            and any(result.error_code for result in self.results)
        ):
            self.context.connection.close()  # acks=0, refused by another shard after the exchange was completed

    def failed(self, slot: SlotIndex, error: ErrorCode) -> None:
        self.settle(slot, AppendResult(int(error)))

    def explain(self, slot: SlotIndex, refusal: Refusal) -> None:
        """Note why the slot's batch is refused, before the slot is settled."""
        self.refusals = {**(self.refusals or {}), slot: refusal}

    def settle(self, slot: SlotIndex, result: AppendResult) -> None:
        """Settle the slot with its final result."""
        self.results[slot] = result
        self.acked(slot)

    def expire(self, now_us: int) -> None:
        """Answer when the client's timeout has passed: slots that are not committed get REQUEST_TIMED_OUT."""
        context = self.context
        if not self.request.acks or context.done:
            return
        if now_us - context.received_us >= max(bounded_ms(self.request.timeout_ms) * 1000, MIN_TIMEOUT_US):
            self.answer(settled=False)

    def answer(self, *, settled: bool = True) -> None:
        """Build and send the answer; with acks=0 a client learns of a refusal by losing its connection, as in Kafka."""
        results = self.results
        if self.request.acks == 0:
            self.context.respond_nothing()
            if any(result.error_code for result in results):
                self.context.connection.close()
            return
        if (
            settled
            and len(results) == 1
            and self.context.api_version >= _TEMPLATE_FROM
            and not results[0].error_code
            and len(self.request.topic_data) == 1  # a client may name topics without partitions beside the one
        ):
            _answer_one(self.context, self.request, results[0])
            self.request = _NO_REQUEST
            return
        responses: list[TopicProduceResponse] = []
        slot = 0
        for topic in self.request.topic_data:
            partitions: list[PartitionProduceResponse] = []
            for data in topic.partition_data:
                result = results[slot] if settled else _PENDING
                error = result.error_code
                refusal = self.refusals.get(slot) if self.refusals is not None and settled else None
                slot += 1
                partitions.append(
                    PartitionProduceResponse(
                        index=data.index,
                        error_code=error,
                        base_offset=result.base_offset,
                        log_append_time_ms=result.log_append_time_ms,
                        log_start_offset=result.log_start_offset,
                        record_errors=_record_errors(refusal),
                        error_message=refusal.message if refusal else _MESSAGES.get(error) if error else None,
                    )
                )
            responses.append(
                TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=partitions)
            )
        self.request = _NO_REQUEST
        self.context.respond(ProduceResponse(responses=responses))


def _record_errors(refusal: Refusal | None) -> list[BatchIndexAndErrorMessage]:
    if refusal is None:
        return []
    return [
        BatchIndexAndErrorMessage(batch_index=index, batch_index_error_message=what) for index, what in refusal.records
    ]


_NO_REQUEST: Final = ProduceRequest()

_TEMPLATE_FROM: Final = 5
"""First version whose answer has error, base offset, append time and log start next to each other."""

_TEMPLATES_MAX: Final = 4096
_RESULT: Final = struct.Struct(">hqqq")
_CORRELATION: Final = struct.Struct(">i")
_PLACEHOLDER: Final = (0x5A5A, 0x5A5A5A5A5A5A5A5A, 0x5A5A5A5A5A5A5A5B, 0x5A5A5A5A5A5A5A5C)


def _answer_one(ctx: RequestContext, request: ProduceRequest, result: AppendResult) -> None:
    """Answer for one partition. Encoded answers for a partition differ only in four numbers and the correlation id. The
    codec writes the answer once per partition and version; later answers are patched copies, which is cheaper.
    """
    topic = request.topic_data[0]
    index = topic.partition_data[0].index
    templates = ctx.api.templates
    key = (topic.name, topic.topic_id, index, ctx.api_version)
    found = templates.get(key)
    if found is None:
        error, base, append_time, start = _PLACEHOLDER
        part = PartitionProduceResponse(
            index=index, error_code=error, base_offset=base, log_append_time_ms=append_time, log_start_offset=start
        )
        answered = TopicProduceResponse(name=topic.name, topic_id=topic.topic_id, partition_responses=[part])
        frame = bytes(ctx.encode(ProduceResponse(responses=[answered])))
        if len(templates) >= _TEMPLATES_MAX:
            templates.clear()
        found = templates[key] = (frame, frame.index(_RESULT.pack(*_PLACEHOLDER)))
    frame, at = found
    out = bytearray(frame)
    _RESULT.pack_into(
        out, at, result.error_code, result.base_offset, result.log_append_time_ms, result.log_start_offset
    )
    _CORRELATION.pack_into(out, 4, ctx.correlation_id)
    ctx.respond_frame(out)


_MESSAGES: Final[dict[int, str]] = {
    int(
        ErrorCode.INVALID_RECORD
    ): "The batch breaks a rule of the record format: one batch of magic 2 with dense deltas.",
    int(ErrorCode.INVALID_TOPIC_EXCEPTION): "The topic is the broker's own, or the data of an event topic: read only.",
    int(
        ErrorCode.INVALID_TXN_STATE
    ): "The batch is not of an open transaction of its producer, or its topic is of events, which bears none.",
    int(ErrorCode.INVALID_TIMESTAMP): "A timestamp lies outside message.timestamp.before.max.ms or after.max.ms.",
    int(ErrorCode.MESSAGE_TOO_LARGE): "The batch is larger than the topic's max.message.bytes.",
    int(ErrorCode.KAFKA_STORAGE_ERROR): "The broker cannot store the batch now: its disk is full or the log is faulty.",
    int(
        ErrorCode.NOT_ENOUGH_REPLICAS
    ): "Fewer replicas are in sync than min.insync.replicas, or the broker has no memory for the batch now.",
}


def handle(  # noqa: C901 - one request, one straight line
    node: Node, ctx: RequestContext, request: ProduceRequest
) -> None:
    """Produce 3/8. Find each partition's home and append there; the answer follows the commits."""
    acks = request.acks
    slots = 0
    for topic in request.topic_data:
        slots += len(topic.partition_data)
    call = ProduceCall(ctx, request, slots)
    if not slots or not -1 <= acks <= 1:
        _refuse(node, call)
        return
    by_id = ctx.api_version >= _BY_ID_FROM
    old = ctx.api_version < _ZSTD_FROM
    table = node.partitions
    asker = ctx.asker
    forbidden = _transaction_error(asker, request)
    slot = 0
    for topic in request.topic_data:
        key = topic.topic_id if by_id else topic.name
        entries = (table.by_id if by_id else table.by_name).get(key)  # type: ignore[call-overload]
        refused = forbidden
        if asker is not None and refused is None:
            refused = produce_error(asker, topic.name, topic.topic_id)
        for data in topic.partition_data:
            entry = entries[data.index] if entries is not None and 0 <= data.index < len(entries) else None
            if refused is not None:
                call.failed(slot, refused)
            elif old and _is_zstd(data.records):
                call.failed(slot, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
            elif isinstance(entry, Partition):
                append_here(node, entry, data.records, call, slot)
            elif isinstance(entry, Remote):
                held = node.home.append(
                    entry.shard,
                    entry.raft_group,
                    data.records,
                    call,
                    slot,
                    acks=Acks(acks),
                    transaction=call.transaction,
                )
                if held:
                    ctx.hold()  # it may send far ahead of the answers; refused, it would send again, out of order
            else:
                call.failed(slot, missing_to_write(node, key) if entry is None else ErrorCode.KAFKA_STORAGE_ERROR)
            if isinstance(data.records, IoBuf):
                data.records.release()  # a chain is ours; views belong to the receive buffer
            slot += 1
    if acks == 0:
        if (
            not ctx.done and not ctx.holds
        ):  # a batch that waits for memory keeps its connection unread until it is stored
            ctx.respond_nothing()
    elif call.unsettled:
        timeouts = node.ack_timeouts
        if not timeouts.armed:
            timeouts.arm()


def _byte_at(records: object, place: int) -> int:
    """One byte of a batch; -1 beyond its end."""
    if isinstance(records, IoBuf):
        return records.copy(place, 1)[0] if len(records) > place else -1
    return records[place] if isinstance(records, memoryview) and len(records) > place else -1


def _is_zstd(records: object) -> bool:
    """Whether a batch is compressed with zstd. A consumer as old as its producer could not read it (KIP-110)."""
    attributes = _byte_at(records, _ATTRIBUTES_AT)
    return attributes >= 0 and attributes & CODEC_MASK == Codec.ZSTD


def _transaction_error(asker: Asker | None, request: ProduceRequest) -> ErrorCode | None:
    """Why none of the request's records may be written; as in Kafka, only batches of transactions are asked about."""
    if asker is None:
        return None
    for topic in request.topic_data:
        for data in topic.partition_data:
            attributes = _byte_at(data.records, _ATTRIBUTES_AT)
            if attributes >= 0 and attributes & TRANSACTIONAL:
                return transaction_error(asker, request.transactional_id)
    return None


def _refuse(node: Node, call: ProduceCall) -> None:
    """Answer a request with invalid acks. Errors of a partition or batch take precedence, as in Kafka."""
    by_id = call.context.api_version >= _BY_ID_FROM
    asker = call.context.asker
    forbidden = _transaction_error(asker, call.request)
    results: list[AppendResult] = []
    for topic in call.request.topic_data:
        key = topic.topic_id if by_id else topic.name
        for data in topic.partition_data:
            error = ErrorCode.INVALID_REQUIRED_ACKS
            if asker is not None:
                error = forbidden or produce_error(asker, topic.name, topic.topic_id) or error
            if error is not ErrorCode.INVALID_REQUIRED_ACKS:
                pass  # refused: whether the topic exists is not looked up
            elif node.partitions.find(key, data.index) is None:
                error = missing_to_write(node, key)
            elif _byte_at(data.records, _MAGIC_AT) != MAGIC or _byte_at(data.records, HEADER_BYTES - 1) < 0:
                error = ErrorCode.INVALID_RECORD
            results.append(AppendResult(int(error)))
            if isinstance(data.records, IoBuf):
                data.records.release()
    call.results = results
    call.answer()


def append_here(node: Node, partition: Partition, records: object, call: ProduceCall, slot: SlotIndex) -> None:
    """Produce 4/8. Append to a partition of this shard and park the slot until the commit covers it."""
    views: Sequence[memoryview]
    acks = call.request.acks
    if acks == ALL and partition.lacks_replicas:
        partition.gaps.expect(node.shard.reactor.wall_ms())
        call.failed(slot, ErrorCode.NOT_ENOUGH_REPLICAS)
        return
    if isinstance(records, memoryview):
        views, size = (records,), len(records)
    elif isinstance(records, IoBuf):
        views, size = records.views(), len(records)
    else:
        call.failed(slot, ErrorCode.INVALID_RECORD)
        return

    outcome = node.admission.attempt(partition, views, size, call.transaction)
    if isinstance(outcome, Outcome):
        settle(partition, outcome, call, slot, own_sync=acks == 1)
    else:
        _append_later(node, Batch(partition, views, size, call.transaction), outcome, call, slot)


def _append_later(node: Node, batch: Batch, blocked: Blocked, call: ProduceCall, slot: SlotIndex) -> None:
    """Append a batch when it has what it lacks. While that is memory, keep it and stop reading from this producer."""

    def done(outcome: Outcome, refusal: Refusal | None) -> None:
        if refusal is not None:
            call.explain(slot, refusal)
        settle(batch.partition, outcome, call, slot, own_sync=call.request.acks == 1)
        if call.unsettled and call.request.acks and not node.ack_timeouts.armed:
            node.ack_timeouts.arm()

    if not node.admission.advance(batch, done, blocked):
        call.context.hold()
        batch.keep()
