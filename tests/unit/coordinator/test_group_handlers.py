"""The group APIs as clients see them: through the handlers, in every version, on one shard and on two."""

from types import SimpleNamespace

import pytest
from coordinator_fakes import Answers, Broker, Context, batch_of, call

from millstream.coordinator.asks import DESCRIBE, decode_describe_ask
from millstream.coordinator.hashing import partition_of
from millstream.coordinator.records import encode_record
from millstream.coordinator.router import DESCRIBED_AT_ONCE
from millstream.core.group.commit import offset_record
from millstream.core.group.offsets import CommittedOffset
from millstream.kafka.handlers import (
    consumer_group_describe,
    consumer_group_heartbeat,
    describe_groups,
    find_coordinator,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_fetch,
    repeats,
    sync_group,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

ID_T, ID_U, ID_NONE = b"t" * 16, b"u" * 16, b"?" * 16


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
def broker(request) -> Broker:
    """Requests come in on shard 0; with two shards half of the groups live on the other."""
    made = Broker(request.param, logs={})
    made.metadata.add("t", ID_T, [0, 0])
    made.metadata.add("u", ID_U, [0])
    return made


def group_on(broker: Broker, shard: int) -> str:
    """A group that lives on ``shard`` (the last one, if there are fewer)."""
    shard = min(shard, len(broker.routers) - 1)
    return next(
        f"group-{i}" for i in range(100) if partition_of(f"group-{i}", broker.count) % len(broker.routers) == shard
    )


def join(
    broker: Broker, group: str, member_id: str = "", version: int = 9, *, metadata: bytes = b"m", **options: object
):
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=20_000,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        **options,
    )
    return call(broker, join_group, request, version)


def stable(broker: Broker, group: str, metadata: bytes = b"m") -> str:
    """The only member of a stable group of generation 1."""
    member_id = join(broker, group, metadata=metadata)[0].member_id
    (joined,) = join(broker, group, member_id, metadata=metadata)
    assert (joined.error_code, joined.generation_id) == (0, 1)
    assignments = [SyncGroupRequestAssignment(member_id=member_id, assignment=b"mine")]
    request = SyncGroupRequest(
        group_id=group,
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=assignments,
    )
    (synced,) = call(broker, sync_group, request, 5)
    assert (synced.error_code, synced.assignment) == (0, b"mine")
    return member_id


def joining(group: str, topics: list[str]) -> ConsumerGroupHeartbeatRequest:
    """Member ``a`` joins a consumer group."""
    return ConsumerGroupHeartbeatRequest(
        group_id=group,
        member_id="a",
        rebalance_timeout_ms=60_000,
        subscribed_topic_names=topics,
        topic_partitions=[],
    )


def commit_request(group: str, topics: dict, version: int, member_id: str = "", generation: int = -1):
    ids = {"t": ID_T, "u": ID_U, "none": ID_NONE}
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=name if version < 10 else "",
                topic_id=ids[name] if version >= 10 else bytes(16),
                partitions=[
                    OffsetCommitRequestPartition(partition_index=i, committed_offset=o, committed_metadata="x")
                    for i, o in offsets.items()
                ],
            )
            for name, offsets in topics.items()
        ],
    )


def commit(broker: Broker, group: str, topics: dict, version: int = 9, **options) -> dict:
    (answer,) = call(broker, offset_commit, commit_request(group, topics, version, **options), version)
    return {
        (topic.name or topic.topic_id, p.partition_index): ErrorCode(p.error_code)
        for topic in answer.topics
        for p in topic.partitions
    }


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


@pytest.mark.parametrize("key_type", [1, 2, 9])
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
        module.handle(node, Context(version), request, answers)
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


def test_an_answer_tells_no_more_metadata_than_it_may(broker: Broker):
    groups = [group_on(broker, 1), group_on(broker, 0) + "-2"]
    longest = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m" * 4096)
    for group in groups:
        topics = [OffsetCommitRequestTopic(name="u", partitions=[longest])]
        call(broker, offset_commit, OffsetCommitRequest(group_id=group, topics=topics), 8)

    def codes(*asked: tuple[str, int]) -> list[tuple[int, int]]:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group, topics=[OffsetFetchRequestTopics(name="u", partition_indexes=[0] * times)]
                )
                for group, times in asked
            ]
        )
        (answer,) = call(broker, offset_fetch, request, 8)
        return [(group.error_code, sum(len(t.partitions) for t in group.topics)) for group in answer.groups]

    one, other = groups
    assert codes((one, 2_100)) == [(0, 2_100)]
    assert codes((one, 4_097)) == [(ErrorCode.UNKNOWN_SERVER_ERROR, 0)]
    assert codes((one, 2_100), (other, 2_100)) == [(0, 2_100), (ErrorCode.UNKNOWN_SERVER_ERROR, 0)]


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


