"""Sync, heartbeat, leave, sessions, static members."""

import pytest
from group_driver import DELAY_MS, REBALANCE_MS, SESSION_MS, Driver

from millstream.model.error_code import ErrorCode


def gathered(d: Driver, members: int = 2) -> tuple[list[str], int]:
    """A group whose members know their generation and have no assignment yet."""
    ids, generation = d.stable(members)
    for token in [d.join(m) for m in ids]:
        assert d.answer(token).generation_id == generation + 1
    return ids, generation + 1


def test_an_assignment_is_told_only_when_it_is_durable():
    d = Driver()
    (a, b), generation = gathered(d)
    d.hold_log = True
    follower = d.sync(b, generation)
    leader = d.sync(a, generation, {a: b"A", b: b"B"})
    assert d.waits(leader)
    assert d.waits(follower)
    assert d.state() == "CompletingRebalance"
    d.persist()
    assert (d.answer(leader).assignment, d.answer(follower).assignment) == (b"A", b"B")
    assert d.answer(follower).protocol_name == "range"
    assert d.state() == "Stable"


def test_members_without_an_assignment_get_an_empty_one():
    d = Driver()
    (a, b), generation = gathered(d)
    d.sync(a, generation, {a: b"A", "stranger": b"S"})
    assert d.answer(d.sync(b, generation)).assignment == b""


def test_an_assignment_that_could_not_be_written_is_told_to_nobody():
    d = Driver()
    (a, b), generation = gathered(d)
    d.hold_log = True
    tokens = [d.sync(b, generation), d.sync(a, generation, {a: b"A", b: b"B"})]
    d.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert [d.error(t) for t in tokens] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 2
    assert d.state() == "PreparingRebalance"
    assert d.group().members[b].assignment == b""


def test_a_rebalance_that_begins_while_an_assignment_is_written_wins():
    d = Driver()
    (a, b), generation = gathered(d)
    d.hold_log = True
    leader = d.sync(a, generation, {a: b"A", b: b"B"})
    d.join(b, protocols={"range": b"new"})
    assert d.error(leader) is ErrorCode.REBALANCE_IN_PROGRESS
    d.persist()
    assert d.state() == "PreparingRebalance"
    token = d.join(a)
    assert d.answer(token).generation_id == generation + 1


def test_an_assignment_of_an_earlier_generation_that_becomes_durable_late_is_told_to_nobody():
    d = Driver()
    (a, b), generation = gathered(d)
    d.hold_log = True
    d.sync(a, generation, {a: b"A", b: b"B"})
    for token in [d.join(b, protocols={"range": b"new"}), d.join(a)]:
        assert d.answer(token).generation_id == generation + 1
    follower = d.sync(b, generation + 1)
    d.persist()
    assert d.waits(follower)
    assert d.state() == "CompletingRebalance"
    leader = d.sync(a, generation + 1, {a: b"A2", b: b"B2"})
    d.persist()
    assert (d.answer(leader).assignment, d.answer(follower).assignment) == (b"A2", b"B2")


def test_a_session_that_ends_while_a_sync_is_parked_begins_anew_with_the_assignment():
    d = Driver()
    (a, b), generation = gathered(d)
    follower = d.sync(b, generation)
    for _ in range(3):
        d.advance(SESSION_MS // 2)
        assert d.heartbeat(a, generation) is ErrorCode.NONE
    d.sync(a, generation, {b: b"B"})
    assert d.answer(follower).assignment == b"B"
    d.advance(SESSION_MS - 1)
    assert b in d.group().members
    d.heartbeat(a, generation)
    d.advance(1)
    assert b not in d.group().members


def test_a_leader_that_repeats_its_sync_cannot_change_the_assignment_being_written():
    d = Driver()
    (a, b), generation = gathered(d)
    d.hold_log = True
    first = d.sync(a, generation, {a: b"A", b: b"B"})
    second = d.sync(a, generation, {a: b"B", b: b"A"})
    assert d.error(first) is ErrorCode.REBALANCE_IN_PROGRESS
    d.persist()
    assert d.answer(second).assignment == b"A"
    d.hold_log = False
    restarted = d.restart()
    assert restarted.group().members[a].assignment == b"A"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"member_id": "x"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"generation": 1}, ErrorCode.ILLEGAL_GENERATION),
        ({"generation": 99}, ErrorCode.ILLEGAL_GENERATION),
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"group": "other"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"protocol": "sticky"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol": None}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"instance": "i"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_syncs_that_do_not_fit_are_refused(change: dict, error: ErrorCode):
    d = Driver()
    (a, _), generation = gathered(d)
    assert d.error(d.sync(**{"member_id": a, "generation": generation, **change})) is error


