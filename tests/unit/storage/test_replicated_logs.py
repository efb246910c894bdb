"""A log whose group has several voters: what it can't do without, and what it keeps when it is fenced."""

import errno
import random

import pytest
from storage_support import SEGMENT, append, fill, kill, new_shard, settle

from millstream.errors import Corruption
from millstream.format.epochs import StoredVote, decode_log_state
from millstream.model.replication import ReplicaId, Term
from millstream.storage.disk import read_file
from sim.engine.disk import SimDisk
from sim.engine.local_storage import LocalShard, place_of, recover_locally

EPOCHS = f"{place_of(1).directory}/epochs"
VOTE = StoredVote(Term(5), ReplicaId(3))


def with_checkpoint(batches_after: int = 0) -> SimDisk:
    """The disk of a log that went through a checkpoint and on after it."""
    shard = new_shard()
    log = shard.open(1, replicated=True)
    fill(shard, log, 20)
    shard.call(log.save_vote, VOTE)
    shard.call(shard.storage.checkpoint)
    if batches_after:
        fill(shard, log, batches_after)
    return kill(shard)


@pytest.mark.parametrize("batches_after", [0, 5])
def test_a_replicated_log_without_its_epochs_file_is_corrupt(batches_after: int) -> None:
    disk = with_checkpoint(batches_after)
    disk.unlink(EPOCHS)
    report = recover_locally(disk, replicated=True)
    shard = LocalShard(disk, random.Random(5), clean=report.clean)
    with pytest.raises(Corruption, match="epochs is missing, and with it the vote"):
        shard.open(1, replicated=True)


def test_the_log_of_a_sole_voter_derives_its_epochs_again() -> None:
    disk = with_checkpoint(5)
    disk.unlink(EPOCHS)
    report = recover_locally(disk)
    assert LocalShard(disk, random.Random(5), clean=report.clean).open(1).next_offset == 25


def test_an_epochs_file_that_the_disk_does_not_read_is_corruption_and_leaves_no_mark() -> None:
    disk = with_checkpoint()
    report = recover_locally(disk, replicated=True)
    disk.fail = lambda kind, path: errno.EIO if kind == "read" and path == EPOCHS else 0
    with pytest.raises(Corruption, match="could not be read"):
        LocalShard(disk, random.Random(5), clean=report.clean).open(1, replicated=True)
    disk.fail = lambda kind, path: 0
    assert LocalShard(disk, random.Random(5), clean=report.clean).open(1, replicated=True).raft.vote == VOTE


def test_a_replicated_log_that_saw_no_checkpoint_needs_no_epochs_file() -> None:
    shard = new_shard()
    log = shard.open(1, replicated=True)
    log.append_control(Term(5), b"")
    append(log, epoch=5)
    shard.call(log.save_vote, VOTE)
    settle(shard)
    disk = kill(shard)
    report = recover_locally(disk, replicated=True)
    assert not report.faults
    log = LocalShard(disk, random.Random(5), clean=report.clean).open(1, replicated=True)
    assert (log.next_offset, log.next_raft_position, log.raft.vote) == (1, 2, VOTE)


def test_a_fenced_replica_keeps_its_newest_vote() -> None:
    shard = new_shard()
    log = shard.open(1, replicated=True)
    fill(shard, log, 20)
    shard.call(log.save_vote, StoredVote(Term(4), ReplicaId(2)))
    shard.call(shard.storage.checkpoint)
    fill(shard, log, 5)
    shard.call(log.save_vote, VOTE)
    disk = kill(shard)
    disk.open(SEGMENT + ".log").truncate(100)
    report = recover_locally(disk, replicated=True)
    assert len(report.faults) == 1
    assert decode_log_state(read_file(disk, EPOCHS)).vote == VOTE
