"""Sessions of members of share groups: epochs, replacement, and the ends that release."""

import pytest
from share_shards import Connection, Shards, asked, opened

from millstream.model.error_code import ErrorCode
from millstream.share.sessions import FINAL_EPOCH, change


@pytest.fixture
def shards():
    return Shards(4, seats=3)


@pytest.fixture
def table(shards):
    return shards.tables[0]


@pytest.fixture
def home(shards):
    return shards.homes[0]


def test_epochs_come_one_after_the_other(table):
    session = opened(table)
    assert table.find("g", "m", 1) is session
    assert table.find("g", "m", 1) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert table.find("g", "m", 2) is session
    session.epoch = (1 << 31) - 1
    assert table.find("g", "m", (1 << 31) - 1) is session
    assert session.epoch == 1
    assert table.find("g", "m", FINAL_EPOCH) is session
    assert table.find("h", "m", 1) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_new_session_takes_over_and_the_old_connections_end_releases_nothing(table, home):
    first, second = Connection(), Connection()
    old = opened(table, connection=first)
    woken = []
    old.wake = lambda: woken.append(True)
    new = opened(table, connection=second)
    assert woken == [True] and not table.is_open(old) and table.is_open(new)
    assert home.replacements[-1] == ("g", "m", new.token)
    table.connection_closed(first)
    assert home.ends == []
    table.connection_closed(second)
    assert home.ends == [("g", new.token)]
    table.end(new)
    assert home.ends == [("g", new.token)], "once"


def test_tokens_differ_on_all_shards():
    shards = Shards(4, seats=16)
    answers = [asked(table, member=str(n)) for table in shards.tables for n in range(4)]
    shards.deliver()
    tokens = [answer[0].token for answer in answers]
    assert len(set(tokens)) == 16 and 0 not in tokens


def test_another_partition_comes_first_in_each_epoch(table):
    session = opened(table)
    change(session, [(b"t", 0), (b"t", 1), (b"t", 2)], [(b"t", 1), (b"u", 0)])
    firsts = []
    for epoch in range(1, 5):
        table.find("g", "m", epoch)
        firsts.append(session.in_turn()[0])
    assert firsts == [(b"t", 0), (b"t", 2)] * 2


def test_a_session_is_woken_by_its_token(table, home):
    session = opened(table)
    home.on_wake(session.token)
    assert session.woken
    home.on_wake(session.token + 4)


def test_a_connection_that_ended_before_the_seat_was_there_leaves_nothing(shards):
    connection = Connection()
    answers = asked(shards.tables[1], connection=connection)
    connection.closed = True
    shards.tables[1].connection_closed(connection)
    shards.deliver()
    assert not shards.tables[1].is_open(answers[0])
    assert shards.homes[1].ends == [("g", answers[0].token)]
