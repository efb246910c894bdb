"""Groups and offsets that an administrator forgets, and members whose leaving must not be forgotten."""

import pytest
from group_driver import DELAY_MS, SESSION_MS, Driver

from millstream.model.error_code import ErrorCode

UNAVAILABLE = ErrorCode.COORDINATOR_NOT_AVAILABLE


def subscription(*topics: str) -> bytes:
    """A consumer's metadata of version 0."""
    body = b"\x00\x00" + len(topics).to_bytes(4, "big")
    for topic in topics:
        body += len(topic).to_bytes(2, "big") + topic.encode()
    return body + b"\xff\xff\xff\xff"


# Groups


def test_a_deleted_group_is_gone_with_its_offsets_and_stays_gone_after_a_crash():
    d = Driver()
    (member,), _ = d.stable(1)
    assert d.leave(member) == [ErrorCode.NONE]
    d.commit({("t", 0): 5, ("u", 3): 7})
    assert d.delete() is ErrorCode.NONE
    assert d.state() == "Dead"
    assert d.fetch() == {}
    assert d.restart().coordinator.groups == {}


def test_a_deletion_is_answered_only_when_it_is_durable():
    d = Driver()
    d.commit({("t", 0): 5})
    d.hold_log = True
    token = d.delete_async()
    assert d.waits(token)
    assert d.restart().fetch() == {("t", 0): 5}
    d.persist()
    assert d.error(token) is ErrorCode.NONE
    assert d.restart().fetch() == {}


def test_a_deletion_that_was_not_written_is_an_error_and_the_group_stays():
    d = Driver()
    d.commit({("t", 0): 5})
    d.hold_log = True
    token = d.delete_async()
    d.persist(UNAVAILABLE)
    assert d.error(token) is UNAVAILABLE
    assert d.fetch() == {("t", 0): 5}


@pytest.mark.parametrize("fails", [0, 1])
def test_a_large_deletion_of_which_a_part_was_not_written_is_an_error(fails: int):
    d = Driver()
    d.commit({("t", index): index for index in range(1_500)})
    d.hold_log = True
    token = d.delete_async()
    assert len(d.held) == 2
    for part in range(2):
        d.persist(UNAVAILABLE if part == fails else ErrorCode.NONE, 1)
    assert d.error(token) is UNAVAILABLE
    d.hold_log = False
    assert d.delete() is ErrorCode.NONE
    assert d.restart().coordinator.groups == {}


def test_a_group_with_members_is_not_deleted():
    d = Driver()
    promised = d.promised_id()
    d.join(promised)
    assert d.state() == "PreparingRebalance"
    assert d.delete() is ErrorCode.NON_EMPTY_GROUP
    d.advance(DELAY_MS)
    assert d.state() == "CompletingRebalance"
    assert d.delete() is ErrorCode.NON_EMPTY_GROUP
    d.sync_all([promised], 1)
    assert d.delete() is ErrorCode.NON_EMPTY_GROUP


def test_a_group_that_does_not_exist_cannot_be_deleted():
    assert Driver().delete() is ErrorCode.GROUP_ID_NOT_FOUND
    assert Driver().delete("") is ErrorCode.GROUP_ID_NOT_FOUND


def test_the_group_without_a_name_can_be_deleted():
    d = Driver()
    d.commit({("t", 0): 5}, group="")
    assert d.delete("") is ErrorCode.NONE
    assert d.fetch("") == {}


def test_a_promised_member_of_a_deleted_group_has_to_start_over():
    d = Driver()
    promised = d.promised_id()
    assert d.delete() is ErrorCode.NONE
    assert d.error(d.join(promised)) is ErrorCode.UNKNOWN_MEMBER_ID
    d.advance(SESSION_MS)
    assert d.state() == "Dead"


def test_a_commit_on_its_way_goes_with_the_group_and_one_behind_the_deletion_survives_it():
    d = Driver()
    d.commit({("t", 0): 1})
    d.hold_log = True
    before = d.commit_async({("t", 1): 2})
    deletion = d.delete_async()
    after = d.commit_async({("t", 2): 3})
    d.persist()
    assert d.answer(before).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert d.error(deletion) is ErrorCode.NONE
    assert d.answer(after).topics[0].partitions[0].error_code == ErrorCode.NONE
    assert d.fetch() == {("t", 2): 3} == d.restart().fetch()


def test_a_deleted_group_is_not_kept_by_a_commit_behind_the_deletion_that_fails():
    d = Driver()
    (member,), _ = d.stable(1)
    d.leave(member)
    d.hold_log = True
    d.delete_async()
    d.commit_async({("t", 0): 3})
    d.persist(writes=1)
    assert (d.state(), d.group().generation, d.group().protocol_type) == ("Empty", 0, None)
    d.persist(UNAVAILABLE)
    assert d.state() == "Dead"


