"""Committed offsets as seen on the wire: who may commit and fetch what, in every version, and what is forgotten when.

What is expected here is what Apache Kafka 4.3 does: ``pytest tests/conformance/test_committed_offsets.py --peer kafka``
runs the same against it.
"""

import itertools

import pytest
from group_wire import Line, commit, describe, fetch, stable, subscription, topic_ids, wait_for_coordinator

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from waits import until

pytestmark = pytest.mark.process

SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "offset.metadata.max.bytes": 8,
    "offsets.retention.check.interval.ms": 500,
}
OK = ErrorCode.NONE
UNKNOWN_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
T0, T1, T2, U0 = ("t", 0), ("t", 1), ("t", 2), ("u", 0)
numbers = itertools.count()


@pytest.fixture(scope="module")
def group_bootstrap(module_broker):
    broker = module_broker(topics={"t": 3, "u": 1}, settings=SETTINGS)
    wait_for_coordinator(broker.bootstrap)
    return broker.bootstrap


@pytest.fixture
def line(group_bootstrap):
    with Line(group_bootstrap) as made:
        yield made


@pytest.fixture
def ids(line):
    return topic_ids(line, "t", "u", "none")


@pytest.fixture
def group():
    return f"simple-{next(numbers)}"


# Committing


@pytest.mark.parametrize("version", range(2, 11))
def test_a_simple_consumer_commits_in_every_version(line, group, ids, version):
    assert commit(line, group, {T0: 7, U0: 8}, version, ids=ids) is OK
    assert fetch(line, group) == {T0: 7, U0: 8}
    about = describe(line, group)
    assert (about.error_code, about.group_state, about.protocol_type, about.members) == (0, "Empty", "", [])


@pytest.mark.parametrize("version", range(2, 11))
def test_what_does_not_exist_is_refused_partition_by_partition(line, group, ids, version):
    places = {T0: 1, ("t", 3): 1, ("t", -1): 1, ("none", 0): 1}
    assert commit(line, group, places, version, ids=ids) == {
        T0: OK,
        ("t", 3): UNKNOWN_PARTITION,
        ("t", -1): UNKNOWN_PARTITION,
        ("none", 0): ErrorCode.UNKNOWN_TOPIC_ID if version >= 10 else UNKNOWN_PARTITION,
    }
    assert fetch(line, group) == {T0: 1}


def test_a_commit_of_what_does_not_exist_makes_no_group(line, group):
    assert commit(line, group, {("none", 0): 1}) is UNKNOWN_PARTITION
    assert commit(line, group, {("none", 0): 1}, generation=3, member_id="m") is UNKNOWN_PARTITION
    assert describe(line, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert line.ask(OffsetCommitRequest(group_id=group), 9).topics == []


def test_an_offset_may_be_anything_and_the_last_one_counts(line, group):
    for offset in (5, 3, -1, 1 << 62, 0):
        assert commit(line, group, {T0: offset}) is OK
        assert fetch(line, group, [T0]) == {T0: offset}


def test_metadata_has_a_limit(line, group):
    assert commit(line, group, {T0: 1}, metadata="12345678") is OK
    assert commit(line, group, {T0: 2}, metadata="123456789") is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert commit(line, group, {T0: 3}, metadata="ÄÖÜäöüß€") is OK, "characters are counted, not bytes"
    assert commit(line, group, {T0: 4}, metadata=None) is OK
    request = OffsetFetchRequest(group_id=group, topics=None)
    ((partition,),) = (topic.partitions for topic in line.ask(request, 7).topics)
    assert (partition.committed_offset, partition.committed_leader_epoch, partition.metadata) == (4, 0, "")


def test_the_group_without_a_name_keeps_offsets(line):
    assert commit(line, "", {T0: 11}) is OK
    assert fetch(line, "") == {T0: 11}


def test_names_of_groups_may_be_odd(line):
    for name in (" ", "a/b", "ünï cödé", "💧", "x" * 300, "../..", "a\x00b"):
        assert commit(line, name, {T0: 1}) is OK
        assert fetch(line, name) == {T0: 1}


def test_a_group_with_members_takes_no_commits_from_outside(line, people):
    member = people("static")
    stable(member)
    assert commit(line, member.group, {T0: 1}) is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(line, member.group, {T0: 1}, 2) is ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch(line, member.group) == {}


# Fetching


@pytest.mark.parametrize("stable_only", [False, True])
@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_fetched_in_every_version(line, group, ids, version, stable_only):
    assert commit(line, group, {T0: 7, U0: 8}) is OK
    asked = [T0, T1, ("t", 9), U0, ("none", 0)]
    found = {T0: 7, T1: -1, ("t", 9): -1, U0: 8, ("none", 0): -1}
    if version >= 10:
        found["none", 0] = ErrorCode.UNKNOWN_TOPIC_ID
    assert fetch(line, group, asked, version, ids=ids, stable=stable_only) == found
    if version >= 2:
        assert fetch(line, group, None, version, ids=ids, stable=stable_only) == {T0: 7, U0: 8}


@pytest.mark.parametrize("version", range(1, 11))
def test_a_group_that_does_not_exist_has_no_offsets(line, group, ids, version):
    assert fetch(line, group, [T0], version, ids=ids) == {T0: -1}
    if version >= 2:
        assert fetch(line, group, None, version) == {}


@pytest.mark.parametrize("version", [8, 9, 10])
def test_several_groups_are_fetched_at_once(line, group, ids, version):
    names = [f"{group}-{i}" for i in range(5)]
    for offset, name in enumerate(names):
        assert commit(line, name, {T0: offset, U0: 10 + offset}) is OK
    topic = OffsetFetchRequestTopics(
        name="t" if version < 10 else "", topic_id=ids["t"] if version >= 10 else bytes(16), partition_indexes=[0, 2]
    )
    asked = [
        *(OffsetFetchRequestGroup(group_id=name, topics=[topic]) for name in names),
        OffsetFetchRequestGroup(group_id=names[0], topics=None),
        OffsetFetchRequestGroup(group_id="nobody", topics=[topic]),
        OffsetFetchRequestGroup(group_id=names[1], topics=[]),
    ]
    answer = line.ask(OffsetFetchRequest(groups=asked), version)
    assert [g.group_id for g in answer.groups] == [g.group_id for g in asked]
    assert all(g.error_code == 0 for g in answer.groups)
    offsets = [sorted(p.committed_offset for t in g.topics for p in t.partitions) for g in answer.groups]
    assert offsets == [[-1, 0], [-1, 1], [-1, 2], [-1, 3], [-1, 4], [0, 10], [-1, -1], []]


def test_no_groups_are_fetched_at_once(line):
    assert line.ask(OffsetFetchRequest(groups=[]), 9).groups == []


# Forgetting: members are static here, as a promise of an id does not keep an empty group in Apache Kafka


def delete_offsets(line, group, *places):
    """The error of the group, or of each partition."""
    topics = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=index))
    request = OffsetDeleteRequest(
        group_id=group, topics=[OffsetDeleteRequestTopic(name=t, partitions=p) for t, p in topics.items()]
    )
    answer = line.ask(request, 0)
    if answer.error_code:
        assert answer.topics == []
        return ErrorCode(answer.error_code)
    return {(t.name, p.partition_index): ErrorCode(p.error_code) for t in answer.topics for p in t.partitions}


