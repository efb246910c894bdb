"""Objects below the start of an archive that nobody remembers are found, and nothing else is."""

import random
import uuid

import msgspec
import pytest
from numbered_segments import OWNER, numbered

from millstream.format.archive import manifest_key, part_key, segment_key, topic_key
from millstream.format.manifest import ArchiveId, ManifestPart
from millstream.iobuf import Arena
from millstream.model.quantities import Offset, TimestampMs
from millstream.model.replication import Term
from millstream.objects import ObjectKey
from millstream.tiers.manifest import Archive
from millstream.tiers.messages import Done, RemoveBelow
from millstream.tiers.orphans import Orphans
from millstream.tiers.process import ArchiveWorker
from sim.engine.disk import SimDisk
from sim.engine.objects import MemoryStore

HOUR_US = 3_600_000_000
GRACE_US = 60_000_000
FIRST, SECOND = Term(1), Term(2)


@pytest.fixture
def looks():
    return Orphans()


def test_a_leader_looks_once_after_the_grace_period_and_again_when_the_start_has_moved(looks):
    assert looks.due(FIRST, Offset(0), 0, GRACE_US) is None
    assert looks.due(FIRST, Offset(0), 10 * GRACE_US, GRACE_US) is None, "nothing was ever removed"
    assert looks.due(FIRST, Offset(50), 10 * GRACE_US, GRACE_US) is None
    assert looks.due(FIRST, Offset(70), 11 * GRACE_US - 1, GRACE_US) is None
    assert looks.due(FIRST, Offset(70), 11 * GRACE_US, GRACE_US) == 50, "readers may be behind a later start"
    looks.removed(Offset(50), 11 * GRACE_US)
    again = 11 * GRACE_US + HOUR_US
    assert looks.due(FIRST, Offset(70), again - 1, GRACE_US) is None
    assert looks.due(FIRST, Offset(70), again, GRACE_US) is None
    assert looks.due(FIRST, Offset(70), again + GRACE_US, GRACE_US) == 70
    looks.removed(Offset(70), again + GRACE_US)
    assert looks.due(FIRST, Offset(70), again + 9 * HOUR_US, GRACE_US) is None


def test_the_next_leadership_looks_anew_and_a_look_that_failed_is_repeated(looks):
    looks.due(FIRST, Offset(50), 0, GRACE_US)
    assert looks.due(FIRST, Offset(50), GRACE_US, GRACE_US) == 50
    assert looks.due(FIRST, Offset(60), 2 * GRACE_US, GRACE_US) == 50, "nobody said that it was removed"
    looks.removed(Offset(50), 2 * GRACE_US)
    assert looks.due(SECOND, Offset(50), 3 * GRACE_US, GRACE_US) is None
    assert looks.due(SECOND, Offset(50), 4 * GRACE_US, GRACE_US) == 50


def test_the_first_offset_is_that_of_the_first_object():
    archive, made = Archive(Offset(0)), numbered(4)
    assert archive.first_offset == 0
    for one in made:
        archive.append(one)
    archive.trim(Offset(made[1].base_offset + 1))
    assert archive.first_offset == made[1].base_offset, "a part of its offsets is still in the log"
    archive.trim(made[3].end_offset)
    assert archive.first_offset == made[3].end_offset


def test_what_ends_below_the_offset_is_removed_whoever_wrote_it():
    store, made = MemoryStore(), numbered(5)
    other = ArchiveId(uuid.uuid4(), OWNER.partition_index)
    beside = ArchiveId(OWNER.topic_id, OWNER.partition_index + 1)
    below = made[3].base_offset

    def part(base, end):
        return part_key(OWNER, ManifestPart(base, end, TimestampMs(0), TimestampMs(1), 1, 100))

    gone = {segment_key(OWNER, one) for one in made[:3]}
    gone |= {segment_key(OWNER, msgspec.structs.replace(made[1], term=Term(9), revision=4))}
    gone |= {part(made[0].base_offset, made[2].end_offset)}
    kept = {segment_key(OWNER, one) for one in made[3:]}
    kept |= {part(made[2].base_offset, made[3].end_offset), manifest_key(OWNER), topic_key(OWNER)}
    kept |= {segment_key(other, made[0]), segment_key(beside, made[0])}
    for key in gone | kept:
        store.put(ObjectKey(key), [b"x"])
    arena = Arena.create(0, 1 << 20)
    worker = ArchiveWorker(store, store, SimDisk(random.Random(0)), arena.view, 1e9)
    assert worker.carry_out(RemoveBelow(7, OWNER, below)) == Done(7)
    assert set(store.objects) == kept
