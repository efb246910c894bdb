"""Members with an instance id, and who may speak for whom, as seen on the wire.

What is expected here is what Apache Kafka 4.3 does: ``pytest tests/conformance/test_static_members.py --peer kafka``
runs the same against it.
"""

import pytest
from group_wire import CHANGED, PLAIN, asked_to_rejoin, commit, pair, stable

from millstream.model.error_code import ErrorCode

pytestmark = pytest.mark.process

BOTH = {"range": PLAIN, "cooperative-sticky": CHANGED}
OK = ErrorCode.NONE


# Static members


def test_a_static_follower_that_comes_back_keeps_its_assignment_and_fences_its_former_self(people):
    leader, follower = pair(people, "a", "b")
    back = people(follower.instance)
    assert back.join() is OK
    assert back.id != follower.id
    assert (back.generation, back.answer.leader, back.answer.members) == (leader.generation, leader.id, [])
    assert back.sync() is OK
    assert back.answer.assignment == follower.id.encode()
    assert leader.beat() is OK, "nobody else is disturbed"
    assert follower.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.sync() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.commit({("t", 0): 1}) is ErrorCode.FENCED_INSTANCE_ID
    assert follower.leave() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.join() is ErrorCode.FENCED_INSTANCE_ID
    assert follower.answer.protocol_name is None
    assert back.commit({("t", 0): 1}) is OK


@pytest.mark.parametrize("version", [5, 8, 9])
def test_a_static_leader_that_comes_back_is_not_made_to_assign_again(people, version):
    leader, follower = pair(people, "a", "b")
    back = people(leader.instance)
    assert back.join(version) is OK
    assert back.generation == leader.generation
    assert back.answer.skip_assignment == (version == 9)
    if version == 9:
        assert back.leads
        assert {m.member_id for m in back.answer.members} == {back.id, follower.id}
    else:
        assert (back.answer.leader, back.answer.members) == (leader.id, [])
    assert back.sync(version=5 if version == 9 else 4) is OK
    assert back.answer.assignment == leader.id.encode()
    assert follower.beat() is OK


def test_a_static_member_that_comes_back_during_a_rebalance_takes_its_place_in_it(people):
    leader, follower = pair(people, "a", "b")
    leader.send_join()
    assert leader.line.waits(0.1)
    back = people(leader.instance)
    back.send_join()
    assert leader.joined() is ErrorCode.FENCED_INSTANCE_ID
    follower.send_join()
    assert follower.joined() is back.joined() is OK
    assert {m.member_id for m in back.answer.members or follower.answer.members} == {back.id, follower.id}


def test_a_static_member_that_comes_back_before_the_assignment_makes_all_start_over(people):
    leader, follower = pair(people, "a", "b")
    leader.send_join()
    asked_to_rejoin(follower)
    follower.send_join()
    assert leader.joined() is follower.joined() is OK
    follower.send_sync()
    back = people(leader.instance)
    back.send_join()
    assert follower.synced() is ErrorCode.REBALANCE_IN_PROGRESS
    follower.send_join()
    assert back.joined() is follower.joined() is OK


def test_a_static_member_that_comes_back_with_another_assignor_makes_all_rejoin_if_that_changes_the_choice(people):
    leader, follower = pair(people, "a", "b", protocols=BOTH)
    back = people(follower.instance, protocols={"cooperative-sticky": CHANGED})
    back.send_join()
    assert back.line.waits(0.1)
    assert leader.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    leader.send_join()
    assert leader.joined() is back.joined() is OK
    assert leader.answer.protocol_name == "cooperative-sticky"


def test_a_static_member_with_new_metadata_but_the_same_assignor_is_taken_back_without_a_rebalance(people):
    leader, follower = pair(people, "a", "b")
    back = people(follower.instance, protocols={"range": CHANGED})
    assert back.join() is OK
    assert back.generation == leader.generation
    assert leader.beat() is OK


def test_a_static_member_keeps_its_place_in_a_rebalance_that_it_misses(people):
    leader, follower = pair(people, "a", "b", rebalance_ms=2_000)
    leader.send_join()
    assert leader.joined() is OK
    assert {m.group_instance_id for m in leader.answer.members} == {"a", "b"}
    assert leader.sync({leader.id: b"1", follower.id: b"2"}) is OK
    assert follower.sync(generation_id=leader.generation) is OK
    assert follower.answer.assignment == b"2"


def test_an_instance_in_use_cannot_be_claimed_with_another_member_id(people):
    owner, thief = people("a"), people("a")
    stable(owner)
    thief.id = "stranger"
    assert thief.join() is ErrorCode.FENCED_INSTANCE_ID
    assert thief.beat(generation_id=1) is ErrorCode.FENCED_INSTANCE_ID
    assert thief.commit({("t", 0): 1}, generation=1) is ErrorCode.FENCED_INSTANCE_ID
    assert thief.leave() is ErrorCode.FENCED_INSTANCE_ID
    assert thief.sync(generation_id=1) is ErrorCode.FENCED_INSTANCE_ID
    assert owner.beat() is OK


# Commits by generation


def test_only_members_of_the_current_generation_commit(people):
    member = people()
    stable(member)
    there = {("t", 0): 7}
    assert member.commit(there) is OK
    assert member.commit(there, generation=0) is ErrorCode.ILLEGAL_GENERATION
    assert member.commit(there, generation=9) is ErrorCode.ILLEGAL_GENERATION
    assert member.commit(there, member_id="stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.commit(there, generation=-1) is ErrorCode.ILLEGAL_GENERATION
    assert member.commit(there, generation=-1, member_id="") is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.commit(there, member_id="") is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.commit(there, generation=-1, member_id="", instance="i") is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.leave() is OK
    assert member.commit(there) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(member.line, member.group, there) is OK, "an empty group takes commits from outside"
    assert member.commit(there, generation=-1) is OK
    for version, error in ((8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)):
        assert commit(member.line, "nobody", there, version, generation=1, member_id="m") is error
