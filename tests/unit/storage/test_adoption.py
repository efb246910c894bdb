"""A log that another replica sends: what is sent, what is checked, and a crash at every step of putting it in place."""

import errno
import random
from typing import Any

import pytest
from compaction_support import COMPACTED, compacted_shard, last_values, overwrite, records_of
from storage_support import append, fill, new_shard, read_everything, settle

from millstream.errors import MillstreamError
from millstream.format.epochs import StoredVote
from millstream.format.names import staged_directory
from millstream.model.quantities import Offset
from millstream.model.replication import LogPoint, ReplicaId, Term
from millstream.storage.disk import exists
from millstream.storage.log.exporting import (
    LogDescription,
    choose_end,
    decode_description,
    describe,
    encode_description,
    read_batches,
)
from millstream.storage.messages.receiving import Stage, Staged, StageEnd
from millstream.storage.segments.files import remove_deleted
from sim.engine.disk import PowerFailure, SimDisk
from sim.engine.local_storage import LocalShard, Stopped, recover_locally

VOTE = StoredVote(Term(9), ReplicaId(2))


def leader(*, batches: int = 60) -> tuple[LocalShard, Any]:
    """A log of several segments, trimmed in the first, with control entries among its batches."""
    shard = new_shard(1, settings={"checkpoint_bytes": 1 << 20})
    log = shard.open(1, replicated=True, segment_bytes=8_000)
    log.append_control(Term(3), b"")
    for _ in range(batches):
        append(log, 2, 400, epoch=3)
        settle(shard)
    log.append_control(Term(7), b"x")
    append(log, 1, 400, epoch=7)
    settle(shard)
    shard.call(log.trim_prefix, 21)
    shard.call(shard.storage.checkpoint)
    return shard, log


def exported(shard: LocalShard, log: Any) -> tuple[Offset, LogDescription, list[tuple[int, bytes]]]:
    """The point, the description, and the batches by the offset that was asked for."""
    end = choose_end(log, log.durable_offset)
    description = decode_description(encode_description(describe(log, end, b"folded")))
    offset, found = description.first_offset, []
    while offset < end:
        part = shard.call(read_batches, log, shard.storage.reads.cold, offset, end, 3_000)
        assert not isinstance(part, MillstreamError), part
        found.append((int(offset), bytes(part.buf)))
        part.buf.release()
        offset = part.next_offset
    return end, description, found


def stage(shard: LocalShard, log: Any, export: Any, *, spoil: int = -1) -> Staged:
    """Receive what was exported; the answer of the worker to the last of it."""
    end, description, batches = export
    directory = staged_directory(log.directory, description.log_state.base.position)
    staging = shard.storage.staging
    first = True

    def command(spans: list[int]) -> Stage:
        start = description.first_offset
        return Stage(staging.next_id(), directory, first, start, 1, 8_000, 4096, spans, shard.reactor.wall_ms())

    for place, (_, data) in enumerate(batches):
        fragment = shard.arena.allocate(len(data))
        fragment.view[: len(data)] = data
        if place == spoil:
            fragment.view[len(data) - 1] ^= 1
        answer = shard.call(staging.stage, command([fragment.offset, fragment.offset + len(data)]))
        fragment.release()
        first = False
        if answer.errno or answer.fault:
            return answer
    return shard.call(staging.stage_end, StageEnd(command([]), end, description.state, description.producers))


def adopt(shard: LocalShard, log: Any, export: Any) -> None:
    end, description, _ = export
    base = description.log_state.base
    staged = staged_directory(log.directory, base.position)
    shard.call(shard.storage.adopt_log, log, staged, LogPoint(base.position, base.term), end)


def behind(seed: int = 3) -> tuple[LocalShard, Any]:
    """A replica that was left behind: it has a vote, a part of the log, and a neighbour on its shard."""
    shard = new_shard(seed)
    log = shard.open(1, replicated=True, segment_bytes=8_000)
    log.append_control(Term(3), b"")
    for _ in range(30):
        append(log, 2, 400, epoch=3)
        settle(shard)
    shard.call(shard.storage.checkpoint)
    fill(shard, shard.open(2), 3)
    append(log, 2, 400, epoch=3)
    log.save_vote(VOTE, lambda: None)
    settle(shard)
    return shard, log


def check_adopted(shard: LocalShard, log: Any, export: Any, wanted: bytes) -> None:
    end, description, _ = export
    assert (log.next_offset, log.start_offset) == (end, 21)
    assert log.next_raft_position == description.log_state.base.position
    assert log.recovered().base == LogPoint(log.next_raft_position, Term(3))
    assert log.recovered().folded_payload == b"folded"
    assert (log.raft.vote, log.leader_epochs) == (VOTE, [(3, 0)])
    found = read_everything(shard, log)
    assert found and wanted.startswith(found)
    append(log, 1, 100, epoch=7)
    settle(shard)
    assert log.next_offset == end + 1


def test_a_log_is_sent_and_takes_the_place_of_one_that_was_behind() -> None:
    source, from_log = leader()
    export = exported(source, from_log)
    assert export[0] > 100 and export[2][0][0] == 21
    wanted = read_everything(source, from_log)
    shard, log = behind()
    assert not stage(shard, log, export).fault
    adopt(shard, log, export)
    assert sorted(shard.disk.list(log.directory.rpartition("/")[0])) == ["0", "topic"]
    log = shard.open(1, replicated=True)
    check_adopted(shard, log, export, wanted)
    shard.call(shard.storage.checkpoint)
    shard.stop()
    report = recover_locally(shard.disk, replicated=True)
    again = LocalShard(shard.disk, random.Random(1), clean=report.clean)
    assert again.open(1, replicated=True).next_offset == export[0] + 1


