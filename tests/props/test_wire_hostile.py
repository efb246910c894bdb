"""Bytes from an enemy: every decoder answers with a message or ``ProtocolError``, soon and in little memory."""

import time
import tracemalloc
from random import Random

import pytest
from allocation import without_lines
from wire_samples import ALL_MESSAGES, every_version, sample

from millstream.wire.codec import decode_message, decode_request, encode_message, message_decoder
from millstream.wire.decoding import ELEMENT_BYTES_MIN, OBJECT_BYTES_MAX
from millstream.wire.errors import BatchError, ProtocolError
from millstream.wire.headers import encode_request_header, parse_request_header
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.records import build_batch, check_batch, iter_batches, iter_records
from millstream.wire.schema import Embedded, Message, Request
from millstream.wire.varint import uvarint

_CLAIMS = (
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x7f",
)


def _attempt(cls: type[Message], version: int, data: bytes) -> bool:
    """Whether the bytes decode; anything but a message or ``ProtocolError`` escapes."""
    try:
        decode_message(cls, version, data)
    except ProtocolError:
        return False
    return True


@every_version(ALL_MESSAGES)
def test_a_message_that_is_cut_anywhere_is_refused(cls: type[Message], version: int) -> None:
    whole = bytes(encode_message(sample(Random(version), cls, version), version))
    for cut in range(min(len(whole), 600)):
        assert not _attempt(cls, version, whole[:cut]), cut


@every_version(ALL_MESSAGES)
def test_bytes_behind_a_message_are_refused_and_behind_a_request_ignored(cls: type[Message], version: int) -> None:
    whole = bytes(encode_message(sample(Random(version), cls, version), version))
    assert _attempt(cls, version, whole + b"\0") is issubclass(cls, Embedded | Request)


@every_version(ALL_MESSAGES)
def test_a_decoder_does_not_read_behind_its_end(cls: type[Message], version: int) -> None:
    whole = bytes(encode_message(sample(Random(version), cls, version), version))
    with pytest.raises(ProtocolError):
        decode_message(cls, version, memoryview(whole), 0, len(whole) - 1)