def test_single_offsets_are_deleted(line, group):
    commit(line, group, {T0: 1, T1: 2, U0: 3})
    assert delete_offsets(line, group, T0, T2, ("t", 9), ("none", 0)) == {
        T0: OK,
        T2: OK,
        ("t", 9): UNKNOWN_PARTITION,
        ("none", 0): UNKNOWN_PARTITION,
    }
    assert fetch(line, group) == {T1: 2, U0: 3}
    assert delete_offsets(line, group) == {}
    assert delete_offsets(line, group, T1, U0) == {T1: OK, U0: OK}
    assert fetch(line, group) == {}


def test_offsets_of_no_group_are_not_deleted(line, group):
    assert delete_offsets(line, group, T0) is ErrorCode.GROUP_ID_NOT_FOUND
    assert delete_offsets(line, group, ("none", 0)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert delete_offsets(line, "", T0) is ErrorCode.INVALID_GROUP_ID


def test_offsets_that_a_group_is_working_on_are_not_deleted(line, people):
    member = people("static", protocols={"range": subscription("t")})
    stable(member)
    assert member.commit({T0: 1, U0: 2}) is OK
    assert delete_offsets(line, member.group, T0, U0) == {T0: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, U0: OK}
    assert fetch(line, member.group) == {T0: 1}
    worker = people("static", kind="connect", group=f"{member.group}-connect")
    stable(worker)
    assert delete_offsets(line, worker.group, T0) is ErrorCode.NON_EMPTY_GROUP
    assert member.leave() is OK
    assert delete_offsets(line, member.group, T0) == {T0: OK}
    assert fetch(line, member.group) == {}


@pytest.mark.parametrize("version", [2, 4])
def test_offsets_with_a_retention_time_of_their_own_expire_and_take_the_group_along(line, group, version):
    assert commit(line, group, {T0: 1}, version, retention_ms=1) is OK
    until(lambda: fetch(line, group) == {})
    until(lambda: describe(line, group).error_code == ErrorCode.GROUP_ID_NOT_FOUND)


def test_offsets_that_a_stable_group_consumes_do_not_expire(line, people):
    member = people("static", protocols={"range": subscription("t")})
    stable(member)
    assert member.commit({T0: 1, U0: 2}, 4, retention_ms=1) is OK
    until(lambda: fetch(line, member.group) == {T0: 1})
    assert member.leave() is OK
    until(lambda: fetch(line, member.group) == {})


def test_a_group_that_was_left_by_all_and_has_no_offsets_is_forgotten(line, people):
    member = people("static")
    stable(member)
    assert member.leave() is OK
    until(lambda: describe(line, member.group).error_code == ErrorCode.GROUP_ID_NOT_FOUND)


def test_a_deleted_topic_takes_its_offsets_along(line, group, people):
    created = line.ask(CreateTopicsRequest(topics=[CreatableTopic("d", 2, 1)], timeout_ms=10_000), 7)
    assert created.topics[0].error_code == 0
    until(lambda: commit(line, group, {("d", 0): 1, ("d", 1): 2, T0: 3}) is OK)
    member = people("static", protocols={"range": subscription("d")})
    stable(member)
    assert member.commit({("d", 1): 5, U0: 6}) is OK
    deleted = line.ask(DeleteTopicsRequest(topics=[DeleteTopicState(name="d")], timeout_ms=10_000), 6)
    assert deleted.responses[0].error_code == 0
    until(lambda: fetch(line, group) == {T0: 3})
    until(lambda: fetch(line, member.group) == {U0: 6})
    until(lambda: member.commit({("d", 1): 5}) is UNKNOWN_PARTITION)
