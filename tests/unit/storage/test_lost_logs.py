"""A replica that finds no files where it had some, or damaged ones, begins anew and says so until it is whole."""

import errno
import random

import pytest
from storage_support import SEGMENT, fill, kill, new_shard

from millstream.errors import Corruption
from millstream.format.epochs import StoredVote
from millstream.format.names import SEGMENT_SUFFIX
from millstream.model.replication import ReplicaId, Term
from millstream.storage.disk import exists
from millstream.storage.log.lost import begin_new
from millstream.storage.segments.files import names_in, remove_deleted
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, place_of, recover_locally

DIRECTORY = place_of(1).directory
VOTE = StoredVote(Term(5), ReplicaId(3))


def left(replicated: bool = True) -> SimDisk:
    """The disk of a replica that has records and a vote in its files."""
    shard = new_shard()
    log = shard.open(1, replicated=replicated)
    log.append_control(Term(1), b"")
    fill(shard, log, 20, epoch=1)
    shard.call(log.save_vote, VOTE)
    shard.call(shard.storage.checkpoint)
    return kill(shard)


def reopened(disk: SimDisk) -> LocalShard:
    report = recover_locally(disk, replicated=True)
    return LocalShard(disk, random.Random(5), clean=report.clean)


def opened(shard: LocalShard):
    return shard.storage.registry.open_log(1, DIRECTORY, "t/1", shard.config(), False, replicated=True, expected=True)


def test_a_replica_that_was_made_here_as_a_new_one_has_lost_nothing_and_one_that_was_here_is_left_as_it_is() -> None:
    disk = SimDisk(random.Random(4))
    recover_locally(disk)
    begin_new(disk, DIRECTORY)
    disk.crash(torn=False)
    log = opened(reopened(disk))
    assert not log.files.lost
    assert log.next_offset == 0
    disk = left()
    before = disk.files()
    begin_new(disk, DIRECTORY)
    assert disk.files() == before
    assert opened(reopened(disk)).raft.vote == VOTE


def test_a_replica_whose_directory_is_gone_is_lost_until_it_is_whole() -> None:
    disk = left()
    shard = reopened(disk)
    remove_deleted(disk, DIRECTORY)
    log = opened(shard)
    assert log.files.lost
    assert log.next_offset == 0
    disk = kill(shard)
    shard = reopened(disk)
    log = opened(shard)
    assert log.files.lost
    log.found_again()
    assert not log.files.lost
    shard.call(log.save_vote, VOTE)
    disk = kill(shard)
    assert not opened(reopened(disk)).files.lost


@pytest.mark.parametrize("newer", ["vote", "batch", "trim", "control"])
def test_a_replica_whose_directory_is_gone_is_lost_although_the_write_ahead_log_has_its_newest_records(newer) -> None:
    shard = reopened(left())
    log = opened(shard)
    assert not log.files.lost
    match newer:
        case "vote":
            shard.call(log.save_vote, StoredVote(Term(6), ReplicaId(2)))
        case "batch":
            fill(shard, log, 2, epoch=1)
        case "trim":
            shard.call(lambda done: log.trim_prefix(10, done))
        case "control":
            log.append_control(6, b"")
            fill(shard, log, 1, epoch=6)
    disk = kill(shard)
    remove_deleted(disk, DIRECTORY)
    log = opened(reopened(disk))
    assert log.files.lost
    assert log.next_offset == 0


def test_a_replica_whose_directory_is_gone_is_not_lost_if_the_write_ahead_log_has_all_of_it() -> None:
    shard = new_shard()
    log = shard.open(1, replicated=True)
    shard.call(log.save_vote, VOTE)
    log.append_control(Term(1), b"")
    fill(shard, log, 20, epoch=1)
    shard.call(log.save_vote, StoredVote(Term(6), ReplicaId(2)))
    disk = kill(shard)
    if exists(disk, DIRECTORY):
        remove_deleted(disk, DIRECTORY)
    log = opened(reopened(disk))
    assert not log.files.lost
    assert (log.next_offset, log.raft.vote) == (20, StoredVote(Term(6), ReplicaId(2)))


def test_a_replica_is_lost_if_the_write_ahead_log_has_its_batches_but_not_the_entry_before_them() -> None:
    shard = new_shard()
    fill(shard, shard.open(1, replicated=True), 3, epoch=1)
    log = opened(reopened(kill(shard)))
    assert (log.files.lost, log.next_offset) == (True, 0)


def test_a_replica_with_files_is_not_lost() -> None:
    log = opened(reopened(left()))
    assert not log.files.lost
    assert log.next_offset == 20


def test_damaged_files_are_put_aside_with_their_vote_kept_and_removed_when_the_log_is_whole() -> None:
    disk = left()
    shard = reopened(disk)
    disk.open(SEGMENT + ".log").truncate(100)
    log = opened(shard)
    assert (log.files.lost, log.next_offset, log.raft.vote) == (True, 0, VOTE)
    assert exists(disk, f"{DIRECTORY}.damaged/epochs")
    log.found_again()
    shard.run(lambda: not shard.storage.removals.pending)
    assert not exists(disk, DIRECTORY + ".damaged")
    assert not exists(disk, f"{DIRECTORY}/lost")


