"""An event batch that is wrong anywhere is refused with the code for its producer, before anything is read of it."""

import struct

import pytest
from chunk_support import batch_bytes

from millstream.errors import Rejected
from millstream.format.events import build_event_batch, decode_event_batch
from millstream.format.events.batch import COUNT_MAX
from millstream.model.error_code import ErrorCode
from millstream.wire.batch import CRC_START, HEADER_BYTES, check_batch
from millstream.wire.errors import BatchError
from millstream.wire.records import build_batch, iter_records

EVENTS = [(b"a" * n, b"d" * (n * 3)) for n in range(5)]


def resummed(batch):
    from crc32c import crc32c

    out = bytearray(batch)
    struct.pack_into(">I", out, 17, crc32c(bytes(out[CRC_START:])))
    return bytes(out)


def test_what_is_built_is_decoded_and_is_a_valid_batch():
    data = batch_bytes(EVENTS, base_offset=77, leader_epoch=3)
    assert check_batch([data]).record_count == 5
    batch = decode_event_batch(data, event_bytes_max=16)
    found = zip(map(bytes, batch.metadata_of_each()), map(bytes, batch.data_of_each()), strict=True)
    assert list(found) == EVENTS
    assert (batch.header.base_offset, batch.header.leader_epoch) == (77, 3)


def test_an_event_above_the_limit_is_refused_with_the_remedy():
    with pytest.raises(BatchError, match=r"16 bytes, events\.max\.bytes is 15: split it") as caught:
        decode_event_batch(batch_bytes(EVENTS), event_bytes_max=15)
    assert caught.value.code is ErrorCode.MESSAGE_TOO_LARGE


def test_records_are_no_events_and_events_no_records():
    with pytest.raises(BatchError, match="records where events are due"):
        decode_event_batch(build_batch([(b"k", b"value" * 9, [], 5)]), event_bytes_max=100)
    with pytest.raises(BatchError):
        list(iter_records(batch_bytes(EVENTS), 1 << 20))


@pytest.mark.parametrize(("place", "code"), [(0x10, "transactional"), (0x01, "compressed")])
def test_transactions_and_compression_are_refused(place, code):
    data = bytearray(batch_bytes(EVENTS))
    data[22] |= place
    with pytest.raises(BatchError, match=code):
        decode_event_batch(resummed(data), event_bytes_max=100)


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (HEADER_BYTES, 1 << 31, "metadata beyond"),
        (HEADER_BYTES, 1, "do not fill"),
        (HEADER_BYTES + 5 * 4 + 10, 9, "do not fill"),
    ],
)
def test_sizes_that_do_not_add_up_are_refused(at, value, why):
    data = bytearray(batch_bytes(EVENTS))
    struct.pack_into("<I", data, at, value)
    with pytest.raises(BatchError, match=why):
        decode_event_batch(resummed(data), event_bytes_max=100)


def test_a_count_that_the_bytes_cannot_hold_is_refused():
    data = bytearray(batch_bytes(EVENTS))
    struct.pack_into(">i", data, 23, 13)
    struct.pack_into(">i", data, 57, 14)
    with pytest.raises(BatchError, match=r"14 (events|records) in"):
        decode_event_batch(resummed(data), event_bytes_max=100)


def test_every_prefix_and_every_flipped_bit_is_refused():
    data = batch_bytes(EVENTS)
    for size in range(len(data)):
        with pytest.raises(BatchError):
            decode_event_batch(data[:size], event_bytes_max=100)
    for at in range(16 * 8, len(data) * 8):
        flipped = bytearray(data)
        flipped[at // 8] ^= 1 << at % 8
        with pytest.raises(BatchError):
            decode_event_batch(flipped, event_bytes_max=100)


def test_too_many_events_for_a_batch_are_refused():
    many = [b""] * (COUNT_MAX + 1)
    with pytest.raises(Rejected, match="events"):
        build_event_batch(many, [[]] * len(many), now_ms=1)


def test_data_are_passed_through_without_a_copy():
    payload = memoryview(bytearray(b"payload" * 100))
    pieces = build_event_batch([b"{}"], [[payload, b""]], now_ms=1)
    assert len(pieces) == 2
    assert pieces[1] is payload
