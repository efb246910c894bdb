"""The checker finds each lie about transactions that is planted, and nothing in what a correct log may show."""

import pytest

from millstream.testing.history import Commit, Committed, EndTransaction, History, Outcome, Poll, Send, TopicPartition
from millstream.testing.history_check import check

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO


def send(value, offset, place=P, began=0, transaction="x", outcome=OK):
    return Send("p", place, value, True, began, began + 1, outcome, offset, transaction=transaction)


def end(*, commits, began=100, outcome=OK, transaction="x"):
    return EndTransaction("p", transaction, commits, began, began + 1, outcome)


def poll(*records, place=P, at=1000, process="c"):
    return Poll(process, "", place, list(records), at, True)


def kinds(*operations):
    return {anomaly.kind for anomaly in check(History.of_operations(operations), dense=False)}


SENDS = (send("a", 0), send("b", 0, Q, 10))
ALL = (poll((0, "a")), poll((0, "b"), place=Q))


def test_a_committed_transaction_is_read_whole():
    assert kinds(*SENDS, end(commits=True), *ALL) == set()


@pytest.mark.parametrize("outcome", [OK, INFO])
def test_an_aborted_transaction_that_nobody_reads_is_clean(outcome):
    later = send("c", 2, began=200, transaction="y")
    operations = (*SENDS, end(commits=False, outcome=outcome), later, end(commits=True, began=300, transaction="y"))
    assert kinds(*operations, poll((2, "c")), poll(place=Q)) == set()


def test_a_transaction_of_unknown_outcome_is_read_whole_or_not_at_all():
    unknown = end(commits=True, outcome=INFO)
    assert kinds(*SENDS, unknown, *ALL) == set()
    assert kinds(*SENDS, unknown, poll(), poll(place=Q)) == set()


def test_a_commit_that_was_asked_for_twice_is_one():
    assert kinds(*SENDS, end(commits=True, outcome=INFO), end(commits=True, began=200), *ALL) == set()


def test_planted_a_read_of_an_aborted_transaction():
    assert "aborted-read" in kinds(*SENDS, end(commits=False), ALL[0])
    assert "aborted-read" in kinds(*SENDS, ALL[0]), "nobody asked for a commit"
    assert "aborted-read" in kinds(*SENDS, end(commits=True, outcome=FAIL), ALL[0])


def test_planted_a_read_before_the_commit():
    assert kinds(*SENDS, poll((0, "a"), at=50), end(commits=True), poll((0, "b"), place=Q)) == {"precommitted-read"}


@pytest.mark.parametrize("outcome", [OK, INFO])
def test_planted_a_torn_transaction(outcome):
    others = (send("z", 5, Q, 200, "y"), end(commits=True, began=300, transaction="y"), poll((5, "z"), place=Q))
    assert "torn" in kinds(*SENDS, end(commits=True, outcome=outcome), ALL[0], *others)


def commit(next_offset, began=20, transaction="x"):
    return Commit("p", "g", P, next_offset, began, began + 1, OK, transaction)


def committed(next_offset, began):
    return Committed("g", P, next_offset, began, began + 1)


def test_planted_a_lost_offset():
    decided = (*SENDS, commit(1), end(commits=True), *ALL)
    assert "offset-lost" in kinds(*decided, committed(-1, 500))
    assert "offset-lost" not in kinds(*decided, committed(1, 500))
    assert "offset-lost" not in kinds(*decided, committed(-1, 90)), "it was not committed yet"


def test_planted_an_offset_of_an_aborted_transaction():
    decided = (*SENDS, commit(1), end(commits=False), poll(), poll(place=Q))
    assert "commit-phantom" in kinds(*decided, committed(1, 500))
    assert "commit-phantom" not in kinds(*decided, committed(-1, 500))
