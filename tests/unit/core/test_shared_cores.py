"""Shared storage decides: when to upload, what goes into one object, in which order objects commit."""

import pytest

from millstream.core.shared import Backlog, BacklogLimits, Uploads
from millstream.errors import Rejected
from millstream.model.shared import SharedPartition

A, B, C = (SharedPartition(bytes([at]) * 16, 0) for at in (1, 2, 3))

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
