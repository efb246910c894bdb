"""Garbage closes the connection that sent it, and no other; the broker stays."""

import random
import socket
import struct
import time

import pytest
from bench import raw
from crc32c import crc32c

from millstream.wire.codec import decode_response
from millstream.wire.frames import request_frame
from millstream.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.records import HEADER_BYTES, build_batch

pytestmark = pytest.mark.process


def header(api_key, version, correlation_id=7, client_id=b"hostile"):
    return struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id


def framed(body):
    return struct.pack(">i", len(body)) + body


GARBAGE = {
    "random bytes": random.Random(5).randbytes(4096),
    "a negative length": struct.pack(">i", -1) + b"x" * 64,
    "a length of 2 GiB": struct.pack(">i", 0x7FFFFFFF) + b"x" * 64,
    "a frame too short for a header": framed(b"\0\3"),
    "an unknown api": framed(header(9999, 0) + b"\0\0\0\0"),
    "a version that does not exist": framed(header(3, 99) + b"\0" * 8),
    "a topic count beyond the frame": framed(header(3, 1) + struct.pack(">i", 0x7FFFFFF0)),
    "a compact topic count beyond the frame": framed(
        header(0, 9) + b"\0" + b"\0" + b"\xff\xff" + b"\0\0\x75\x30" + b"\xfe\xff\xff\xff\x0f"
    ),
    "a string beyond the frame": framed(header(3, 1) + struct.pack(">ih", 1, 0x7FF0) + b"t"),
    "a client id beyond the frame": framed(struct.pack(">hhih", 3, 1, 7, 0x7FF0) + b"x"),
    "an http request": b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
}


def connect(broker):
    host, port = broker.bootstrap.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=60)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def closed_by_the_broker(connection):
    """Reads until the other side closes; False if it answers nothing and stays."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.fixture
def broker_with_topic(start_broker):
    return start_broker(topics={"steady": 1})


def test_garbage_closes_its_own_connection_only(broker_with_topic):
    broker = broker_with_topic
    batch = raw.batch([b"still here"])
    with raw.Caller(broker.bootstrap) as steady:
        for offset, (what, data) in enumerate(GARBAGE.items()):
            with connect(broker) as hostile:
                hostile.sendall(data)
                assert closed_by_the_broker(hostile), what
            assert steady.produce_one("steady", 0, batch) == offset, what


def test_random_frames_of_every_api_leave_the_broker_serving(broker_with_topic):
    broker = broker_with_topic
    rng = random.Random(11)
    batch = raw.batch([b"still here"])
    with raw.Caller(broker.bootstrap) as steady:
        for round_ in range(60):
            with connect(broker) as hostile:
                body = header(rng.randrange(0, 93), rng.randrange(0, 16)) + rng.randbytes(rng.randrange(0, 200))
                hostile.sendall(framed(body))
                hostile.shutdown(socket.SHUT_WR)
                assert closed_by_the_broker(hostile), body
            assert steady.produce_one("steady", 0, batch) == round_


def test_a_corrupt_batch_is_refused_and_the_connection_lives(broker_with_topic):
    broker = broker_with_topic
    good = raw.batch([b"good"])
    bad = bytearray(good)
    bad[-2] ^= 1
    with raw.Caller(broker.bootstrap) as caller:
        with pytest.raises(raw.UnexpectedAnswer):
            caller.produce_one("steady", 0, bytes(bad))
        assert caller.produce_one("steady", 0, good) == 0


def test_a_topic_without_partitions_beside_one_that_is_written_is_answered_like_it(broker_with_topic):
    data = PartitionProduceData(0, raw.batch([b"value"]))
    topics = [TopicProduceData("steady", partition_data=[data]), TopicProduceData("absent")]
    with raw.Caller(broker_with_topic.bootstrap) as caller:
        for version in (3, 5, 9, 12):
            for asked in (topics, topics[::-1]):
                request = request_frame(ProduceRequest(acks=-1, timeout_ms=1000, topic_data=asked), version, 7, "c")
                frame = caller.call(request)
                answer = decode_response(0, version, frame, 5 if version >= 9 else 4, len(frame))
                assert [(one.name, len(one.partition_responses)) for one in answer.responses] == [
                    (one.name, len(one.partition_data)) for one in asked
                ]
                assert [part.error_code for one in answer.responses for part in one.partition_responses] == [0]


def test_a_record_of_a_time_beyond_64_bits_is_found_by_time_like_any(broker_with_topic):
    now_ms = int(time.time() * 1000)
    batch = bytearray(build_batch([(b"key", b"value", [], now_ms)]))
    batch[27:35] = ((1 << 63) - 1).to_bytes(8, "big")  # what the record's time counts from
    batch[HEADER_BYTES + 2] = 11 << 1
    batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
    wanted = ListOffsetsTopic("steady", [ListOffsetsPartition(partition_index=0, timestamp=now_ms)])
    with raw.Caller(broker_with_topic.bootstrap) as caller:
        assert caller.produce_one("steady", 0, bytes(batch)) == 0
        frame = caller.call(request_frame(ListOffsetsRequest(topics=[wanted]), 7, 7, "c"))
        assert decode_response(2, 7, frame, 5, len(frame)).topics[0].partitions[0].error_code == 0
        assert caller.produce_one("steady", 0, raw.batch([b"still here"])) == 1
