"""The transactions of one partition: stable offset, aborted list, truncation, snapshots; a model that keeps all."""

import random
import struct

import pytest

from millstream.core.txn.partition_state import PartitionTransactions
from millstream.errors import Corruption


def test_an_open_transaction_holds_back_what_is_behind_it_until_its_marker_is_committed() -> None:
    state = PartitionTransactions()
    state.began(1, 10)
    state.began(2, 12)
    state.began(1, 14)
    assert state.first_unstable(20) == 10
    state.ended(1, 15, aborted=False)
    assert state.first_unstable(15) == 10, "the marker is not committed"
    assert state.first_unstable(16) == 12
    state.ended(2, 16, aborted=True)
    assert state.first_unstable(17) == -1


def test_aborted_transactions_are_listed_for_the_batches_that_they_touch() -> None:
    state = PartitionTransactions()
    state.began(1, 0)
    state.ended(1, 5, aborted=True)
    state.began(2, 6)
    state.ended(2, 9, aborted=False)
    state.began(3, 7)
    state.ended(3, 12, aborted=True)
    state.committed(10)
    assert state.aborted_between(0, 6) == [(1, 0, 5)]
    assert state.aborted_between(6, 13) == [(3, 7, 12)]
    assert state.aborted_between(5, 8) == [(1, 0, 5), (3, 7, 12)]
    state.committed(13)
    state.trim(6)
    assert state.aborted_between(0, 13) == [(3, 7, 12)]


def test_a_truncated_marker_leaves_its_transaction_open() -> None:
    state = PartitionTransactions()
    state.began(1, 0)
    state.ended(1, 3, aborted=True)
    state.began(1, 4)
    state.began(2, 5)
    state.take_back(3)
    assert state.open == {1: 0}
    assert state.aborted_between(0, 10) == []


def test_a_verification_that_a_marker_overtook_is_void() -> None:
    state = PartitionTransactions()
    question = state.ask_verification(1, 0)
    state.ended(1, 3, aborted=True)
    assert not state.verified(1, 0, question)
    assert not state.accepts(1, 0)
    assert state.verified(1, 0, state.ask_verification(1, 0))
    assert state.accepts(1, 0)
    assert not state.accepts(1, 1), "another epoch is another transaction"


@pytest.mark.parametrize("seed", range(40))
def test_any_history_says_what_a_slow_model_says_after_cuts_and_snapshots(seed: int) -> None:
    rng = random.Random(seed)
    log: list[tuple[str, int, bool]] = []
    state = PartitionTransactions()
    committed = 0
    for _ in range(200):
        if rng.random() < 0.1:
            committed = rng.randint(committed, len(log))
            state.committed(committed)
        elif rng.random() < 0.05 and len(log) > committed:
            cut = rng.randint(committed, len(log))
            del log[cut:]
            state.take_back(cut)
        elif rng.random() < 0.05:
            copy = PartitionTransactions()
            end = rng.choice((committed, rng.randint(0, committed)))  # a log may be sent up to an earlier end
            copy.decode(state.encode(end))
            for offset in range(end, len(log)):
                _enter(copy, log, offset)
            state = copy
        else:
            log.append((rng.choice(("data", "data", "marker")), rng.randint(1, 4), rng.random() < 0.5))
            _enter(state, log, len(log) - 1)
        watermark = rng.randint(committed, len(log))
        stable, aborted = _slowly(log, watermark)
        assert state.first_unstable(watermark) == stable
        end = stable if stable >= 0 else watermark
        start = rng.randint(0, end)
        assert state.aborted_between(start, end) == sorted(
            (one for one in aborted if one[1] < end and one[2] >= start), key=lambda one: one[1]
        )


def _enter(state: PartitionTransactions, log: list[tuple[str, int, bool]], offset: int) -> None:
    kind, producer, aborted = log[offset]
    if kind == "data":
        state.began(producer, offset)
    else:
        state.ended(producer, offset, aborted=aborted)


def _slowly(log: list[tuple[str, int, bool]], watermark: int) -> tuple[int, list[tuple[int, int, int]]]:
    """(first unstable offset, aborted transactions whose marker is below the watermark)"""
    unstable: list[int] = []
    aborted: list[tuple[int, int, int]] = []
    began: dict[int, int] = {}
    for offset, (kind, producer, aborts) in enumerate(log):
        if kind == "data":
            began.setdefault(producer, offset)
        elif producer in began:
            first = began.pop(producer)
            if offset >= watermark:
                unstable.append(first)
            elif aborts:
                aborted.append((producer, first, offset))
    return min([*unstable, *began.values()], default=-1), aborted


def test_a_snapshot_that_is_cut_short_is_corrupt() -> None:
    state = PartitionTransactions()
    state.began(1, 0)
    data = state.encode(None)
    for size in range(len(data)):
        with pytest.raises(Corruption):
            PartitionTransactions().decode(data[:size])


def test_a_snapshot_has_big_endian_numbers_and_leaves_the_state_as_it_is() -> None:
    state = PartitionTransactions()
    state.began(1, 0)
    state.began(2, 1)
    state.ended(1, 2, aborted=True)
    state.committed(3)
    wanted = struct.pack(">II", 1, 1) + struct.pack(">qq", 2, 1) + struct.pack(">qqqq", 1, 0, 2, 1)
    assert state.encode(None) == state.encode(3) == wanted
    assert state.aborted_between(0, 1) == [(1, 0, 2)]
    copy = PartitionTransactions()
    copy.decode(wanted)
    assert copy.aborted_between(0, 1) == [(1, 0, 2)]
    assert copy.open == {2: 1}


@pytest.mark.parametrize("seed", range(10))
def test_what_compaction_emptied_is_not_listed_any_more(seed: int) -> None:
    rng = random.Random(seed)
    state = PartitionTransactions()
    for number in range(50):
        state.began(number % 3, 2 * number)
        state.ended(number % 3, 2 * number + 1, aborted=True)
    state.committed(100)
    gone = [2 * number + 1 for number in range(50) if rng.random() < 0.5]
    rng.shuffle(gone)
    state.forget([*gone, 4, 1000])  # and two that are not listed
    assert [marker for _, _, marker in state.aborted_between(0, 100)] == sorted(set(range(1, 100, 2)) - set(gone))
