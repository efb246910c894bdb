"""The share partition: who gets what, what becomes of it, and what is stored."""

import pytest

from millstream.core.share.batches import Batch, RecordState
from millstream.core.share.partition import (
    ACCEPT,
    GAP,
    REJECT,
    RELEASE,
    RENEW,
    Acknowledgement,
    Acquired,
    Limits,
    Request,
    SharePartition,
)
from millstream.core.share.tally import Tally
from millstream.model.error_code import ErrorCode

AVAILABLE, ACKNOWLEDGED, ARCHIVED = RecordState.AVAILABLE, RecordState.ACKNOWLEDGED, RecordState.ARCHIVED
NONE, STATE, BAD = ErrorCode.NONE, ErrorCode.INVALID_RECORD_STATE, ErrorCode.INVALID_REQUEST
LOCK = 1_000


def make(start=0, stored=(), *, is_stored=True, **limits):
    return SharePartition(start, stored, limits=Limits(lock_us=LOCK, **limits), is_stored=is_stored)


def fetch(part, batches, member="a", token=1, now=1, most=500, **more):
    part.expire(now)
    offset = part.next_offset()
    if offset is None:
        return []
    end = batches[-1][1] + 1
    return part.acquire(Request(member, token, most, **more), offset, [b for b in batches if b[1] >= offset], end, now)


def say(part, first, last, *types, member="a", now=2, request="request"):
    return part.acknowledge(member, [Acknowledgement(first, last, list(types))], request, now)


def store(part, error=NONE, now=3):
    write = part.take_write()
    assert write is not None
    return write, part.written(error, now)


def test_whole_batches_are_taken_or_exactly_so_many():
    batches = [(0, 9), (10, 19), (20, 29)]
    assert fetch(make(), batches, most=12) == [Acquired(0, 19, 1)]
    assert fetch(make(), batches, most=12, strict=True) == [Acquired(0, 11, 1)]
    assert fetch(make(), batches, most=30, batch_size=10) == [
        Acquired(0, 9, 1),
        Acquired(10, 19, 1),
        Acquired(20, 29, 1),
    ]


def test_a_full_window_gives_out_what_was_released_in_it():
    part = make(locks_max=20)
    batches = [(0, 9), (10, 19), (20, 29)]
    assert fetch(part, batches) == [Acquired(0, 19, 1)]
    assert part.next_offset() is None
    assert say(part, 3, 4, RELEASE) is None
    assert part.next_offset() is None, "it is pending"
    store(part)
    assert fetch(part, batches, member="b") == [Acquired(3, 4, 2)]


def test_an_acknowledgement_waits_for_its_write_and_moves_the_start():
    part = make()
    fetch(part, [(0, 9)])
    assert say(part, 0, 4, ACCEPT) is None
    assert say(part, 4, 5, ACCEPT) is STATE, "one of them is pending"
    write, answers = store(part)
    assert (write.start, write.complete, write.batches) == (5, 0, [])
    assert [(one.request, one.error) for one in answers] == [("request", NONE)]
    assert (part.start, part.end) == (5, 10)
    assert say(part, 0, 4, ACCEPT) is NONE, "twice"
    assert say(part, 7, 9, ACCEPT, REJECT, GAP) is None
    write, _ = store(part)
    assert write.batches == [Batch(7, 7, ACKNOWLEDGED, 1), Batch(8, 9, ARCHIVED, 1)]
    assert (write.start, write.complete) == (5, 3)


def test_as_many_records_count_as_done_with_as_their_record_has_room_for():
    part = make()
    fetch(part, [(0, 9), (1 << 33, (1 << 33) + 9)], most=30)
    write, _ = store(part)
    assert (write.start, write.complete) == (0, 2**31 - 1), "between the batches the log has no record"


def test_what_is_said_wrongly_is_refused_as_a_whole():
    part = make()
    fetch(part, [(0, 9)])
    assert say(part, 9, 10, ACCEPT) is BAD
    assert say(part, 0, 9, ACCEPT, member="b") is STATE
    both = [Acknowledgement(0, 1, [ACCEPT]), Acknowledgement(8, 10, [ACCEPT])]
    assert part.acknowledge("a", both, None, 2) is BAD
    assert part.take_write() is None
    assert say(part, 0, 9, ACCEPT, now=LOCK + 1) is STATE, "its time is over"


