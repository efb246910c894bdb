"""New objects of a replacement are read whole before they are committed; a part with them is written."""

import msgspec
import pytest
from numbered_segments import OWNER, numbered

from millstream.errors import Rejected
from millstream.format.archive import part_key, segment_key
from millstream.format.manifest import decode_part, describe_part, encode_part, pack_run, unpack_run
from millstream.format.segment import parse_batch
from millstream.format.segment_object import SegmentObject
from millstream.model.error_code import ErrorCode
from millstream.tiers.messages import Check
from millstream.tiers.replaced_objects import check_object, part_with
from millstream.tiers.uploading import Pace
from millstream.wire.records import build_batch
from sim.engine.objects import MemoryStore

NOW_MS = 1_000_000


def made(epochs=(1, 1, 2), first=0):
    """A segment of three records a batch, and its object."""
    writer = SegmentObject(OWNER, first, 150)
    data, offset = bytearray(), first
    for epoch in epochs:
        batch = build_batch([(None, b"x" * 40, (), 1_000)] * 3, base_offset=offset, leader_epoch=epoch)
        view = memoryview(batch)
        data += writer.add(parse_batch(view, 0, 0, len(view)), view) or b""
        offset += 3
    data += (writer.end_block() or b"") + writer.end(())
    return msgspec.structs.replace(writer.segment(2), revision=5), data


def stored(segment, data):
    store = MemoryStore(lambda: NOW_MS)
    store.put(segment_key(OWNER, segment), [bytes(data)])
    return store


def refused(store, segment, written_after_ms=0):
    with pytest.raises(Rejected) as caught:
        check_object(store, OWNER, segment, written_after_ms, Pace(1e12))
    return caught.value.code


def test_a_whole_object_is_accepted():
    segment, data = made()
    check_object(stored(segment, data), OWNER, segment, NOW_MS, Pace(1e12))


def test_every_flipped_bit_is_refused():
    segment, data = made()
    for at in range(len(data)):
        wrong = bytearray(data)
        wrong[at] ^= 1 << (at % 8)
        assert refused(stored(segment, wrong), segment) == ErrorCode.INVALID_RECORD, at


def test_a_missing_an_old_and_a_shortened_object_are_refused():
    segment, data = made()
    assert refused(MemoryStore(lambda: NOW_MS), segment) == ErrorCode.RESOURCE_NOT_FOUND
    assert refused(stored(segment, data), segment, NOW_MS + 1) == ErrorCode.RESOURCE_NOT_FOUND
    assert refused(stored(segment, data[:-1]), segment) == ErrorCode.INVALID_RECORD
    for change in ({"checksum": 1}, {"end_offset": 10}, {"base_offset": 1}):
        other = msgspec.structs.replace(segment, **change)
        assert refused(stored(other, data), other) == ErrorCode.INVALID_RECORD


def test_the_part_has_the_new_segments_in_the_place_of_the_old_ones():
    segments = numbered(100)
    runs = [pack_run(segments[:64]), pack_run(segments[64:])]
    before = describe_part(runs)
    store = MemoryStore(lambda: NOW_MS)
    store.put(part_key(OWNER, before), [encode_part(OWNER, runs)])
    new = msgspec.structs.replace(segments[60], end_offset=segments[70].end_offset, revision=3)
    command = Check(1, OWNER, tuple(segments[60:71]), (new,), 4, 0, before)
    part, data = part_with(store, command)
    found = [one for run in decode_part(OWNER, part, data) for one in unpack_run(run)]
    assert found == [*segments[:60], new, *segments[71:]]
    assert (part.version, part_key(OWNER, part) != part_key(OWNER, before)) == (4, True)
    other = msgspec.structs.replace(command, before=(msgspec.structs.replace(segments[60], checksum=0),))
    with pytest.raises(Rejected, match="other segments"):
        part_with(store, other)
