"""A request of a known shape is decoded to what the decoder gives; anything else is left to the decoder."""

import random

import pytest

from millstream.wire.codec import encode_request, request_decoder
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from millstream.wire.produce_again import LEARN_EVERY, ProduceAgain

VERSIONS = range(9, 14)


def request(size, *, topic="t", index=3, acks=-1, timeout_ms=1000, txn=None, version=9, value=None):
    topic_id = topic.encode().ljust(16, b"\1") if version >= 13 else bytes(16)
    data = PartitionProduceData(index, random.Random(size).randbytes(size) if value is None else value)
    return ProduceRequest(txn, acks, timeout_ms, [TopicProduceData("" if version >= 13 else topic, topic_id, [data])])


class Stream:
    """Requests of one connection; counts how often the decoder itself had to look."""

    def __init__(self, version):
        self.version = version
        self.again = ProduceAgain()
        self.looks = 0
        self._decode = request_decoder(0, version)

    def decoder(self, frame, position, end):
        self.looks += 1
        return self._decode(frame, position, end)

    def check(self, body, front=7):
        """Both ways give the same request, or both refuse."""
        frame = memoryview(bytes(front) + bytes(body))
        try:
            wanted = self._decode(frame, front, len(frame))
        except ProtocolError:
            with pytest.raises(ProtocolError):
                self.again.decode(self.decoder, frame, front, len(frame), self.version)
            return
        got = self.again.decode(self.decoder, frame, front, len(frame), self.version)
        assert got == wanted


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [0, 1, 61, 126, 127, 1000, 16_381, 16_382, 16_383, 70_000])
def test_a_request_that_repeats_the_last_one_is_the_same_request(version, size):
    stream = Stream(version)
    for _ in range(4):
        stream.check(encode_request(request(size, version=version), version))
    assert stream.looks == (1 if 127 <= size + 1 < 16_384 and size + 1 >= 128 else 4)


@pytest.mark.parametrize("version", VERSIONS)
def test_sizes_and_contents_may_change(version):
    stream = Stream(version)
    for size in (1000, 200, 5000, 16_000, 130):
        stream.check(encode_request(request(size, version=version), version), front=size % 13 + 1)
    assert stream.looks == 1


@pytest.mark.parametrize(
    "other", [{"topic": "u"}, {"index": 4}, {"acks": 1}, {"timeout_ms": 7}, {"txn": "x"}, {"txn": ""}, {"topic": "tt"}]
)
def test_what_is_said_otherwise_is_heard(other):
    stream = Stream(9)
    for options in ({}, other, {}, other):
        stream.check(encode_request(request(1000, **options), 9))


def test_a_new_shape_is_learnt_now_and_then():
    stream = Stream(9)
    stream.check(encode_request(request(1000), 9))
    for _ in range(3 * LEARN_EVERY):
        stream.check(encode_request(request(1000, index=9), 9))
    assert stream.looks == 2 + LEARN_EVERY


def test_requests_without_a_shape_are_left_alone():
    stream = Stream(9)
    two = ProduceRequest(
        None, 1, 5, [TopicProduceData("t", bytes(16), [PartitionProduceData(i, b"x" * 500) for i in (0, 1)])]
    )
    none = ProduceRequest(None, 1, 5, [])
    null = ProduceRequest(None, 1, 5, [TopicProduceData("t", bytes(16), [PartitionProduceData(0, None)])])
    for one in (two, none, null, two):
        stream.check(encode_request(one, 9))
    old = Stream(8)
    for _ in range(3):
        old.check(encode_request(request(1000), 8))
    assert old.looks == 3


@pytest.mark.parametrize("seed", range(30))
def test_bent_bytes_get_the_decoders_answer(seed):
    rng = random.Random(seed)
    stream = Stream(rng.choice(list(VERSIONS)))
    good = bytes(encode_request(request(1000, version=stream.version), stream.version))
    for _ in range(200):
        bent = bytearray(good)
        for _ in range(rng.randrange(0, 4)):
            place = rng.choice(
                (rng.randrange(len(bent)), rng.randrange(min(60, len(bent))), len(bent) - 1 - rng.randrange(4))
            )
            bent[place] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.2:
            del bent[rng.randrange(len(bent)) :]
        if rng.random() < 0.1:
            bent += bytes(rng.randrange(1, 5))
        stream.check(bent)


def odd_first_requests():
    """A request whose length is spelled in a byte too many, one with bytes behind it; and what was mistaken then."""
    body = bytes(encode_request(request(200, value=bytes(200)), 9))
    at = len(body) - 3 - 200 - 2
    low, high = body[at], body[at + 1]
    other = bytes(((300 + 1) & 0x7F | 0x80, (300 + 1) >> 7)) + b"q" * 300 + bytes(3)
    long_spelled = body[:at] + bytes((low, high | 0x80, 0)) + body[at + 2 :]
    yield long_spelled, body[:at] + bytes((low,)) + other
    yield body + bytes(3), body[: at + 2] + b"\0" + other


@pytest.mark.parametrize("bodies", odd_first_requests(), ids=["spelled long", "bytes behind"])
def test_nothing_is_learnt_from_a_request_that_is_not_written_as_clients_write_it(bodies):
    stream = Stream(9)
    for body in bodies:
        stream.check(body)
    assert stream.again.version == -1


def test_long_names_are_not_kept_with_the_connection():
    stream = Stream(9)
    for _ in range(LEARN_EVERY + 2):
        stream.check(encode_request(request(1000, topic="t" * 30_000, txn="x" * 30_000), 9))
    assert stream.looks == LEARN_EVERY + 2
