"""What DeleteRecords and retention have deleted does not come back from the object store."""

import random
import uuid
from types import SimpleNamespace

import pytest
from restoring_support import Life, restored
from sharing_support import A, batches, share

from millstream.errors import Corruption, Unavailable
from millstream.format.archive import manifest_key, topic_key
from millstream.format.manifest import ArchiveId, decode_manifest, encode_manifest
from millstream.objects import ObjectKey
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.telemetry.metrics import StatsSlab
from millstream.tiers import Archive
from millstream.tiers.archiver import _manifest
from millstream.tiers.messages import SharedStart
from millstream.tiers.packing import archive_id
from millstream.tiers.partition_archive import Saved, SmallRanges, StoredStart
from millstream.tiers.restoring import StoreView
from millstream.tiers.shared_manifest import shared_manifest
from millstream.tiers.shared_sweeps import _start_of
from millstream.tiers.shared_wal import SharedWal
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, plain_batch, recover_locally
from sim.engine.objects import MemoryStore


@pytest.fixture
def store():
    made = MemoryStore()
    made.put(ObjectKey(topic_key(archive_id(A))), [b"described"])
    return made


def save_start(store, start):
    """The manifest object of a partition of which nothing was joined."""
    data = encode_manifest(Archive(start).manifest(archive_id(A)))
    store.put(ObjectKey(manifest_key(archive_id(A))), [data])


def start_and_end(store, tmp_path):
    found, loaded, _ = restored(store, tmp_path)
    assert loaded.state.start_offset == found.start_offset
    return found.start_offset, loaded.next_offset


@pytest.mark.parametrize("start", [2, 3, 6])
def test_a_start_inside_of_the_archive_is_the_start_of_the_log(store, tmp_path, start):
    share(store, 77, (A, 0, 6, batches(0, 3), []))
    save_start(store, start)
    assert start_and_end(store, tmp_path) == (start, 6)


def test_a_start_behind_all_that_was_archived_gives_no_offset_twice(store, tmp_path):
    share(store, 77, (A, 0, 6, batches(0, 3), []))
    save_start(store, 9)
    assert start_and_end(store, tmp_path) == (9, 9)


def test_a_log_of_which_only_the_start_is_left_begins_there(store, tmp_path):
    save_start(store, 9)
    assert start_and_end(store, tmp_path) == (9, 9)


@pytest.mark.parametrize("start", [6, 8, 9, 11])
def test_a_start_inside_of_an_entry_keeps_the_batch_that_has_it(store, tmp_path, start):
    share(store, 77, (A, 0, 4, batches(0, 2), []))
    Life(store).append((A, 8, 2), start=0)  # what was between was deleted before an object had it
    save_start(store, start)
    Life(store)
    if start < 8:
        with pytest.raises(Corruption, match="6 to 11"):
            restored(store, tmp_path)
    else:
        assert start_and_end(store, tmp_path) == (start, 12)


def test_an_entry_without_batches_has_the_start(store, tmp_path):
    life = Life(store)
    life.append((A, 0, 3))
    life.append((A, 6, 0), start=3)
    Life(store)
    assert start_and_end(store, tmp_path) == (3, 6)


def test_an_entry_goes_when_the_manifest_has_its_start(store):
    life = Life(store)
    life.append((A, 0, 3), start=0)
    life.append((A, 6, 0), start=3)
    share(store, 77, (A, 0, 6, batches(0, 3), []))
    Life(store)
    view = StoreView(store)
    assert view.remove_covered() == 1
    assert view.remove_covered() == 0
    save_start(store, 3)
    assert view.remove_covered() == 1


class Link:
    """A store that takes what it is given, or is away."""

    def __init__(self):
        self.entries, self.sent, self.error = [], [], None

    def append_entry(self, number, parts, done):
        self.sent.append((number, parts))
        if self.error is None:
            self.entries.append(parts)
        done(self.error)

    def put(self, key, data, done):
        done(None)


