"""Shared storage decides: what goes into one object, in which order objects commit, who may commit, what may go."""

import pytest

from millstream.core.shared import Backlog, BacklogLimits, Catalogue, Commit, Uploads
from millstream.core.shared.catalogue import Writer
from millstream.errors import Rejected
from millstream.model.shared import SharedPartition, SharedRange

A, B, C = (SharedPartition(bytes([at]) * 16, 0) for at in (1, 2, 3))
ONE, TWO = Writer(1, 10), Writer(2, 20)
GRACE_MS = 1_000


@pytest.fixture
def catalogue():
    made = Catalogue(GRACE_MS)
    for writer in (ONE, TWO):
        made.register(writer, 0)
    for partition in (A, B):
        made.create(partition)
        made.take_lead(partition, ONE)
    return made


def commit(catalogue, *ranges, writer=ONE, object_id=None):
    object_id = object_id or catalogue.prepare(writer, 1)[0]
    made = Commit(writer, object_id, 100, tuple(SharedRange(*one) for one in ranges))
    catalogue.commit(made, 0)
    return made


def test_a_commit_is_visible_and_may_be_repeated(catalogue):
    made = commit(catalogue, (A, 1, 0, 5), (B, 1, 0, 2))
    catalogue.commit(made, 0)
    assert catalogue.find(A, 4).object_id == made.object_id
    assert catalogue.find(A, 5) is None
    assert catalogue.bounds(B) == (0, 2)
    other = Commit(ONE, made.object_id, 100, (SharedRange(A, 1, 5, 6),))
    with pytest.raises(Rejected, match="other contents"):
        catalogue.commit(other, 0)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ([(A, 1, 1, 5)], "does not begin at the end"),
        ([(B, 1, 0, 5), (A, 1, 0, 0)], "does not begin at the end"),
        ([(B, 1, 0, 5), (A, 2, 0, 5)], "another leader"),
    ],
)
def test_a_commit_that_does_not_fit_changes_nothing(catalogue, ranges, words):
    with pytest.raises(Rejected, match=words):
        commit(catalogue, *ranges)
    assert (catalogue.bounds(A), catalogue.bounds(B), catalogue.live_objects) == ((0, 0), (0, 0), set())


def test_commits_follow_the_order_of_preparation(catalogue):
    first, second = catalogue.prepare(ONE, 2)
    with pytest.raises(Rejected, match=f"object {second} is committed before object {first}"):
        commit(catalogue, (A, 1, 0, 5), object_id=second)
    commit(catalogue, (A, 1, 0, 5), object_id=first)
    commit(catalogue, (A, 1, 5, 6), object_id=second)
    assert catalogue.bounds(A) == (0, 6)


def test_an_object_that_replaces_others_holds_no_upload_up(catalogue):
    catalogue.prepare(ONE, 1, replaces=True)
    commit(catalogue, (A, 1, 0, 5))


def test_a_partition_is_taken_from_a_fenced_broker_alone(catalogue):
    with pytest.raises(Rejected, match="broker 1 leads"):
        catalogue.take_lead(A, TWO)
    prepared = catalogue.prepare(ONE, 1)[0]
    catalogue.fence(ONE, 0)
    lead = catalogue.take_lead(A, TWO)
    assert (lead.leader_epoch, lead.end_offset, catalogue.takeovers) == (2, 0, 1)
    with pytest.raises(Rejected, match="fenced"):
        commit(catalogue, (A, 1, 0, 5), object_id=prepared)
    assert catalogue.removable(GRACE_MS - 1) == []
    assert catalogue.removable(GRACE_MS) == [prepared]


def test_a_restart_fences_the_life_before(catalogue):
    catalogue.register(Writer(1, 11), 0)
    with pytest.raises(Rejected, match="fenced"):
        catalogue.prepare(ONE, 1)
    with pytest.raises(Rejected, match="has had epoch 11"):
        catalogue.register(ONE, 0)


def test_a_leader_resigns_when_everything_is_uploaded(catalogue):
    with pytest.raises(Rejected, match="the log ends at 5, 0 is uploaded"):
        catalogue.resign(A, ONE, 5)
    commit(catalogue, (A, 1, 0, 5))
    catalogue.resign(A, ONE, 5)
    assert catalogue.take_lead(A, TWO).end_offset == 5
    assert catalogue.takeovers == 0


