"""A partition is restored from objects and sealed logs: all of it, or nothing. Lives of a broker follow each other."""

import itertools
import random
import shutil
import time

import pytest
from crc32c import crc32c
from restoring_support import Life, restored
from sharing_support import A, B, batches, share

from millstream.errors import Corruption, Rejected
from millstream.format.archive import topic_key
from millstream.format.wal_entry import EntryPart, decode_head, encode_entry, head_bytes
from millstream.model.shared import Writer
from millstream.objects import ObjectKey
from millstream.raft.stored import decode_folded
from millstream.storage.disk import SystemDisk
from millstream.storage.segments.index import SegmentIndex
from millstream.tiers.object_wal import entry_key, wal_folder
from millstream.tiers.packing import archive_id
from millstream.tiers.restoring import StoreView, restore, topics_in_use
from millstream.tiers.wal_lives import end_lives, lives, nodes
from sim.engine.objects import Faults, FaultyStore, MemoryStore


@pytest.fixture
def store():
    made = MemoryStore()
    made.put(ObjectKey(topic_key(archive_id(A))), [b"described"])
    return made


def test_a_log_is_its_archive_and_the_entries_behind_it(store, tmp_path):
    life = Life(store)
    share(store, 77, (A, 0, 6, batches(0, 3), []), (B, 0, 2, batches(0, 1), []))
    life.append((A, 0, 3), (B, 0, 1))
    life.append((A, 6, 2))
    life.append((B, 2, 1), (A, 10, 1))
    assert restored(store, tmp_path)[0].end_offset == 6, "an open log may still be written"
    shutil.rmtree(tmp_path / "topics")
    Life(store)
    found, loaded, data = restored(store, tmp_path)
    assert (found.start_offset, found.archived_end, found.end_offset) == (0, 6, 12)
    assert data == batches(6, 3)
    assert loaded.next_offset == 12
    assert (loaded.state.local_start, loaded.state.epochs) == (6, ((3, 0),))
    assert decode_folded(loaded.state.base.payload).owner_state


def test_without_an_archive_the_entries_of_several_lives_and_brokers_are_the_log(store, tmp_path):
    one = Life(store)
    one.append((A, 4, 2))
    two = Life(store)
    two.append((A, 6, 2), start=6)  # what its disk had and no object, and more
    other = Life(store, node=2)
    other.append((A, 10, 1), start=7)
    Life(store)
    end_lives(store, 2)
    found, loaded, data = restored(store, tmp_path)
    assert (found.archived_end, found.end_offset) == (4, 12)
    assert data == batches(4, 4)
    assert loaded.state.start_offset == 7, "records that were deleted come back"


def test_the_runs_of_what_is_restored_have_checksums(store, tmp_path):
    Life(store).append((A, 0, 700))
    Life(store)
    data = restored(store, tmp_path)[2]
    (path,) = (tmp_path / "topics" / "t" / "0").glob("*.log")
    index = SegmentIndex.load(SystemDisk(), str(path), 0)
    assert len(index.positions) > 3
    runs = itertools.pairwise(index.positions)
    assert list(index.sums[1:]) == [crc32c(data[begin:end]) for begin, end in runs]


def test_topics_with_records_in_a_log_that_is_in_use_are_named(store):
    life = Life(store)
    life.append((A, 0, 1))
    Life(store, node=7).append((A, 2, 1))
    assert topics_in_use(StoreView(store)) == {A.topic_id: 1}
    Life(store)
    assert topics_in_use(StoreView(store)) == {A.topic_id: 7}
    Life(store, node=7)
    assert topics_in_use(StoreView(store)) == {}


def test_restoring_again_gives_the_same_and_never_replaces_other_files(store, tmp_path):
    Life(store).append((A, 0, 2))
    Life(store)
    first = restored(store, tmp_path)
    assert restored(store, tmp_path)[2] == first[2]
    segment = next((tmp_path / "topics" / "t" / "0").glob("*.log"))
    segment.write_bytes(batches(0, 3))
    with pytest.raises(Rejected, match="move it away"):
        restored(store, tmp_path)
    assert segment.read_bytes() == batches(0, 3)


def test_nothing_is_restored_of_a_partition_that_the_store_does_not_have(store, tmp_path):
    Life(store).append((B, 0, 1))
    Life(store)
    assert restored(store, tmp_path) is None


