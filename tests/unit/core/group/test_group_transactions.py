"""Offsets of transactions that are open: visible with the marker, gone with a deletion."""

import pytest
from group_driver import Driver

from millstream.core.group.outputs import TopicDeleted
from millstream.model.error_code import ErrorCode

PRODUCER = (7, 0)


def test_offsets_of_a_transaction_become_the_groups_with_its_marker():
    d = Driver()
    assert d.commit({("t", 0): 5}, producer=PRODUCER) is ErrorCode.NONE
    assert d.fetch() == {}
    d.end_transaction(7, commits=True)
    assert d.fetch() == {("t", 0): 5}


def test_what_was_stored_behind_an_offset_of_a_transaction_stays():
    d = Driver()
    d.commit({("t", 0): 5}, producer=PRODUCER)
    d.commit({("t", 0): 9})
    d.end_transaction(7, commits=True)
    assert d.fetch() == {("t", 0): 9}


def test_a_group_deleted_during_a_transaction_gets_no_offsets_from_it():
    d = Driver()
    d.commit({("t", 0): 5, ("t", 1): 6}, producer=PRODUCER)
    d.commit({("t", 0): 1})
    assert d.delete() is ErrorCode.NONE
    assert [(key.topic, key.partition) for key, value in d.log[-3:-1] if value is None] == [("t", 0), ("t", 1)]
    d.end_transaction(7, commits=True)
    assert d.fetch() == {}
    assert d.coordinator.groups == {}


def test_an_offset_deleted_during_a_transaction_is_not_committed_by_it():
    d = Driver()
    d.commit({("t", 0): 5, ("t", 1): 6}, producer=PRODUCER)
    assert d.delete_offsets(("t", 0)) == {("t", 0): ErrorCode.NONE}
    d.end_transaction(7, commits=True)
    assert d.fetch() == {("t", 1): 6}


def test_offsets_that_a_transaction_brings_behind_the_deletion_stay():
    d = Driver()
    d.commit({("t", 0): 5}, producer=PRODUCER)
    d.hold_log = True
    deletion = d.delete_async()
    d.commit_async({("t", 0): 8}, producer=PRODUCER)
    d.persist()
    assert d.error(deletion) is ErrorCode.NONE
    d.end_transaction(7, commits=True)
    assert d.fetch() == {("t", 0): 8}


@pytest.mark.parametrize("is_successor", [False, True])
def test_a_deleted_topic_takes_the_offsets_of_open_transactions_along(is_successor: bool):
    d = Driver()
    old, new = b"\1" * 16, b"\2" * 16
    d.commit({("t", 0): 5}, producer=PRODUCER, topic_id=new if is_successor else old)
    d.step(TopicDeleted("t", old))
    assert bool([value for _, value in d.log if value is None]) is not is_successor
    d.end_transaction(7, commits=True)
    assert bool(d.coordinator.groups["g"].offsets if "g" in d.coordinator.groups else {}) is is_successor


def test_an_open_transaction_keeps_only_its_own_partitions_from_expiring():
    d = Driver(offsets_retention_ms=1_000)
    d.commit({("t", 0): 1, ("t", 1): 2})
    d.commit({("t", 1): 5}, producer=PRODUCER)
    d.advance(2_000)
    d.expire()
    assert d.fetch() == {("t", 1): 2}
    d.expire()
    assert d.fetch() == {("t", 1): 2}, "nor does the group go"
    d.end_transaction(7, commits=False)
    d.expire()
    assert d.fetch() == {}
