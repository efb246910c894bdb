"""How members get into a classic group, through its rebalances and out of it, as seen on the wire.

What is expected here is what Apache Kafka 4.3 does: ``pytest tests/conformance/test_group_members.py --peer kafka``
runs the same against it.
"""

import pytest
from group_wire import CHANGED, PLAIN, asked_to_rejoin, describe, gather, leave, pair, stable

from millstream.model.error_code import ErrorCode
from waits import until

pytestmark = pytest.mark.process

ROLLED = {"cooperative-sticky": CHANGED, "range": PLAIN}
OK = ErrorCode.NONE


# Joining


@pytest.mark.parametrize("version", range(10))
def test_the_first_member_leads_in_every_version(people, version):
    member = people()
    if version >= 4:
        assert member.join(version) is ErrorCode.MEMBER_ID_REQUIRED
        assert member.id.startswith("wire-")
        assert len(member.id) == len("wire-") + 36
    assert member.join(version) is OK
    answer = member.answer
    assert (answer.generation_id, answer.leader, answer.protocol_name) == (1, member.id, "range")
    assert [(m.member_id, m.metadata) for m in answer.members] == [(member.id, PLAIN)]
    if version >= 7:
        assert answer.protocol_type == "consumer"
    assert not answer.skip_assignment


def test_a_static_member_is_let_in_at_once(people):
    member = people("i")
    assert member.join() is OK
    assert member.id.startswith("i-")
    assert member.answer.members[0].group_instance_id == "i"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_timeout_ms": 199}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_timeout_ms": 120_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"group_id": "", "session_timeout_ms": 1}, ErrorCode.INVALID_GROUP_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger", "group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocols": []}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": [], "session_timeout_ms": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
    ],
)
def test_joins_that_make_no_sense_are_refused(people, changes, error):
    member = people()
    assert member.join(**changes) is error
    assert member.answer.member_id == changes.get("member_id", "")
    assert (member.answer.generation_id, member.answer.leader, member.answer.members) == (-1, "", [])
    assert member.answer.protocol_name is member.answer.protocol_type is None


def test_strangers_and_misfits_do_not_get_into_a_group(people):
    stable(people())
    stranger, misfit, worker = people(), people(protocols={"sticky": PLAIN}), people(kind="connect")
    stranger.id = "stranger"
    assert stranger.join() is ErrorCode.UNKNOWN_MEMBER_ID
    assert stranger.answer.protocol_name is None
    assert misfit.join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert misfit.answer.protocol_name is None
    assert worker.join(version=6) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert worker.answer.protocol_name == "", "null came with version 7"


def test_a_promised_id_is_forgotten_after_the_session_timeout(people):
    leader, late = people(), people(session_ms=300)
    stable(leader)
    assert late.join() is ErrorCode.MEMBER_ID_REQUIRED
    assert leader.join() is OK, "it waits for the promised one, but not longer than that"
    assert late.join() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_promised_member_holds_up_the_rebalance_until_it_comes_or_its_time_is_up(people):
    leader = people()
    stable(leader)
    promised, gone = people(), people(session_ms=2_000)
    assert promised.join() is gone.join() is ErrorCode.MEMBER_ID_REQUIRED
    promised.send_join()
    leader.send_join()
    assert leader.line.waits(0.1)
    assert leader.joined() is OK, "the one that never came is not waited for any longer"
    assert promised.joined() is OK
    assert leader.generation == promised.generation == 2
    assert len(leader.answer.members) == 2


def test_a_join_sent_twice_is_answered_once_to_whoever_asked_last(people):
    first = people()
    stable(first)
    second = people()
    second.come_in()
    asked_to_rejoin(first)
    again = people()
    again.id = second.id
    again.send_join()
    assert again.line.waits(0.1)
    first.send_join()
    assert first.joined() is OK
    assert again.joined() is OK


# Rebalances


