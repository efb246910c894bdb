"""What an unclean cut takes from the object store: all that was committed there, whoever of the replicas knew of it."""

import msgspec
import pytest
from numbered_segments import OWNER, numbered
from sharing_support import A, batches, joined, share

from millstream.core.raft.messages import Configuration, LogStart, Opaque
from millstream.format.archive import ARCHIVE_ENTRY, Archived, encode_entry, manifest_key
from millstream.format.epochs import LogState, RaftBase, StoredControl
from millstream.format.manifest import ArchivedSegment, decode_manifest, encode_manifest
from millstream.format.shared_object import shared_key
from millstream.objects import ObjectKey
from millstream.raft.stored import Folded, decode_folded, encode_control, encode_folded
from millstream.tiers.manifest import Archive
from millstream.tiers.newest import known_archive, newest_state
from millstream.tiers.packing import archive_id
from millstream.tiers.restoring import StoreView
from sim.engine.objects import MemoryStore

SHARED = archive_id(A)


def archive_of(segments, version=0):
    archive = Archive(segments[0].base_offset if segments else 0)
    for one in segments:
        archive.append(one)
    archive.version = version
    return archive


def known(owner, archive, epochs=((3, 0),), start=0):
    """The state of a replica with this archive."""
    payload = encode_folded(Folded(Configuration(()), encode_manifest(archive.manifest(owner))))
    return LogState(start, epochs, base=RaftBase(0, 0, 0, payload))


def save(store, owner, archive, epochs=((3, 0),)):
    store.put(ObjectKey(manifest_key(owner)), [encode_manifest(archive.manifest(owner, epochs))])


def newest(store, owner, state, shared=True):
    """Start, segments and end of what counts, and what is missing."""
    found = newest_state(StoreView(store), owner, state, shared=shared)
    archive = Archive.of(decode_manifest(decode_folded(found.state.base.payload).owner_state))
    assert found.state.local_start == found.state.base.offset == archive.end_offset
    return found.state.start_offset, list(archive.entries()), archive.end_offset, found.missing


def uploaded(count=6):
    """A store with ranges of two batches each."""
    store = MemoryStore()
    return store, [share(store, 100 + at, (A, 4 * at, 4 * at + 4, batches(4 * at, 2), []))[0] for at in range(count)]


@pytest.mark.parametrize("knows", range(7))
def test_joined_and_removed_ranges_are_found_in_the_objects_that_took_their_place(knows):
    store, segments = uploaded()
    own = joined(store, segments[:4]).after
    save(store, SHARED, archive_of([own, segments[4]], 1))
    store.delete([ObjectKey(shared_key(one.object_id)) for one in segments[:4]])
    replica = archive_of(segments[:knows])
    assert newest(store, SHARED, known(SHARED, replica)) == (0, [own, *segments[4:]], 24, None)


def test_a_replica_that_knows_of_a_join_that_the_manifest_object_does_not_keeps_all():
    store, segments = uploaded()
    own = joined(store, segments[:4]).after
    _, found, end, missing = newest(store, SHARED, known(SHARED, archive_of([own, *segments[4:]], 1)))
    assert (found[0].base_offset, end, missing) == (0, 24, None)


def test_what_was_deleted_does_not_come_back():
    store, segments = uploaded()
    later = archive_of(segments)
    later.trim(9)
    save(store, SHARED, later)
    store.delete([ObjectKey(shared_key(one.object_id)) for one in segments[:2]])
    assert newest(store, SHARED, known(SHARED, archive_of(segments))) == (9, segments[2:], 24, None)


def test_offsets_that_no_object_has_are_said_and_the_replica_keeps_what_it_knew():
    store, segments = uploaded()
    store.delete([ObjectKey(shared_key(one.object_id)) for one in segments[2:4]])
    assert newest(store, SHARED, known(SHARED, archive_of(segments))) == (0, segments, 24, (8, 16))
    assert newest(store, SHARED, known(SHARED, archive_of(segments[:2]))) == (0, segments[:2], 8, None)


def test_objects_with_records_that_an_earlier_cut_has_given_up_do_not_count():
    store, segments = uploaded(4)
    later = batches(8, 1).replace(b"\x00\x00\x00\x03\x02", b"\x00\x00\x00\x09\x02")
    kept = share(store, 200, (A, 8, 10, later, []))[0]
    assert kept.term == 9
    assert newest(store, SHARED, known(SHARED, archive_of(segments[:2]), ((3, 0), (9, 8)))) == (
        0,
        [*segments[:2], kept],
        10,
        None,
    )
    assert newest(store, SHARED, LogState())[2] == 10, "the objects say it themselves"


def test_a_replica_without_anything_takes_what_there_is():
    store, segments = uploaded()
    assert newest(store, SHARED, LogState()) == (0, segments, 24, None)
    assert newest(MemoryStore(), SHARED, LogState()) == (0, [], 0, None)


@pytest.mark.parametrize("knows", [0, 3, 8, 10])
def test_of_a_tiered_topic_the_manifest_object_or_the_replica_counts_whichever_is_newer(knows):
    store, made = MemoryStore(), numbered(10)
    save(store, OWNER, archive_of(made[:8]), ((1, 0),))
    state = known(OWNER, archive_of(made[:knows]), ((1, 0),))
    assert newest(store, OWNER, state, shared=False)[1] == made[: max(8, knows)]


def test_a_replacement_that_the_replica_has_missed_counts():
    store, made = MemoryStore(), numbered(6)
    merged = msgspec.structs.replace(made[0], end_offset=made[3].end_offset, revision=4)
    save(store, OWNER, archive_of([merged, made[4]], 1), ((1, 0),))
    found = newest(store, OWNER, known(OWNER, archive_of(made[:5]), ((1, 0),)), shared=False)
    assert found[1] == [merged, made[4]]


def test_a_manifest_object_with_what_an_earlier_cut_has_given_up_does_not_count():
    store, made = MemoryStore(), numbered(6)
    save(store, OWNER, archive_of(made), ((1, 0),))
    state = known(OWNER, archive_of(made[:3]), ((1, 0), (9, made[3].base_offset)))
    assert newest(store, OWNER, state, shared=False)[1] == made[:3]


def test_entries_that_were_not_known_to_be_committed_count():
    made = numbered(3)
    controls = [LogStart(made[1].base_offset)]
    controls += [Opaque(ARCHIVE_ENTRY, encode_entry(Archived(one, 0))) for one in made]
    stored = tuple(StoredControl(at, 0, 1, encode_control(one)) for at, one in enumerate(controls))
    archive, start = known_archive(LogState(controls=stored))
    assert (archive.segment_count, archive.end_offset, start) == (3, made[2].end_offset, made[1].base_offset)
    assert isinstance(next(archive.entries()), ArchivedSegment)
