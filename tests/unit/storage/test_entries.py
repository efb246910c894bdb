"""Entries by Raft position: what a leader reads and a follower appends, terms and control entries included."""

import random
import struct
from typing import Any

import pytest
from storage_support import append, new_shard, read_everything, settle

from millstream.errors import Rejected
from millstream.format.epochs import StoredVote
from millstream.iobuf import ArenaFull
from millstream.model.replication import NO_REPLICA, LogPoint, TermRun
from millstream.storage.log.entries import EncodedControl, SentEntries, parse_entries
from millstream.storage.log.entry_reads import EntryRead
from millstream.storage.log.recovered import term_runs
from sim.engine.local_storage import MIB, LocalShard, recover_locally


def grow(log: Any, rng: random.Random, term: int, *, size_max: int = 3000) -> int:
    """Append a batch or a control entry, now and then in a newer term; the term."""
    if rng.random() < 0.2:
        term += rng.randint(1, 3)
        log.append_control(term, b"start")
    elif rng.random() < 0.15:
        log.append_control(term, rng.randbytes(rng.randint(0, 300)))
    else:
        append(log, rng.randint(1, 5), rng.randint(0, size_max), epoch=term)
    return term


def read(shard: LocalShard, log: Any, start: int, limit: int, max_bytes: int) -> EntryRead:
    found = log.read_entries(start, limit, max_bytes)
    if found is None:
        found = shard.call(log.read_entries_cold, start, limit, max_bytes)
    if isinstance(found, Exception):
        raise found
    return found


def sent_from(log: Any, start: int, found: EntryRead, rng: random.Random) -> SentEntries:
    """The entries as they arrive elsewhere: in one buffer, or in two."""
    data = bytes(found.buf)
    found.buf.release()
    cut = rng.choice([0, rng.randint(0, len(data))])
    controls = [
        EncodedControl(one.position, one.term, one.payload) for one in log.raft.controls.between(start, found.end)
    ]
    views = [memoryview(data)[:cut], memoryview(data)[cut:]] if cut else [memoryview(data)]
    return parse_entries(start, term_runs(log, start, found.end), controls, views)


def same(one: Any, other: Any) -> None:
    assert one.next_raft_position == other.next_raft_position
    assert one.next_offset == other.next_offset
    assert one.raft.controls.entries == other.raft.controls.entries
    assert one.leader_epochs == other.leader_epochs


@pytest.mark.parametrize("seed", range(25))
def test_a_follower_ends_up_with_the_same_log(seed: int) -> None:
    rng = random.Random(seed)
    leading = new_shard(seed, memory_bytes=rng.choice([MIB, 8 * MIB]))
    following = new_shard(seed + 1000)
    config = {"segment_bytes": rng.choice([4_000, 50_000, 1 << 30])}
    source, target = leading.open(1, **config), following.open(1, **config)
    term = 1
    for _ in range(rng.randint(1, 12)):
        for _ in range(rng.randint(1, 30)):
            term = grow(source, rng, term)
            settle(leading)
        while target.next_raft_position < source.next_raft_position:
            start = target.next_raft_position
            limit = rng.choice([source.next_raft_position, source.next_raft_position + 5])
            found = read(leading, source, start, limit, rng.choice([1, 500, 20_000, MIB]))
            assert start < found.end <= source.next_raft_position
            sent = sent_from(source, start, found, rng)
            assert (sent.start, sent.end) == (start, found.end)
            if rng.random() < 0.3:
                sent = sent.copied()
            target.check_room(sent)
            target.append_entries(sent, term)
            settle(following)
        same(source, target)
    assert read_everything(leading, source) == read_everything(following, target)
    before = target.recovered()
    following.disk.crash(torn=False)
    report = recover_locally(following.disk, segment_bytes=config["segment_bytes"])
    assert not report.faults
    again = LocalShard(following.disk, rng, clean=False)
    target = again.open(1, **config)
    same(source, target)
    assert target.recovered() == before
    assert read_everything(leading, source) == read_everything(again, target)