def test_a_gap_or_a_damaged_entry_restores_nothing(store, tmp_path):
    life = Life(store)
    share(store, 77, (A, 0, 6, batches(0, 3), []))
    life.append((A, 8, 1))
    Life(store)
    with pytest.raises(Corruption, match="6 to 9"):
        restored(store, tmp_path)
    share(store, 78, (A, 6, 8, batches(6, 1), []))
    key = entry_key(wal_folder(life.writer), 0)
    whole = bytes(store.get(key, 0, store.head(key).size_bytes))
    store.put(key, [whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:]])
    with pytest.raises(Corruption):
        restored(store, tmp_path)
    assert not (tmp_path / "topics" / "t" / "0").exists()


def test_entries_of_lives_that_are_over_go_when_the_archive_has_them_and_the_seal_stays(store):
    life = Life(store)
    for at in range(3):
        life.append((A, 2 * at, 1))
    view = StoreView(store)
    assert view.remove_covered() == 0, "the log is in use"
    Life(store)
    assert view.remove_covered() == 0
    share(store, 77, (A, 0, 4, batches(0, 2), []))
    assert view.remove_covered() == 2
    folder = wal_folder(life.writer)
    assert [info.key for info in store.list(folder)] == [entry_key(folder, 2), entry_key(folder, 3)]
    store.delete([ObjectKey(topic_key(archive_id(A)))])  # the topic was deleted
    assert view.remove_covered() == 1
    assert [info.key for info in store.list(folder)] == [entry_key(folder, 3)]
    with pytest.raises(Rejected, match="sealed"):
        life.append((A, 6, 1))


def test_a_new_life_ends_the_ones_before(store):
    first = Life(store)
    first.append((A, 0, 1))
    second = Life(store)
    assert second.writer == Writer(1, 2)
    with pytest.raises(Rejected, match="sealed"):
        first.append((A, 2, 1))
    second.append((A, 2, 1))
    assert list(lives(store, 1)) == [1, 2]


def test_a_broker_whose_lives_are_over_acknowledges_nothing_and_may_begin_another(store):
    first = Life(store)
    first.append((A, 0, 1))
    end_lives(store, 1)
    end_lives(store, 1)  # as after a crash
    assert len(lives(store, 1)) == 1
    with pytest.raises(Rejected, match="sealed"):
        first.append((A, 2, 1))
    Life(store).append((A, 2, 1))
    end_lives(store, 7)  # it had none
    assert nodes(store) == [1]


def test_lives_that_are_over_cost_nothing_more(store):
    for _ in range(20):
        Life(store)  # each seals the ones before
    Life(store).append((A, 0, 2))
    Life(store)
    counted = FaultyStore(store, random.Random(0), Faults())
    view = StoreView(counted)
    view.refresh()
    first, counted.calls = counted.calls, 0
    view.refresh()
    assert first > 60, "each life, its log, and whether that is sealed"
    assert counted.calls <= 8, "brokers, lives, the logs with entries, and objects"
    Life(store).append((B, 0, 2))
    Life(store)
    view.refresh()
    assert view.entries(A) and view.entries(B)


def test_partitions_that_are_asked_for_together_read_the_store_once(store, tmp_path):
    Life(store).append((A, 0, 2))
    Life(store)
    counted = FaultyStore(store, random.Random(0), Faults())
    view = StoreView(counted)
    before = time.monotonic_ns()
    ends, calls = [], []
    for name in ("one", "two", "three"):
        counted.calls = 0
        directory = str(tmp_path / "topics" / name / "0")
        made = restore(view, SystemDisk(), archive_id(A), directory, 0, (), None if name == "three" else before)
        ends.append(made.end_offset)
        calls.append(counted.calls)
    assert ends == [4, 4, 4]
    assert calls[1] < 4 < calls[0] and calls[2] > calls[1], "only what came later is asked for anew"


def test_brokers_are_found_by_their_logs(store):
    for node in (1, 10, 2, 100):
        Life(store, node)
        Life(store, node).append((A, 0, 1))
    assert sorted(nodes(store)) == [1, 2, 10, 100]


def test_the_head_of_an_entry_is_checked_alone():
    data = [batches(0, 1), batches(4, 2)]
    parts = [EntryPart(A, 0, 2, 0, len(data[0]), 1), EntryPart(B, 4, 8, 0, len(data[1]), 2)]
    whole = bytes(16) + encode_entry(parts, data)
    end = head_bytes(whole[:24])
    found = decode_head(whole[:end])
    assert [one.part for one in found] == parts
    assert [whole[one.position : one.position + one.part.size_bytes] for one in found] == data
    for at in range(16, end):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        with pytest.raises(Corruption):
            decode_head(bytes(damaged[: max(end, 24)]) if at > 19 else bytes(damaged))
    with pytest.raises(Corruption):
        decode_head(whole[: end - 1])
