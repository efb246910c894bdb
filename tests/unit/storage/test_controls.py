"""Control entries of a log: Raft positions beside offsets, cuts between entries, folding, and what a crash leaves."""

import random
from collections.abc import Callable

import pytest
from storage_support import append, new_shard, read_everything, settle

from millstream.format.epochs import RaftBase, StoredVote
from millstream.iobuf import Arena, ArenaFull
from millstream.storage.log.controls import ControlEntries
from sim.engine.local_storage import LocalShard, recover_locally


def reopened(shard: LocalShard, *, torn: bool = False) -> LocalShard:
    shard.disk.crash(torn=torn)
    report = recover_locally(shard.disk)
    assert not report.faults, report.faults
    return LocalShard(shard.disk, shard.rng, clean=report.clean)


@pytest.mark.parametrize("seed", range(30))
def test_positions_count_records_and_control_entries(seed: int) -> None:
    """Against a plain list of entries: a record or a control entry at each position."""
    rng = random.Random(seed)
    controls = ControlEntries(RaftBase(), ())
    log: list[int] = []  # term of a control entry, -1 for a record
    offset = 0
    folded = 0
    for _ in range(60):
        match rng.choice(["batch", "batch", "control", "control", "cut", "fold"]):
            case "batch":
                count = rng.randint(1, 4)
                log += [-1] * count
                offset += count
            case "control":
                entry = controls.add(offset, len(log), b"")
                assert entry.position == len(log)
                log.append(len(log))
            case "cut":
                end = rng.randint(folded, len(log))
                assert controls.offset_at(end) == log[:end].count(-1)
                controls.cut(end)
                del log[end:]
                offset = log.count(-1)
            case _:
                folded = rng.randint(folded, len(log))
                controls.fold(folded, 1, b"so far")
        assert offset + controls.shift == len(log)
        assert [one.position for one in controls.entries] == [n for n in range(folded, len(log)) if log[n] >= 0]
        for position in range(folded, len(log)):
            if log[position] < 0:
                assert controls.position_of(log[:position].count(-1)) == position
                assert controls.ending_at(position + 1) is None
            else:
                assert controls.ending_at(position + 1).position == position  # type: ignore[union-attr]
            assert len(controls.before(position)) == sum(term >= 0 for term in log[folded:position])


def test_two_control_entries_at_one_offset_are_told_apart_by_a_cut() -> None:
    shard = new_shard()
    log = shard.open(1)
    append(log, 3)
    first, second = log.append_control(1, b"first"), log.append_control(2, b"second")
    assert (first.position, second.position, first.offset, second.offset) == (3, 4, 3, 3)
    append(log, 2, epoch=2)
    settle(shard)
    shard.call(log.truncate_to, second.position)
    assert (log.next_offset, log.next_raft_position, log.leader_epochs) == (3, 4, [(0, 0), (1, 3)])
    third = log.append_control(4, b"third")
    assert third.position == second.position
    settle(shard)
    log = reopened(shard).open(1)
    assert [one.payload for one in log.raft.controls.entries] == [b"first", b"third"]
    assert [log.raft.term_before(position) for position in (3, 4, 5)] == [0, 1, 4]
    assert log.leader_epochs == [(0, 0), (1, 3), (4, 3)], "the epoch that wrote no batch is kept, too"


def test_a_cut_of_control_entries_alone_leaves_every_batch() -> None:
    shard = new_shard()
    log = shard.open(1)
    written = append(log, 3)
    log.append_control(1, b"kept")
    gone = log.append_control(2, b"gone")
    settle(shard)
    shard.call(log.truncate_to, gone.position)
    assert [one.payload for one in log.raft.controls.entries] == [b"kept"]
    shard.call(shard.storage.checkpoint)
    shard = reopened(shard)
    log = shard.open(1)
    assert [one.payload for one in log.raft.controls.entries] == [b"kept"]
    assert (log.next_offset, log.next_raft_position) == (3, 4)
    assert read_everything(shard, log) == written


def test_durability_is_told_for_a_control_entry_though_no_offset_moves() -> None:
    shard = new_shard()
    log = shard.open(1)
    append(log, 1)
    settle(shard)
    seen: list[tuple[int, int, int]] = []
    log.owner.on_durable = lambda end: seen.append((end, log.ends.durable.raft_position, log.ends.durable.term))
    log.append_control(3, b"term start")
    assert log.ends.durable.raft_position == 1
    settle(shard)
    assert seen == [(1, 2, 3)]


