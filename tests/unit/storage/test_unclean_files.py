"""Files of a replica when a person has decided whose log a partition continues from: nothing is thrown away, each step
may be repeated after a crash anywhere, and what was kept opens.
"""

import random

import msgspec
import pytest
from storage_support import fill, kill, new_shard

from millstream.core.controller.cuts import Cut
from millstream.errors import Corruption
from millstream.format.epochs import LogState, RaftBase, StoredVote, decode_log_state, encode_log_state
from millstream.model.quantities import Offset
from millstream.model.replication import NO_REPLICA, RaftPosition, ReplicaId, Term
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import exists, read_file, replace_file
from millstream.storage.log.lost import mark_lost, put_aside
from millstream.storage.recovery.cut_back import cut_back, look
from millstream.storage.recovery.unclean import begin_empty, lost_with_copy, settle, take_back
from sim.engine.disk import PowerFailure, SimDisk
from sim.engine.local_storage import LocalShard, place_of, recover_locally

DIRECTORY = place_of(1).directory
ASIDE = DIRECTORY + ".damaged"
OLD = StoredVote(Term(5), ReplicaId(3))
CUT = Cut(ReplicaId(2), Term(65541), Offset(-1))
DONE = msgspec.structs.replace(CUT, done=True)
TAKEN = StoredVote(Term(65540), NO_REPLICA)


def left() -> SimDisk:
    """The disk of a replica that has records and a vote in its files."""
    shard = new_shard()
    log = shard.open(1, replicated=True)
    log.append_control(Term(1), b"")
    fill(shard, log, 20, epoch=1)
    log.append_control(Term(4), b"")
    shard.call(log.save_vote, OLD)
    shard.call(shard.storage.checkpoint)
    disk = kill(shard)
    recover_locally(disk, replicated=True)
    return disk


def noted(*_: str) -> None:
    """Nobody reads the notes."""


def state(disk: SimDisk) -> LogState:
    return decode_log_state(read_file(disk, f"{DIRECTORY}/epochs"))


def opened(disk: SimDisk):
    shard = LocalShard(disk, random.Random(5), clean=False)
    config = shard.config()
    return shard.storage.registry.open_log(1, DIRECTORY, "t/1", config, False, replicated=True, expected=True)


def end_of(disk: SimDisk):
    found = []
    for _ in look(disk, DIRECTORY, found):
        pass
    return found[0]


def segments(disk: SimDisk, directory: str = DIRECTORY) -> list[str]:
    return sorted(name for name in disk.list(directory) if name.endswith(".log"))


def begin(disk: SimDisk, cut: Cut = CUT, *, learns: bool = False) -> bool:
    return begin_empty(disk, DIRECTORY, cut, noted, learns=learns)


def test_a_replica_that_is_not_named_begins_empty_once_and_keeps_what_it_had_aside():
    disk = left()
    before = segments(disk)
    assert begin(disk)
    assert state(disk) == LogState(vote=TAKEN)
    assert segments(disk, ASIDE) == before and not segments(disk)
    assert not begin(disk) and not begin(disk, DONE), "a command that is applied again changes nothing"
    assert segments(disk, ASIDE) == before
    log = opened(disk)
    assert log.files.lost and log.next_offset == 0 and log.raft.vote == TAKEN


def test_a_replica_that_took_the_cut_and_was_filled_keeps_its_log():
    disk = left()
    replace_file(disk, f"{DIRECTORY}/epochs", encode_log_state(msgspec.structs.replace(state(disk), vote=TAKEN)))
    before = disk.files()
    assert not begin(disk) and not begin(disk, DONE)
    assert disk.files() == before


def test_a_vote_that_nobody_can_read_is_asked_for_once_others_may_have_followed():
    for cut, vote in ((CUT, TAKEN), (DONE, StoredVote())):
        disk = left()
        replace_file(disk, f"{DIRECTORY}/epochs", b"no such file")
        assert begin(disk, cut)
        assert opened(disk).raft.vote == vote
        assert segments(disk, ASIDE)