def test_what_was_put_aside_first_stays() -> None:
    disk = left()
    shard = reopened(disk)
    disk.open(SEGMENT + ".log").truncate(100)
    opened(shard)
    kill(shard)
    shard = reopened(disk)
    disk.open(f"{DIRECTORY}/fault", create=True).pwritev([b"no good"], 0)
    assert opened(shard).files.lost
    assert exists(disk, f"{DIRECTORY}.damaged/epochs")


def test_files_that_can_not_be_put_aside_are_not_served() -> None:
    disk = left()
    shard = reopened(disk)
    disk.open(SEGMENT + ".log").truncate(100)
    disk.fail = lambda kind, path: errno.EIO if kind == "rename" else 0
    with pytest.raises(Corruption, match="100 bytes"):
        opened(shard)


def test_an_orderly_stop_leaves_no_summary_of_a_lost_log() -> None:
    disk = left()
    shard = reopened(disk)
    remove_deleted(disk, DIRECTORY)
    opened(shard)
    shard.stop()
    report = recover_locally(disk, replicated=True)
    assert report.clean
    shard = LocalShard(disk, random.Random(5), clean=True)
    log = shard.storage.registry.open_log(1, DIRECTORY, "t/1", shard.config(), True, replicated=True, expected=True)
    assert log.files.lost


@pytest.mark.parametrize("gone", ["all", "the last segment"])
def test_a_log_that_ends_before_the_end_that_an_orderly_stop_noted_gives_no_offset_out_twice(gone) -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=3000)
    fill(shard, log, 20, epoch=1)
    end = log.next_offset
    shard.stop()
    disk = shard.disk
    segments = sorted(name for name in names_in(disk, DIRECTORY) if name.endswith(SEGMENT_SUFFIX))
    assert len(segments) > 1
    for number in range(2):  # the second start has no note, and knows it all the same
        assert recover_locally(disk).clean
        if number == 0 and gone == "all":
            remove_deleted(disk, DIRECTORY)
        elif number == 0:
            disk.unlink(f"{DIRECTORY}/{segments[-1]}")
        shard = LocalShard(disk, random.Random(5), clean=True)
        with pytest.raises(Corruption, match=f"to {end - 1} were in a segment that is missing"):
            shard.storage.registry.open_log(1, DIRECTORY, "t/1", shard.config(), True)
        shard.stop()


@pytest.mark.parametrize("alone", [False, True])
def test_a_replica_that_ends_before_its_orderly_stop_noted_is_lost_unless_it_is_alone(alone) -> None:
    shard = new_shard()
    log = shard.open(1, replicated=True, segment_bytes=3000)
    log.append_control(Term(1), b"")
    fill(shard, log, 20, epoch=1)
    shard.stop()
    disk = shard.disk
    segments = sorted(name for name in names_in(disk, DIRECTORY) if name.endswith(SEGMENT_SUFFIX))
    assert recover_locally(disk, replicated=True).clean
    disk.unlink(f"{DIRECTORY}/{segments[-1]}")
    shard = LocalShard(disk, random.Random(5), clean=True)
    several = {"replicated": True, "expected": not alone, "alone": alone}
    if alone:
        with pytest.raises(Corruption, match="were in a segment that is missing"):
            shard.storage.registry.open_log(1, DIRECTORY, "t/1", shard.config(), True, **several)
    else:
        log = shard.storage.registry.open_log(1, DIRECTORY, "t/1", shard.config(), True, **several)
        assert log.files.lost and exists(disk, DIRECTORY + ".damaged")


@pytest.mark.parametrize("has_others", [True, False])
@pytest.mark.parametrize("place", ["the first", "the last"])
def test_a_damaged_file_of_records_that_were_set_aside_is_not_taken_for_an_empty_one(has_others, place) -> None:
    shard = reopened(left())
    log = opened(shard)
    log.owner.on_failed = lambda verb, error: shard.storage.cut_off(log)
    for epoch in (2, 3):
        shard.call(log.save_vote, StoredVote(Term(5 + epoch), ReplicaId(1)))
        fill(shard, log, 1, epoch=epoch)
    log.failed("a planted verb", ZeroDivisionError())
    shard.call(shard.storage.checkpoint)
    disk, path = kill(shard), f"{DIRECTORY}/quarantine"
    disk.flip(path, 20 if place == "the first" else disk.size(path) - 20)
    recover_locally(disk, replicated=True)
    shard = LocalShard(disk, random.Random(5), clean=False)
    several = {"replicated": True, "expected": has_others, "alone": not has_others}
    if has_others:
        log = shard.storage.registry.open_log(1, DIRECTORY, "t/1", shard.config(), False, **several)
        assert log.files.lost
        assert log.raft.vote == StoredVote(), "the newest vote may be in what is damaged: the others are asked"
    else:
        with pytest.raises(Corruption, match="quarantine is damaged at byte"):
            shard.storage.registry.open_log(1, DIRECTORY, "t/1", shard.config(), False, **several)
        assert exists(disk, path)
