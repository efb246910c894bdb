"""``millstream transaction``: what is listed, and what ``abort`` refuses, shows and does."""

import json
from types import SimpleNamespace

import pytest

from millstream.cli import transaction, transaction_hanging
from millstream.client import Cluster, transactions
from millstream.client.transactions import DescribedTransaction, ListedTransaction
from millstream.core.txn.state import BY_NAME
from millstream.errors import OutcomeUnknown, Rejected, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_producers import ActiveProducer

ABORT = ("transaction", "abort", "--topic", "t", "-p", 0, "--producer-id", 7)


class Answers:
    """What the client answers. ``opened`` is where producer 7's transaction begins, at each look (the last stays)."""

    def __init__(self):
        self.listed = []
        self.described = {}
        self.opened = [40]
        self.aborted = []
        self.failure = None

    def list_transactions(self, _cluster, states=(), producer_ids=()):
        if isinstance(self.failure, Unavailable):
            raise self.failure
        return [
            one
            for one in self.listed
            if (not states or one.state in states) and (not producer_ids or one.producer_id in producer_ids)
        ]

    def describe_transaction(self, _cluster, name):
        if name not in self.described:
            raise Rejected("no", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return self.described[name]

    def producers_of(self, _cluster, topic, partition):
        start = self.opened.pop(0) if len(self.opened) > 1 else self.opened[0]
        return [ActiveProducer(7, 3, 9, 1_700_000_000_000, 2, start), ActiveProducer(8, 0, 0, 0, -1, -1)]

    def abort_in(self, _cluster, topic, partition, producer):
        if self.failure is not None:
            raise self.failure
        self.aborted.append((topic, partition, producer.producer_id, producer.producer_epoch))


@pytest.fixture
def answers(cluster, monkeypatch):
    told = Answers()
    for name in ("list_transactions", "describe_transaction", "producers_of", "abort_in"):
        monkeypatch.setattr(transactions, name, getattr(told, name))
    known = SimpleNamespace(topics={"t": SimpleNamespace(error_code=0, partitions={0: None, 1: None})})
    monkeypatch.setattr(Cluster, "metadata", lambda _self, _names: known)
    return told


def ongoing(*topic_partitions):
    return DescribedTransaction("copier", "Ongoing", 1, 7, 3, 60_000, 1_700_000_000_000, list(topic_partitions))


def test_the_states_that_can_be_asked_for_are_states():
    assert set(transaction.STATES) <= set(BY_NAME)


def test_list_filters_by_state_in_any_case(millstream, answers):
    answers.listed = [ListedTransaction("a", "Ongoing", 1, 7), ListedTransaction("b", "Empty", 1, 8)]
    assert json.loads(millstream("transaction", "list", "--state", "ongoing", "--json").out) == [
        {"transactional_id": "a", "state": "Ongoing", "coordinator": 1, "producer_id": 7}
    ]
    assert "b " in millstream("transaction", "list").out
    assert millstream("transaction", "list", "--state", "sleeping").code == 2


def test_describe_shows_partitions_and_names_an_id_that_is_not_there(millstream, answers):
    answers.described["copier"] = ongoing(("t", 0))
    document = json.loads(millstream("transaction", "describe", "copier", "--json").out)
    assert (document["state"], document["partitions"]) == ("Ongoing", [{"topic": "t", "partition": 0}])
    assert "2023-11-14T22:13:20.000Z" in millstream("transaction", "describe", "copier").out
    outcome = millstream("transaction", "describe", "nobody")
    assert outcome.code == 1
    assert "no transactional id 'nobody'" in outcome.err


def test_a_hanging_transaction_is_shown_and_aborted_with_execute(millstream, answers):
    shown = json.loads(millstream(*ABORT, "--json").out)
    assert (shown["start_offset"], shown["producer_epoch"], shown["aborted"]) == (40, 3, False)
    assert "--execute does it" in millstream(*ABORT).err
    assert not answers.aborted
    assert json.loads(millstream(*ABORT, "--json", "--execute").out)["aborted"] is True
    assert answers.aborted == [("t", 0, 7, 3)]


def test_find_hanging_names_what_no_coordinator_ends(millstream, answers):
    (found, other) = json.loads(millstream("transaction", "find-hanging", "--json").out)
    assert (found["topic"], found["partition"], found["producer_id"], found["start_offset"]) == ("t", 0, 7, 40)
    assert other["partition"] == 1
    (one,) = json.loads(millstream("transaction", "find-hanging", "--topic", "t", "-p", 1, "--json").out)
    assert one == other
    assert "2023-11-14T22:13:20.000Z" in millstream("transaction", "find-hanging").out
    answers.listed = [ListedTransaction("copier", "Ongoing", 1, 7)]
    answers.described["copier"] = ongoing(("t", 0))
    assert json.loads(millstream("transaction", "find-hanging", "--json").out) == [other]
    answers.opened = [-1]
    assert "no transaction hangs" in millstream("transaction", "find-hanging").err
    assert millstream("transaction", "find-hanging", "-p", 1).code == 2
    assert millstream("transaction", "find-hanging", "--topic", "t", "-p", 9).code == 2


def test_find_hanging_leaves_out_a_producer_that_wrote_a_short_while_ago(millstream, answers, monkeypatch):
    monkeypatch.setattr(transaction_hanging.time, "time", lambda: 1_700_000_000 + 14 * 60)
    assert json.loads(millstream("transaction", "find-hanging", "--json").out) == []
    assert len(json.loads(millstream("transaction", "find-hanging", "--older-than", 14, "--json").out)) == 2


def test_what_a_coordinator_ends_is_not_aborted(millstream, answers):
    answers.listed = [ListedTransaction("copier", "Ongoing", 1, 7)]
    answers.described["copier"] = ongoing(("t", 0))
    outcome = millstream(*ABORT, "--execute")
    assert (outcome.code, answers.aborted) == (1, [])
    assert "'copier' is Ongoing" in outcome.err
    answers.described["copier"] = ongoing(("t", 1))  # it does not know of this partition
    assert millstream(*ABORT, "--execute").code == 0
    assert len(answers.aborted) == 1


@pytest.mark.parametrize(
    ("opened", "failure", "sentence"),
    [
        ([-1], None, "none is open there"),
        ([40, 50], None, "gone on to another transaction"),
        ([40, -1], None, "none is open there"),
        ([40], Unavailable("broker 2 is silent"), "broker 2 is silent"),
        ([40], OutcomeUnknown("lost"), "without --execute shows whether it was"),
    ],
    ids=["none", "another", "ended meanwhile", "a broker is silent", "unknown"],
)
def test_nothing_is_aborted_that_is_in_doubt(millstream, answers, opened, failure, sentence):
    answers.opened, answers.failure = opened, failure
    outcome = millstream(*ABORT, "--execute")
    assert (outcome.code, outcome.out, answers.aborted) == (1, "", [])
    assert sentence in outcome.err


def test_a_place_that_does_not_exist_is_named(millstream, answers):
    outcome = millstream("transaction", "abort", "--topic", "nope", "-p", 0, "--producer-id", 7)
    assert (outcome.code, "no topic 'nope'" in outcome.err) == (1, True)
    outcome = millstream("transaction", "abort", "--topic", "t", "-p", 5, "--producer-id", 7)
    assert (outcome.code, "no partition 5" in outcome.err) == (2, True)