def test_an_empty_replica_is_marked_too_unless_it_joined_later():
    disk = SimDisk(random.Random(1))
    recover_locally(disk)
    assert not begin(disk), "there are no files"
    mark_lost(disk, DIRECTORY, LogState(vote=OLD))
    assert begin(disk, learns=True) and state(disk).vote == TAKEN
    assert not exists(disk, ASIDE), "nothing was in it"
    for learns in (False, True):
        disk = SimDisk(random.Random(1))
        recover_locally(disk)
        mark_lost(disk, DIRECTORY, LogState(vote=OLD))
        disk.unlink(f"{DIRECTORY}/lost")
        assert begin(disk, learns=learns) is not learns


def test_a_replica_whose_whole_log_was_in_the_write_ahead_log_begins_empty_too():
    disk = SimDisk(random.Random(1))
    recover_locally(disk)
    make_directories_durably(disk, DIRECTORY, 2)
    replace_file(disk, f"{DIRECTORY}/quarantine", b"")
    assert begin(disk)
    assert state(disk).vote == TAKEN and exists(disk, f"{ASIDE}/quarantine")


def test_what_a_start_has_put_aside_stays_when_the_replica_begins_empty():
    disk = left()
    before = segments(disk)
    put_aside(disk, DIRECTORY, "damaged", noted)
    assert begin(disk)
    assert segments(disk, ASIDE) == before
    assert state(disk).vote == TAKEN


def test_what_was_put_aside_is_taken_back_after_a_crash_at_any_step():
    before = segments(left())
    for crash_after in range(3):
        disk = left()
        put_aside(disk, DIRECTORY, "damaged", noted)
        assert lost_with_copy(disk, DIRECTORY)
        renames = 0
        rename = disk.rename

        def crashing(old, new, rename=rename, limit=crash_after):
            nonlocal renames
            if renames == limit:
                raise InterruptedError
            renames += 1
            rename(old, new)

        disk.rename = crashing
        try:
            take_back(disk, DIRECTORY)
        except InterruptedError:
            disk.rename = rename
            disk.crash(torn=False)
            log = opened(disk)  # what a start does before the cut continues
            assert log.files.lost and log.next_offset == 0
            assert take_back(disk, DIRECTORY)
        disk.rename = rename
        assert not take_back(disk, DIRECTORY)
        assert segments(disk) == before and not exists(disk, ASIDE)


