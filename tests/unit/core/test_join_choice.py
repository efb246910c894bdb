"""Which ranges of a shared partition are joined, and when."""

from hypothesis import given
from hypothesis import strategies as st

from millstream.core.shared.joins import (
    LARGE_BYTES,
    RANGES_MAX,
    Join,
    JoinLimits,
    Stretch,
    first_small_range,
    next_join,
)

LIMITS = JoinLimits(1000, 60_000)


def ranges(*sizes, written_ms=0):
    return [Stretch(size, written_ms) for size in sizes]


def own(*sizes):
    return [Stretch(size, None) for size in sizes]


def test_ranges_are_joined_when_they_are_many_large_or_old():
    assert next_join(ranges(100, 100), LIMITS, 59_999) is None
    assert next_join(ranges(100, 100), LIMITS, 60_000) == Join(0, 2)
    assert next_join(ranges(100, 100), LIMITS, None) == Join(0, 2)
    assert next_join(ranges(600, 300, 200, 100), LIMITS, 0) == Join(0, 3)
    assert next_join(ranges(*[1] * (RANGES_MAX + 5)), LIMITS, 0) == Join(0, RANGES_MAX)


def test_large_ranges_stay_where_they_are():
    assert next_join(ranges(LARGE_BYTES, LARGE_BYTES), LIMITS, None) is None
    assert next_join(ranges(LARGE_BYTES, 10, 10, LARGE_BYTES, 10), LIMITS, None) == Join(1, 3)


def test_own_objects_are_joined_again_while_they_are_no_larger_than_what_follows():
    assert next_join([*own(50), *ranges(20, 20)], LIMITS, None) == Join(1, 3)
    assert next_join([*own(40), *ranges(20, 20)], LIMITS, None) == Join(0, 3)
    assert next_join([*own(80, 40), *ranges(20, 20)], LIMITS, None) == Join(0, 4)
    assert next_join([*own(900), *ranges(900)], LIMITS, None) == Join(1, 2)
    assert next_join(own(10, 10), LIMITS, None) is None


@given(st.lists(st.integers(1, 400), min_size=1, max_size=300), st.integers(1, 40))
def test_every_range_is_joined_some_time_and_no_byte_is_written_often(sizes, step):
    """However the ranges arrive, what is joined grows from the start without a gap, and each byte is written again at
    most about as often as objects double.
    """
    archive, written = [], 0
    for first in range(0, len(sizes), step):
        archive += ranges(*sizes[first : first + step])
        while (found := next_join(archive, LIMITS, None)) is not None:
            assert found.end - found.first <= RANGES_MAX
            assert any(one.is_small_range for one in archive[found.first : found.end])
            assert first_small_range(archive) < found.end
            size = sum(one.size_bytes for one in archive[found.first : found.end])
            assert size < LIMITS.target_bytes + 400
            archive[found.first : found.end] = own(size)
            written += size
    assert first_small_range(archive) == len(archive)
    assert sum(one.size_bytes for one in archive) == sum(sizes)
    assert written <= 12 * sum(sizes)


def test_a_range_of_a_clock_that_was_set_back_counts_as_old_and_a_little_ahead_as_new():
    day_ms = 86_400_000
    assert next_join(ranges(100, 100, written_ms=2 * day_ms), LIMITS, day_ms) == Join(0, 2)
    assert next_join(ranges(100, 100, written_ms=day_ms + 5_000), LIMITS, day_ms) is None
