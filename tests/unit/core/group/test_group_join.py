"""Entering a group: ids, protocols, the first rebalance, size limits."""

import pytest
from group_driver import DELAY_MS, REBALANCE_MS, SESSION_MS, Driver

from millstream.coordinator.records import encode_record
from millstream.model.error_code import ErrorCode
from millstream.wire.codec import encode_response


def test_a_dynamic_member_is_promised_an_id_and_comes_back_with_it():
    d = Driver()
    token = d.join(client_id="app")
    assert d.error(token) is ErrorCode.MEMBER_ID_REQUIRED
    member_id = d.answer(token).member_id
    assert member_id == "app-s1"
    joined = d.join(member_id)
    assert d.waits(joined)
    d.advance(DELAY_MS)
    answer = d.answer(joined)
    assert (answer.error_code, answer.generation_id, answer.leader, answer.member_id) == (0, 1, member_id, member_id)
    assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")
    assert [(m.member_id, m.metadata) for m in answer.members] == [(member_id, b"r")]


def test_old_clients_join_without_a_promise():
    d = Driver()
    token = d.join(version=3)
    assert d.waits(token)
    d.advance(DELAY_MS)
    assert d.answer(token).member_id == "c-s1"


def test_a_promise_that_is_not_kept_ends_with_the_session_timeout():
    d = Driver()
    member_id = d.promised_id()
    d.advance(SESSION_MS)
    assert d.error(d.join(member_id)) is ErrorCode.UNKNOWN_MEMBER_ID


def test_promises_are_bounded():
    d = Driver(pending_joins_max=2)
    d.promised_id()
    d.promised_id()
    assert d.error(d.join()) is ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("version", [5, 9])
def test_a_member_with_the_longest_instance_id_can_be_told_and_stored(version: int):
    d = Driver()
    instance = "i" * 32_767
    joined = d.join(instance=instance, version=version)
    d.advance(DELAY_MS)
    answer = d.answer(joined)
    assert encode_response(answer, version)
    assert d.error(d.sync(answer.member_id, 1, instance=instance)) is ErrorCode.NONE
    assert [encode_record(key, value) for key, value in d.log]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ms": 5_999}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ms": 1_800_001}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": {}}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member_id": "nobody"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_bad_joins_are_refused_and_leave_no_group(options: dict, error: ErrorCode):
    d = Driver()
    assert d.error(d.join(**options)) is error
    assert d.coordinator.groups == {}
    assert d.log == []


def test_a_new_group_is_in_the_log_before_it_has_a_generation():
    d = Driver()
    d.promised_id()
    ((key, value),) = d.log
    assert key.group == "g"
    assert (value.protocol_type, value.protocol, value.leader, value.generation, value.members) == (
        "",
        None,
        None,
        0,
        [],
    )
    assert d.restart().state() == "Empty"


def test_the_first_rebalance_waits_while_newcomers_arrive_but_not_beyond_the_rebalance_timeout():
    d = Driver()
    tokens = [d.join(version=3, rebalance_ms=8_000)]
    d.advance(DELAY_MS - 1)
    tokens.append(d.join(version=3))
    d.advance(1)
    assert d.waits(tokens[0]), "somebody came during the delay: wait for more"
    d.advance(DELAY_MS - 1)
    tokens.append(d.join(version=3))
    d.advance(1)
    assert d.waits(tokens[0])
    d.advance(2_000 - 1)
    assert d.waits(tokens[0])
    d.advance(1)  # 3 + 3 + 2 s
    assert [d.answer(t).generation_id for t in tokens] == [1, 1, 1]


def test_without_a_delay_the_first_rebalance_ends_at_once():
    d = Driver(initial_rebalance_delay_ms=0)
    token = d.join(version=3)
    d.advance(0)
    assert d.answer(token).generation_id == 1


