"""A log whose receiver ends in the middle: the next start goes on with what is there, if that is of the same log."""

import random
from typing import Any

import msgspec
import pytest
from storage_support import append, new_shard, read_everything, settle

from millstream.format.epochs import encode_log_state
from millstream.model.quantities import Offset
from millstream.model.replication import LogPoint, Term
from millstream.storage.disk import write_all
from millstream.storage.log.exporting import LogDescription, choose_end, describe, read_batches
from millstream.storage.log.importing import LogImport
from millstream.storage.maintenance.adoption import LEFT_US
from millstream.storage.segments.files import names_in
from sim.engine.local_storage import LocalShard, recover_locally

SEGMENT_BYTES = 8_000
COMPACTED = {"cleanup_policy": ("compact",), "delete_retention_ms": 60_000}


class Leader:
    """A log of about six segments, written in two terms."""

    def __init__(self) -> None:
        self.shard = new_shard(1, settings={"checkpoint_bytes": 1 << 20})
        self.log = self.shard.open(1, replicated=True, segment_bytes=SEGMENT_BYTES)
        for term, batches in ((3, 30), (7, 80)):
            self.log.append_control(Term(term), b"")
            for _ in range(batches):
                append(self.log, 1, 400, epoch=term)
                settle(self.shard)
        self.shard.call(self.shard.storage.checkpoint)
        self.end = choose_end(self.log, self.log.durable_offset)
        self.description: LogDescription = describe(self.log, self.end, b"")

    def send(self, to: LocalShard, receiving: LogImport, until: int) -> None:
        """Send parts of about two batches as long as the receiver lacks offsets before ``until``."""
        while receiving.next_offset < until:
            reads = self.shard.storage.reads.cold
            part = self.shard.call(read_batches, self.log, reads, receiving.next_offset, self.end, 1_000)
            assert to.call(receiving.add, [memoryview(bytes(part.buf))], part.next_offset) is None
            part.buf.release()


def begun(leader: Leader, until: int, **config: Any) -> tuple[LocalShard, LogImport]:
    """A broker that has received the beginning of the log."""
    shard = new_shard(2)
    log = shard.open(1, replicated=True, segment_bytes=SEGMENT_BYTES, **config)
    receiving = LogImport(log, leader.description)
    assert not receiving.resume(lambda _: None), "there is nothing to go on with"
    leader.send(shard, receiving, until)
    return shard, receiving


def restarted(shard: LocalShard, **config: Any) -> tuple[LocalShard, Any]:
    report = recover_locally(shard.disk, replicated=True)
    assert not report.faults
    again = LocalShard(shard.disk, random.Random(3), clean=report.clean, now_ms=shard.reactor.wall_ms())
    return again, again.open(1, replicated=True, segment_bytes=SEGMENT_BYTES, **config)


def staged(shard: LocalShard, log: Any) -> list[str]:
    return [name for name in shard.disk.list(log.directory.rpartition("/")[0]) if name.endswith(".staged")]


def resumed(shard: LocalShard, receiving: LogImport) -> bool:
    answers: list[bool] = []
    assert receiving.resume(answers.append)
    shard.run(lambda: bool(answers))
    return answers[0]


@pytest.mark.parametrize("how", ["orderly stop", "crash", "torn crash"])
@pytest.mark.parametrize("until", [3, 40, 75])
def test_a_restart_goes_on_with_what_was_received(how: str, until: int) -> None:
    leader = Leader()
    shard, before = begun(leader, until)
    reached = before.next_offset
    if how == "orderly stop":
        shard.stop()
    else:
        shard.disk.crash(torn=how == "torn crash")
    again, log = restarted(shard)
    receiving = LogImport(log, leader.description)
    if how != "orderly stop" and until == 3 and not staged(again, log):
        return  # nothing was synced, not even the directory
    if resumed(again, receiving):
        assert reached - 25 <= receiving.next_offset <= reached, "what was sealed is never sent again"
        assert how != "orderly stop" or receiving.next_offset == reached
    else:
        assert how != "orderly stop" and until == 3, "more than a segment was there"
        again.run(lambda: not again.storage.removals.pending)
        receiving = LogImport(log, leader.description)
    leader.send(again, receiving, leader.end)
    assert receiving.is_complete
    assert again.call(receiving.finish) is None
    base = leader.description.log_state.base
    again.call(again.storage.adopt_log, log, receiving.directory, LogPoint(base.position, base.term), leader.end)
    log = again.open(1, replicated=True, segment_bytes=SEGMENT_BYTES)
    assert log.next_offset == leader.end
    wanted = read_everything(leader.shard, leader.log)
    found = read_everything(again, log)
    assert found and wanted.startswith(found)
    assert not staged(again, log)


def test_what_another_leader_has_overwritten_is_not_gone_on_with() -> None:
    leader = Leader()
    shard, before = begun(leader, 60)
    assert before.next_offset >= 60
    shard.stop()
    again, log = restarted(shard)
    state = msgspec.structs.replace(leader.description.log_state, epochs=((Term(3), Offset(0)), (Term(9), Offset(30))))
    other = msgspec.structs.replace(leader.description, state=encode_log_state(state))
    assert not resumed(again, LogImport(log, other))
    again.run(lambda: not again.storage.removals.pending)
    assert not staged(again, log)
    assert not again.storage.staging.is_busy(log.directory)


@pytest.mark.parametrize(("later_ms", "goes_on"), [(1_000, True), (61_000, False)])
def test_a_compacted_log_is_gone_on_with_only_before_deletion_marks_may_be_gone(later_ms: int, goes_on: bool) -> None:
    leader = Leader()
    shard, _ = begun(leader, 60, **COMPACTED)
    shard.stop()
    shard.reactor.advance(later_ms * 1000)
    again, log = restarted(shard, **COMPACTED)
    assert resumed(again, LogImport(log, leader.description)) is goes_on


def test_damage_in_the_part_that_was_not_sealed_is_cut_off() -> None:
    leader = Leader()
    shard, before = begun(leader, 60)
    last = max(name for name in shard.disk.list(before.directory) if name.endswith(".log"))
    shard.stop()
    file = shard.disk.open(f"{before.directory}/{last}")
    write_all(file, [b"damage"], 600)
    file.close()
    again, log = restarted(shard)
    receiving = LogImport(log, leader.description)
    assert resumed(again, receiving)
    assert receiving.next_offset == int(last.split(".")[0]) + 1, "one batch is whole"
    leader.send(again, receiving, leader.end)
    assert again.call(receiving.finish) is None


def test_what_nobody_goes_on_with_is_removed_and_goes_with_its_log() -> None:
    leader = Leader()
    shard, _ = begun(leader, 60)
    shard.stop()
    again, log = restarted(shard)
    assert staged(again, log)
    again.reactor.advance(LEFT_US + 1)
    again.run(lambda: not staged(again, log))
    shard, _ = begun(leader, 60)
    shard.stop()
    again, log = restarted(shard)
    again.call(again.storage.delete_log, log)
    again.run(lambda: not again.storage.removals.pending)
    assert not any(name.endswith(".staged") for name in names_in(again.disk, log.directory.rpartition("/")[0]))


def test_an_attempt_that_is_interrupted_while_it_looks_leaves_what_is_there_for_the_next() -> None:
    leader = Leader()
    shard, _ = begun(leader, 60)
    shard.stop()
    again, log = restarted(shard)
    first = LogImport(log, leader.description)
    assert first.resume(lambda _: None)
    first.drop()
    again.run(lambda: first.is_idle)
    assert staged(again, log)
    assert resumed(again, LogImport(log, leader.description))
