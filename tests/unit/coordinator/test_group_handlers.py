"""The group APIs as clients see them: through the handlers, in every version, on one shard and on two."""

from types import SimpleNamespace

import pytest
from coordinator_fakes import Answers, Broker, Context, batch_of, call
from group_calls import ID_NONE, ID_T, ID_U, group_on, join, stable
from group_handler_support import commit, commit_request

from millstream.coordinator.records import encode_record
from millstream.core.group.commit import offset_record
from millstream.core.group.offsets import CommittedOffset
from millstream.kafka.handlers.groups import (
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    sync_group,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.sync_group import SyncGroupRequest

# Finding the coordinator


@pytest.mark.parametrize("version", range(7))
def test_this_node_coordinates_every_group(broker: Broker, version: int):
    request = FindCoordinatorRequest(key="g", coordinator_keys=["g", "h"])
    (answer,) = call(broker, find_coordinator, request, version)
    node = broker.settings.node_id
    if version < 4:
        assert (answer.error_code, answer.node_id, answer.host, answer.port) == (0, node, "10.9.9.9", 9092)
    else:
        found = [(c.key, c.error_code, c.node_id, c.host, c.port) for c in answer.coordinators]
        assert found == [("g", 0, node, "10.9.9.9", 9092), ("h", 0, node, "10.9.9.9", 9092)]


def test_the_advertised_address_is_told():
    broker = Broker(logs={}, advertised_listeners="broker.example:19092")
    (answer,) = call(broker, find_coordinator, FindCoordinatorRequest(key="g"), 3)
    assert (answer.host, answer.port) == ("broker.example", 19092)


def test_the_first_to_look_has_the_topic_created():
    broker = Broker()
    assert join(broker, "g")[0].error_code == ErrorCode.NOT_COORDINATOR
    for _ in range(2):
        assert call(broker, find_coordinator, FindCoordinatorRequest(key="g"), 3)[0].error_code == 0
    assert broker.creations == 1
    assert join(broker, "g")[0].error_code == ErrorCode.MEMBER_ID_REQUIRED


def test_a_topic_that_cannot_be_created_is_tried_again_by_the_client():
    broker = Broker()
    broker.fail_creation = True
    (answer,) = call(broker, find_coordinator, FindCoordinatorRequest(key="g"), 3)
    assert (answer.error_code, answer.node_id, answer.port) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)


@pytest.mark.parametrize("key_type", [3, 9])
def test_other_coordinators_are_refused_for_good_and_with_a_reason(broker: Broker, key_type: int):
    request = FindCoordinatorRequest(key="x", key_type=key_type, coordinator_keys=["x"])
    (old,) = call(broker, find_coordinator, request, 1)
    (new,) = call(broker, find_coordinator, request, 6)
    assert old.error_code == new.coordinators[0].error_code == ErrorCode.INVALID_REQUEST
    assert old.error_message
    assert new.coordinators[0].error_message == old.error_message


# The life of a group