def test_a_new_member_makes_everybody_rejoin(people):
    first, second = people(), people()
    stable(first)
    second.come_in()
    asked_to_rejoin(first)
    assert second.line.waits(0.1)
    assert first.sync() is ErrorCode.REBALANCE_IN_PROGRESS
    assert first.commit({("t", 0): 1}) is OK, "what was read before may still be committed"
    assert describe(first.line, first.group).group_state == "PreparingRebalance"
    first.send_join()
    assert first.joined() is second.joined() is OK
    assert first.generation == second.generation == 2
    assert first.leads
    assert not second.leads
    assert second.answer.members == []
    assert describe(first.line, first.group).group_state == "CompletingRebalance"
    assert second.beat() is OK
    assert second.commit({("t", 0): 2}) is ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_do_not_rejoin_in_time_are_left_behind(people):
    first, second = people(rebalance_ms=2_000), people(rebalance_ms=2_000)
    stable(first)
    second.come_in()
    assert second.joined() is OK
    assert (second.generation, second.leads) == (2, True)
    assert first.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_follower_that_rejoins_unchanged_disturbs_nobody_and_a_leader_does(people):
    leader, follower = pair(people)
    generation = leader.generation
    assert follower.join() is OK
    assert (follower.generation, follower.answer.members) == (generation, [])
    assert follower.answer.leader == leader.id
    assert leader.beat() is OK
    leader.send_join()
    assert leader.line.waits(0.1)
    assert follower.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    follower.send_join()
    assert leader.joined() is follower.joined() is OK
    assert leader.generation == generation + 1


def test_a_follower_whose_metadata_changed_makes_everybody_rejoin(people):
    leader, follower = pair(people)
    follower.protocols = {"range": CHANGED}
    follower.send_join()
    assert follower.line.waits(0.1)
    leader.send_join()
    assert leader.joined() is follower.joined() is OK
    assert sorted(m.metadata for m in leader.answer.members) == sorted([CHANGED, PLAIN])


def test_a_join_before_the_assignment_is_answered_again_unless_it_says_something_new(people):
    first, second = people(), people()
    stable(first)
    second.come_in()
    first.send_join()
    assert first.joined() is second.joined() is OK
    second.send_sync()
    again = people()
    again.id = first.id
    assert again.join() is OK
    assert (again.generation, len(again.answer.members)) == (first.generation, 2)
    first.protocols = {"range": CHANGED}
    first.send_join()
    assert second.synced() is ErrorCode.REBALANCE_IN_PROGRESS, "there will be no assignment of this generation"
    second.send_join()
    assert first.joined() is second.joined() is OK
    assert first.generation == 3


def test_rolling_from_eager_to_cooperative_changes_the_assignor_with_the_last_member(people):
    leader, follower = pair(people)
    for rolled, other in ((follower, leader), (leader, follower)):
        rolled.protocols = ROLLED
        rolled.send_join()
        asked_to_rejoin(other)
        other.send_join()
        assert rolled.joined() is other.joined() is OK
        name = rolled.answer.protocol_name
        assert name == ("range" if rolled is follower else "cooperative-sticky")
        (first,) = [m for m in (leader, follower) if m.leads]
        for member in (leader, follower):
            member.send_sync({leader.id: b"x", follower.id: b"y"} if member is first else None, protocol_name=name)
        assert leader.synced() is follower.synced() is OK
    cooperative = people(protocols={"cooperative-sticky": CHANGED})
    eager = people(protocols={"eager-only": PLAIN})
    assert cooperative.join() is ErrorCode.MEMBER_ID_REQUIRED
    assert eager.join() is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_assignor_is_the_one_that_most_members_prefer(people):
    preferences = [("b", "a"), ("b", "a"), ("a", "b")]
    members = [people(protocols=dict.fromkeys(names, PLAIN)) for names in preferences]
    gather(*members)
    assert {member.answer.protocol_name for member in members} == {"b"}


# The assignment


@pytest.mark.parametrize("version", range(6))
def test_everybody_gets_its_assignment_in_every_version(people, version):
    member = people()
    member.come_in()
    member.joined()
    assert member.sync({member.id: b"mine"}, version) is OK
    assert member.answer.assignment == b"mine"
    if version >= 5:
        assert (member.answer.protocol_type, member.answer.protocol_name) == ("consumer", "range")
    assert member.sync(version=version) is OK
    assert member.answer.assignment == b"mine"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": "stranger"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member_id": ""}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"group_instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation_id": 0}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation_id": 2}, ErrorCode.ILLEGAL_GENERATION),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_name": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
    ],
)
def test_syncs_that_do_not_fit_are_refused(people, changes, error):
    member = people()
    member.come_in()
    member.joined()
    assert member.sync(**changes) is error
    assert member.answer.assignment == b""