def test_a_failed_write_gives_records_back_to_their_holder_or_to_all():
    part = make()
    fetch(part, [(0, 9)])
    say(part, 0, 4, ACCEPT)
    _, (answer,) = store(part, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert answer.error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert say(part, 0, 4, ACCEPT) is None
    store(part, ErrorCode.COORDINATOR_NOT_AVAILABLE, now=LOCK + 1)
    assert fetch(part, [(0, 9)], member="b", now=LOCK + 1) == [Acquired(0, 9, 2)]


def test_one_write_is_under_way_and_the_next_has_all_since():
    part = make()
    fetch(part, [(0, 9)])
    say(part, 0, 0, ACCEPT)
    assert part.take_write() is not None
    say(part, 2, 2, ACCEPT, request="second")
    say(part, 4, 4, REJECT, request="third")
    assert part.take_write() is None
    part.written(NONE, 3)
    write, answers = store(part)
    assert write.batches == [Batch(2, 2, ACKNOWLEDGED, 1), Batch(4, 4, ARCHIVED, 1)]
    assert [one.request for one in answers] == ["second", "third"]
    assert part.take_write() is None


def test_the_end_of_a_session_releases_what_was_acquired_in_it():
    part = make()
    fetch(part, [(0, 4)], token=1)
    fetch(part, [(0, 4), (5, 9)], token=2)
    assert part.end_session(1)
    assert fetch(part, [(0, 4), (5, 9)], member="b", token=3) == [Acquired(0, 4, 2)]
    part.replace_session("a", 4)
    assert not part.end_session(2)
    assert part.end_session(4)


def test_a_record_ends_with_its_last_delivery():
    part = make(deliveries_max=2)
    for count in (1, 2):
        assert fetch(part, [(0, 0)], now=count * LOCK) == [Acquired(0, 0, count)]
    part.expire(3 * LOCK)
    assert part.start == 1
    write, _ = store(part)
    assert write.start == 1


def test_parts_shrink_until_a_record_is_alone():
    part, sizes, now = make(deliveries_max=5), [], 0
    for _ in range(7):
        now += LOCK
        given = fetch(part, [(0, 39)], now=now)
        sizes.append(given[0].last - given[0].first + 1)
        assert len(given) == 1
    assert sizes[:6] == [40, 40, 40, 20, 1, 1]


def test_renewing_postpones_and_writes_nothing():
    part = make()
    fetch(part, [(0, 9)], now=1)
    assert say(part, 0, 9, RENEW, now=LOCK) is NONE
    assert part.take_write() is None
    assert not part.expire(LOCK + 2)
    assert part.expire(2 * LOCK)
    part.limits.renews = False
    fetch(part, [(0, 9)], now=2 * LOCK)
    assert say(part, 0, 9, RENEW, now=2 * LOCK) is STATE


def test_offsets_without_a_record_are_archived():
    part = make()
    assert fetch(part, [(0, 2), (6, 9)]) == [Acquired(0, 2, 1), Acquired(6, 9, 1)]
    say(part, 0, 2, ACCEPT)
    store(part)
    assert part.start == 6


def test_a_restored_gap_is_delivered_again_and_what_is_stored_is_not():
    stored = [Batch(12, 13, ACKNOWLEDGED, 1), Batch(16, 17, AVAILABLE, 3)]
    part = make(10, stored)
    assert (part.start, part.end) == (10, 18)
    assert fetch(part, [(10, 19)]) == [Acquired(10, 11, 1), Acquired(14, 15, 1)], "poison comes alone"
    assert make(13, stored).start == 14


def test_the_log_start_takes_the_window_along():
    part = make()
    fetch(part, [(0, 9)])
    say(part, 0, 4, ACCEPT)
    part.move_log_start(7)
    assert (part.start, part.end) == (7, 10)
    write, (answer,) = store(part)
    assert (write.start, answer.error) == (7, NONE)
    part.move_log_start(20)
    assert (part.start, part.end) == (20, 20)


def test_a_new_start_is_written_with_the_first_acquisition():
    part = make(7, is_stored=False)
    assert part.take_write() is None
    fetch(part, [(7, 9)])
    write, _ = store(part)
    assert (write.start, write.batches) == (7, [])


def test_closing_names_who_waits():
    part = make()
    fetch(part, [(0, 9)])
    say(part, 0, 0, ACCEPT, request="under way")
    part.take_write()
    say(part, 1, 1, ACCEPT, request="waits")
    assert part.close() == ["under way", "waits"]


@pytest.mark.parametrize("strict", [True, False])
def test_no_more_than_asked_for_once_there_is_enough(strict):
    part = make()
    given = fetch(part, [(0, 0), (1, 1), (2, 2)], most=2, strict=strict)
    assert given == [Acquired(0, 1, 1)]


def test_what_happens_to_records_is_counted_once():
    tally = Tally()
    part = SharePartition(0, limits=Limits(lock_us=LOCK, deliveries_max=2), is_stored=True, tally=tally)
    fetch(part, [(0, 9)])
    assert say(part, 0, 5, ACCEPT, GAP, RELEASE, REJECT, RENEW, RELEASE) is None
    assert (tally.acquired, tally.acknowledged) == (10, [1, 1, 2, 1, 1])
    store(part)
    part.expire(LOCK + 1)
    assert (tally.timed_out, tally.released, tally.exhausted) == (4, 0, 0), "all but the renewed one"
    part.end_session(1)
    assert (tally.timed_out, tally.released, tally.exhausted) == (4, 1, 0)
    while fetch(part, [(0, 9)], now=LOCK + 2):
        pass
    part.end_session(1)
    assert (tally.acquired, tally.timed_out, tally.released, tally.exhausted) == (17, 4, 8, 7)
    part.end_session(1)
    assert (tally.released, tally.exhausted) == (8, 7)
