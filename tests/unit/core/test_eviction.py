"""Which block leaves the warm cache first, by age, readers and size."""

from __future__ import annotations

import gzip
import itertools
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.config.settings import Settings
from millstream.core.eviction import POLICIES, Block, BlockKey, PartitionKey, ReaderId, make_policy
from millstream.errors import Rejected
from millstream.model.quantities import Offset, TimestampMs
from millstream.testing.fetch_traces import Shape, hit_rate, optimal_hits, optimal_rate, recorded, trace

AGE_MAX_MS = 600_000
TRACE = Path(__file__).with_name("three_groups.trace.gz")
LATE_TRACE = Path(__file__).with_name("three_late_groups.trace.gz")
P0, P1 = PartitionKey(0), PartitionKey(1)
READER, OTHER = ReaderId(1), ReaderId(2)


def block(offset: int, appended_ms: int | None = None, partition: PartitionKey = P0) -> Block:
    """A block of ten offsets; its data are as old as its offset says, in seconds."""
    return Block(
        BlockKey(partition, Offset(offset)), TimestampMs(offset * 1000 if appended_ms is None else appended_ms)
    )


def at(seconds: float) -> TimestampMs:
    return TimestampMs(int(seconds * 1000))


@pytest.mark.parametrize(
    "shape,slots_max,lru_max",
    [
        (Shape("near", (15, 30, 120), blocks_per_second=4.0), 100, 0.05),
        (Shape("near", (15, 30, 120), blocks_per_second=4.0), 400, 0.40),
        (Shape("far", (15, 120, 400), blocks_per_second=4.0), 400, 0.05),
        (Shape("steady", (15, 120, 400), blocks_per_second=4.0, rewinds=False, scan=False), 400, 0.01),
    ],
)
def test_interval_is_near_the_optimum_where_lru_collapses(shape, slots_max, lru_max):
    reads = trace(shape, 1)
    best = optimal_rate(reads, slots_max)
    interval = hit_rate("interval", reads, slots_max)
    lru = hit_rate("lru", reads, slots_max)
    assert interval >= 0.95 * best, f"{interval:.3f} of {best:.3f}"
    assert lru <= lru_max
    assert best >= max(interval, lru)


@pytest.mark.parametrize("slots_max", [12, 16, 20])
def test_interval_is_near_the_optimum_on_a_recorded_trace(slots_max):
    """Three consumer groups of a real broker (``python -m bench.warm_fanout --trace``)."""
    reads = recorded(gzip.decompress(TRACE.read_bytes()).decode().splitlines())
    check_near_the_optimum(reads, slots_max)


@pytest.mark.parametrize("slots_max,least", [(40, 0.85), (60, 0.95), (80, 1.0), (120, 1.0)])
def test_interval_is_near_the_optimum_where_groups_fall_behind(slots_max, least):
    """The same on a machine that is too slow for the load: groups come one after the other, stop, and catch up.

    The optimum knows when a group will come and when it will stop, and a policy does not: in the smallest cache that
    costs a tenth, also if only what follows the coming of the last group counts.
    """
    reads = recorded(gzip.decompress(LATE_TRACE.read_bytes()).decode().splitlines())
    best, interval = optimal_rate(reads, slots_max), hit_rate("interval", reads, slots_max)
    assert interval >= least * best, f"{interval:.3f} of {best:.3f}"
    newest = max(min(read.at_ms for read in reads if read.reader == one) for one in {read.reader for read in reads})
    known = [msgspec.structs.replace(read, counts=read.counts and read.at_ms > newest) for read in reads]
    best, interval = optimal_rate(known, slots_max), hit_rate("interval", known, slots_max)
    assert interval >= least * best > 0.1, f"{interval:.3f} of {best:.3f}"


def check_near_the_optimum(reads, slots_max):
    best, interval, lru = (
        optimal_rate(reads, slots_max),
        hit_rate("interval", reads, slots_max),
        hit_rate("lru", reads, slots_max),
    )
    assert interval >= 0.95 * best, f"{interval:.3f} of {best:.3f}"
    assert lru <= 0.2 * best
    assert best > 0.3


def test_the_setting_has_a_word_for_every_policy():
    assert set(Settings.cache_eviction_policy.form.words) == set(POLICIES)


@pytest.mark.parametrize("name", POLICIES)
def test_a_copy_leaves_when_it_was_in_the_cache_for_long_however_old_its_data_are(name):
    policy = make_policy(name, 4, AGE_MAX_MS)
    week_s = 7 * 86_400
    assert policy.offer(block(10), at(week_s)).admitted
    assert policy.offer(block(0), at(week_s + 300)).admitted
    assert policy.expire(at(week_s + 600)) == []
    assert policy.expire(at(week_s + 605)) == [block(10).key]
    assert len(policy) == 1


def large(offset, slots):
    return msgspec.structs.replace(block(offset), slots=slots)


