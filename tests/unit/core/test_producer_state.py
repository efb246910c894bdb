"""Idempotent producers: rules, bounds, snapshots, and a model that keeps everything and decides slowly."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from millstream.core.producer_state import LAST_SEQUENCE, Append, Duplicate, ProducerBudget, ProducerState
from millstream.errors import Corruption
from millstream.model.error_code import ErrorCode

DAY_MS = 86_400_000


def state(limit: int = 100, expiration_ms: int = DAY_MS) -> ProducerState:
    return ProducerState(expiration_ms, ProducerBudget(limit))


def append(s: ProducerState, pid: int, epoch: int, seq: int, count: int, offset: int, now_ms: int = 0) -> None:
    assert s.check(pid, epoch, seq, count) is Append
    s.record(pid, epoch, seq, count, offset, 1000 + offset, now_ms)


def test_an_unknown_producer_may_start_at_any_sequence():
    s = state()
    assert s.check(7, 3, 41, 2) is Append
    assert s.check(7, 0, 0, 2) is Append


def test_a_gap_and_an_overlap_are_out_of_order():
    s = state()
    append(s, 7, 0, 0, 10, 0)
    assert s.check(7, 0, 11, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert s.check(7, 0, 9, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert s.check(7, 0, 0, 9) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "same start, other length: not the same batch"
    assert s.check(7, 0, 10, 1) is Append


def test_each_of_the_last_five_batches_is_recognised_and_the_sixth_is_not():
    s = state()
    for i in range(6):
        append(s, 7, 0, 10 * i, 10, 100 * i)
    for i in range(1, 6):
        assert s.check(7, 0, 10 * i, 10) == Duplicate(100 * i, 10, 1000 + 100 * i)
    assert s.check(7, 0, 0, 10) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_new_epoch_starts_at_zero_and_fences_the_old_one():
    s = state()
    append(s, 7, 1, 0, 5, 0)
    assert s.check(7, 2, 5, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    append(s, 7, 2, 0, 5, 5)
    assert s.check(7, 1, 5, 5) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert s.check(7, 1, 0, 5) is ErrorCode.INVALID_PRODUCER_EPOCH, (
        "a duplicate of the old epoch is fenced, not answered"
    )
    assert s.check(7, 2, 0, 5) == Duplicate(5, 5, 1005)


def test_an_epoch_bump_forgets_the_batches_of_the_old_epoch():
    s = state()
    append(s, 7, 1, 0, 5, 0)
    append(s, 7, 2, 0, 3, 5)
    assert s.check(7, 2, 0, 5) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(("base", "count", "following"), [(LAST_SEQUENCE, 1, 0), (LAST_SEQUENCE - 1, 4, 2)])
def test_sequences_wrap_to_zero(base: int, count: int, following: int):
    s = state()
    append(s, 7, 0, base, count, 0)
    assert s.check(7, 0, following, 1) is Append
    assert s.check(7, 0, following + 1, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert s.check(7, 0, base, count) == Duplicate(0, count, 1000)


def test_a_negative_sequence_is_an_invalid_record():
    s = state()
    assert s.check(7, 0, -1, 1) is ErrorCode.INVALID_RECORD
    append(s, 7, 0, 0, 1, 0)
    assert s.check(7, 0, -1, 1) is ErrorCode.INVALID_RECORD


def test_check_changes_nothing():
    s = state()
    s.check(7, 0, 0, 1)
    assert len(s) == 0
    append(s, 7, 0, 0, 1, 0)
    before = s.snapshot()
    s.check(7, 1, 0, 1)
    s.check(7, 0, 5, 1)
    assert s.snapshot() == before


def test_idle_producers_expire_and_are_then_unknown():
    s = state(expiration_ms=1000)
    append(s, 1, 0, 0, 1, 0, now_ms=0)
    append(s, 2, 0, 0, 1, 1, now_ms=500)
    append(s, 1, 0, 1, 1, 2, now_ms=900)
    assert s.expire(1499) == 0
    assert s.expire(1500) == 1
    assert s.check(2, 0, 77, 1) is Append, "forgotten, so any sequence goes"
    assert s.check(1, 0, 77, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_budget_is_shared_and_evicts_the_least_recent_producer_of_any_partition():
    budget = ProducerBudget(3)
    a, b, c = (ProducerState(DAY_MS, budget) for _ in range(3))
    append(a, 1, 0, 0, 1, 0, now_ms=1)
    append(b, 2, 0, 0, 1, 0, now_ms=2)
    append(c, 3, 0, 0, 1, 0, now_ms=3)
    append(a, 1, 0, 1, 1, 1, now_ms=4)
    append(c, 4, 0, 0, 1, 1, now_ms=5)  # producer 2 in partition b is the least recent
    assert (len(a), len(b), len(c)) == (1, 0, 2)
    append(b, 5, 0, 0, 1, 1, now_ms=6)  # now producer 3 in partition c
    assert (len(a), len(b), len(c)) == (1, 1, 1)
    assert c.check(3, 0, 9, 1) is Append
    assert budget.count == 3
    assert budget.evicted == 2


def test_a_closed_partition_gives_its_share_back_and_is_let_go():
    budget = ProducerBudget(1000)
    for i in range(500):
        s = ProducerState(DAY_MS, budget)
        append(s, i, 0, 0, 1, 0, now_ms=i)
        s.clear()
    assert budget.count == 0
    assert len(budget._heap) <= 64


def test_a_snapshot_brings_back_every_verdict():
    s = state()
    for i in range(7):
        append(s, 7, 1, 10 * i, 10, 100 * i, now_ms=i)
    append(s, 9, 0, LAST_SEQUENCE, 1, 900, now_ms=8)
    again = state()
    again.load(s.snapshot())
    for question in [
        (7, 1, 60, 10),
        (7, 1, 20, 10),
        (7, 1, 10, 10),
        (7, 1, 70, 1),
        (7, 0, 70, 1),
        (9, 0, 0, 1),
        (9, 0, 1, 1),
    ]:
        assert again.check(*question) == s.check(*question)
    assert again.snapshot() == s.snapshot()


def test_a_replica_that_goes_on_from_an_earlier_end_knows_what_it_gets_again():
    s = state()
    for i in range(8):
        append(s, 7, 1, 10 * i, 10, 100 * i, now_ms=i)
    append(s, 9, 0, 0, 1, 710, now_ms=8)
    s.transactions.began(9, 710)
    again = state()
    again.load(s.snapshot(800, 600))
    assert not again.transactions, "it has not begun where the replica's log ends"
    assert isinstance(again.check(7, 1, 70, 10), Duplicate), "a retry of what was acknowledged"
    again.record(7, 1, 60, 10, 600, 1600, 6)
    again.record(7, 1, 70, 10, 700, 1700, 7)
    again.record(9, 0, 0, 1, 710, 1710, 8)
    again.transactions.began(9, 710)
    for question in [(7, 1, 70, 10), (7, 1, 30, 10), (7, 1, 80, 1), (7, 1, 90, 1), (9, 0, 0, 1), (9, 0, 1, 1)]:
        assert again.check(*question) == s.check(*question)
    assert again.transactions.open == s.transactions.open


def test_snapshot_bytes_are_these():
    s = state()
    append(s, 7, 1, 0, 2, 50, now_ms=9)
    s.transactions.began(8, 1)
    s.transactions.ended(8, 2, aborted=True)
    s.transactions.began(9, 3)
    body = bytes.fromhex(
        "02 00000001"  # version, producers
        "0000000000000007 0001 00000002 0000000000000009 01"  # id, epoch, next sequence, last append, batches
        "00000000 00000002 0000000000000032 000000000000041a"  # base sequence, count, base offset, timestamp
        "ffffffff"  # epoch of the last marker's coordinator
        "00000001 00000001"  # open and aborted transactions
        "0000000000000009 0000000000000003"  # producer id, first offset
        "0000000000000008 0000000000000001 0000000000000002 0000000000000003"  # …, marker, last stable offset
    )
    assert s.snapshot() == body + struct.pack(">I", crc32c(body))


def test_a_snapshot_that_says_nothing_of_transactions_is_read():
    body = bytes.fromhex("01 00000001 0000000000000007 0001 00000000 0000000000000009 00")
    s = state()
    s.load(body + struct.pack(">I", crc32c(body)))
    assert s.active() == [(7, 1, -1, -1, -1, -1)]
    assert not s.transactions


def test_a_snapshot_with_any_byte_changed_or_missing_is_refused():
    s = state()
    append(s, 7, 1, 0, 2, 50)
    good = s.snapshot()
    for i in range(len(good)):
        for bad in (good[:i], good[:i] + bytes([good[i] ^ 0x40]) + good[i + 1 :]):
            with pytest.raises(Corruption):
                s.load(bad)
            assert len(s) == 0


def test_a_snapshot_larger_than_the_budget_keeps_the_most_recent():
    s = state()
    for pid in range(10):
        append(s, pid, 0, 0, 1, pid, now_ms=pid)
    small = state(limit=3)
    small.load(s.snapshot())
    assert len(small) == 3
    assert small.check(9, 0, 5, 1) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert small.check(6, 0, 5, 1) is Append


class Model:
    """Keeps the whole history of each producer and searches it."""

    def __init__(self) -> None:
        self.history: dict[int, list[tuple[int, list[int], int]]] = {}  # id -> (epoch, sequences, base offset)

    def check(self, pid: int, epoch: int, seq: int, count: int) -> object:
        batches = self.history.get(pid)
        if not batches:
            return Append
        current = max(e for e, _, _ in batches)
        wanted = [(seq + i) % 2**31 for i in range(count)]
        of_epoch = [b for b in batches if b[0] == epoch]
        if epoch == current:
            for _, sequences, offset in of_epoch[-5:]:
                if sequences == wanted:
                    return Duplicate(offset, count, offset)
            return Append if wanted[0] == (of_epoch[-1][1][-1] + 1) % 2**31 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        if epoch < current:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return Append if seq == 0 else ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER

    def record(self, pid: int, epoch: int, seq: int, count: int, offset: int) -> None:
        self.history.setdefault(pid, []).append((epoch, [(seq + i) % 2**31 for i in range(count)], offset))


near_wrap = st.integers(-6, 12).map(lambda n: n % 2**31)
batches = st.tuples(st.integers(0, 2), st.integers(0, 2), near_wrap, st.integers(1, 3), st.booleans())


@given(st.lists(batches, max_size=60))
def test_agrees_with_a_model_that_forgets_nothing(steps: list[tuple[int, int, int, int, bool]]):
    s, model, offset = state(), Model(), 0
    last: dict[int, tuple[int, int]] = {}
    for pid, epoch, seq, count, follow in steps:
        if follow and pid in last:  # most clients behave
            epoch, seq = last[pid]
        verdict = s.check(pid, epoch, seq, count)
        assert verdict == model.check(pid, epoch, seq, count)
        if verdict is Append:
            s.record(pid, epoch, seq, count, offset, offset, 0)
            model.record(pid, epoch, seq, count, offset)
            last[pid] = (epoch, (seq + count) % 2**31)
            offset += count
        copy = state()
        copy.load(s.snapshot())
        assert copy.snapshot() == s.snapshot()


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 6)), max_size=80), st.integers(1, 6))
def test_the_budget_always_holds_the_most_recent_producers(steps: list[tuple[int, int]], limit: int):
    budget = ProducerBudget(limit)
    states = [ProducerState(DAY_MS, budget) for _ in range(4)]
    recent: list[tuple[int, int]] = []
    for now, key in enumerate(steps):
        partition, pid = key
        states[partition].record(pid, 0, now, 1, now, 0, now)
        recent = [k for k in recent if k != key] + [key]
        recent = recent[-limit:]
        assert {(i, pid) for i, s in enumerate(states) for pid in s._producers} == set(recent)
        assert budget.count == len(recent)


def test_a_shorter_expiration_forgets_producers_that_a_longer_one_kept():
    s = state(expiration_ms=1000)
    append(s, 1, 0, 0, 1, 0, now_ms=0)
    assert s.expire(500) == 0
    s.expiration_ms = 100
    assert s.expire(500) == 1