@pytest.mark.parametrize("clean", [False, True])
def test_folded_entries_come_back_as_a_base(clean: bool) -> None:
    shard = new_shard()
    log = shard.open(1)
    append(log, 3)
    log.append_control(1, b"one")
    append(log, 2, epoch=1)
    two = log.append_control(2, b"two")
    settle(shard)
    log.fold_controls(two.position, b"what one came to")
    shard.call(shard.storage.checkpoint)
    if clean:
        shard.stop()
    log = reopened(shard).open(1)
    assert log.raft.controls.base == RaftBase(5, 6, 1, b"what one came to")
    assert log.raft.controls.entries == [two]
    assert (log.next_offset, log.next_raft_position) == (5, 7)
    assert log.raft.controls.position_of(5) == 7


def test_entries_that_are_not_durable_are_not_folded() -> None:
    shard = new_shard()
    log = shard.open(1)
    log.append_control(1, b"")
    with pytest.raises(AssertionError, match="position 1 is folded, durable is 0"):
        log.fold_controls(1, b"")


def test_a_log_of_control_entries_alone_is_there_after_a_crash() -> None:
    shard = new_shard()
    log = shard.open(1)
    log.append_control(1, b"term start")
    shard.call(log.save_vote, StoredVote(1, 7))
    log = reopened(shard).open(1)
    assert (log.next_offset, log.next_raft_position, log.raft.epoch, log.raft.vote) == (0, 1, 1, StoredVote(1, 7))


def test_a_damaged_control_entry_fences_its_log_and_no_other() -> None:
    shard = new_shard()
    log, other = shard.open(1), shard.open(2)
    log.append_control(1, b"p" * 300)
    append(other, 1)
    settle(shard)
    append(other, 1)
    settle(shard)  # the frame before is known to be durable
    path, at = find(shard, b"p" * 300)
    shard.disk.crash(torn=False)
    shard.disk.flip(path, at + 7)
    report = recover_locally(shard.disk)
    assert len(report.faults) == 1
    assert "topic1/0: a control entry at position 0 is damaged" in report.faults[0]


def find(shard: LocalShard, data: bytes) -> tuple[str, int]:
    for path, size in shard.disk.files():
        content = bytearray(size)
        shard.disk.open(path).preadv([content], 0)
        if data in content and path.endswith(".wal"):
            return path, content.index(data)
    raise AssertionError("not on the disk")


def test_a_control_entry_that_finds_no_memory_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    shard = new_shard()
    log = shard.open(1)

    def full(_arena: Arena, _size: int) -> None:
        raise ArenaFull("full")

    monkeypatch.setattr(Arena, "allocate", full)
    with pytest.raises(ArenaFull):
        log.append_control(1, b"payload")
    assert (log.raft.controls.entries, log.next_raft_position, log.leader_epochs) == ([], 0, [])
    assert shard.storage.wal.idle


@pytest.mark.parametrize("crash_before_the_cut", [True, False])
def test_no_checkpoint_makes_the_note_of_a_cut_void_before_the_files_are_cut(
    crash_before_the_cut: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note is durable, and the cleaner is at work on the log's files for long."""
    shard = new_shard()
    log, other = shard.open(1), shard.open(2)
    kept = append(log, 1, 100, epoch=1)
    append(log, 1, 100, epoch=1)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    waiting: list[Callable[[], None]] = []
    monkeypatch.setattr(shard.storage, "when_files_rest", lambda _log, callback: waiting.append(callback))
    log.truncate_to(1)
    settle(shard)
    assert len(waiting) == 1
    append(other, 1)
    settle(shard)
    shard.call(shard.storage.checkpoint)
    shard.call(shard.storage.checkpoint)
    if not crash_before_the_cut:
        waiting[0]()
        shard.run()
        shard.call(shard.storage.checkpoint)
        shard.call(shard.storage.checkpoint)
        assert shard.storage.wal.needed_sequence == shard.storage.wal.next_sequence, "the note is void at last"
    shard = reopened(shard)
    log = shard.open(1)
    assert (log.next_offset, log.next_raft_position) == (1, 1)
    assert read_everything(shard, log) == kept
