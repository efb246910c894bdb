"""Retention's decision: Kafka's rules, over what is known of segments."""

import pytest

from millstream.core.retention import UNLIMITED, SegmentFacts, roll_jitter_ms, start_after_retention


def facts(*sizes_and_times: tuple[int, int]) -> list[SegmentFacts]:
    """Segments of ten offsets each: (size, largest timestamp); appended to until time 500."""
    return [SegmentFacts(10 * n, 10 * n + 10, size, stamp, 500) for n, (size, stamp) in enumerate(sizes_and_times)]


LOG = facts((100, 1000), (100, 2000), (100, 3000), (50, 4000))


@pytest.mark.parametrize(
    ("retention_bytes", "start"),
    [
        (UNLIMITED, None),
        (350, None),
        (349, None),
        (251, None),
        (250, 10),
        (150, 20),
        (149, 20),
        (50, 30),
        (49, 30),
        (0, 40),
    ],
)
def test_by_size_what_is_left_is_at_least_the_limit(retention_bytes: int, start: int | None) -> None:
    assert start_after_retention(LOG, 5000, UNLIMITED, retention_bytes, 40) == start


@pytest.mark.parametrize(
    ("now_ms", "start"), [(2000, None), (2001, 10), (3000, 10), (3001, 20), (4500, 30), (5000, 30), (5001, 40)]
)
def test_by_age_the_largest_timestamp_counts(now_ms: int, start: int | None) -> None:
    assert start_after_retention(LOG, now_ms, 1000, UNLIMITED, 40) == start


def test_an_old_segment_behind_a_young_one_waits() -> None:
    assert start_after_retention(facts((1, 9000), (1, 10)), 9500, 1000, UNLIMITED, 20) is None


def test_nothing_at_or_above_the_high_watermark_goes() -> None:
    assert start_after_retention(LOG, 10**9, 1, 0, 29) == 20
    assert start_after_retention(LOG, 10**9, 1, 0, 30) == 30


def test_a_segment_without_timestamps_is_as_old_as_its_last_batch() -> None:
    assert start_after_retention(facts((1, -1)), 1500, 1000, UNLIMITED, 10) is None
    assert start_after_retention(facts((1, -1)), 1501, 1000, UNLIMITED, 10) == 10


def test_an_empty_active_segment_stays() -> None:
    empty = SegmentFacts(10, 10, 0, -1, 0)
    assert start_after_retention([*facts((1, 10)), empty], 10**9, 1, UNLIMITED, 10) == 10
    assert start_after_retention([empty], 10**9, 1, 0, 10) is None


def test_size_and_age_together_take_the_larger_part() -> None:
    assert start_after_retention(LOG, 2500, 1000, 150, 40) == 20


def test_logs_begin_new_segments_at_different_times_each_always_at_its_own():
    jitters = [roll_jitter_ms(group, 60_000, 10_000) for group in range(1, 101)]
    assert jitters == [roll_jitter_ms(group, 60_000, 10_000) for group in range(1, 101)]
    assert all(0 <= jitter < 10_000 for jitter in jitters)
    tenths = [sum(jitter // 1_000 == tenth for jitter in jitters) for tenth in range(10)]
    assert min(tenths) >= 8
    assert {roll_jitter_ms(group, 60_000, 0) for group in range(1, 101)} == {0}
    assert max(roll_jitter_ms(group, 5, 10_000) for group in range(1, 101)) < 5