@pytest.mark.parametrize("name", POLICIES)
def test_a_large_block_takes_several_slots_and_several_victims(name):
    policy = make_policy(name, 4, AGE_MAX_MS)
    assert policy.offer(large(50, 5), at(50)).too_large
    for offset in (10, 20, 30, 40):
        assert policy.offer(block(offset), at(30)).admitted
    assert policy.offer(large(50, 2), at(50)).victims == (block(10).key, block(20).key)
    assert policy.offer(block(60), at(60)).victims == (block(30).key,)
    for one in (large(50, 2), block(40), block(60)):
        policy.remove(one.key)
    assert policy.offer(large(70, 4), at(70)).admitted, "their slots are free again"
    assert policy.offer(block(80), at(80)).victims == (large(70, 4).key,)
    assert len(policy) == 1


@given(st.sampled_from(sorted(POLICIES)), st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6), st.booleans())))
def test_admitted_blocks_never_take_more_slots_than_there_are(name, steps):
    policy, kept = make_policy(name, 5, AGE_MAX_MS), {}
    for now_s, (offset, slots, removes) in enumerate(steps):
        one = large(offset, slots)
        if removes:
            policy.remove(one.key)
            kept.pop(one.key, None)
            continue
        admission = policy.offer(one, at(now_s))
        for victim in admission.victims:
            del kept[victim]
        if admission.admitted:
            kept.setdefault(one.key, slots)
        assert sum(kept.values()) <= 5
        assert len(policy) == len(kept)


@pytest.mark.parametrize("name", POLICIES)
def test_a_busy_block_is_no_victim(name):
    policy = make_policy(name, 2, AGE_MAX_MS)
    for offset in (10, 20):
        assert policy.offer(block(offset), at(30)).admitted
    assert policy.offer(block(30), at(31), busy={block(10).key}).victims == (block(20).key,)
    assert not policy.offer(block(40), at(40), busy={block(10).key, block(30).key}).admitted
    assert len(policy) == 2


@pytest.mark.parametrize("name", POLICIES)
def test_a_cache_without_slots_admits_nothing(name):
    assert not make_policy(name, 0, AGE_MAX_MS).offer(block(10), at(10)).admitted


@pytest.mark.parametrize("name", POLICIES)
def test_a_known_block_is_admitted_again_without_a_victim(name):
    policy = make_policy(name, 1, AGE_MAX_MS)
    policy.offer(block(10), at(10))
    answer = policy.offer(block(10), at(11))
    assert (answer.admitted, answer.victims, len(policy)) == (True, (), 1)


def test_an_unknown_policy_is_refused_with_the_known_ones():
    with pytest.raises(Rejected, match="interval, age, lru"):
        make_policy("lfu", 1, 1)


def test_age_evicts_the_oldest_data_and_refuses_older():
    policy = make_policy("age", 2, AGE_MAX_MS)
    policy.offer(block(20), at(50))
    policy.offer(block(30), at(50))
    assert not policy.offer(block(10), at(50)).admitted
    assert policy.offer(block(40), at(50)).victims == (block(20).key,)


def test_lru_evicts_what_was_not_used():
    policy = make_policy("lru", 2, AGE_MAX_MS)
    policy.offer(block(20), at(50))
    policy.offer(block(30), at(50))
    policy.used(block(20).key)
    policy.used(block(99).key)  # one that is not cached
    assert policy.offer(block(10), at(50)).victims == (block(30).key,)


def test_interval_keeps_what_the_next_reader_needs_soonest():
    """Two readers, 10 s and 60 s behind: of the blocks that only the second one needs, the nearest stays."""
    policy = make_policy("interval", 2, AGE_MAX_MS)
    now = at(100)
    policy.reader_at(P0, READER, Offset(91), at(90), now)
    policy.reader_at(P0, OTHER, Offset(41), at(40), now)
    assert policy.offer(block(80), now).admitted
    assert policy.offer(block(60), now).admitted
    assert policy.offer(block(50), now).victims == (block(80).key,)
    assert not policy.offer(block(70), now).admitted
    assert policy.offer(block(95), now).victims == (block(60).key,), "the first reader reaches it in 5 s"


def test_interval_ranks_a_block_anew_when_its_last_reader_passed_it():
    policy = make_policy("interval", 2, AGE_MAX_MS)
    policy.reader_at(P0, READER, Offset(11), at(10), at(100))
    policy.offer(block(20), at(100))
    policy.offer(block(30), at(100))
    policy.reader_at(P0, READER, Offset(21), at(20), at(110))
    assert policy.offer(block(40), at(110)).victims == (block(20).key,)


def test_interval_follows_a_seek_back():
    policy = make_policy("interval", 2, AGE_MAX_MS)
    policy.reader_at(P0, READER, Offset(35), at(35), at(100))
    policy.offer(block(20), at(100))
    policy.offer(block(90), at(100))
    policy.reader_at(P0, READER, Offset(19), at(19), at(101))
    assert policy.offer(block(30), at(101)).victims == (block(90).key,)


