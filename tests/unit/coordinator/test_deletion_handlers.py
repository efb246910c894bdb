"""DeleteGroups and OffsetDelete through their handlers: over shards, in all versions, with what does not exist."""

import pytest
from coordinator_fakes import Broker, call
from group_calls import ID_T, group_on, stable
from group_handler_support import commit

from millstream.kafka.handlers.groups import delete_groups, describe_groups, offset_delete
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)


@pytest.fixture(params=[1, 2], ids=["one shard", "two shards"])
def broker(request) -> Broker:
    made = Broker(request.param, logs={})
    made.metadata.add("t", ID_T, [0, 0])
    return made


def delete(broker: Broker, *groups: str, version: int = 2) -> list[tuple[str, ErrorCode]]:
    (answer,) = call(broker, delete_groups, DeleteGroupsRequest(groups_names=list(groups)), version)
    return [(result.group_id, ErrorCode(result.error_code)) for result in answer.results]


def delete_offsets(broker: Broker, group: str, topics: dict[str, list[int]]):
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(
                name=name, partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
            )
            for name, indexes in topics.items()
        ],
    )
    (answer,) = call(broker, offset_delete, request, 0)
    return answer


@pytest.mark.parametrize("version", range(3))
def test_groups_are_deleted_wherever_they_live_and_each_is_answered(broker: Broker, version: int):
    empty, busy = group_on(broker, 1), "busy"
    commit(broker, empty, {"t": {0: 5}})
    stable(broker, busy)
    assert delete(broker, empty, "nobody", busy, empty, version=version) == [
        (empty, ErrorCode.NONE),
        ("nobody", ErrorCode.GROUP_ID_NOT_FOUND),
        (busy, ErrorCode.NON_EMPTY_GROUP),
    ]
    (answer,) = call(broker, describe_groups, DescribeGroupsRequest(groups=[empty]), 6)
    assert answer.groups[0].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_no_groups_at_all_are_deleted_at_once(broker: Broker):
    assert delete(broker) == []


def test_without_a_coordinator_deletions_are_refused():
    broker = Broker()
    assert delete(broker, "g") == [("g", ErrorCode.NOT_COORDINATOR)]
    assert delete_offsets(broker, "g", {"t": [0]}).error_code == ErrorCode.NOT_COORDINATOR


@pytest.mark.parametrize("shard", [0, 1])
def test_existing_partitions_are_forgotten_and_others_refused(broker: Broker, shard: int):
    group = group_on(broker, shard)
    commit(broker, group, {"t": {0: 5}})
    answer = delete_offsets(broker, group, {"t": [0, 99], "none": [1]})
    found = {(t.name, p.partition_index): ErrorCode(p.error_code) for t in answer.topics for p in t.partitions}
    assert found == {
        ("t", 0): ErrorCode.NONE,
        ("t", 99): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("none", 1): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert len(answer.topics) == 2


def test_an_error_of_the_group_stands_alone_even_beside_partitions_that_do_not_exist(broker: Broker):
    answer = delete_offsets(broker, "nobody", {"none": [1], "t": [0]})
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, [])
    assert delete_offsets(broker, "", {}).error_code == ErrorCode.INVALID_GROUP_ID
