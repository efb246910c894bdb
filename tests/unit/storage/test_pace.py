"""When the next tick starts: lone clients never wait, many records wait once, few wait longer unless all are back."""

import pytest

from millstream.storage.wal.pace import TickPace

PACING_US = 500
LONGER_US = 625
KIB = 1024


def under_load(records: int, ticks: int = 20, now_us: int = 1_000_000) -> TickPace:
    """The last of some ticks of so many records started at `now_us`."""
    pace = TickPace(PACING_US)
    for back in reversed(range(ticks)):
        pace.submitted(now_us - back * PACING_US, records)
    return pace


def test_ticks_of_one_record_follow_each_other_at_once() -> None:
    assert under_load(1).due_us(1, KIB) == 0


def test_without_pacing_nothing_waits() -> None:
    pace = TickPace(0)
    for now_us in range(20):
        pace.submitted(now_us, 100)
    assert pace.due_us(5, KIB) == 0


def test_a_large_tick_does_not_wait() -> None:
    assert under_load(10).due_us(1, 128 * KIB) == 0


@pytest.mark.parametrize("records", [16, 17, 4096])
def test_many_records_wait_for_the_pace(records: int) -> None:
    assert under_load(100).due_us(records, KIB) == 1_000_000 + PACING_US


def test_few_records_wait_a_quarter_as_long_again() -> None:
    pace = under_load(8)
    assert [pace.due_us(records, KIB) for records in (1, 5, 7)] == [1_000_000 + LONGER_US] * 3


def test_as_many_records_as_lately_came_at_once_wait_for_nobody_else() -> None:
    pace = under_load(8)
    assert [pace.due_us(records, KIB) for records in (8, 9)] == [1_000_000 + PACING_US] * 2


def test_clients_that_have_gone_are_waited_for_in_a_few_ticks() -> None:
    pace = under_load(8)
    waits: list[int] = []
    for _ in range(13):
        pace.submitted(2_000_000, 5)
        waits.append(pace.due_us(5, KIB) - 2_000_000)
    assert waits == [LONGER_US] * 11 + [PACING_US] * 2


def test_clients_that_come_back_are_waited_for_from_the_next_tick_on() -> None:
    pace = under_load(5)
    pace.submitted(2_000_000, 8)
    assert pace.due_us(5, KIB) == 2_000_000 + LONGER_US


def test_one_crowd_after_lone_clients_is_load_at_once() -> None:
    pace = under_load(1)
    pace.submitted(2_000_000, 100)
    assert pace.due_us(20, KIB) == 2_000_000 + PACING_US