def test_a_member_without_an_assignment_gets_an_empty_one(people):
    first, second = people(), people()
    stable(first)
    second.come_in()
    first.send_join()
    assert first.joined() is second.joined() is OK
    second.send_sync()
    assert first.sync({first.id: b"all", "stranger": b"none"}) is OK
    assert second.synced() is OK
    assert second.answer.assignment == b""


def test_members_that_never_sync_are_removed_after_the_rebalance_timeout(people):
    first, second = people(rebalance_ms=2_000), people(rebalance_ms=2_000)
    stable(first)
    second.come_in()
    first.send_join()
    assert first.joined() is second.joined() is OK
    assert first.sync({first.id: b"1"}) is OK

    def second_is_dropped():
        if first.beat() is ErrorCode.REBALANCE_IN_PROGRESS:
            return True
        second.beat()  # alive, but not interested
        return False

    until(second_is_dropped)
    assert second.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_when_the_leader_falls_silent_those_that_wait_for_it_start_over(people):
    leader, follower = people(session_ms=1_500), people()
    stable(leader)
    follower.come_in()
    leader.send_join()
    assert leader.joined() is follower.joined() is OK
    follower.send_sync()
    assert follower.synced() is ErrorCode.REBALANCE_IN_PROGRESS
    assert follower.join() is OK
    assert follower.leads
    assert leader.beat() is ErrorCode.UNKNOWN_MEMBER_ID


# Heartbeats


@pytest.mark.parametrize("version", range(5))
def test_heartbeats_of_every_version_are_checked(people, version):
    member = people()
    stable(member)
    assert member.beat(version) is OK
    assert member.beat(version, generation_id=0) is ErrorCode.ILLEGAL_GENERATION
    assert member.beat(version, generation_id=9) is ErrorCode.ILLEGAL_GENERATION
    assert member.beat(version, member_id="stranger") is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.beat(version, group_id="nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.beat(version, group_id="") is ErrorCode.INVALID_GROUP_ID


def test_a_silent_member_is_removed_and_commits_keep_one_alive(people):
    silent, busy = people(session_ms=4_000), people(session_ms=4_000)
    stable(silent, busy)

    def rebalances():
        if busy.beat() is ErrorCode.REBALANCE_IN_PROGRESS:
            return True
        assert busy.commit({("t", 0): 1}) in (OK, ErrorCode.REBALANCE_IN_PROGRESS)
        return False

    until(rebalances)
    assert silent.beat() is ErrorCode.UNKNOWN_MEMBER_ID


# Leaving


@pytest.mark.parametrize("version", range(6))
def test_leaving_empties_the_group_in_every_version(people, version):
    member = people()
    stable(member)
    assert member.leave(version) is OK
    assert member.leave(version) is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.leave(version, group_id="nobody") is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.leave(version, group_id="") is ErrorCode.INVALID_GROUP_ID
    assert describe(member.line, member.group).group_state == "Empty"
    assert member.beat() is ErrorCode.UNKNOWN_MEMBER_ID
    assert member.sync() is ErrorCode.UNKNOWN_MEMBER_ID


def test_several_members_leave_at_once_and_each_is_answered(people):
    leader, _ = pair(people, "a", "b")
    dynamic = people()
    assert dynamic.join() is ErrorCode.MEMBER_ID_REQUIRED
    codes = leave(
        dynamic.line,
        leader.group,
        ("stranger", None),
        ("", "b"),
        ("", "nobody"),
        ("", None),
        (leader.id, "b"),
        (leader.id, "nobody"),
        ("stranger", "a"),
        (leader.id, None),
        (leader.id, None),
        (dynamic.id, None),
    )
    assert codes == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        OK,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_INSTANCE_ID,
        OK,
        ErrorCode.UNKNOWN_MEMBER_ID,
        OK,
    ]
    assert describe(leader.line, leader.group).group_state == "Empty"


def test_whoever_waits_for_an_answer_when_it_is_removed_is_told_that_it_is_unknown(people):
    first = people("a")
    stable(first)
    second = people("b")
    second.send_join()
    assert second.line.waits(0.2)
    assert leave(first.line, first.group, ("", "b")) == [OK]
    assert second.joined() is ErrorCode.UNKNOWN_MEMBER_ID