@pytest.mark.parametrize("seed", range(25))
def test_history_is_read_from_the_segments_as_from_memory(seed: int) -> None:
    rng = random.Random(seed)
    shard = new_shard(seed)
    log = shard.open(1, segment_bytes=20_000)
    term, ends = 1, [0]
    for _ in range(120):
        term = grow(log, rng, term)
        ends.append(log.next_raft_position)
        settle(shard)
    shard.call(shard.storage.checkpoint)
    for _ in range(60):
        start, limit = sorted(rng.sample(ends, 2))
        budget = rng.choice([1, 2000, MIB])
        cached = log.read_entries(start, limit, budget)
        cold = shard.call(log.read_entries_cold, start, limit, budget)
        assert cached.end in ends and cold.end in ends
        assert start < cold.end <= cached.end <= limit
        assert bytes(cached.buf)[: len(cold.buf)] == bytes(cold.buf)
        sent_from(log, start, cold, rng)
        sent_from(log, start, cached, rng)


def three_entries(shard: LocalShard) -> tuple[Any, bytes, list[EncodedControl], tuple[TermRun, ...]]:
    """A log of one batch of two records, a control entry and another batch; what a leader sends of it."""
    log = shard.open(1)
    first = append(log, 2, 30, epoch=3)
    log.append_control(4, b"start")
    data = first + append(log, 1, 10, epoch=4)
    controls = [EncodedControl(one.position, one.term, one.payload) for one in log.raft.controls.entries]
    return log, data, controls, term_runs(log, 0, 4)


def test_runs_tell_the_terms_by_position() -> None:
    log, _, controls, runs = three_entries(new_shard())
    assert runs == (TermRun(2, 3), TermRun(4, 4))
    assert controls == [EncodedControl(2, 4, b"start")]
    assert term_runs(log, 1, 3) == (TermRun(2, 3), TermRun(3, 4))
    assert term_runs(log, 2, 4) == (TermRun(4, 4),)
    assert term_runs(log, 4, 4) == ()


def test_what_does_not_add_up_is_rejected() -> None:
    _, data, controls, runs = three_entries(new_shard())
    view = memoryview(data)

    def refuse(match: str, start: int, runs: Any, controls: Any, *views: memoryview) -> None:
        with pytest.raises(Rejected, match=match):
            parse_entries(start, runs, controls, views)

    parse_entries(0, runs, controls, [view])
    refuse("the bytes end before position 3", 0, runs, controls, view[:91])
    refuse("longer than the file|too few bytes", 0, runs, controls, view[:-1])
    refuse("no batch header", 0, runs, controls, memoryview(bytes(len(data))))
    refuse("more than the entries up to position 4", 0, runs, controls, view, view[:91])
    refuse("more than the entries", 0, runs, [*controls, EncodedControl(9, 4, b"")], view)
    refuse("the bytes end before position 3", 0, runs, [], view)
    refuse("a control entry of term 3 in a run of term 4", 0, runs, [controls[0]._replace(term=3)], view)
    refuse("of term 3, where offset 0 of term 9", 0, (TermRun(2, 9), TermRun(4, 10)), controls, view)
    refuse("an entry up to 2, its run ends at 1", 0, (TermRun(1, 3), TermRun(4, 4)), controls, view)
    refuse("does not match its checksum", 0, runs, controls, memoryview(data[:-1] + bytes([data[-1] ^ 1])))
    refuse("a control entry of 99999 bytes", 0, runs, [controls[0]._replace(payload=bytes(99_999))], view)


def test_what_the_log_has_already_is_left_out() -> None:
    _, data, controls, runs = three_entries(new_shard())
    sent = parse_entries(0, runs, controls, [memoryview(data)])
    assert [one.position for one in sent.entries] == [0, 2, 3]
    assert [one.position for one in sent.from_position(2).entries] == [2, 3]
    assert (sent.from_position(3).start, sent.from_position(3).end) == (3, 4)
    assert sent.from_position(4).entries == []


