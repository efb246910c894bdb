"""Groups as administrators see them on the wire: found, listed, described, deleted; and the limits on their size.

What is expected here is what Apache Kafka 4.3 does: ``pytest tests/conformance/test_group_admin.py --peer kafka`` runs
the same against it.
"""

import itertools
import time

import pytest
from group_wire import PLAIN, Line, asked_to_rejoin, commit, describe, fetch, gather, pair, stable, wait_for_coordinator

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.list_groups import ListGroupsRequest

pytestmark = pytest.mark.process

DELAY_MS = 600
SETTINGS = {
    "group.min.session.timeout.ms": 200,
    "group.initial.rebalance.delay.ms": DELAY_MS,
    "group.max.size": 3,
    "offsets.topic.num.partitions": 3,
}
OK = ErrorCode.NONE
T0 = ("t", 0)
numbers = itertools.count()


@pytest.fixture(scope="module")
def group_bootstrap(module_broker):
    broker = module_broker(topics={"t": 3}, settings=SETTINGS)
    wait_for_coordinator(broker.bootstrap)
    return broker.bootstrap


@pytest.fixture
def line(group_bootstrap):
    with Line(group_bootstrap) as made:
        yield made


@pytest.fixture
def name():
    return f"admin-{next(numbers)}"


# Finding


@pytest.mark.parametrize("version", range(7))
def test_groups_are_found_whatever_their_names(line, group_bootstrap, version):
    names = ["g", "", "ünï", "x" * 300, "g"]
    if version >= 4:
        answer = line.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=names), version)
        assert [found.key for found in answer.coordinators] == names
        places = answer.coordinators
    else:
        places = [line.ask(FindCoordinatorRequest(key=key, key_type=0), version) for key in names]
    assert {(p.error_code, f"{p.host}:{p.port}") for p in places} == {(0, group_bootstrap)}


@pytest.mark.parametrize("version", [4, 5, 6])
def test_nothing_is_found_when_nothing_is_asked(line, version):
    assert line.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[]), version).coordinators == []


# Listing


def listed(line, version=5, states=(), types=()):
    answer = line.ask(ListGroupsRequest(states_filter=list(states), types_filter=list(types)), version)
    assert answer.error_code == 0
    return {g.group_id: (g.protocol_type, g.group_state, g.group_type) for g in answer.groups}


@pytest.mark.parametrize("version", range(6))
def test_groups_are_listed_in_every_version(line, people, name, version):
    assert commit(line, name, {T0: 1}) is OK
    member = people()
    member.come_in()
    while describe(line, member.group).group_state != "PreparingRebalance":
        pass
    groups = listed(line, version)
    state = ("PreparingRebalance", "Empty") if version >= 4 else ("", "")
    kind = "classic" if version >= 5 else ""
    assert groups[member.group] == ("consumer", state[0], kind)
    assert groups[name] == ("", state[1], kind)


def test_lists_are_filtered_by_state_and_type(line, people, name):
    assert commit(line, name, {T0: 1}) is OK
    member = people()
    stable(member)
    mine = {name, member.group}
    for states, types, found in [
        (["Stable"], [], {member.group}),
        (["stable"], [], {member.group}),
        ([" STABLE "], [], {member.group}),
        (["Empty"], [], {name}),
        (["Stable", "Empty"], [], mine),
        (["Dead"], [], set()),
        (["nonsense"], [], set()),
        ([], ["classic"], mine),
        ([], ["Classic"], mine),
        ([], ["consumer"], set()),
        ([], ["share"], set()),
        ([], ["nonsense"], set()),
        ([], ["consumer", "CLASSIC"], mine),
        (["Stable"], ["classic"], {member.group}),
        (["Stable"], ["consumer"], set()),
    ]:
        assert listed(line, 5, states, types).keys() & mine == found, (states, types)


# Describing


def test_a_group_is_described_through_all_its_states(line, people):
    leader, follower = people(rebalance_ms=5_000), people("static", client_id="other")
    group = leader.group
    leader.come_in()
    assert leader.joined() is OK
    follower.send_join()
    asked_to_rejoin(leader)
    about = describe(line, group)
    assert (about.group_state, about.protocol_type, about.protocol_data) == ("PreparingRebalance", "consumer", "")
    assert {(m.member_id, m.member_metadata, m.member_assignment) for m in about.members} >= {(leader.id, b"", b"")}
    leader.send_join()
    assert leader.joined() is follower.joined() is OK
    about = describe(line, group)
    assert (about.group_state, about.protocol_data) == ("CompletingRebalance", "")
    follower.send_sync()
    assert leader.sync({leader.id: b"1", follower.id: b"2"}) is OK
    assert follower.synced() is OK
    about = describe(line, group)
    assert (about.group_state, about.protocol_data) == ("Stable", "range")
    assert {
        (m.member_id, m.group_instance_id, m.client_id, m.client_host, m.member_metadata, m.member_assignment)
        for m in about.members
    } == {
        (leader.id, None, "wire", "/127.0.0.1", PLAIN, b"1"),
        (follower.id, "static", "other", "/127.0.0.1", PLAIN, b"2"),
    }
    assert leader.leave() is follower.leave() is OK
    about = describe(line, group)
    assert (about.group_state, about.protocol_type, about.protocol_data) == ("Empty", "consumer", "")
    assert about.members == []


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_every_version_and_unknown_ones_are_dead(line, people, version):
    member = people()
    stable(member)
    names = ["nobody", member.group, ""]
    request = DescribeGroupsRequest(groups=names, include_authorized_operations=version >= 3)
    groups = {g.group_id: g for g in line.ask(request, version).groups}
    assert groups.keys() == set(names)
    unknown, known = groups["nobody"], groups[member.group]
    assert (unknown.group_state, unknown.members) == ("Dead", [])
    assert unknown.error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    assert unknown.error_message == ("Group nobody not found." if version >= 6 else None)
    assert (known.error_code, known.group_state, known.error_message) == (0, "Stable", None)
    if version >= 3:
        assert known.authorized_operations == 0b1101_0100_1000


