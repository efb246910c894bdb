"""A session is found over any connection, and ends with the one that opened it."""

import itertools

import pytest
from share_shards import Connection, Shards, asked

from millstream.model.error_code import ErrorCode
from millstream.share.sessions import FINAL_EPOCH, change

KEY = ("g", "m")


@pytest.fixture
def shards():
    return Shards(3, seats=8)


def opened(shards, shard, connection=None):
    answers = asked(shards.tables[shard], *KEY, connection)
    shards.deliver()
    return answers[0]


def sought(shards, shard, epoch):
    answers = []
    shards.tables[shard].seek(*KEY, epoch, answers.append)
    shards.deliver()
    return answers[0]


def ends(shards):
    return [token for home in shards.homes for _, token in home.ends]


def nothing_left(shards):
    kept = [
        (name, getattr(table, name))
        for table in shards.tables
        for name in ("_sessions", "_by_token", "_by_connection", "_away")
    ]
    return [(name, one) for name, one in kept if one] == [] and opened(shards, 0) is not None


@pytest.mark.parametrize(("first", "second"), itertools.permutations(range(3), 2))
def test_a_request_on_another_shard_brings_the_session_with_it(shards, first, second):
    session = opened(shards, first)
    change(session, [(b"t", 1)], [])
    woken = []
    session.wake = lambda: woken.append(True)
    moved = sought(shards, second, 1)
    assert (moved.token, moved.epoch, list(moved.partitions)) == (session.token, 2, [(b"t", 1)])
    assert woken == [True] and not shards.tables[first].is_open(session) and shards.tables[second].is_open(moved)
    assert sought(shards, second, 1) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert sought(shards, first, 2).epoch == 3
    assert sought(shards, first, 7) is ErrorCode.INVALID_SHARE_SESSION_EPOCH


def test_there_has_to_be_a_session(shards):
    assert [sought(shards, shard, 1) for shard in range(3)] == [ErrorCode.SHARE_SESSION_NOT_FOUND] * 3


@pytest.mark.parametrize("route", itertools.permutations(range(3)))
def test_the_end_of_the_connection_that_opened_it_ends_it_wherever_it_is(shards, route):
    connection = Connection()
    session = opened(shards, route[0], connection)
    assert sought(shards, route[1], 1).token == session.token
    assert sought(shards, route[2], 2).token == session.token
    shards.tables[route[0]].connection_closed(connection)
    shards.deliver()
    assert set(ends(shards)) == {session.token}
    assert nothing_left(shards)


@pytest.mark.parametrize(("first", "second"), itertools.permutations(range(3), 2))
def test_the_connection_ends_while_its_session_is_on_its_way(shards, first, second):
    connection = Connection()
    session = opened(shards, first, connection)
    answers = []
    shards.tables[second].seek(*KEY, 1, answers.append)
    while not answers:
        shards.step()
        if session.token in shards.tables[first]._away:
            shards.tables[first].connection_closed(connection)
    shards.deliver()
    assert set(ends(shards)) == {session.token} and nothing_left(shards)


def test_a_member_that_ends_its_session_elsewhere_leaves_nothing(shards):
    session = opened(shards, 1)
    moved = sought(shards, 2, FINAL_EPOCH)
    shards.tables[2].end(moved)
    shards.deliver()
    assert ends(shards) == [session.token] and nothing_left(shards)


def test_a_session_that_was_replaced_does_not_come_back(shards):
    connection = Connection()
    old = opened(shards, 1, connection)
    sought(shards, 2, 1)
    new = opened(shards, 0)
    assert sought(shards, 2, 2) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    shards.tables[1].connection_closed(connection)
    shards.deliver()
    assert ends(shards) == [] and old.token != new.token
    assert sought(shards, 2, 1).token == new.token