@pytest.mark.parametrize("seed", range(40))
def test_entries_that_find_room_are_appended_and_others_leave_no_trace(seed: int) -> None:
    """Little memory, small write-ahead log files, small segments; nothing is settled unless the log is full."""
    rng = random.Random(seed)
    leading = new_shard(seed, memory_bytes=16 * MIB, settings={"wal_file_bytes": 1 << 22, "wal_bytes": 1 << 24})
    config = {"segment_bytes": rng.choice([2_000, 30_000, 400_000, 1 << 30])}
    source = leading.open(1)
    term = 1
    for _ in range(150):
        term = grow(source, rng, term, size_max=rng.choice([100, 3_000, 40_000]))
        if rng.random() < 0.2:
            settle(leading)
    settle(leading)
    shard = new_shard(seed, memory_bytes=rng.choice([MIB, 2 * MIB]))
    target, other = shard.open(1, **config), shard.open(2)
    refused = 0
    while target.next_raft_position < source.next_raft_position:
        start = target.next_raft_position
        found = read(leading, source, start, source.next_raft_position, rng.choice([1, 5_000, 60_000, 150_000]))
        sent = sent_from(source, start, found, rng)
        state = (target.next_raft_position, target.next_offset, target.leader_epochs, target.next_position)
        live = shard.arena.live_fragments
        try:
            target.check_room(sent)
        except ArenaFull:
            refused += 1
            assert state == (target.next_raft_position, target.next_offset, target.leader_epochs, target.next_position)
            assert shard.arena.live_fragments <= live
            settle(shard)
            shard.call(shard.storage.checkpoint)
            continue
        if rng.random() < 0.5:
            other.save_vote(StoredVote(term, 1), lambda: None)
        target.append_entries(sent, term)
        assert target.next_raft_position == sent.end
    settle(shard)
    same(source, target)
    assert read_everything(leading, source) == read_everything(shard, target)
    if seed == 3:
        assert refused, "this test is about overload"


def test_a_batch_that_no_file_takes_is_rejected_before_anything_happens() -> None:
    shard = new_shard()
    log = shard.open(1)
    leading = new_shard(2, settings={"wal_file_bytes": 1 << 22, "wal_bytes": 1 << 24})
    source = leading.open(1)
    data = append(source, 1, 100_000, epoch=1)
    sent = parse_entries(0, (TermRun(1, 1),), [], [memoryview(data)])
    for verb in (log.check_room, lambda sent: log.append_entries(sent, 1)):
        with pytest.raises(Rejected, match="a batch of 100061 bytes was sent"):
            verb(sent)
    assert (log.next_offset, log.cache.bytes, log.leader_epochs) == (0, 0, [])


def test_durability_is_told_by_position_and_the_term_of_the_write() -> None:
    shard = new_shard()
    log = shard.open(1)
    seen: list[tuple[int, int]] = []
    log.owner.on_persisted = lambda position, term: seen.append((position, term))
    _, data, controls, runs = three_entries(new_shard())
    sent = parse_entries(0, runs, controls, [memoryview(data)])
    log.append_entries(sent, 7)
    assert seen == []
    settle(shard)
    assert seen == [(4, 7)]
    log.append_entries(parse_entries(4, (TermRun(5, 8),), [EncodedControl(4, 8, b"")], []), 9)
    cut: list[int] = []
    log.truncate_to(2, lambda: cut.append(log.next_raft_position))
    settle(shard)
    assert seen == [(4, 7)], "what is about to be cut is not told"
    assert cut == [2]
    log.append_entries(sent.from_position(2), 10)
    settle(shard)
    assert seen == [(4, 7), (4, 10)]


def test_a_log_without_replication_recovers_as_one_whose_positions_are_offsets() -> None:
    shard = new_shard()
    log = shard.open(1)
    append(log, 3, epoch=0)
    append(log, 2, epoch=4)
    settle(shard)
    found = log.recovered()
    assert (found.base, found.runs) == (LogPoint(0, 0), (TermRun(3, 0), TermRun(5, 4)))
    assert (found.controls, found.vote) == ((), StoredVote(4, NO_REPLICA)), "an entry of a term proves the term"


def test_what_is_trimmed_can_not_be_sent_by_entries() -> None:
    shard = new_shard()
    log = shard.open(1, segment_bytes=1_000)
    log.append_control(1, b"start")
    for n in range(20):
        append(log, 1, 300, epoch=1)
        if n == 3:
            log.append_control(2, b"")
            break
    for _ in range(16):
        append(log, 1, 300, epoch=2)
    settle(shard)
    assert log.first_position == 0
    shard.call(log.trim_prefix, 10)
    first = log.first_position
    assert first == log.segments()[0].base_offset + 2 > 2
    with pytest.raises(Rejected, match="no longer kept one by one"):
        log.read_entries(first - 1, first + 2, 1000)
    found = log.recovered()
    assert found.base == LogPoint(first, 2)
    assert [one.payload for one in found.controls_before] == [b"start", b""]
    assert (found.runs, found.controls) == ((TermRun(22, 2),), ())
    assert log.start_offset >= first - 2
    cold = shard.call(log.read_entries_cold, first, first + 1, 1000)
    assert cold.end == first + 1, "what lies below the start offset in its segment is there for a follower"
    assert struct.unpack_from(">q", bytes(cold.buf)) == (first - 2,)
