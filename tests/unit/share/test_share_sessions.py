"""Sessions of members of share groups: epochs, replacement, and the ends that release."""

import pytest

from millstream.model.error_code import ErrorCode
from millstream.share import sessions
from millstream.share.sessions import FINAL_EPOCH, ShareSessions, change


class Home:
    """What the share partitions are told."""

    def __init__(self):
        self.ends = []
        self.replacements = []

    def end_session(self, group_id, token):
        self.ends.append((group_id, token))

    def replace_session(self, group_id, member, token):
        self.replacements.append((group_id, member, token))


@pytest.fixture
def home():
    return Home()


@pytest.fixture
def table(home):
    return ShareSessions(1, 4, home)


def test_epochs_come_one_after_the_other(table):
    session = table.open("g", "m", "c")
    assert table.find("g", "m", 1) is session
    assert table.find("g", "m", 1) is ErrorCode.INVALID_SHARE_SESSION_EPOCH
    assert table.find("g", "m", 2) is session
    session.epoch = (1 << 31) - 1
    assert table.find("g", "m", (1 << 31) - 1) is session
    assert session.epoch == 1
    assert table.find("g", "m", FINAL_EPOCH) is session
    assert table.find("h", "m", 1) is ErrorCode.SHARE_SESSION_NOT_FOUND


def test_a_new_session_takes_over_and_the_old_connections_end_releases_nothing(table, home):
    old = table.open("g", "m", "first")
    woken = []
    old.wake = lambda: woken.append(True)
    new = table.open("g", "m", "second")
    assert woken == [True] and not table.is_open(old) and table.is_open(new)
    assert home.replacements[-1] == ("g", "m", new.token)
    table.connection_closed("first")
    assert home.ends == []
    table.connection_closed("second")
    assert home.ends == [("g", new.token)]
    table.end(new)
    assert home.ends == [("g", new.token)], "once"


def test_tokens_differ_on_all_shards(home):
    tokens = [ShareSessions(shard, 4, home).open("g", str(n), "c").token for shard in range(4) for n in range(1)]
    one = ShareSessions(0, 4, home)
    tokens += [one.open("g", str(n), "c").token for n in range(4)][1:]
    assert len(set(tokens)) == len(tokens) and 0 not in tokens


def test_a_full_table_takes_no_more_but_replaces(table, monkeypatch):
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 1)
    first = table.open("g", "m", "c")
    assert table.open("g", "n", "c") is ErrorCode.SHARE_SESSION_LIMIT_REACHED
    assert table.open("g", "m", "c") is not first


def test_another_partition_comes_first_in_each_epoch(table):
    session = table.open("g", "m", "c")
    change(session, [(b"t", 0), (b"t", 1), (b"t", 2)], [(b"t", 1), (b"u", 0)])
    firsts = []
    for epoch in range(1, 5):
        table.find("g", "m", epoch)
        firsts.append(session.in_turn()[0])
    assert firsts == [(b"t", 0), (b"t", 2)] * 2


def test_a_session_is_woken_by_its_token(table, home):
    session = table.open("g", "m", "c")
    home.on_wake(session.token)
    assert session.woken
    home.on_wake(session.token + 4)
