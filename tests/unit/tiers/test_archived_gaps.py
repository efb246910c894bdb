"""A log that was compacted is archived with its gaps: every reader of the archive finds what is left, and no job may
lose a batch more.
"""

import itertools
import uuid

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import Corruption
from millstream.format.archive import segment_key
from millstream.format.manifest import ArchiveId, ManifestVersion
from millstream.format.names import segment_name
from millstream.format.segment import parse_batch
from millstream.format.segment_object import SegmentObject
from millstream.model.error_code import ErrorCode
from millstream.storage.disk import SystemDisk
from millstream.tiers import Archive
from millstream.tiers.messages import Check, Failed, Find, Read, Target, Upload
from millstream.tiers.process import ArchiveWorker
from millstream.wire.records import build_batch, iter_batches, iter_records
from sim.engine.objects import MemoryStore

OWNER = ArchiveId(uuid.UUID(int=5), 0)
ROOM = 1 << 16


class World:
    """The files of a log with gaps, the archive process and the archive of the partition."""

    def __init__(self, directory, lengths, gone, generation=1):
        self.store = MemoryStore(lambda: 1_000_000)
        self.worker = ArchiveWorker(self.store, self.store, SystemDisk(), memoryview(bytearray(ROOM)), 1e12)
        self.archive = Archive(0)
        self.numbers = itertools.count(1)
        self.kept = []
        self.segments = []
        base = 0
        for segment in lengths:
            begin, data = base, bytearray()
            for place, count in enumerate(segment):
                is_last = place == len(segment) - 1
                if is_last or (begin, place) not in gone:
                    data += build_batch(
                        [(b"k", b"%d" % at, [], 1_000 + base + at) for at in range(count)],
                        base_offset=base,
                        leader_epoch=1,
                    )
                    self.kept += range(base, base + count)
                base += count
            path = directory / segment_name(begin, generation)
            path.write_bytes(data)
            self.segments.append((path, begin, base, len(data)))
        self.end = base

    def upload(self, number, from_offset):
        path, begin, end, size = self.segments[number]
        command = Upload(next(self.numbers), OWNER, str(path), begin, from_offset, end, size, 1, [], 0)
        reply = self.worker.carry_out(command)
        if isinstance(reply, Failed):
            raise Corruption(reply.message)
        self.archive.append(reply.segment)
        return reply.segment

    def read(self, offset):
        """Offsets of the records that a fetch gets."""
        target = Target.of(self.archive.find_offset(offset))
        command = Read(next(self.numbers), OWNER, target, offset, self.end, ROOM, True, [0, ROOM])
        reply = self.worker.carry_out(command)
        data = self.worker._arena[: reply.size_bytes]
        return [record.offset for one in iter_batches(data) for record in iter_records(one)]

    def find(self, timestamp):
        after = 0
        while (target := self.archive.find_time(timestamp, after)) is not None:
            command = Find(next(self.numbers), OWNER, Target.of(target), timestamp, after, self.end)
            reply = self.worker.carry_out(command)
            if reply.offset >= 0:
                return reply.offset
            after = reply.searched_to
        return None


SEGMENTS = st.lists(st.lists(st.integers(1, 4), min_size=1, max_size=6), min_size=1, max_size=4)


@given(SEGMENTS, st.data())
def test_every_offset_and_time_of_a_log_with_gaps_is_found_in_the_archive(tmp_path_factory, lengths, data):
    bases = [sum(map(sum, lengths[:at])) for at in range(len(lengths))]
    places = [(base, at) for base, one in zip(bases, lengths, strict=True) for at in range(len(one))]
    gone = data.draw(st.sets(st.sampled_from(places)))
    world = World(tmp_path_factory.mktemp("log"), lengths, gone)
    for number in range(len(lengths)):
        world.upload(number, world.archive.end_offset)
    assert (world.archive.first_offset, world.archive.end_offset) == (0, world.end)
    for offset in range(world.end):
        expected = [one for one in world.kept if one >= offset]
        got = [one for one in world.read(offset) if one >= offset]
        assert got, offset
        assert got == expected[: len(got)], offset
        assert world.find(1_000 + offset) == expected[0]


def test_an_archive_that_ends_in_a_gap_is_continued_from_there(tmp_path):
    """Another replica archived the first offsets, and compacted less."""
    world = World(tmp_path, [[3, 3, 3]], {(0, 0), (0, 1)})
    first = world.upload(0, 0)
    assert (first.base_offset, first.end_offset) == (0, 9)
    other = World(tmp_path, [[3, 3, 3]], {(0, 0), (0, 1)})
    other.archive = Archive(2)
    assert other.upload(0, 2).base_offset == 2


def test_a_file_that_was_never_compacted_may_not_have_gaps(tmp_path):
    for gone in ({(0, 0)}, {(0, 1)}):
        world = World(tmp_path, [[3, 3, 3]], gone, generation=0)
        with pytest.raises(Corruption, match="stands where offset"):
            world.upload(0, 0)
        assert not world.store.objects


def rewritten(world, before, left_out=()):
    """An object with the batches of some segments, but for those at some offsets."""
    made, data = SegmentObject(OWNER, before[0].base_offset, 1 << 20, gaps=True), bytearray()
    for segment in before:
        view = memoryview(world.store.objects[segment_key(OWNER, segment)][0])[: segment.size_bytes]
        at = 0
        while at < len(view):
            one = parse_batch(view, at, at, len(view))
            if one.base_offset not in left_out:
                data += made.add(one, view[at : at + one.size]) or b""
            at += one.size
    data += (made.end_block() or b"") + made.end(())
    after = msgspec.structs.replace(made.segment(1), revision=7)
    world.store.put(segment_key(OWNER, after), [bytes(data)])
    return after


def test_a_replacement_has_the_gaps_of_what_it_replaces_and_no_other(tmp_path):
    world = World(tmp_path, [[3, 3, 3], [3, 3]], {(0, 0), (9, 0)})
    before = (world.upload(0, 0), world.upload(1, 9))

    def check(after):
        return world.worker.carry_out(Check(1, OWNER, before, (after,), ManifestVersion(1), 0))

    assert not isinstance(check(rewritten(world, before)), Failed)
    refused = check(rewritten(world, before, left_out={3}))
    assert (refused.code, "from offset 0 on" in refused.message) == (ErrorCode.INVALID_RECORD, True)