def test_a_member_joining_a_stable_group_makes_all_rejoin():
    d = Driver()
    (a, b), generation = d.stable(2)
    newcomer = d.join(d.promised_id())
    assert d.state() == "PreparingRebalance"
    assert d.heartbeat(a, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    tokens = [d.join(a), d.join(b)]
    assert {d.answer(t).generation_id for t in [newcomer, *tokens]} == {generation + 1}
    assert d.answer(newcomer).members == []
    assert len(d.answer(tokens[0]).members) == 3
    assert d.state() == "CompletingRebalance"


def test_members_that_do_not_rejoin_in_time_are_dropped_and_the_leader_replaced():
    d = Driver()
    (a, b), generation = d.stable(2, session_ms=100_000)
    newcomer = d.join(d.promised_id())
    token = d.join(b)
    d.advance(REBALANCE_MS - 1)
    assert d.waits(token)
    d.advance(1)
    assert d.answer(token).leader == b
    assert set(d.group().members) == {b, d.answer(newcomer).member_id}
    assert d.heartbeat(a, generation) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_promised_member_is_waited_for():
    d = Driver()
    (a,), generation = d.stable(1)
    d.promised_id()
    rejoined = d.join(a)
    assert d.waits(rejoined), "the promised member may still come"
    d.advance(SESSION_MS)
    assert d.answer(rejoined).generation_id == generation + 1


def test_the_assignor_is_the_one_that_most_prefer_among_those_that_all_know():
    d = Driver()
    tokens = [
        d.join(version=3, protocols={"range": b"1", "sticky": b"2"}),
        d.join(version=3, protocols={"sticky": b"3", "range": b"4"}),
        d.join(version=3, protocols={"own": b"5", "sticky": b"6", "range": b"7"}),
    ]
    d.advance(3 * DELAY_MS)
    assert {d.answer(t).protocol_name for t in tokens} == {"sticky"}
    assert [m.metadata for m in d.answer(tokens[0]).members] == [b"2", b"3", b"6"]


def test_a_member_that_shares_no_assignor_or_has_another_type_is_refused():
    d = Driver()
    d.stable(1)
    assert d.error(d.join(protocols={"sticky": b""})) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert d.error(d.join(protocol_type="connect")) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert d.state() == "Stable"


def test_an_empty_group_takes_members_of_any_type():
    d = Driver()
    (a,), _ = d.stable(1)
    d.leave(a)
    token = d.join(version=3, protocol_type="connect", protocols={"default": b"x"})
    d.advance(DELAY_MS)
    assert d.answer(token).protocol_type == "connect"
    assert d.answer(token).generation_id == 3


def test_rejoining_without_a_change_disturbs_nobody_but_the_leader_may():
    d = Driver()
    (a, b), generation = d.stable(2)
    again = d.join(b)
    assert (d.error(again), d.answer(again).generation_id, d.answer(again).members) == (ErrorCode.NONE, generation, [])
    assert d.state() == "Stable"
    d.join(a)
    assert d.state() == "PreparingRebalance"


def test_rejoining_with_changed_metadata_rebalances():
    d = Driver()
    (_, b), _ = d.stable(2)
    d.join(b, protocols={"range": b"other"})
    assert d.state() == "PreparingRebalance"


def test_a_join_repeated_before_the_assignment_gets_the_same_answer():
    d = Driver()
    (a, b), _ = d.stable(2)
    tokens = [d.join(a), d.join(b)]
    again = [d.join(a), d.join(b)]
    for first, second in zip(tokens, again, strict=True):
        assert d.answer(first) == d.answer(second)
    assert d.state() == "CompletingRebalance"
    d.join(b, protocols={"range": b"other"})
    assert d.state() == "PreparingRebalance"


def test_a_join_sent_twice_while_gathering_answers_both():
    d = Driver()
    (a, b), generation = d.stable(2)
    first = d.join(a)
    second = d.join(a)
    assert d.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    d.join(b)
    assert d.answer(second).generation_id == generation + 1


def test_a_group_that_is_full_takes_no_more():
    d = Driver(max_size=2)
    ids, generation = d.stable(2)
    assert d.error(d.join(version=3)) is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert d.heartbeat(ids[0], generation) is ErrorCode.NONE


def test_while_gathering_only_those_that_came_count_towards_the_size():
    d = Driver(max_size=2)
    (a, b), _ = d.stable(2)
    d.join(a)  # the leader starts a rebalance
    newcomer = d.join(version=3)
    assert d.waits(newcomer)
    late = d.join(b)
    assert d.error(late) is ErrorCode.GROUP_MAX_SIZE_REACHED, "the slowest one loses its place"


def test_version_0_uses_the_session_timeout_for_the_rebalance():
    d = Driver()
    d.join(version=0, rebalance_ms=-1, session_ms=7_000)
    assert [m.rebalance_timeout_ms for m in d.group().members.values()] == [7_000]


def test_a_new_member_that_gave_up_is_dropped_from_an_endless_gathering():
    d = Driver(new_member_join_timeout_ms=20_000)
    (a,), _ = d.stable(1, session_ms=100_000, rebalance_ms=100_000)
    newcomer = d.join(version=3)
    d.advance(20_000)
    assert d.error(newcomer) is ErrorCode.UNKNOWN_MEMBER_ID
    assert set(d.group().members) == {a}


def test_an_assignor_named_twice_counts_once():
    d = Driver()
    token = d.join(version=3)
    d.advance(DELAY_MS)
    member = next(iter(d.group().members.values()))
    assert d.answer(token).error_code == 0
    from millstream.core.group.join import named_protocols
    from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

    named = [JoinGroupRequestProtocol(name=n, metadata=m) for n, m in (("a", b"1"), ("b", b"2"), ("a", b"3"))]
    assert named_protocols(JoinGroupRequest(protocols=named)) == (("a", b"1"), ("b", b"2"))
    assert member.protocols == (("range", b"r"),)


def test_the_operator_is_told_why_a_group_rebalances_in_the_words_of_the_client():
    d = Driver()
    (leader, follower), _ = d.stable(2)
    d.lines.clear()
    d.join(leader, reason="partitions of t changed")
    d.join(follower, protocols={"range": b"new"}, reason="x" * 1_000)
    assert d.lines == [f"group g: rebalances because member {leader} joins again (partitions of t changed)"]
    d.sync_all([leader, follower], 2)
    d.lines.clear()
    d.leave(follower)
    d.join(leader, reason="x" * 1_000)
    assert d.lines[0] == f"group g: rebalances because member {follower} left"
    d.join(leader, reason="x" * 1_000)
    assert max(map(len, d.lines)) < 400