def test_old_syncs_need_not_name_the_assignor():
    d = Driver()
    (a, _), generation = gathered(d)
    token = d.sync(a, generation, {a: b"A"}, protocol=None, protocol_type=None, version=4)
    assert d.answer(token).assignment == b"A"


def test_members_that_never_sync_are_dropped_after_the_rebalance_timeout():
    d = Driver()
    (a, b), generation = gathered(d)
    leader = d.sync(a, generation, {a: b"A", b: b"B"})
    assert d.error(leader) is ErrorCode.NONE
    for _ in range(7):
        d.advance(REBALANCE_MS // 8)
        assert d.heartbeat(a, generation) is ErrorCode.NONE
        assert d.heartbeat(b, generation) is ErrorCode.NONE
    d.advance(REBALANCE_MS // 8)
    assert d.lines[-1] == "group g: rebalances because 1 members did not ask for their assignment in time"
    assert set(d.group().members) == {a}
    assert d.heartbeat(b, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert d.heartbeat(a, generation) is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_gives_itself_no_time_to_rebalance_is_waited_for_all_the_same():
    d = Driver()
    dynamic = d.promised_id()
    first, second = d.join(dynamic), d.join(instance="i", rebalance_ms=0)
    d.advance(2 * DELAY_MS)
    static = d.answer(second).member_id
    d.sync_all([dynamic, static], d.answer(first).generation_id)
    d.leave(dynamic)
    d.advance(SESSION_MS // 2)
    assert (d.state(), set(d.group().members)) == ("PreparingRebalance", {static})
    d.advance(SESSION_MS)
    assert d.state() == "Empty"


def test_a_silent_member_is_dropped_and_the_others_rebalance():
    d = Driver()
    (a, b), generation = d.stable(2)
    d.advance(SESSION_MS - 1)
    assert d.heartbeat(a, generation) is ErrorCode.NONE
    d.advance(1)
    assert d.state() == "PreparingRebalance"
    assert set(d.group().members) == {a}
    assert d.heartbeat(b, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert any("silent" in line for line in d.lines)


def test_a_parked_member_is_alive_however_long_it_waits():
    d = Driver()
    (a, b), generation = d.stable(2, session_ms=6_000)
    token = d.join(a, session_ms=6_000)
    for _ in range(12):
        d.advance(4_000)
        d.heartbeat(b, generation)
    assert a in d.group().members
    d.join(b)
    assert d.error(token) is ErrorCode.NONE


def test_a_group_whose_members_are_all_silent_becomes_empty_and_that_is_written():
    d = Driver()
    _, generation = d.stable(2)
    d.advance(10 * SESSION_MS + REBALANCE_MS)
    assert d.state() == "Empty"
    key, value = d.log[-1]
    assert (key.group, value.generation, value.members, value.protocol) == ("g", generation + 1, [], None)
    assert d.restart().group().generation == generation + 1


def test_heartbeats_are_fenced_by_generation():
    d = Driver()
    (a,), generation = d.stable(1)
    assert d.heartbeat(a, generation) is ErrorCode.NONE
    assert d.heartbeat(a, generation - 1) is ErrorCode.ILLEGAL_GENERATION
    assert d.heartbeat("x", generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert d.heartbeat(a, generation, group="no") is ErrorCode.UNKNOWN_MEMBER_ID
    assert d.heartbeat(a, generation, group="") is ErrorCode.INVALID_GROUP_ID


def test_leaving_rebalances_the_rest_and_several_may_leave_at_once():
    d = Driver()
    (a, b, c), generation = d.stable(3)
    assert d.leave(b, "stranger", c) == [ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NONE]
    assert d.heartbeat(a, generation) is ErrorCode.REBALANCE_IN_PROGRESS
    assert d.answer(d.join(a)).generation_id == generation + 1


def test_a_leaver_that_waits_for_something_is_answered():
    d = Driver()
    (a, b), _ = d.stable(2)
    parked = d.join(a)
    d.leave(a)
    assert d.error(parked) is ErrorCode.UNKNOWN_MEMBER_ID
    (a2, b2), generation = gathered(Driver()), 0
    d2 = Driver()
    (a2, b2), generation = gathered(d2)
    parked = d2.sync(b2, generation)
    d2.leave(b2)
    assert d2.error(parked) is not ErrorCode.NONE
    assert b in d.group().members
    assert a2 in d2.group().members


def test_leaving_in_old_versions_answers_one_code():
    d = Driver()
    (a,), _ = d.stable(1)
    assert d.leave("stranger", version=2) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert d.leave(a, version=2) == [ErrorCode.NONE]
    assert d.leave(a, group="none", version=2) == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert d.leave(a, group="") == [ErrorCode.INVALID_GROUP_ID]
    assert d.leave(a, group="none") == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_a_promised_member_may_leave():
    d = Driver()
    (a,), generation = d.stable(1)
    promised = d.promised_id()
    token = d.join(a)
    assert d.leave(promised) == [ErrorCode.NONE]
    assert d.answer(token).generation_id == generation + 1


# Static members


def stable_static(d: Driver) -> tuple[str, str, int]:
    tokens = [d.join(instance="i1"), d.join(instance="i2")]
    d.advance(2 * DELAY_MS)
    a, b = (d.answer(t).member_id for t in tokens)
    generation = d.answer(tokens[0]).generation_id
    d.sync_all([a, b], generation)
    return a, b, generation


def test_a_static_member_comes_back_without_a_rebalance_and_its_former_self_is_fenced():
    d = Driver()
    a, b, generation = stable_static(d)
    token = d.join(instance="i2")
    answer = d.answer(token)
    assert (answer.generation_id, answer.leader, answer.skip_assignment, answer.members) == (generation, a, False, [])
    assert answer.member_id not in (a, b)
    assert d.state() == "Stable"
    assert d.answer(d.sync(answer.member_id, generation, instance="i2")).assignment == b.encode()
    assert d.heartbeat(b, generation, "i2") is ErrorCode.FENCED_INSTANCE_ID
    assert d.heartbeat(b, generation) is ErrorCode.UNKNOWN_MEMBER_ID
    assert d.commit({("t", 0): 1}, b, generation, instance="i2") is ErrorCode.FENCED_INSTANCE_ID
    assert d.error(d.sync(b, generation, instance="i2")) is ErrorCode.FENCED_INSTANCE_ID
    assert d.error(d.join(b, instance="i2")) is ErrorCode.FENCED_INSTANCE_ID
    assert d.leave((b, "i2")) == [ErrorCode.FENCED_INSTANCE_ID]


def test_a_static_leader_that_comes_back_is_told_to_skip_the_assignment():
    d = Driver()
    a, b, generation = stable_static(d)
    answer = d.answer(d.join(instance="i1"))
    assert (answer.leader, answer.skip_assignment) == (answer.member_id, True)
    assert {m.group_instance_id for m in answer.members} == {"i1", "i2"}
    old = d.answer(d.join(instance="i1", version=8))
    assert old.leader == answer.member_id != old.member_id, "old clients must not take themselves for the leader"
    assert old.members == []
    assert d.group().leader_id == old.member_id
    assert (a, b, generation) == (a, b, d.group().generation)


def test_the_new_id_of_a_static_member_is_durable_before_it_is_told():
    d = Driver()
    _, b, generation = stable_static(d)
    d.hold_log = True
    token = d.join(instance="i2")
    assert d.waits(token)
    d.persist()
    new = d.answer(token).member_id
    restarted = d.restart()
    assert restarted.heartbeat(new, generation, "i2") is ErrorCode.NONE
    assert restarted.heartbeat(b, generation, "i2") is ErrorCode.FENCED_INSTANCE_ID


def test_a_static_member_whose_new_id_could_not_be_written_keeps_the_old_one():
    d = Driver()
    a, b, generation = stable_static(d)
    d.hold_log = True
    token = d.join(instance="i1", protocols={"range": b"new"})
    d.persist(ErrorCode.NOT_COORDINATOR)
    assert d.error(token) is ErrorCode.NOT_COORDINATOR
    assert d.heartbeat(a, generation, "i1") is ErrorCode.NONE
    assert list(d.group().members) == [a, b]
    assert d.group().leader_id == a
    assert d.group().members[a].protocols == (("range", b"r"),)
    assert d.group().rebalance.awaiting_join == 0


def test_a_rebalance_that_begins_while_the_new_id_is_written_answers_the_join():
    d = Driver()
    a, _, generation = stable_static(d)
    d.hold_log = True
    token = d.join(instance="i2")
    d.join(a, instance="i1")  # the leader asks for a rebalance; both wait in it now
    assert d.answer(token).generation_id == generation + 1
    d.persist()
    assert d.state() == "CompletingRebalance"


def test_a_rebalance_that_still_gathers_when_the_new_id_is_durable_keeps_the_join_waiting():
    d = Driver()
    tokens = [d.join(instance=f"i{n}") for n in (1, 2, 3)]
    d.advance(2 * DELAY_MS)
    a, b, c = (d.answer(t).member_id for t in tokens)
    d.sync_all([a, b, c], 1)
    d.hold_log = True
    token = d.join(instance="i2")
    d.join(a, instance="i1")
    d.persist()
    assert d.waits(token)
    assert d.state() == "PreparingRebalance"
    d.join(c, instance="i3")
    assert d.answer(token).generation_id == 2


def test_a_static_member_that_comes_back_before_it_has_synced_must_still_sync():
    d = Driver()
    tokens = [d.join(instance="i1"), d.join(instance="i2")]
    d.advance(2 * DELAY_MS)
    a, _ = (d.answer(t).member_id for t in tokens)
    d.sync(a, 1, {a: b"A"}, instance="i1")
    assert d.state() == "Stable"
    new = d.answer(d.join(instance="i2", session_ms=300_000)).member_id
    for _ in range(REBALANCE_MS // 5_000 - 1):
        d.advance(5_000)
        assert d.heartbeat(a, 1, "i1") is ErrorCode.NONE
    d.advance(5_000)
    assert new not in d.group().members
    assert d.heartbeat(a, 1, "i1") is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_static_member_that_comes_back_during_the_assignment_starts_over():
    d = Driver()
    a, b, generation = stable_static(d)
    tokens = [d.join(a, instance="i1"), d.join(b, instance="i2")]
    assert d.answer(tokens[1]).generation_id == generation + 1
    parked = d.sync(b, generation + 1, instance="i2")
    token = d.join(instance="i2")
    assert d.error(parked) is ErrorCode.FENCED_INSTANCE_ID
    assert d.waits(token)
    assert d.state() == "PreparingRebalance"
    d.join(a, instance="i1")
    assert d.answer(token).generation_id == generation + 2


def test_a_static_member_that_changes_the_assignor_rebalances():
    d = Driver()
    both = {"range": b"", "sticky": b""}
    tokens = [d.join(instance=i, protocols=both) for i in ("i1", "i2")]
    d.advance(3 * DELAY_MS)
    a, b = (d.answer(t).member_id for t in tokens)
    d.sync_all([a, b], 1)
    d.join(instance="i2", protocols={"sticky": b""})
    assert d.state() == "PreparingRebalance"


def test_static_members_that_do_not_rejoin_keep_their_place_until_their_session_ends():
    d = Driver()
    a, b, generation = stable_static(d)
    token = d.join(a, instance="i1", session_ms=200_000)
    for _ in range(7):
        d.advance(8_000)
        d.heartbeat(b, generation, "i2")
    d.advance(4_000)
    assert d.answer(token).generation_id == generation + 1
    assert set(d.group().members) == {a, b}


def test_when_nobody_rejoins_static_members_are_waited_for():
    d = Driver()
    tokens = [d.join(instance=i, session_ms=300_000) for i in ("i1", "i2")]
    d.advance(3 * DELAY_MS)
    a, b = (d.answer(t).member_id for t in tokens)
    d.sync_all([a, b], 1)
    d.join(version=3)
    newcomer = d.group().members[list(d.group().members)[-1]].member_id
    d.leave(newcomer)
    d.advance(REBALANCE_MS)
    assert d.state() == "PreparingRebalance"
    token = d.join(a, instance="i1", session_ms=300_000)
    d.advance(REBALANCE_MS)
    assert d.answer(token).generation_id == 2


def test_an_administrator_removes_a_static_member_by_its_instance():
    d = Driver()
    a, b, _ = stable_static(d)
    assert d.leave(("", "i2"), ("", "i9"), ("", None)) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert set(d.group().members) == {a}
    assert b not in d.group().statics.values()


# Restart


def test_members_survive_a_restart_and_go_on_in_their_generation():
    d = Driver()
    (a, b), generation = d.stable(2)
    r = d.restart()
    assert r.state() == "Stable"
    assert r.heartbeat(a, generation) is ErrorCode.NONE
    assert r.answer(r.sync(b, generation)).assignment == b.encode()
    assert r.commit({("t", 0): 5}, a, generation) is ErrorCode.NONE
    r.advance(SESSION_MS)
    assert r.heartbeat(b, generation) is ErrorCode.UNKNOWN_MEMBER_ID, "it did not show up"


def test_a_loaded_group_above_a_lowered_limit_gathers_anew():
    d = Driver()
    d.stable(3)
    d.settings = type(d.settings)(max_size=2)
    r = d.restart()
    assert r.state() == "PreparingRebalance"


def test_unloading_gives_back_every_request_that_waits():
    d = Driver()
    (a, b), generation = gathered(d)
    d.hold_log = True
    waiting = [d.sync(b, generation), d.sync(a, generation, {}), d.join(version=3, group="h")]
    waiting.append(d.commit_async({("t", 0): 1}, group="k"))
    waiting.append(d.fetch_async("k", None, stable=True))
    assert sorted(d.coordinator.unload()) == sorted(waiting)