@pytest.mark.parametrize("shard", [0, 1])
def test_a_group_lives_through_all_its_requests(broker: Broker, shard: int):
    group = group_on(broker, shard)
    member = stable(broker, group)
    beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=member)
    assert call(broker, heartbeat, beat, 4)[0].error_code == 0
    assert commit(broker, group, {"t": {0: 5}}, member_id=member, generation=1) == {("t", 0): ErrorCode.NONE}
    (listed,) = call(broker, list_groups, ListGroupsRequest(), 5)
    assert [(g.group_id, g.group_state, g.group_type) for g in listed.groups] == [(group, "Stable", "classic")]
    (described,) = call(broker, describe_groups, DescribeGroupsRequest(groups=[group]), 6)
    (about,) = described.groups
    assert (about.group_state, about.protocol_type, about.protocol_data) == ("Stable", "consumer", "range")
    (only,) = about.members
    assert (only.member_id, only.client_id, only.client_host) == (member, "cli", "/10.1.2.3")
    assert (only.member_metadata, only.member_assignment) == (b"m", b"mine")
    leave = LeaveGroupRequest(group_id=group, member_id=member, members=[MemberIdentity(member_id=member)])
    assert call(broker, leave_group, leave, 5)[0].members[0].error_code == 0
    assert call(broker, heartbeat, beat, 4)[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_member_ids_are_the_clients_name_and_a_random_uuid(broker: Broker):
    first, second = join(broker, "g")[0].member_id, join(broker, "g")[0].member_id
    assert first != second
    assert first.startswith("cli-")
    assert len(first) == len("cli-") + 36


def test_a_group_and_its_offsets_survive_a_restart(broker: Broker):
    for group in {group_on(broker, 0), group_on(broker, 1)}:
        member = stable(broker, group)
        commit(broker, group, {"t": {0: 5}}, member_id=member, generation=1)
        again = broker.restart()
        again.reactor.turn()
        beat = HeartbeatRequest(group_id=group, generation_id=1, member_id=member)
        assert call(again, heartbeat, beat, 4)[0].error_code == 0
        assert fetch(again, group, {"t": [0]}) == {("t", 0): (5, 0)}


def test_what_was_not_synced_is_neither_answered_nor_there_after_a_crash(broker: Broker):
    group = group_on(broker, 1)
    commit(broker, group, {"t": {0: 5}})
    for partition in broker.partitions.values():
        partition.hold = True
    answers = call(broker, offset_commit, commit_request(group, {"t": {0: 6}}, 9), 9)
    assert answers == []
    assert fetch(broker, group, {"t": [0]}) == {("t", 0): (5, 0)}
    crashed = broker.restart()
    crashed.reactor.turn()
    assert fetch(crashed, group, {"t": [0]}) == {("t", 0): (5, 0)}


@pytest.mark.parametrize("version", range(10))
def test_joins_of_every_version_are_answered(broker: Broker, version: int):
    (answer,) = join(broker, group_on(broker, 1), version=version)
    assert answer.error_code == (ErrorCode.MEMBER_ID_REQUIRED if version >= 4 else ErrorCode.NONE)
    assert join(broker, "g", "stranger", version)[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(6))
def test_refused_syncs_and_leaves_of_every_version_are_answered(broker: Broker, version: int):
    stable(broker, "g")
    sync = SyncGroupRequest(group_id="g", member_id="x", protocol_type="consumer", protocol_name="range")
    assert call(broker, sync_group, sync, version)[0].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    leave = LeaveGroupRequest(group_id="g", member_id="x", members=[MemberIdentity(member_id="x")])
    (answer,) = call(broker, leave_group, leave, version)
    code = answer.error_code if version < 3 else answer.members[0].error_code
    assert code == ErrorCode.UNKNOWN_MEMBER_ID


def test_another_shard_that_does_not_answer_is_a_coordinator_that_is_not_available():
    broker = Broker(2, logs={})
    broker.mailboxes[0].cut.add(1)
    group = group_on(broker, 1)
    assert join(broker, group)[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert call(broker, list_groups, ListGroupsRequest(), 5)[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    (described,) = call(broker, describe_groups, DescribeGroupsRequest(groups=[group]), 5)
    assert described.groups[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_when_the_broker_stops_parked_requests_are_refused(broker: Broker):
    group = group_on(broker, 1)
    stable(broker, group)
    parked = join(broker, group, join(broker, group)[0].member_id)
    assert parked == []
    for router in broker.routers:
        router.stop()
    broker.reactor.turn()
    assert parked[0].error_code == ErrorCode.NOT_COORDINATOR


# While groups are loaded


def test_while_groups_are_loaded_clients_are_told_to_come_back():
    broker = Broker()
    broker.open({i: [batch_of((b"\0\x09", b""))] for i in range(4)}, run=False)
    broker.metadata.add("t", ID_T, [0, 0])

    def code(module, request, version):
        answers = Answers(version)
        node = SimpleNamespace(coordinator=broker.routers[0], metadata=broker.metadata, settings=broker.settings)
        module.handle(node, Context(version, answers), request)
        return answers[0]

    loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert code(join_group, JoinGroupRequest(group_id="g"), 9).error_code == loading
    assert code(sync_group, SyncGroupRequest(group_id="g"), 5).error_code == loading
    assert code(leave_group, LeaveGroupRequest(group_id="g"), 5).error_code == loading
    assert code(heartbeat, HeartbeatRequest(group_id="g"), 4).error_code == ErrorCode.NONE
    assert code(list_groups, ListGroupsRequest(), 5).error_code == loading
    assert code(describe_groups, DescribeGroupsRequest(groups=["g"]), 5).groups[0].error_code == loading
    committed = code(offset_commit, commit_request("g", {"t": {0: 1}}, 9), 9)
    assert committed.topics[0].partitions[0].error_code == loading
    asked = OffsetFetchRequest(group_id="g", groups=[OffsetFetchRequestGroup(group_id="g", topics=None)])
    assert code(offset_fetch, asked, 9).groups[0].error_code == loading
    assert code(offset_fetch, asked, 7).error_code == loading
    broker.reactor.turn()
    assert code(list_groups, ListGroupsRequest(), 5).error_code == ErrorCode.NONE


# Committing


@pytest.mark.parametrize("version", range(2, 11))
def test_existing_partitions_are_committed_and_others_refused(broker: Broker, version: int):
    answer = commit(broker, group_on(broker, 1), {"t": {0: 5, 2: 1, -1: 1}, "none": {0: 1}, "u": {0: 9}}, version)
    t, u, none = ("t", "u", "none") if version < 10 else (ID_T, ID_U, ID_NONE)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert answer == {
        (t, 0): ErrorCode.NONE,
        (t, 2): unknown,
        (t, -1): unknown,
        (u, 0): ErrorCode.NONE,
        (none, 0): unknown if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID,
    }
    assert fetch(broker, group_on(broker, 1), None) == {("t", 0): (5, 0), ("u", 0): (9, 0)}


@pytest.mark.parametrize("version", range(2, 11))
@pytest.mark.parametrize("good", [True, False])
def test_a_topic_that_a_commit_names_twice_is_answered_for_all_its_partitions(broker: Broker, good: bool, version: int):
    request = commit_request("g", {"t": {7: 1}}, version)
    again = {"t": {8: 1, 0: 4} if good else {8: 1}, "none": {0: 1}}
    request.topics.extend(commit_request("g", again, version).topics * 2)
    (answer,) = call(broker, offset_commit, request, version)
    told = [[p.partition_index for p in topic.partitions] for topic in answer.topics]
    assert told == [[7, 8, 8, 0, 0] if good else [7, 8, 8], [0, 0]]


def test_a_commit_of_nothing_that_exists_does_not_reach_the_coordinator(broker: Broker):
    assert commit(broker, "g", {"none": {0: 1}}) == {("none", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert call(broker, list_groups, ListGroupsRequest(), 5)[0].groups == []


def test_a_refused_commit_says_so_for_every_partition(broker: Broker):
    answer = commit(broker, "g", {"t": {0: 1, 1: 1}}, generation=4, member_id="m")
    assert set(answer.values()) == {ErrorCode.GROUP_ID_NOT_FOUND}
    assert set(commit(broker, "g", {"t": {0: 1}}, 8, generation=4, member_id="m").values()) == {
        ErrorCode.ILLEGAL_GENERATION
    }


# Fetching offsets


def fetch(broker: Broker, group: str, topics: dict | None, version: int = 9) -> dict:
    if version < 8:
        asked = None
        if topics is not None:
            asked = [OffsetFetchRequestTopic(name=n, partition_indexes=p) for n, p in topics.items()]
        (answer,) = call(broker, offset_fetch, OffsetFetchRequest(group_id=group, topics=asked), version)
        assert answer.error_code == 0
        found = answer.topics
    else:
        ids = {"t": ID_T, "u": ID_U, "none": ID_NONE}
        asked = None
        if topics is not None:
            asked = [
                OffsetFetchRequestTopics(
                    name=n if version < 10 else "",
                    topic_id=ids[n] if version >= 10 else bytes(16),
                    partition_indexes=p,
                )
                for n, p in topics.items()
            ]
        groups = [OffsetFetchRequestGroup(group_id=group, topics=asked)]
        (answer,) = call(broker, offset_fetch, OffsetFetchRequest(groups=groups), version)
        assert [g.group_id for g in answer.groups] == [group]
        assert answer.groups[0].error_code == 0
        found = answer.groups[0].topics
    names = {ID_T: "t", ID_U: "u", ID_NONE: "none"}
    return {
        (t.name or names[t.topic_id], p.partition_index): (p.committed_offset, p.error_code)
        for t in found
        for p in t.partitions
    }


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_fetched_in_every_version(broker: Broker, version: int):
    group = group_on(broker, 1)
    commit(broker, group, {"t": {0: 5}})
    assert fetch(broker, group, {"t": [0, 1], "u": [0]}, version) == {
        ("t", 0): (5, 0),
        ("t", 1): (-1, 0),
        ("u", 0): (-1, 0),
    }
    assert fetch(broker, "nobody", {"t": [0]}, version) == {("t", 0): (-1, 0)}
    unknown = fetch(broker, group, {"none": [0], "t": [0]}, version)
    code = ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else ErrorCode.NONE
    assert unknown == {("t", 0): (5, 0), ("none", 0): (-1, code)}
    if version >= 2:
        assert fetch(broker, group, None, version) == {("t", 0): (5, 0)}
        assert fetch(broker, "nobody", None, version) == {}


@pytest.mark.parametrize("version", [8, 9, 10])
def test_several_groups_are_fetched_at_once_wherever_they_live(broker: Broker, version: int):
    here, there = group_on(broker, 0), group_on(broker, 1)
    commit(broker, here, {"t": {0: 1}})
    commit(broker, there, {"t": {1: 2}})
    groups = [OffsetFetchRequestGroup(group_id=g, topics=None) for g in (there, "nobody", here)]
    (answer,) = call(broker, offset_fetch, OffsetFetchRequest(groups=groups, require_stable=True), version)
    found = {
        (g.group_id, p.partition_index): p.committed_offset
        for g in answer.groups
        for t in g.topics
        for p in t.partitions
    }
    assert [g.group_id for g in answer.groups] == [there, "nobody", here]
    if here != there:
        assert found == {(here, 0): 1, (there, 1): 2}
    (empty,) = call(broker, offset_fetch, OffsetFetchRequest(groups=[]), version)
    assert empty.groups == []


def test_errors_of_the_first_version_stand_at_partitions():
    broker = Broker()
    request = OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0])])
    (old,) = call(broker, offset_fetch, request, 1)
    assert old.topics[0].partitions[0].error_code == ErrorCode.NOT_COORDINATOR
    (newer,) = call(broker, offset_fetch, request, 2)
    assert (newer.error_code, newer.topics) == (ErrorCode.NOT_COORDINATOR, [])


def test_offsets_of_a_deleted_topic_are_gone_on_every_shard(broker: Broker):
    for shard in (0, 1):
        commit(broker, group_on(broker, shard), {"t": {0: 5}, "u": {0: 6}})
    broker.metadata.delete("t")
    broker.reactor.turn()
    for b in (broker, broker.restart()):
        b.reactor.turn()
        for shard in (0, 1):
            assert fetch(b, group_on(b, shard), None) == {("u", 0): (6, 0)}


def test_offsets_of_a_topic_that_was_made_anew_are_not_those_of_the_old_one(broker: Broker):
    commit(broker, "g", {"t": {0: 5}})
    broker.metadata.add("t", b"T" * 16, [0])
    assert fetch(broker, "g", {"t": [0]}) == {("t", 0): (-1, 0)}


def test_an_offset_whose_topic_is_gone_cannot_be_told_by_topic_id():
    stored = encode_record(*offset_record("g", "gone", 0, CommittedOffset(3, -1, "", 1)))
    broker = Broker(partitions=1, logs={0: [batch_of(stored)]})
    assert fetch(broker, "g", None, 10) == {}
    assert fetch(broker, "g", None, 9) == {("gone", 0): (3, 0)}


# Listing and describing


@pytest.mark.parametrize("version", range(6))
def test_groups_of_all_shards_are_listed(broker: Broker, version: int):
    for shard in (0, 1):
        commit(broker, group_on(broker, shard), {"t": {0: 5}})
    (answer,) = call(broker, list_groups, ListGroupsRequest(), version)
    assert {g.group_id for g in answer.groups} == {group_on(broker, 0), group_on(broker, 1)}
    if version >= 4:
        (none,) = call(broker, list_groups, ListGroupsRequest(states_filter=["Stable"]), version)
        assert none.groups == []
    if version >= 5:
        (none,) = call(broker, list_groups, ListGroupsRequest(types_filter=["consumer"]), version)
        assert none.groups == []


def test_without_groups_the_list_is_empty():
    (answer,) = call(Broker(2), list_groups, ListGroupsRequest(), 5)
    assert (answer.error_code, answer.groups) == (0, [])


@pytest.mark.parametrize("version", range(7))
def test_groups_are_described_in_the_order_asked(broker: Broker, version: int):
    groups = [group_on(broker, 1), "nobody", group_on(broker, 0)]
    for group in {groups[0], groups[2]}:
        stable(broker, group)
    request = DescribeGroupsRequest(groups=groups, include_authorized_operations=True)
    (answer,) = call(broker, describe_groups, request, version)
    assert [g.group_id for g in answer.groups] == groups
    assert [g.group_state for g in answer.groups] == ["Stable", "Dead", "Stable"]
    assert answer.groups[1].error_code == (ErrorCode.GROUP_ID_NOT_FOUND if version >= 6 else 0)
    if version >= 3:
        assert answer.groups[0].authorized_operations == 0b1101_0100_1000
    (plain,) = call(broker, describe_groups, DescribeGroupsRequest(groups=groups), version)
    assert plain.groups[0].authorized_operations == -(1 << 31)


def test_the_interval_of_assignments_follows_changes_of_the_broker_and_a_group_may_have_its_own(broker: Broker):
    consumer = broker.routers[0].local._settings.consumer
    assert consumer.assignment_interval_of("g") == 1_000
    changed = broker.settings.with_dynamic({"group.consumer.assignment.interval.ms": "50"})
    for listener in broker.metadata.listeners:
        listener.settings_changed(changed)
    assert consumer.assignment_interval_of("g") == 50
    broker.metadata.group_configs["g"] = {"consumer.assignment.interval.ms": 7}
    assert (consumer.assignment_interval_of("g"), consumer.assignment_interval_of("h")) == (7, 50)
    share = broker.routers[0].local._settings.share
    changed = broker.settings.with_dynamic({"group.share.assignment.interval.ms": "60"})
    for listener in broker.metadata.listeners:
        listener.settings_changed(changed)
    broker.metadata.group_configs["g"] = {"share.assignment.interval.ms": 8}
    assert (share.assignment_interval_of("g"), share.assignment_interval_of("h")) == (8, 60)
