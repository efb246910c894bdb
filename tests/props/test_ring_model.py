"""The ring against a deque: order, contents, wrap-around, full and empty."""

import random
from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.shard.ring import HEADER_BYTES, Ring

CAPACITY = 256


def both_ends():
    memory = memoryview(bytearray(HEADER_BYTES + CAPACITY))
    return Ring(memory), Ring(memory)


def room_taken(record):
    return 8 + (len(record) + 7) // 8 * 8


def play(todo, tag, begin_at=0):
    producer, consumer = both_ends()
    for _ in range(begin_at):  # 8 bytes each: where in the ring the play begins
        assert producer.push(b"")
        assert consumer.pop() == (b"", 0)
    model = deque()
    refused = 0
    for step in todo:
        used = sum(room_taken(record) for record, _ in model)
        if step == "pop":
            assert consumer.has_records == bool(model)
            assert consumer.pop() == (model.popleft() if model else None)
        elif step == "pop all":
            popped = []
            assert consumer.pop_all(lambda *record, popped=popped: popped.append(record)) == len(model)
            assert popped == list(model)
            model.clear()
        else:
            fits = used + room_taken(step) <= CAPACITY
            assert producer.push(step, tag) == fits
            refused += not fits
            if fits:
                model.append((step, tag))
    while model:
        assert consumer.pop() == model.popleft()
    assert consumer.pop() is None
    return refused


steps = st.lists(st.one_of(st.binary(max_size=120), st.just("pop"), st.just("pop all")), max_size=60)


@settings(max_examples=300)
@given(steps, st.integers(0, 2**31 - 1), st.integers(0, 2 * CAPACITY // 8))
def test_a_ring_behaves_like_a_bounded_deque(todo, tag, begin_at):
    play(todo, tag, begin_at)


@pytest.mark.parametrize("seed", range(10))
def test_records_wrap_around_thousands_of_times(seed):
    chooser = random.Random(seed)
    records = [chooser.randbytes(chooser.randrange(100)) for _ in range(1500)]
    todo = [step for record in records for step in (record, *(["pop"] * chooser.randrange(3)))]
    assert play(todo, seed) > 10, "the ring was never full"


def test_a_record_that_never_fits_is_an_error():
    producer, _ = both_ends()
    with pytest.raises(ValueError, match="does not fit"):
        producer.push(bytes(CAPACITY))
    assert producer.push(bytes(CAPACITY - 8))


@pytest.mark.parametrize("capacity", [0, 32, 100])
def test_a_capacity_that_is_no_power_of_two_is_refused(capacity):
    with pytest.raises(ValueError):
        Ring(memoryview(bytearray(HEADER_BYTES + capacity)))