@pytest.mark.parametrize("kind", ["rename", "nothing is there"])
def test_a_staged_log_that_another_program_has_taken_ends_that_log_and_no_shard(kind: str) -> None:
    source, from_log = leader()
    export = exported(source, from_log)
    shard, log = behind()
    assert not stage(shard, log, export).fault
    end, description, _ = export
    base = description.log_state.base
    staged = staged_directory(log.directory, base.position)
    if kind == "rename":
        shard.disk.fail = lambda done, path: errno.EACCES if done == kind and path == log.directory else 0
    else:
        remove_deleted(shard.disk, staged)
    faults: list[Exception] = []
    point = LogPoint(base.position, base.term)
    shard.storage.adopt_log(log, staged, point, end, lambda: pytest.fail("adopted"), faults.append)
    shard.run(lambda: bool(faults))
    assert "HelperFault" in repr(faults[0]) and "in a helper process" in str(faults[0])
    shard.disk.fail = lambda done, path: 0
    fill(shard, shard.open(3), 3)


def test_an_empty_replica_gets_the_whole_of_a_compacted_log() -> None:
    source = compacted_shard(5, SimDisk(random.Random(5)))
    from_log = source.open(1, **COMPACTED)
    wanted = overwrite(source, from_log, 6)
    from_log.roll()
    source.run(lambda: from_log.files.clean_offset > 0)
    export = exported(source, from_log)
    assert export[0] == from_log.next_offset
    shard = new_shard(4)
    log = shard.open(1, replicated=True)
    assert not stage(shard, log, export).fault
    adopt(shard, log, export)
    log = shard.open(1, replicated=True)
    assert last_values(records_of(shard, log)) == wanted
    assert (log.next_offset, log.files.clean_offset) == (export[0], from_log.files.clean_offset)
    assert log.first_position == log.next_raft_position, "entries with gaps are never sent one by one"


def test_a_log_without_a_sealed_segment_is_sent_as_a_point() -> None:
    source, from_log = leader(batches=60)
    shard_log = from_log.next_offset
    source.call(from_log.trim_prefix, shard_log)
    append(from_log, 1, 100, epoch=7)
    settle(source)
    export = exported(source, from_log)
    assert export[2] == [] and export[0] == shard_log
    shard, log = behind()
    assert not stage(shard, log, export).fault
    adopt(shard, log, export)
    log = shard.open(1, replicated=True)
    assert (log.start_offset, log.next_offset) == (shard_log, shard_log)


@pytest.mark.parametrize("spoil", [0, 3])
def test_a_damaged_batch_ends_the_attempt_and_the_log_stays(spoil: int) -> None:
    source, from_log = leader()
    export = exported(source, from_log)
    shard, log = behind()
    before = read_everything(shard, log)
    assert "does not match its checksum" in stage(shard, log, export, spoil=spoil).fault
    assert read_everything(shard, log) == before
    end, description, batches = export
    assert "ends at offset" in stage(shard, log, (end, description, batches[:-1])).fault
    shard.storage.staging.drop(log.directory, staged_directory(log.directory, description.log_state.base.position))
    shard.run(lambda: not shard.storage.removals.pending)
    assert sorted(shard.disk.list(log.directory.rpartition("/")[0])) == ["0", "topic"]
    assert not stage(shard, log, export).fault, "and the next one begins anew"


def test_what_was_staged_and_not_adopted_changes_nothing_after_a_crash() -> None:
    source, from_log = leader()
    export = exported(source, from_log)
    shard, log = behind()
    assert not stage(shard, log, export).fault
    before = read_everything(shard, log)
    shard.disk.crash(torn=True)
    assert not recover_locally(shard.disk, replicated=True).faults
    again = LocalShard(shard.disk, random.Random(1), clean=False)
    log = again.open(1, replicated=True)
    assert read_everything(again, log) == before and log.raft.vote == VOTE


@pytest.mark.parametrize("torn", [False, True])
def test_a_crash_at_any_step_shows_the_old_log_or_the_new_one(torn: bool) -> None:
    source, from_log = leader()
    export = exported(source, from_log)
    wanted = read_everything(source, from_log)
    old = new = crash_at = 0
    while True:
        crash_at += 1
        shard, log = behind()
        assert not stage(shard, log, export).fault
        before = read_everything(shard, log)
        shard.disk.crash_at = shard.disk.operations + crash_at
        try:
            adopt(shard, log, export)
            log = shard.open(1, replicated=True)
            append(log, 1, 100, epoch=7)
            settle(shard)
            shard.call(shard.storage.checkpoint)
        except (PowerFailure, Stopped):
            pass
        else:
            break
        shard.disk.crash_at = -1
        shard.disk.crash(torn=torn)
        recovered = recover_locally(shard.disk, replicated=True)
        assert not recovered.faults, f"crash at {crash_at}: {recovered.faults}"
        again = LocalShard(shard.disk, random.Random(crash_at), clean=recovered.clean)
        log = again.open(1, replicated=True, segment_bytes=8_000)
        assert log.raft.vote == VOTE, f"crash at {crash_at}"
        if log.next_offset < export[0]:
            old += 1
            assert read_everything(again, log) == before
            assert len(again.storage.staging.left_of(log.directory)) == 1, "the next attempt may go on with it"
            assert not stage(again, log, export).fault
            adopt(again, log, export)
            log = again.open(1, replicated=True)
        else:
            new += 1
        if log.next_offset > export[0]:
            again.call(log.truncate_suffix, export[0])
        check_adopted(again, log, export, wanted)
        assert again.open(2).next_offset == 3
        assert sorted(again.disk.list(log.directory.rpartition("/")[0])) == ["0", "topic"]
        assert not exists(again.disk, log.directory + ".deleted")
    assert old and new > 10
