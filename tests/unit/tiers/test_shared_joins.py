"""Ranges of shared objects become an object of their partition, byte for byte or not at all; then shared objects go."""

import itertools
import random
import uuid

import pytest
from sharing_support import TOPIC, A, B, batches, joined, read, share

from millstream.core.shared.joins import LARGE_BYTES
from millstream.errors import Corruption, MillstreamError, Rejected
from millstream.format.archive import Replaced, part_key
from millstream.format.manifest import describe_part, encode_part, pack_run
from millstream.format.shared_object import shared_key
from millstream.objects import ObjectKey
from millstream.tiers.manifest import Archive
from millstream.tiers.messages import SharedStart, Sweep
from millstream.tiers.packing import archive_id
from millstream.tiers.replaced_objects import check_object
from millstream.tiers.sweeping import Sweeper, longest_chain, own_ranges, stored_ranges
from millstream.tiers.uploading import Pace
from sim.engine.objects import ERROR, Faults, FaultyStore, MemoryStore


def scattered(count=6):
    """A store with shared objects of A and B, and the ranges of A: two batches each, the last ones aborted."""
    store, found = MemoryStore(), []
    for at in range(count):
        spans = [(9, 4 * at, 4 * at + 3)] if at >= count - 2 else []
        parts = (A, 4 * at, 4 * at + 4, batches(4 * at, 2), spans), (B, 2 * at, 2 * at + 2, batches(2 * at, 1), [])
        found.append(share(store, 100 + at, *parts)[0])
    return store, found


def own_keys(store):
    return [one.key for one in store.list("topics/") if one.key.endswith(".segment")]


def test_the_object_has_every_batch_of_the_ranges_and_is_accepted_by_the_check_before_the_commit():
    store, segments = scattered()
    after = joined(store, segments).after
    assert (after.base_offset, after.end_offset, after.term, after.object_id) == (0, 24, 7, 0)
    assert after.revision
    assert read(store, A, after, 0, 24) == (batches(0, 12), [(9, 16, 19), (9, 20, 23)])
    assert read(store, A, after, 6, 10)[0] == batches(6, 2)
    check_object(store, archive_id(A), after, 0, Pace(1e12))
    again = joined(store, [after, *share(store, 200, (A, 24, 28, batches(24, 2), []))]).after
    assert read(store, A, again, 0, 28)[0] == batches(0, 14)
    assert read(store, A, again, 17, 20)[1] == [(9, 16, 19)]


@pytest.mark.parametrize("at", range(6))
def test_a_damaged_or_missing_range_cancels_the_join(at):
    store, segments = scattered()
    key = sorted(store.objects, key=lambda one: one[::-1])[at]
    data = bytearray(store.objects[key][0])
    data[100] ^= 1
    store.put(key, [bytes(data)])
    with pytest.raises(Corruption, match="checksum"):
        joined(store, segments)
    store.delete([key])
    with pytest.raises(Rejected):
        joined(store, segments)
    assert not own_keys(store)


def test_a_store_that_fails_at_any_request_leaves_no_wrong_object():
    for fails_at in itertools.count():
        store, segments = scattered()
        faulty = FaultyStore(store, random.Random(1), Faults())
        faulty.script.extend(["none"] * fails_at + [ERROR])
        try:
            after = joined(store, segments, reads=faulty).after
        except MillstreamError:
            assert not own_keys(store)
            continue
        assert read(store, A, after, 0, 24)[0] == batches(0, 12)
        break
    assert fails_at > 6


def test_small_ranges_in_a_part_of_the_manifest_are_found_there():
    store, segments = scattered()
    owner = archive_id(A)
    runs = [pack_run(segments)]
    part = describe_part(runs)
    store.put(ObjectKey(part_key(owner, part)), [encode_part(owner, runs)])
    found = joined(store, (), part=part)
    assert list(found.before) == segments
    runs = [pack_run([found.after])]
    part = describe_part(runs)
    store.put(ObjectKey(part_key(owner, part)), [encode_part(owner, runs)])
    assert joined(store, (), part=part).after is None


def test_ranges_of_a_part_that_the_archive_no_longer_starts_with_may_be_gone():
    store, segments = scattered()
    owner = archive_id(A)
    runs = [pack_run(segments)]
    part = describe_part(runs)
    store.put(ObjectKey(part_key(owner, part)), [encode_part(owner, runs)])
    store.delete([ObjectKey(shared_key(segments[0].object_id))])
    with pytest.raises(Rejected):
        joined(store, (), part=part, start_offset=3)
    found = joined(store, (), part=part, start_offset=5)
    assert list(found.before) == segments[1:]
    assert read(store, A, found.after, 4, 24)[0] == batches(4, 10)


def sweep(store, *starts):
    command = Sweep(1, [SharedStart(*one) for one in starts], [TOPIC.bytes], "")
    return Sweeper(store).sweep(command).removed


def test_a_shared_object_goes_when_all_its_small_ranges_are_joined():
    store, _ = scattered(3)
    assert sweep(store, (*A, 0, 12), (*B, 0, 3)) == [100]
    assert sweep(store, (*A, 0, 8), (*B, 0, 6)) == [101]
    assert sweep(store, (*A, 0, 11), (*B, 6, 6)) == []
    assert sweep(store, (*A, 0, 0), (*A, 2, 12), (*B, 0, 6)) == [102]


def test_an_object_with_a_large_range_stays_until_the_log_starts_behind_it():
    store = MemoryStore()
    large = batches(0, 3, LARGE_BYTES // 5)
    assert len(large) >= LARGE_BYTES
    share(store, 77, (A, 0, 6, large, []), (B, 0, 2, batches(0, 1), []))
    assert sweep(store, (*A, 5, 6), (*B, 0, 2)) == []
    assert sweep(store, (*A, 6, 6), (*B, 0, 2)) == [77]


def test_a_lost_broker_finds_what_was_joined_and_what_was_uploaded_after_it():
    store, segments = scattered(4)
    archive = Archive(0)
    for one in segments:
        archive.append(one)
    result = joined(store, segments[:3])
    entry = Replaced(uuid.uuid4().bytes, 0, result.before, (result.after,))
    assert archive.replaced(entry) is not None
    own = list(own_ranges(list(archive.entries()), [(1, 0), (3, 2), (5, 11), (6, 12)]))
    assert own[0].epochs == ((1, 0), (3, 2), (5, 11))
    assert [one.segment for one in own] == [result.after]
    own = list(own_ranges(list(archive.entries()), [(0, 0), (1, 0), (2, 4), (3, 4)]))
    assert own[0].epochs == ((1, 0), (3, 4)), "those without a record are in no object"
    assert [one.segment for one in longest_chain([*stored_ranges(store)[A][3:], *own])] == [result.after, segments[3]]
    own = list(own_ranges(list(archive.entries()), [(3, 0)]))
    ranges = stored_ranges(store)[A]
    assert [one.segment for one in longest_chain([*ranges, *own])] == [result.after, segments[3]]
    assert sweep(store, (*A, 0, 12), (*B, 8, 8)) == [100, 101, 102]
    ranges = stored_ranges(store)[A]
    assert [one.segment for one in longest_chain([*ranges, *own])] == [result.after, segments[3]]
