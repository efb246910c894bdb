"""More than the budget holds: the broker keeps to its memory, and clients that behave do not notice.

Two thousand connections stop in the middle of a frame, fifty consumers stop reading in the middle of a thousand answers
of a MiB, producers send as fast as they can. Memory is the proportional set size of all processes of the broker; it
must stay under the budget plus `CONSTANT_BYTES`: the interpreters and their modules, shared where they were forked,
and the buffers of the kernel are not in it.
"""

import socket
import struct

import pytest
from bench import raw
from confluent_kafka import Consumer, Producer, TopicPartition
from hostile_support import BUDGET_BYTES, clients_go_on, connect, within_budget

pytestmark = pytest.mark.process

HALF_FRAMES = 2000
SLOW_CONSUMERS = 50
FETCHES_EACH = 20


@pytest.fixture
def broker(start_broker):
    return start_broker(topics={"steady": 2, "large": 2}, shards=2, memory=str(BUDGET_BYTES))


@pytest.mark.parametrize("announced_bytes", [64 << 10, 1 << 20])
def test_two_thousand_half_frames_take_no_memory_and_no_service(broker, many_descriptors, connections, announced_bytes):
    """With a MiB announced by each, an Apache Kafka with 512 MB of heap serves nobody any more."""
    whole = raw.produce("steady", 0, raw.batch([b"x" * announced_bytes]))
    half = whole[: announced_bytes // 2]
    for _ in range(HALF_FRAMES):
        connection = connections.enter_context(connect(broker))
        try:
            connection.send(half)
        except BlockingIOError:
            continue
    within_budget(broker)
    clients_go_on(broker, "beside-half-frames")
    within_budget(broker)
    connections.close()
    clients_go_on(broker, "after-half-frames")


def test_consumers_that_stop_reading_take_no_memory_and_no_service(broker, many_descriptors, connections):
    batch = raw.batch([b"y" * 1000] * 1000)
    with raw.Caller(broker.bootstrap) as caller:
        for i in range(64):
            caller.produce_one("large", i % 2, batch)
    slow = [connections.enter_context(connect(broker)) for _ in range(SLOW_CONSUMERS)]
    for i, connection in enumerate(slow):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        request, _ = raw.fetch("large", i % 2, 1 << 20)
        connection.sendall(bytes(request) * FETCHES_EACH)
    for connection in slow:
        connection.settimeout(60)
        assert connection.recv(1000)  # the answers have begun to come
    within_budget(broker)
    clients_go_on(broker, "beside-slow-readers")
    within_budget(broker)
    connections.close()
    clients_go_on(broker, "after-slow-readers")


def test_a_slow_reader_gets_every_byte_when_it_reads_again(broker):
    batch = raw.batch([bytes([65 + i % 26]) * 1000 for i in range(1000)])
    with raw.Caller(broker.bootstrap) as caller:
        for _ in range(8):
            caller.produce_one("large", 0, batch)
    request, _ = raw.fetch("large", 0, 1 << 20)
    with connect(broker) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        connection.sendall(bytes(request) * FETCHES_EACH)
        connection.settimeout(60)
        clients_go_on(broker, "meanwhile")
        stream = connection.makefile("rb")
        for _ in range(FETCHES_EACH):
            size = struct.unpack(">i", stream.read(4))[0]
            frame = memoryview(stream.read(size))
            answer = raw.FetchAnswer(frame, "large")
            assert bytes(frame[answer.records_start + 12 :][: len(batch) - 12])[5:] == batch[17:]


def test_producers_at_full_speed_stay_within_the_budget(broker):
    """Stock producers, four at once, 64 KiB values: whatever the broker cannot take at the moment they send again."""
    failed, acknowledged = [], [0]

    def delivered(error, message):
        if error is None:
            acknowledged[0] += 1
        else:
            failed.append(error)

    options = {"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.size": 900_000}
    producers = [Producer({**options, "queue.buffering.max.kbytes": 32 << 10}) for _ in range(4)]
    value = b"z" * 65536
    for i in range(12_000):
        producer = producers[i % 4]
        while True:
            try:
                producer.produce("large", value, partition=i % 2, on_delivery=delivered)
                break
            except BufferError:
                producer.poll(1)
        producer.poll(0)
        if i % 1000 == 0:
            within_budget(broker)
    for producer in producers:
        assert producer.flush(240) == 0
    assert failed == []
    within_budget(broker)
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "unused"})
    ends = [reader.get_watermark_offsets(TopicPartition("large", i), 60, cached=False)[1] for i in range(2)]
    reader.close()
    assert sum(ends) == acknowledged[0] == 12_000
    clients_go_on(broker, "after-full-speed")
    within_budget(broker)
