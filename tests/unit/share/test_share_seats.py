"""Seats of share sessions: the limit is the broker's, whichever shards its sessions are on."""

import pytest
from share_shards import Shards, asked

from millstream.model.error_code import ErrorCode
from millstream.share.sessions import FINAL_EPOCH

FULL = ErrorCode.SHARE_SESSION_LIMIT_REACHED


@pytest.fixture
def shards():
    return Shards(4, seats=3)


def opened(shards, shard, member):
    answers = asked(shards.tables[shard], member=member)
    shards.deliver()
    (answer,) = answers
    return answer


@pytest.mark.parametrize("crowded", range(4))
def test_exactly_as_many_sessions_as_set_are_taken_wherever_they_are(shards, crowded):
    taken = [opened(shards, crowded, member) for member in "ab"] + [opened(shards, (crowded + 1) % 4, "c")]
    assert FULL not in taken
    assert [stats.gauge("share_sessions").value for stats in shards.stats][crowded] == 2
    assert [opened(shards, shard, f"d{shard}") for shard in range(4)] == [FULL] * 4
    shards.tables[crowded].end(taken[0])
    shards.deliver()
    assert opened(shards, (crowded + 2) % 4, "e") is not FULL
    assert opened(shards, crowded, "f") is FULL


def test_sessions_that_are_asked_for_at_the_same_time_are_counted(shards):
    answers = [asked(shards.tables[shard], member=f"{shard}-{n}") for n in range(2) for shard in range(4)]
    shards.deliver()
    assert len([1 for (answer,) in answers if answer is FULL]) == 5


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("second", range(3))
def test_a_member_has_one_seat_and_its_next_session_takes_it_over(shards, first, second):
    old = opened(shards, first, "a")
    woken = []
    old.wake = lambda: woken.append(True)
    others = [opened(shards, 3, member) for member in "bc"]
    new = opened(shards, second, "a")
    assert woken == [True] and not shards.tables[first].is_open(old)
    assert shards.tables[second].is_open(new) and FULL not in others
    assert shards.homes[first].ends == [], "the new session has what the old one held"
    if first != second:
        assert shards.tables[first].find("g", "a", FINAL_EPOCH) is ErrorCode.SHARE_SESSION_NOT_FOUND
    shards.tables[first].connection_closed(old.connection)
    shards.deliver()
    assert opened(shards, 0, "d") is FULL, "the end of the old connection frees no seat"
    shards.tables[second].connection_closed(new.connection)
    shards.deliver()
    assert opened(shards, 0, "d") is not FULL


def test_a_seat_whose_answer_was_lost_is_free_again(shards):
    shards.mailboxes[1].loses_answers = True
    assert [opened(shards, 1, str(n)) for n in range(9)] == [FULL] * 9
    assert FULL not in [opened(shards, 2, str(n)) for n in range(3)]