def test_compaction_keeps_every_offset(catalogue):
    old = [commit(catalogue, (A, 1, at, at + 1), (B, 1, at, at + 1)).object_id for at in range(3)]
    new = catalogue.prepare(TWO, 1, replaces=True)[0]
    short = Commit(TWO, new, 9, (SharedRange(A, 0, 0, 2),))
    with pytest.raises(Rejected, match="does not have the offsets 0–2"):
        catalogue.replace(short, old[:2], 0)
    whole = Commit(TWO, new, 9, (SharedRange(A, 0, 0, 2), SharedRange(B, 0, 0, 2)))
    catalogue.trim(A, 1, 0)
    catalogue.replace(whole, old[:2], 0)
    catalogue.replace(whole, old[:2], 0)
    assert [one.object_id for one in catalogue.placed(A)] == [new, old[2]]
    assert catalogue.removable(GRACE_MS) == old[:2]


def test_an_object_stays_for_its_grace_and_for_its_readers(catalogue):
    made = commit(catalogue, (A, 1, 0, 5)).object_id
    catalogue.lease(made)
    catalogue.trim(A, 5, 100)
    with pytest.raises(Rejected, match="look the offset up again"):
        catalogue.lease(made)
    assert catalogue.removable(100 + GRACE_MS) == []
    catalogue.release(made)
    assert catalogue.removable(99 + GRACE_MS) == []
    assert catalogue.removable(100 + GRACE_MS) == [made]
    catalogue.removed([made])
    assert catalogue.removable(100 + GRACE_MS) == []


def test_what_is_not_uploaded_cannot_be_trimmed(catalogue):
    with pytest.raises(Rejected, match="not uploaded"):
        catalogue.trim(A, 1, 0)


def test_ranges_of_a_deleted_partition_are_dropped(catalogue):
    kept = catalogue.prepare(ONE, 1)[0]
    catalogue.delete(A, 0)
    commit(catalogue, (A, 1, 0, 5), (B, 1, 0, 2), object_id=kept)
    assert catalogue.bounds(B) == (0, 2)
    assert catalogue.live_objects == {kept}


LIMITS = BacklogLimits(bytes_max=1_000, upload_bytes=400, upload_age_ms=50, alone_bytes=300)


def test_a_large_partition_has_an_object_of_its_own_and_small_ones_share_one():
    backlog = Backlog(LIMITS)
    for partition, size in ((C, 20), (A, 10), (B, 300)):
        backlog.append(partition, 0, 4, size, 0)
    packs = backlog.take()
    assert [[one.partition for one in pack.parts] for pack in packs] == [[B], [A, C]]
    assert (backlog.open_bytes, backlog.packed_bytes) == (0, 330)
    for pack in packs:
        backlog.committed(pack)
    assert backlog.size_bytes == 0


def test_producers_wait_while_the_backlog_is_full_even_if_it_is_packed():
    backlog = Backlog(LIMITS)
    assert backlog.admits(5_000)
    backlog.append(A, 0, 4, 900, 0)
    assert backlog.admits(100)
    assert not backlog.admits(101)
    (pack,) = backlog.take()
    assert not backlog.admits(101)
    backlog.committed(pack)
    assert backlog.admits(101)


@pytest.mark.parametrize(("size", "now_ms", "due"), [(399, 49, False), (400, 0, True), (1, 50, True)])
def test_an_upload_is_due_by_size_or_age(size, now_ms, due):
    backlog = Backlog(LIMITS)
    assert not backlog.is_due(1_000)
    backlog.append(A, 0, 4, size, 0)
    assert backlog.is_due(now_ms) is due


def test_a_backlog_has_no_gap():
    backlog = Backlog(LIMITS)
    backlog.append(A, 0, 4, 10, 0)
    with pytest.raises(Rejected, match="ends at 4"):
        backlog.append(A, 5, 6, 10, 0)
    backlog.leave(A)
    assert backlog.size_bytes == 0
    backlog.append(A, 9, 10, 10, 0)


def test_only_the_oldest_verified_upload_commits():
    uploads = Uploads()
    (pack,) = _pack()
    first, second = uploads.begin(1, pack), uploads.begin(2, pack)
    second.verified = True
    assert uploads.next_commit() is None
    first.verified = True
    assert uploads.next_commit() is first
    uploads.committed(first)
    assert uploads.next_commit() is second
    with pytest.raises(Rejected, match="prepared before"):
        uploads.begin(2, pack)


def test_an_object_is_stored_after_those_before_it_that_have_the_same_partitions():
    uploads = Uploads()
    (pack,) = _pack()
    first = uploads.begin(1, pack, frozenset((A,)))
    other = uploads.begin(2, pack, frozenset((B,)))
    both = uploads.begin(3, pack, frozenset((A, B)))
    assert [uploads.may_store(one) for one in (first, other, both)] == [True, True, False]
    first.stored = first.verified = True
    assert not uploads.may_store(both)
    other.verified = True
    assert uploads.may_store(both)
    assert uploads.begin(4, pack).partitions == {A}


def _pack():
    backlog = Backlog(LIMITS)
    backlog.append(A, 0, 1, 10, 0)
    return backlog.take()