def test_a_group_that_a_request_names_again_is_told_again_within_bounds(broker: Broker):
    """A request of some kilobytes could have a large group told thousands of times."""
    large, small = group_on(broker, 1), group_on(broker, 0) + "-2"
    stable(broker, large, b"m" * (repeats.REPEATED_BYTES_MAX * 2 // 5))
    stable(broker, small)

    def codes(*names: str) -> list[tuple[int, int]]:
        (answer,) = call(broker, describe_groups, DescribeGroupsRequest(groups=list(names)), 6)
        assert [group.group_id for group in answer.groups] == list(names)
        return [(group.error_code, len(group.members)) for group in answer.groups]

    told, refused = (0, 1), (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    assert codes(*[large] * 3) == [told] * 3
    assert codes(*[large] * 6, small) == [told] * 3 + [refused] * 3 + [told]
    assert codes(large, small, *[small] * 1000, large) == [told] * 1003


def test_a_consumer_group_that_a_request_names_again_is_told_again_within_bounds(broker: Broker):
    large, small = group_on(broker, 1), group_on(broker, 0) + "-2"
    topics = [f"{i:04}" + "t" * 240 for i in range(repeats.REPEATED_BYTES_MAX * 2 // 5 // 247)]
    for group, subscribed in ((large, topics), (small, ["t"])):
        (answer,) = call(broker, consumer_group_heartbeat, joining(group, subscribed), 1)
        assert answer.error_code == 0

    def codes(*names: str) -> list[tuple[int, int]]:
        request = ConsumerGroupDescribeRequest(group_ids=list(names))
        (answer,) = call(broker, consumer_group_describe, request, 1)
        assert [group.group_id for group in answer.groups] == list(names)
        return [(group.error_code, len(group.members)) for group in answer.groups]

    told, refused = (0, 1), (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    assert codes(*[large] * 5, small, small) == [told] * 3 + [refused] * 2 + [told, refused]
    assert codes() == []


def test_groups_of_another_shard_are_described_a_few_at_a_time():
    """All of a large broker's in one answer would be more than may wait between two shards."""
    broker = Broker(2, logs={})
    names = [f"group-{i}" for i in range(3 * DESCRIBED_AT_ONCE)]
    stable(broker, names[-1])
    calls = []
    serve = broker.mailboxes[1].handlers[DESCRIBE]

    def counted(sender, payload, reply):
        calls.append(len(decode_describe_ask(payload).groups))
        serve(sender, payload, reply)

    broker.mailboxes[1].handlers[DESCRIBE] = counted
    (answer,) = call(broker, describe_groups, DescribeGroupsRequest(groups=names), 6)
    assert [group.group_id for group in answer.groups] == names
    assert answer.groups[-1].group_state == "Stable"
    assert len(calls) > 1 and max(calls) == DESCRIBED_AT_ONCE


def test_all_offsets_of_a_group_that_a_request_names_again_are_told_again_within_bounds(broker: Broker):
    """A kilobyte could name a group with thousands of offsets hundreds of times."""
    large, small = group_on(broker, 1), group_on(broker, 0) + "-2"
    broker.metadata.add("wide", b"w" * 16, [0] * (repeats.REPEATED_BYTES_MAX * 2 // 5 // 4096))
    wide = len(broker.metadata.topic("wide").partitions)
    for group, count in ((large, wide), (small, 1)):
        offsets = [
            OffsetCommitRequestPartition(partition_index=i, committed_offset=1, committed_metadata="m" * 4096)
            for i in range(count)
        ]
        topics = [OffsetCommitRequestTopic(name="wide", partitions=offsets)]
        call(broker, offset_commit, OffsetCommitRequest(group_id=group, topics=topics), 8)

    def told(version: int, *names: str) -> list[tuple[int, int]]:
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])
        calls = sum(mailbox.calls for mailbox in broker.mailboxes)
        (answer,) = call(broker, offset_fetch, request, version)
        assert sum(mailbox.calls for mailbox in broker.mailboxes) - calls <= len(set(names))
        assert [group.group_id for group in answer.groups] == list(names)
        return [(group.error_code, sum(len(t.partitions) for t in group.topics)) for group in answer.groups]

    refused = (ErrorCode.UNKNOWN_SERVER_ERROR, 0)
    for version in (8, 10):
        assert told(version, *[large] * 4) == [(0, wide)] * 3 + [refused]
        assert told(version, large, *[small] * 100, large) == [(0, wide), *[(0, 1)] * 100, (0, wide)]


@pytest.mark.parametrize("version", [8, 9, 10])
@pytest.mark.parametrize("everything", [False, True])
def test_an_error_of_a_group_is_told_in_every_version(broker: Broker, version: int, everything: bool):
    """Beside a topic id that nobody knows, too."""
    group = group_on(broker, 1)
    (joined,) = call(broker, consumer_group_heartbeat, joining(group, ["t"]), 1)
    topics = [
        OffsetFetchRequestTopics(name="t", topic_id=ID_T, partition_indexes=[0]),
        OffsetFetchRequestTopics(name="no", topic_id=ID_NONE, partition_indexes=[0]),
    ]
    request = OffsetFetchRequest(
        groups=[
            OffsetFetchRequestGroup(
                group_id=group,
                member_id="a",
                member_epoch=joined.member_epoch + 1,
                topics=None if everything else topics,
            )
        ]
    )
    (answer,) = call(broker, offset_fetch, request, version)
    assert [(told.error_code, told.topics) for told in answer.groups] == [(ErrorCode.STALE_MEMBER_EPOCH, [])]


def test_offsets_that_are_too_much_to_tell_are_no_empty_answer_in_the_first_versions(broker: Broker, monkeypatch):
    monkeypatch.setattr("millstream.core.group.fetch.METADATA_TOLD_MAX", 10)
    group = group_on(broker, 1)
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="m" * 11)
    topics = [OffsetCommitRequestTopic(name="u", partitions=[partition])]
    call(broker, offset_commit, OffsetCommitRequest(group_id=group, topics=topics), 8)
    request = OffsetFetchRequest(group_id=group, topics=[OffsetFetchRequestTopic(name="u", partition_indexes=[0])])
    (answer,) = call(broker, offset_fetch, request, 1)
    assert [p.error_code for t in answer.topics for p in t.partitions] == [ErrorCode.UNKNOWN_SERVER_ERROR]
