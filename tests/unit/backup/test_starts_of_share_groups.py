"""The starts of share groups, asked of brokers that cannot answer all of it."""

from types import SimpleNamespace

import pytest

from millstream.backup.model import GroupBackup, GroupOffset
from millstream.backup.source import Source
from millstream.backup.target import Target
from millstream.errors import Rejected, Retriable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_share_group_offsets import (
    AlteredShareOffsetsPartition,
    AlteredShareOffsetsTopic,
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsResponse,
)
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareOffsetsGroup,
    ShareOffsetsPartition,
    ShareOffsetsTopic,
)
from millstream.wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from millstream.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from millstream.wire.messages.read_share_group_state_summary import (
    ReadShareGroupStateSummaryRequest,
    ReadShareGroupStateSummaryResponse,
    StateSummary,
    StateSummaryTopic,
)

ONE, TWO = b"1" * 16, b"2" * 16


class Cluster:
    """One broker, its own connection, that has one share group; each request is sent once."""

    def __init__(self, answers):
        listed = ShareOffsetsTopic("b", TWO, [ShareOffsetsPartition(0, -1)])
        other = ShareOffsetsTopic("a", ONE, [ShareOffsetsPartition(index, -1) for index in (1, 0)])
        self.answers = {
            FindCoordinatorRequest: FindCoordinatorResponse(coordinators=[Coordinator("g", 1)]),
            ListGroupsRequest: ListGroupsResponse(groups=[ListedGroup("g", "share", "Empty", "Share")]),
            DescribeShareGroupOffsetsRequest: DescribeShareGroupOffsetsResponse(
                groups=[ShareOffsetsGroup("g", [listed, other])]
            ),
            **answers,
        }
        self.asked = []

    def metadata(self, topics):
        return SimpleNamespace(brokers={1: "here"})

    def insist(self, what, ask, again=None):
        return ask()

    def any_connection(self):
        return self

    def connection(self, node):
        assert node == 1
        return self

    def version_of(self, api, lowest=0, highest=99):
        return highest

    def call(self, request, response, version):
        self.asked.append(request)
        answer = self.answers[type(request)]
        assert isinstance(answer, response)
        return answer

    def ask(self, request, response, lowest=0, highest=99):
        return self.call(request, response, highest)


def states(**of_two):
    return ReadShareGroupStateSummaryResponse(
        [
            StateSummaryTopic(TWO, [StateSummary(0, **of_two)]),
            StateSummaryTopic(ONE, [StateSummary(1, start_offset=-1), StateSummary(0, start_offset=6)]),
        ]
    )


def test_starts_are_those_of_the_share_state():
    cluster = Cluster({ReadShareGroupStateSummaryRequest: states(start_offset=9)})
    starts = GroupOffset("a", 0, 6, ""), GroupOffset("a", 1, -1, ""), GroupOffset("b", 0, 9, "")
    assert Source(cluster).groups() == ([], [GroupBackup("g", starts)])
    (summary,) = (one for one in cluster.asked if isinstance(one, ReadShareGroupStateSummaryRequest))
    asked = [(topic.topic_id, [one.partition for one in topic.partitions]) for topic in summary.topics]
    assert (summary.group_id, asked) == ("g", [(TWO, [0]), (ONE, [1, 0])])


def test_a_start_that_cannot_be_read_is_not_taken_for_none():
    away = states(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, start_offset=-1)
    with pytest.raises(Retriable, match="starts of share group g: COORDINATOR_NOT_AVAILABLE"):
        Source(Cluster({ReadShareGroupStateSummaryRequest: away})).groups()


def test_a_group_without_partitions_is_left_out():
    nothing = DescribeShareGroupOffsetsResponse(groups=[ShareOffsetsGroup("g")])
    assert Source(Cluster({DescribeShareGroupOffsetsRequest: nothing})).groups() == ([], [])


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (AlterShareGroupOffsetsResponse(error_code=ErrorCode.NON_EMPTY_GROUP), Rejected),
        (AlterShareGroupOffsetsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), Retriable),
        (
            AlterShareGroupOffsetsResponse(
                responses=[
                    AlteredShareOffsetsTopic(
                        "a",
                        partitions=[
                            AlteredShareOffsetsPartition(0),
                            AlteredShareOffsetsPartition(1, ErrorCode.COORDINATOR_NOT_AVAILABLE),
                        ],
                    )
                ]
            ),
            Retriable,
        ),
    ],
    ids=["members", "loading", "one-partition"],
)
def test_a_start_that_is_not_set_is_an_error(answer, error):
    cluster = Cluster({AlterShareGroupOffsetsRequest: answer})
    group = GroupBackup("g", (GroupOffset("a", 0, 6, ""), GroupOffset("a", 1, -1, "")))
    with pytest.raises(error, match="starts of share group g: "):
        Target(cluster).start_share_group(group)
    (topic,) = cluster.asked[-1].topics
    assert [(one.partition_index, one.start_offset) for one in topic.partitions] == [(0, 6), (1, -1)]
