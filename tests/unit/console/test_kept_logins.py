"""Logins of browsers end: by time, by lack of use, by number, by logging out."""

import pytest

from millstream.console.kept import IDLE_S, LOGIN_S, LOGINS_MAX, KeptLogins


class Room:
    def __init__(self):
        self.now, self.ended = 1000.0, []
        self.kept = KeptLogins(self.ended.append, lambda: self.now)


@pytest.fixture
def room():
    return Room()


def test_a_login_that_is_used_holds_until_its_time_is_over(room):
    key = room.kept.add("alice")
    began = room.now
    while room.now < began + LOGIN_S - IDLE_S:
        room.now += IDLE_S - 1
        assert room.kept.find(key) == "alice"
    room.now = began + LOGIN_S
    assert room.kept.find(key) is None
    assert room.ended == ["alice"]


def test_a_login_that_is_not_used_ends_and_others_stay(room):
    idle, used = room.kept.add("idle"), room.kept.add("used")
    room.now += IDLE_S - 1
    assert room.kept.find(used) == "used"
    room.now += 1
    assert room.kept.find(idle) is None
    assert room.kept.find(used) == "used"
    assert room.ended == ["idle"]


def test_a_login_holds_no_longer_than_its_token(room):
    key = room.kept.add("svc", 60)
    room.now += 59
    assert room.kept.find(key) == "svc"
    room.now += 1
    assert room.kept.find(key) is None


def test_of_too_many_the_one_that_was_not_used_for_longest_goes(room):
    keys = [room.kept.add(number) for number in range(LOGINS_MAX)]
    assert room.kept.find(keys[0]) == 0
    room.kept.add("one more")
    assert room.ended == [1]
    assert room.kept.find(keys[1]) is None
    assert room.kept.find(keys[0]) == 0


def test_keys_differ_and_say_nothing(room):
    keys = {room.kept.add("alice") for _ in range(50)}
    assert len(keys) == 50
    assert all(len(key) >= 43 and "alice" not in key for key in keys)


def test_logging_out_ends_one_and_closing_ends_all(room):
    keys = [room.kept.add(name) for name in ("a", "b", "c")]
    room.kept.remove(keys[1])
    room.kept.remove(keys[1])
    assert room.ended == ["b"]
    room.kept.clear()
    assert room.ended == ["b", "a", "c"]
    assert [room.kept.find(key) for key in keys] == [None] * 3