def test_interval_sees_that_a_reader_catches_up():
    """At ten times the speed of the producers, it reaches in 5 s what a reader 10 s behind reaches in 8 s."""
    policy = make_policy("interval", 1, AGE_MAX_MS)
    policy.offer(block(158, partition=P1), at(160))
    policy.reader_at(P1, OTHER, Offset(151), at(150), at(160))
    for second in range(11):
        policy.reader_at(P0, READER, Offset(10 * second), at(10 * second), at(150 + second))
    assert policy.offer(block(150, partition=P0), at(160)).victims == (block(158, partition=P1).key,)


@pytest.mark.parametrize("end", ["gone", "idle"])
def test_interval_forgets_a_reader(end):
    policy = make_policy("interval", 2, AGE_MAX_MS)
    policy.reader_at(P0, READER, Offset(15), at(15), at(100))
    policy.reader_at(P1, OTHER, Offset(15), at(15), at(100), idle_max_ms=300_000)
    policy.offer(block(20), at(100))
    policy.offer(block(90, partition=P1), at(100))
    if end == "gone":
        policy.reader_gone(P0, READER)
        policy.reader_gone(P0, READER)
    else:
        policy.expire(at(161))
    assert policy.offer(block(80, partition=P1), at(161)).victims == (block(20).key,)


def test_interval_expects_a_reader_that_stopped_later_and_later_until_it_moves_again():
    policy = make_policy("interval", 2, AGE_MAX_MS)
    policy.reader_at(P0, READER, Offset(20), at(19), at(100))
    policy.reader_at(P1, OTHER, Offset(20), at(12), at(102))
    policy.offer(block(20), at(102))  # at 101 s by its reader's last move
    policy.offer(block(20, partition=P1), at(102))  # at 110 s
    policy.expire(at(102))
    assert policy.first_to_leave() == block(20, partition=P1).key, "a second late is no stop"
    policy.expire(at(104))
    assert policy.first_to_leave() == block(20, partition=P1).key, "three seconds late is at 107 s"
    policy.expire(at(109.5))
    assert policy.first_to_leave() == block(20).key, "that is over, too"
    policy.reader_at(P0, READER, Offset(20), at(19), at(108))
    assert policy.first_to_leave() == block(20, partition=P1).key


def test_blocks_without_a_reader_stay_while_there_is_room():
    policy = make_policy("interval", 3, AGE_MAX_MS)
    for offset in (10, 20, 30):
        assert policy.offer(block(offset), at(40)).admitted
    assert policy.offer(block(35), at(40)).victims == (block(10).key,)
    assert not policy.offer(block(15), at(40)).admitted


@given(
    st.sampled_from(sorted(POLICIES)),
    st.integers(1, 6),
    st.lists(
        st.tuples(
            st.sampled_from(["offer", "used", "reader", "gone", "remove", "expire"]),
            st.integers(0, 1),
            st.integers(0, 12),
            st.integers(0, 3000),
        ),
        max_size=80,
    ),
)
def test_a_policy_and_its_cache_agree_whatever_happens(name, slots_max, steps):
    """The model: what was admitted, with the time, less what left."""
    policy = make_policy(name, slots_max, 15_000)
    cached: dict[BlockKey, int] = {}
    now_ms = 20_000
    for step, partition, offset, passed_ms in steps:
        now_ms += passed_ms
        now, key = TimestampMs(now_ms), BlockKey(PartitionKey(partition), Offset(offset))
        if step == "offer":
            busy = {other for other in cached if other.base_offset % 3 == 0}
            answer = policy.offer(Block(key, TimestampMs(10_000 + offset * 1000)), now, busy)
            assert set(answer.victims) <= cached.keys() - busy
            for victim in answer.victims:
                del cached[victim]
            if answer.admitted:
                cached.setdefault(key, now_ms)
            else:
                assert not answer.victims
        elif step == "used":
            policy.used(key)
        elif step == "reader":
            policy.reader_at(key.partition, ReaderId(passed_ms % 3), key.base_offset, TimestampMs(offset * 1000), now)
        elif step == "gone":
            policy.reader_gone(key.partition, ReaderId(passed_ms % 3))
        elif step == "remove":
            policy.remove(key)
            cached.pop(key, None)
        else:
            expired = set(policy.expire(now))
            assert expired == {other for other, since_ms in cached.items() if now_ms - since_ms > 15_000}
            for other in expired:
                del cached[other]
        assert len(policy) == len(cached) <= slots_max


@pytest.mark.parametrize("seed", range(20))
def test_the_optimum_is_the_best_of_all_choices(seed):
    """Against every possible sequence of victims, on short traces."""
    rng = random.Random(seed)
    reads = [rng.randrange(5) for _ in range(9)]
    slots_max = rng.choice([1, 2, 3])
    states = {frozenset(): 0}
    for key in reads:
        following: dict[frozenset[int], int] = {}
        for cached, hits in states.items():
            score = hits + (key in cached)
            kept = set(cached) | {key}
            for size in range(min(slots_max, len(kept)) + 1):
                for choice in itertools.combinations(sorted(kept), size):
                    following[frozenset(choice)] = max(score, following.get(frozenset(choice), 0))
        states = following
    assert sum(optimal_hits(reads, slots_max)) == max(states.values()), f"seed {seed}"