# Deleting


def delete(line, *names, version=2):
    results = line.ask(DeleteGroupsRequest(groups_names=list(names)), version).results
    return {result.group_id: ErrorCode(result.error_code) for result in results}


@pytest.mark.parametrize("version", range(3))
def test_groups_without_members_are_deleted(line, people, name, version):
    busy, left = people(), people(group=f"{name}-left")
    stable(busy)
    stable(left)
    assert left.commit({T0: 1}) is OK
    assert left.leave() is OK
    assert commit(line, name, {T0: 1}) is OK
    assert delete(line, name, busy.group, left.group, "nobody", name, version=version) == {
        name: OK,
        busy.group: ErrorCode.NON_EMPTY_GROUP,
        left.group: OK,
        "nobody": ErrorCode.GROUP_ID_NOT_FOUND,
    }
    assert delete(line, name, left.group, version=version) == dict.fromkeys(
        (name, left.group), ErrorCode.GROUP_ID_NOT_FOUND
    )
    assert fetch(line, name) == fetch(line, left.group) == {}
    assert busy.beat() is OK
    assert not listed(line).keys() & {name, left.group}


def test_the_group_without_a_name_is_deleted_like_any(line):
    assert commit(line, "", {T0: 1}) is OK
    assert delete(line, "") == {"": OK}
    assert delete(line, "") == {"": ErrorCode.GROUP_ID_NOT_FOUND}
    assert delete(line) == {}


def test_a_group_that_is_still_gathering_is_not_deleted_and_one_of_promises_is(line, people):
    promised = people()
    assert promised.join() is ErrorCode.MEMBER_ID_REQUIRED
    assert delete(line, promised.group) == {promised.group: OK}
    assert promised.join() is ErrorCode.UNKNOWN_MEMBER_ID
    gathering = people("static")
    gathering.send_join()
    while describe(line, gathering.group).group_state != "PreparingRebalance":
        pass
    assert delete(line, gathering.group) == {gathering.group: ErrorCode.NON_EMPTY_GROUP}


# The first rebalance, and how large a group may get


TRIES = 30
"""A test that was itself too late for what it looks at starts over with another group."""


def since_ms(began):
    return (time.monotonic() - began) * 1000


def test_the_first_rebalance_waits_for_more_members_and_longer_while_they_come(people, name):
    for attempt in range(TRIES):
        first, second = (people(instance, group=f"{name}-{attempt}") for instance in "ab")
        began = time.monotonic()
        first.send_join()
        waits = first.line.waits(DELAY_MS / 2000)
        second.send_join()
        if since_ms(began) > 0.7 * DELAY_MS:
            continue
        assert waits
        waits = first.line.waits(DELAY_MS / 2000)
        if since_ms(began) > 1.7 * DELAY_MS:
            continue
        assert waits, "a newcomer makes it wait once more"
        assert first.joined() is second.joined() is OK
        assert since_ms(began) >= 2 * DELAY_MS - 20
        assert first.generation == second.generation == 1
        assert len(first.answer.members) + len(second.answer.members) == 2
        return
    pytest.fail("the second one never came in time")


def test_the_first_rebalance_does_not_wait_beyond_the_rebalance_timeout(people, name):
    for attempt in range(TRIES):
        options = {"group": f"{name}-{attempt}", "rebalance_ms": DELAY_MS + 100}
        first, second = people("a", **options), people("b", **options)
        began = time.monotonic()
        first.send_join()
        waits = first.line.waits(DELAY_MS / 2000)
        second.send_join()
        if since_ms(began) > 0.7 * DELAY_MS:
            continue
        assert waits
        assert first.joined() is second.joined() is OK
        took_ms = since_ms(began)
        assert took_ms >= DELAY_MS + 100 - 20
        if took_ms < 2 * DELAY_MS:
            return
    pytest.fail("it waited longer, or the second one never came in time")


def test_a_later_rebalance_ends_when_all_have_joined(people, name):
    for attempt in range(TRIES):
        leader, follower = pair(people, "a", "b", group=f"{name}-{attempt}")
        leader.send_join()
        asked_to_rejoin(follower)
        began = time.monotonic()
        follower.send_join()
        assert leader.joined() is follower.joined() is OK
        if since_ms(began) < DELAY_MS:
            return
    pytest.fail("it waited, though all were there")


def test_a_full_group_takes_no_more_members(people):
    members = [people(instance) for instance in "abc"]
    gather(*members)
    fourth = people("d")
    assert fourth.join() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert fourth.answer.member_id == ""
    dynamic = people()
    assert dynamic.join() is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert members[1].join() is OK, "who has a place keeps it"
    assert people("a").join() is ErrorCode.GROUP_MAX_SIZE_REACHED, "a former self does not count"


def test_while_a_group_gathers_those_that_came_first_have_the_places(people):
    members = [people(instance) for instance in "abcd"]
    for member in members[:3]:
        member.send_join()
        while len(describe(members[3].line, member.group).members) <= members.index(member):
            pass
    assert members[3].join() is ErrorCode.GROUP_MAX_SIZE_REACHED
    for member in members[:3]:
        assert member.joined() is OK