@pytest.mark.parametrize("readable", [True, False])
def test_a_log_is_cut_at_its_last_sound_batch_and_opens_with_what_is_left(readable):
    disk = left()
    path = f"{DIRECTORY}/{segments(disk)[0]}"
    file = disk.open(path)
    file.truncate(file.size() // 2)
    file.close()
    if not readable:
        replace_file(disk, f"{DIRECTORY}/epochs", b"no such file")
    replace_file(disk, f"{DIRECTORY}/lost", b"")
    kept = end_of(disk)
    assert 0 < kept.end_offset < 20
    cut_back(disk, DIRECTORY, kept)
    settle(disk, DIRECTORY, kept, CUT.others_term, None)
    again = disk.files()
    settle(disk, DIRECTORY, kept, CUT.others_term, None)
    assert disk.files() == again
    log = opened(disk)
    assert log.next_offset == kept.end_offset and not log.files.lost
    assert not [one for one in log.raft.controls.entries if one.offset > kept.end_offset]
    if not readable:  # positions are others than elsewhere, and the end matches no log that was not put aside
        assert state(disk).base.term == CUT.others_term


def archived(end: int, start: int = 0, epoch: int = 1) -> LogState:
    """What the object store has of the log."""
    at = Offset(end)
    base = RaftBase(at, RaftPosition(end), Term(0), b"archive")
    return LogState(Offset(start), ((Term(epoch), Offset(start)),), base=base, local_start=at)


@pytest.mark.parametrize("readable", [False, True])
@pytest.mark.parametrize(("store", "start", "end"), [(5, 0, 20), (20, 3, 20), (30, 7, 30), (5, 25, 25)])
def test_what_the_store_has_counts_and_what_the_files_have_behind_it(readable, store, start, end):
    disk = left()
    if not readable:
        replace_file(disk, f"{DIRECTORY}/epochs", b"no such file")
    stored = archived(store, start)
    for _ in range(2):
        assert settle(disk, DIRECTORY, end_of(disk), CUT.others_term, stored) == end
    log = opened(disk)
    assert (log.start_offset, log.next_offset, log.files.lost) == (start, end, False)
    assert log.first_local_offset == (0 if store == 5 and start == 0 else end)
    assert log.raft.controls.base.payload == b"archive"
    assert state(disk).base.term == CUT.others_term
    assert log.raft.vote == (OLD if readable else StoredVote())


def test_files_that_an_older_leader_wrote_than_what_the_store_has_give_way():
    disk = left()
    assert settle(disk, DIRECTORY, end_of(disk), CUT.others_term, archived(12, epoch=2)) == 12
    assert opened(disk).next_offset == 12 and not segments(disk)


def test_a_gap_between_the_store_and_the_files_is_refused_and_changes_nothing():
    disk = left()
    file = msgspec.structs.replace(state(disk), local_start=Offset(10))
    replace_file(disk, f"{DIRECTORY}/epochs", encode_log_state(file))
    before = disk.files()
    with pytest.raises(Corruption, match="ends at offset 5, and the files start at 10"):
        settle(disk, DIRECTORY, end_of(disk), CUT.others_term, archived(5))
    assert disk.files() == before


def test_a_crash_at_any_operation_leaves_a_log_that_ends_where_the_store_does():
    stored = archived(30)

    def carried_out(disk: SimDisk) -> None:
        settle(disk, DIRECTORY, end_of(disk), CUT.others_term, stored)

    count = 0
    for disk in crashes(left, carried_out):
        count += 1
        opened(disk)
        carried_out(disk)
        assert opened(disk).next_offset == 30, count
    assert count > 4


def test_a_base_behind_the_cut_moves_to_its_end_with_what_was_folded():
    disk = left()
    folded = RaftBase(Offset(18), RaftPosition(19), Term(1), b"members")
    before = msgspec.structs.replace(state(disk), base=folded, controls=(), start_offset=Offset(0))
    replace_file(disk, f"{DIRECTORY}/epochs", encode_log_state(before))
    kept = end_of(disk)._replace(end_offset=Offset(12))
    settle(disk, DIRECTORY, kept, CUT.others_term, None)
    assert state(disk).base == RaftBase(Offset(12), RaftPosition(13), Term(1), b"members")
    late = msgspec.structs.replace(before, start_offset=Offset(15))
    replace_file(disk, f"{DIRECTORY}/epochs", encode_log_state(late))
    with pytest.raises(Corruption, match="nothing after it is sound"):
        settle(disk, DIRECTORY, kept, CUT.others_term, None)


def crashes(prepared, step):
    """The disks after a power failure at each operation of ``step`` in turn, and the start after it."""
    crash_at = 0
    while True:
        crash_at += 1
        disk = prepared()
        disk.crash_at = disk.operations + crash_at
        try:
            step(disk)
        except PowerFailure:
            disk.crash(torn=True)
            recover_locally(disk, replicated=True)
            yield disk
        else:
            return


def test_a_replica_that_starts_empty_loses_nothing_by_a_crash_at_any_operation():
    names = segments(left())
    count = 0
    for disk in crashes(left, begin):
        count += 1
        begin(disk)  # before the log is opened, by the next start
        log = opened(disk)
        assert log.files.lost and log.next_offset == 0
        assert log.raft.vote in (TAKEN, StoredVote()), "with no vote, all others are asked"
        assert segments(disk, ASIDE) == names
    assert count > 4


def test_the_replica_that_is_named_ends_at_the_same_offset_after_a_crash_at_any_operation():
    def prepared() -> SimDisk:
        disk = left()
        file = disk.open(f"{DIRECTORY}/{segments(disk)[0]}")
        file.truncate(file.size() // 2)
        file.sync()
        file.close()
        put_aside(disk, DIRECTORY, "damaged", noted)
        return disk

    def carried_out(disk: SimDisk) -> None:
        take_back(disk, DIRECTORY)
        kept = end_of(disk)
        cut_back(disk, DIRECTORY, kept)
        settle(disk, DIRECTORY, kept, CUT.others_term, None)

    sound = prepared()
    carried_out(sound)
    end = opened(sound).next_offset
    assert 0 < end < 20
    count = 0
    for disk in crashes(prepared, carried_out):
        count += 1
        opened(disk)  # what a start does before the cut continues
        carried_out(disk)
        log = opened(disk)
        assert (log.next_offset, log.files.lost) == (end, False), count
    assert count > 8