@pytest.fixture
def gated():
    """A log of ten records in an entry, its gate, and the store."""
    disk = SimDisk(random.Random(1))
    recover_locally(disk)
    shard = LocalShard(disk, random.Random(2))
    log = shard.open(1)
    group = SoleVoterGroup(log, 1)
    safe = []
    archive = SimpleNamespace(
        archive=Archive(0),
        log=log,
        group=group,
        owner=ArchiveId(uuid.UUID(int=1), 0),
        closed=False,
        small_ranges=SmallRanges(Archive(0)),
        start=StoredStart(log),
    )
    archive.start.on_safe = lambda: safe.append(archive.start.safe())
    link = Link()
    wal = SharedWal(shard.reactor, link, StatsSlab(0, "test"), 1000, 1 << 20, lambda _: None, lambda _: None)
    wal.open(archive)
    log.owner.on_trimmed = archive.start.moved
    data = plain_batch(0, 10)
    group.replicate((memoryview(data),), len(data), 10, 1000)
    shard.run(lambda: group.high_watermark == 10)
    return SimpleNamespace(shard=shard, log=log, link=link, wal=wal, safe=safe, archive=archive)


def test_a_start_is_safe_when_an_entry_has_it(gated):
    gated.log.trim_prefix(4)
    gated.shard.run(lambda: gated.log.start_offset == 4)
    gated.shard.run(lambda: bool(gated.safe) and gated.safe[-1] == 4)
    (part,) = gated.link.entries[-1]
    assert (part.base_offset, part.end_offset, part.start_offset, part.spans) == (10, 10, 4, [])
    (gate,) = gated.wal._gates.values()
    gated.archive.archive.trim(4)
    gated.archive.archive.end_offset = 10
    assert not gated.wal._stored._is_covered(gate, 10, 4), "the manifest does not have the start"
    gated.archive.start.saved = 4
    assert gated.wal._stored._is_covered(gate, 10, 4)


def test_nothing_leaves_the_store_for_a_start_that_the_store_does_not_know(gated):
    gated.link.error = Unavailable("away")
    gated.log.trim_prefix(8)
    gated.archive.archive.trim(8)
    gated.shard.run(lambda: gated.log.start_offset == 8 and len(gated.link.sent) == 2)
    (gate,) = gated.wal._gates.values()
    assert not gated.wal._stored._is_covered(gate, 8, 0), "a restore would look for the records before the start"
    assert _start_of(gate.key, gated.archive) == SharedStart(*gate.key, 0, 0)
    gated.link.error = None
    gated.shard.run(lambda: bool(gated.safe) and gated.safe[-1] == 8)
    assert gated.wal._stored._is_covered(gate, 8, 0)
    assert _start_of(gate.key, gated.archive) == SharedStart(*gate.key, 8, 8)


def test_an_entry_that_is_sent_again_is_the_same_entry(gated):
    gated.link.error = Unavailable("away")
    gated.log.trim_prefix(4)
    gated.shard.run(lambda: len(gated.link.sent) == 3)
    gated.log.trim_prefix(6)
    gated.shard.run(lambda: gated.log.start_offset == 6 and len(gated.link.sent) == 4)
    assert gated.link.sent[1] == gated.link.sent[3]
    gated.link.error = None
    gated.shard.run(lambda: bool(gated.safe) and gated.safe[-1] == 6)
    assert [parts[0].start_offset for parts in gated.link.entries] == [0, 4, 6]


def archived(start=0):
    """As `PartitionArchive`, of a log of which nothing is archived."""
    inner = Archive(0)
    inner.trim(start)
    return SimpleNamespace(
        archive=inner,
        owner=archive_id(A),
        log=SimpleNamespace(leader_epochs=()),
        manifest_written=lambda data, start: None,
        saved=Saved(),
        small_ranges=SmallRanges(inner),
    )


@pytest.mark.parametrize("manifest", [_manifest, lambda one: shared_manifest(one, ())], ids=["tiered", "shared"])
def test_the_manifest_of_an_empty_archive_is_written_if_the_log_starts_later(manifest):
    assert manifest(archived()) is None
    found = manifest(archived(start=7))
    assert found is not None
    assert decode_manifest(found[0]).start_offset == 7


def test_the_manifest_of_a_shared_partition_is_written_once_for_each_start():
    one = archived(start=7)
    one.manifest_written = lambda data, start: setattr(one.saved, "manifest", data)
    data, written = shared_manifest(one, ())
    written()
    assert shared_manifest(one, ()) is None
    one.archive.trim(9)
    found = shared_manifest(one, ())
    assert found is not None and found[0] != data