def test_a_member_that_joins_while_its_group_is_being_deleted_keeps_its_place():
    d = Driver()
    d.commit({("t", 0): 1})
    d.hold_log = True
    deletion = d.delete_async()
    promised = d.promised_id()
    d.persist()
    assert d.error(deletion) is ErrorCode.NONE
    d.hold_log = False
    token = d.join(promised)
    d.advance(DELAY_MS)
    assert d.error(token) is ErrorCode.NONE
    assert d.fetch() == {}


# Offsets


def test_deleted_offsets_are_gone_for_good_and_others_stay():
    d = Driver()
    d.commit({("t", 0): 5, ("t", 1): 6, ("u", 0): 7})
    assert d.delete_offsets(("t", 1), ("u", 0)) == {("t", 1): ErrorCode.NONE, ("u", 0): ErrorCode.NONE}
    assert d.fetch() == {("t", 0): 5} == d.restart().fetch()


def test_deleting_what_was_never_committed_is_no_error_and_writes_nothing():
    d = Driver()
    d.commit({("t", 0): 5})
    before = len(d.log)
    assert d.delete_offsets(("t", 3), ("w", 0)) == {("t", 3): ErrorCode.NONE, ("w", 0): ErrorCode.NONE}
    assert len(d.log) == before


@pytest.mark.parametrize(("group", "error"), [("", ErrorCode.INVALID_GROUP_ID), ("x", ErrorCode.GROUP_ID_NOT_FOUND)])
def test_offsets_of_no_group_cannot_be_deleted(group: str, error: ErrorCode):
    assert Driver().delete_offsets(("t", 0), group=group) is error


def test_a_group_at_work_keeps_what_it_consumes_and_may_lose_the_rest():
    d = Driver()
    d.stable(1, protocols={"range": subscription("t")})
    (member,) = d.group().members
    d.commit({("t", 0): 5, ("u", 0): 7}, member, 1)
    assert d.delete_offsets(("t", 0), ("u", 0)) == {
        ("t", 0): ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC,
        ("u", 0): ErrorCode.NONE,
    }
    assert d.fetch() == {("t", 0): 5}
    assert d.leave(member) == [ErrorCode.NONE]
    assert d.delete_offsets(("t", 0)) == {("t", 0): ErrorCode.NONE}
    assert d.fetch() == {}


def test_of_a_group_at_work_that_does_not_consume_topics_nothing_can_be_deleted():
    d = Driver()
    promised = d.promised_id(protocol_type="connect")
    d.join(promised, protocol_type="connect")
    d.advance(DELAY_MS)
    assert d.delete_offsets(("t", 0)) is ErrorCode.NON_EMPTY_GROUP
    assert d.leave(promised) == [ErrorCode.NONE]
    assert d.delete_offsets(("t", 0)) == {("t", 0): ErrorCode.NONE}


def test_deleted_offsets_are_answered_when_that_is_durable_and_take_commits_on_their_way_along():
    d = Driver()
    d.commit({("t", 0): 1})
    d.hold_log = True
    d.commit_async({("t", 1): 2})
    token = d.delete_offsets_async(("t", 1))
    nothing = d.delete_offsets_async(("t", 2))
    d.persist(writes=1)
    assert d.waits(token)
    d.persist()
    assert d.error(token) is ErrorCode.NONE is d.error(nothing)
    assert d.fetch() == {("t", 0): 1}


def test_offsets_whose_deletion_was_not_written_stay_and_that_is_told():
    d = Driver()
    d.commit({("t", 0): 1})
    d.hold_log = True
    token = d.delete_offsets_async(("t", 0))
    d.persist(UNAVAILABLE)
    assert d.error(token) is UNAVAILABLE
    assert d.answer(token).topics == []
    assert d.fetch() == {("t", 0): 1}


def test_unloading_gives_back_every_deletion_once():
    d = Driver()
    d.commit({("t", index): index for index in range(1_500)})
    d.hold_log = True
    tokens = [d.delete_offsets_async(("t", 0)), d.delete_async(), d.fetch_async(stable=True)]
    assert sorted(d.coordinator.unload()) == sorted(tokens)


# Leaving


@pytest.mark.parametrize("version", [0, 3, 5])
def test_the_last_member_is_told_that_it_left_when_that_is_durable(version: int):
    d = Driver()
    (member,), _ = d.stable(1)
    d.hold_log = True
    token = d.leave_async(member, version=version)
    assert d.waits(token)
    assert member in d.restart().group().members
    again = d.leave_async(member, version=version)
    assert d.waits(again), "who is told that the member is unknown relies on it, too"
    d.persist()
    assert d.error(token) is ErrorCode.NONE
    assert not d.waits(again)
    assert d.restart().group().members == {}


def test_a_leave_that_was_not_written_is_an_error():
    d = Driver()
    (member,), _ = d.stable(1)
    d.hold_log = True
    token = d.leave_async(member)
    d.persist(UNAVAILABLE)
    assert d.error(token) is UNAVAILABLE
    assert d.answer(token).members == []


def test_a_member_that_leaves_others_behind_is_answered_at_once():
    d = Driver()
    (first, second), _ = d.stable(2)
    d.hold_log = True
    assert d.leave(second) == [ErrorCode.NONE]
    assert first in d.group().members
