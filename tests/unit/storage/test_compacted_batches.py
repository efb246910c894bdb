"""Batches that compaction takes apart were stored unread: what a producer put into them may be anything."""

import struct

import pytest
from crc32c import crc32c

from millstream.format.compacted import filtered
from millstream.wire.errors import BatchError
from millstream.wire.records import build_batch, check_batch, parse_header

INT64_MAX = (1 << 63) - 1


def batch_at(base_timestamp, *deltas):
    """A sound batch, but for the timestamp that its records count from."""
    batch = bytearray(build_batch([(b"key-%d" % i, b"v", [], delta) for i, delta in enumerate(deltas)]))
    struct.pack_into(">qq", batch, 27, base_timestamp, INT64_MAX)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    check_batch([batch])  # a broker takes it
    return bytes(batch)


def compacted(batch, horizon=None):
    return filtered(parse_header(batch), memoryview(batch), lambda one: one.key != b"key-0", lambda _: horizon)


def test_records_of_times_that_no_header_can_tell_are_found_before_anything_is_written():
    left, count = compacted(batch_at(INT64_MAX - 10, 0, 10))
    assert count == 1
    assert parse_header(left).max_timestamp == INT64_MAX
    with pytest.raises(BatchError, match="64 bits"):
        compacted(batch_at(INT64_MAX - 10, 0, 11))


def test_a_record_too_far_from_the_time_that_its_batch_notes_is_found():
    with pytest.raises(BatchError, match="too far in time"):
        compacted(batch_at(-INT64_MAX, 0, 1), horizon=1_700_000_000_000)