@every_version(ALL_MESSAGES)
def test_random_mutations_are_decoded_or_refused(cls: type[Message], version: int) -> None:
    rng = Random(f"{cls.__name__}{version}")
    whole = bytes(encode_message(sample(rng, cls, version), version)) or b"\0"
    for _ in range(60):
        bent = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            bent[rng.randrange(len(bent))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        if rng.random() < 0.3:
            at = rng.randrange(len(bent))
            bent[at:at] = rng.randbytes(rng.randint(1, 8))
        _attempt(cls, version, bytes(bent))
    for _ in range(20):
        _attempt(cls, version, rng.randbytes(rng.randint(0, 64)))


@every_version(ALL_MESSAGES)
def test_huge_claims_cost_neither_memory_nor_time(cls: type[Message], version: int) -> None:
    whole = bytes(encode_message(sample(Random(7), cls, version), version))
    decoder = message_decoder(cls, version)
    positions = range(len(whole)) if len(whole) < 60 else Random(1).sample(range(len(whole)), 60)
    limit = 64 * 1024 + 64 * len(whole)

    def peak_bytes() -> int:
        began = time.process_time()
        tracemalloc.start()
        try:
            for claim in _CLAIMS:
                for at in positions:
                    _attempt(cls, version, whole[:at] + claim + whole[at + len(claim) :])
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            assert time.process_time() - began < 5

    # A thread that another test left may receive into a buffer of its own meanwhile.
    with without_lines(decoder):
        assert any(peak_bytes() < limit for _ in range(3))


def test_text_that_is_not_utf_8_is_refused() -> None:
    good = bytes(encode_message(HeartbeatRequest("group", 1, "member"), 4))
    assert _attempt(HeartbeatRequest, 4, good)
    for bad in (b"\xff\xfeoup", b"\xed\xa0\x80up", b"\xc0\x80oup"):
        assert not _attempt(HeartbeatRequest, 4, good.replace(b"group", bad))


@pytest.mark.parametrize("version", [1, 8, 9, 13])
def test_a_request_header_that_is_cut_or_bent_is_refused(version: int) -> None:
    header = encode_request_header(3, version, 9, "client-ä")
    for cut in range(len(header)):
        with pytest.raises(ProtocolError):
            parse_request_header(header[:cut], 0, cut)
        with pytest.raises(ProtocolError):
            parse_request_header(memoryview(header), 0, cut)
    rng = Random(version)
    for _ in range(500):
        bent = bytearray(header + b"body")
        for _ in range(3):
            bent[rng.randrange(len(bent))] = rng.randrange(256)
        try:
            assert parse_request_header(bent, 0, len(bent)).body_pos <= len(bent)
        except ProtocolError:
            continue


def _walk(data: bytes) -> None:
    try:
        for batch in iter_batches(data):
            for _ in iter_records(batch, limit=1 << 20):
                pass
    except BatchError:
        return


@pytest.mark.parametrize("codec", range(5))
def test_batches_that_are_cut_or_bent_only_raise_batch_error(codec: int) -> None:
    records = [(b"key-%d" % i, b"value" * i, [("header", b"x"), ("other", None)], 1000 + i) for i in range(8)]
    batch = build_batch(records, compression=codec)
    rng = Random(codec)
    for cut in range(len(batch)):
        _walk(batch[:cut])
        with pytest.raises(BatchError):
            check_batch([batch[:cut]])
    for _ in range(1500):
        bent = bytearray(batch)
        for _ in range(rng.randint(1, 3)):
            bent[rng.randrange(len(bent))] = rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        _walk(bytes(bent))


@pytest.mark.parametrize("codec", range(5))
def test_any_bit_that_a_checksum_covers_is_missed_by_nobody(codec: int) -> None:
    batch = build_batch([(b"k", b"v" * 40, [], 5)], compression=codec)
    check_batch([batch])
    for at in range(8, len(batch)):
        if 12 <= at < 16:
            continue  # the leader epoch is the broker's to set
        bent = bytearray(batch)
        bent[at] ^= 1 << at % 8
        with pytest.raises(BatchError):
            check_batch([bent])


_CROWD = OBJECT_BYTES_MAX // ELEMENT_BYTES_MIN + 1
_CROWDS = {
    "empty names": (15, 5, uvarint(_CROWD + 1) + b"\1" * _CROWD + b"\0\0"),
    "topics": (3, 9, uvarint(_CROWD + 1) + b"\1\0" * _CROWD + b"\0\0\0\0"),
    "numbers": (
        37,
        2,
        b"\2\2a" + b"\0\0\0\2" + b"\2" + uvarint(_CROWD + 1) + b"\0\0\0\1" * _CROWD + b"\0\0\0\0\0\0\0\0",
    ),
    "tagged fields": (15, 5, b"\1\0" + uvarint(_CROWD) + b"\5\0" * _CROWD),
}


@pytest.mark.parametrize("case", _CROWDS)
def test_a_request_of_more_elements_than_a_shard_can_stand_is_refused(case: str) -> None:
    api_key, version, body = _CROWDS[case]
    with pytest.raises(ProtocolError, match=f"elements of more than {OBJECT_BYTES_MAX} bytes"):
        decode_request(api_key, version, body, 0, len(body))


def test_elements_are_counted_over_all_arrays_of_a_request() -> None:
    def offset_fetch(topics: int, partitions: int) -> bytes:
        topic = b"\2t" + uvarint(partitions + 1) + bytes(4 * partitions) + b"\0"
        return b"\2g" + uvarint(topics + 1) + topic * topics + b"\0\0"

    fits, crowd = offset_fetch(250, 250), offset_fetch(260, 260)
    assert len(decode_request(9, 7, fits, 0, len(fits)).topics) == 250
    with pytest.raises(ProtocolError, match="elements"):
        decode_request(9, 7, crowd, 0, len(crowd))


def test_a_text_may_have_as_many_bytes_as_an_int16_can_say() -> None:
    def heartbeat(size: int) -> bytes:
        return uvarint(size + 1) + b"g" * size + bytes(4) + b"\1\0\0"

    assert _attempt(HeartbeatRequest, 4, heartbeat(32767))
    assert not _attempt(HeartbeatRequest, 4, heartbeat(32768))


def test_a_header_of_a_thousand_tagged_fields_is_read_and_one_of_more_refused() -> None:
    def header(count: int) -> bytes:
        return encode_request_header(3, 9, 7, "c")[:-1] + uvarint(count) + b"\5\1x" * count

    assert parse_request_header(header(1024), 0, len(header(1024))).body_pos == len(header(1024))
    with pytest.raises(ProtocolError, match="1025 tagged fields"):
        parse_request_header(header(1025), 0, len(header(1025)))
