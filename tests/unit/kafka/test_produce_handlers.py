"""Produce calls whose slots settle late, and requests of versions that are not served."""

import struct
from types import SimpleNamespace
from typing import Any, cast

import pytest

from millstream.kafka.handlers.data import produce, produce_legacy
from millstream.kafka.handlers.data.produce import MIN_TIMEOUT_US, ProduceCall
from millstream.model.error_code import ErrorCode
from millstream.partition.append.batch import AppendResult, Blocked, Outcome
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.partition.waiters import Waiters
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


class Context:
    """A request's context that writes down what it was told."""

    asker = None

    def __init__(self, version: int = 9, body: bytes = b"") -> None:
        self.api_version = version
        self.body = memoryview(body)
        self.done = False
        self.holds = False
        self.received_us = 0
        self.connection = SimpleNamespace(closings=0, close=self._close)
        self.answers: list[Any] = []

    def _close(self) -> None:
        self.connection.closings += 1

    def hold(self) -> None:
        self.holds = True

    def respond(self, answer: Any) -> None:
        assert not self.done
        self.done = True
        self.answers.append(answer)

    def respond_nothing(self) -> None:
        assert not self.done
        self.done = True

    respond_encoded = respond


def call_with(acks: int, slots: int = 2) -> tuple[ProduceCall, Context]:
    context = Context()
    topic = TopicProduceData("t", bytes(16), [PartitionProduceData(index) for index in range(slots)])
    request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[topic])
    return ProduceCall(cast(Any, context), request, slots), context


def test_acks_0_that_another_shard_refuses_later_loses_its_connection_once() -> None:
    call, context = call_with(acks=0)
    context.respond_nothing()  # the handler is through; both slots are under way
    call.settle(0, AppendResult(int(ErrorCode.CORRUPT_MESSAGE), -1, -1, -1))
    assert context.connection.closings == 0
    call.settle(1, AppendResult(0, 5, -1, 0))
    assert context.connection.closings == 1


def test_acks_0_that_is_appended_later_changes_nothing() -> None:
    call, context = call_with(acks=0)
    context.respond_nothing()
    for slot in (0, 1):
        call.settle(slot, AppendResult(0, 5, -1, 0))
    assert context.connection.closings == 0
    assert not context.answers


def test_a_call_that_timed_out_is_answered_once_and_keeps_its_connection() -> None:
    call, context = call_with(acks=-1)
    call.settle(0, AppendResult(0, 5, -1, 0))
    call.expire(MIN_TIMEOUT_US - 1)  # its own timeout, a second, is shorter than a slow sync may be
    assert not context.done
    call.expire(MIN_TIMEOUT_US)
    (answer,) = context.answers
    assert {part.error_code for part in answer.responses[0].partition_responses} == {ErrorCode.REQUEST_TIMED_OUT}
    call.settle(1, AppendResult(int(ErrorCode.CORRUPT_MESSAGE), -1, -1, -1))
    assert len(context.answers) == 1
    assert context.connection.closings == 0


def test_acks_0_is_read_no_further_while_there_is_no_memory_for_it() -> None:
    partition = Partition.__new__(Partition)
    partition.high_watermark = 0
    partition.waiters = Waiters()
    partition.log = cast(Any, SimpleNamespace(start_offset=0))
    waiting: list[Any] = []
    node = SimpleNamespace(
        shard=SimpleNamespace(reactor=SimpleNamespace(wall_ms=lambda: 0)),
        partitions=SimpleNamespace(by_name={"t": [partition]}),
        admission=SimpleNamespace(
            attempt=lambda *_: Blocked.NO_MEMORY, advance=lambda batch, done, blocked: waiting.append(done)
        ),
        settings=None,
    )
    context = Context()
    data = PartitionProduceData(0, memoryview(b"a batch"))
    request = ProduceRequest(acks=0, timeout_ms=1000, topic_data=[TopicProduceData("t", bytes(16), [data])])
    produce.handle(cast(Any, node), cast(Any, context), request)
    assert context.holds and not context.done
    (done,) = waiting
    done(Outcome(0, 0, 1, -1), None)  # appended: now it only waits for the sync
    ((_, call, slot),) = partition.waiters.acks
    call.expire(1 << 60)
    assert not context.done
    call.acked(slot)
    assert context.done and not context.answers and context.connection.closings == 0


def old_request(acks: int = 1, topics: int = 1, partitions: int = 2) -> bytes:
    body = struct.pack(">hii", acks, 1000, topics)
    for _ in range(topics):
        body += struct.pack(">h", 1) + b"t" + struct.pack(">i", partitions)
        for index in range(partitions):
            body += struct.pack(">ii", index, 3) + b"abc"
    return body


@pytest.mark.parametrize(("version", "row", "tail"), [(0, 14, 0), (1, 14, 4), (2, 22, 4)])
def test_every_partition_of_an_old_request_is_refused_in_its_version(version: int, row: int, tail: int) -> None:
    context = Context(version, old_request())
    produce_legacy.answer(cast(Any, context))
    (answer,) = context.answers
    assert len(answer) == 4 + 3 + 4 + 2 * row + tail
    for index in (0, 1):
        assert struct.unpack_from(">ihq", answer, 11 + row * index) == (index, ErrorCode.UNSUPPORTED_VERSION, -1)


def test_an_old_request_without_acks_is_not_answered() -> None:
    context = Context(0, old_request(acks=0))
    produce_legacy.answer(cast(Any, context))
    assert context.done and not context.answers


def test_every_cut_of_an_old_request_is_garbage_or_harmless() -> None:
    """No count or length in it is believed beyond the bytes that are there."""
    whole = old_request()
    for end in range(len(whole) - 3):
        with pytest.raises(ProtocolError):
            produce_legacy.answer(cast(Any, Context(2, whole[:end])))
    for at in range(6, len(whole) - 3):
        for count in (-1, 0x7FFFFFFF):
            damaged = whole[:at] + struct.pack(">i", count) + whole[at + 4 :]
            try:
                produce_legacy.answer(cast(Any, Context(2, damaged[: len(whole)])))
            except ProtocolError:
                continue


@pytest.mark.parametrize("acks", [0, 1, -1])
def test_a_producer_is_read_no_further_while_another_shard_is_behind(acks: int) -> None:
    remote = Remote("t", 0, 7, 1)
    sent: list[Any] = []

    def append(shard: int, group: int, records: object, call: Any, slot: int, **_: Any) -> bool:
        sent.append((call, slot))
        return len(sent) > 1

    node = SimpleNamespace(
        shard=SimpleNamespace(reactor=SimpleNamespace(wall_ms=lambda: 0)),
        partitions=SimpleNamespace(by_name={"t": [remote]}),
        home=SimpleNamespace(append=append),
        ack_timeouts=SimpleNamespace(armed=True),
    )
    contexts = [Context(4), Context(4)]
    for context in contexts:
        data = PartitionProduceData(0, memoryview(b"a batch"))
        request = ProduceRequest(acks=acks, timeout_ms=1000, topic_data=[TopicProduceData("t", bytes(16), [data])])
        produce.handle(cast(Any, node), cast(Any, context), request)
    assert [(context.done, context.holds) for context in contexts] == [(not acks, False), (False, True)]
    for call, slot in sent:
        call.settle(slot, AppendResult(0, 5, -1, 0))
    assert [context.done for context in contexts] == [True, True]
    assert not any(context.connection.closings for context in contexts)


def test_an_append_that_had_to_wait_is_watched_for_its_time_limit_afterwards() -> None:
    partition = Partition.__new__(Partition)
    partition.high_watermark = 0
    partition.waiters = Waiters()
    partition.config = cast(Any, SimpleNamespace(min_insync_replicas=1))
    partition.log = cast(Any, SimpleNamespace(start_offset=0))
    waiting: list[Any] = []
    armed: list[bool] = []
    timeouts = SimpleNamespace(armed=False, arm=lambda: armed.append(True))
    node = SimpleNamespace(
        shard=SimpleNamespace(reactor=SimpleNamespace(wall_ms=lambda: 0)),
        partitions=SimpleNamespace(by_name={"t": [partition]}),
        admission=SimpleNamespace(
            attempt=lambda *_: Blocked.NO_MEMORY, advance=lambda batch, done, blocked: waiting.append(done)
        ),
        ack_timeouts=timeouts,
    )
    context = Context()
    data = PartitionProduceData(0, memoryview(b"a batch"))
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[TopicProduceData("t", bytes(16), [data])])
    produce.handle(cast(Any, node), cast(Any, context), request)
    (done,) = waiting
    armed.clear()  # the look that the handler asked for came and found nothing
    done(Outcome(0, 0, 1, -1), None)
    assert armed and len(partition.waiters.acks) == 1
