"""DescribeProducers, where a request names a partition again and again."""

from types import SimpleNamespace
from typing import Any, cast

from millstream.kafka import repeats
from millstream.kafka.handlers.transactions import describe_producers
from millstream.model.error_code import ErrorCode
from millstream.partition.partition import Partition
from millstream.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)

PRODUCERS = 1_000


class Producers:
    """Those of one partition; counts how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def active(self) -> list[tuple[int, int, int, int]]:
        self.asked += 1
        return [(producer_id, 0, 1, 1_800_000_000_000) for producer_id in range(PRODUCERS)]


def describe(*topics: DescribeProducersTopic) -> tuple[DescribeProducersResponse, Producers]:
    """Of topic ``t`` there are two partitions, which share their producers."""
    partition: Any = Partition.__new__(Partition)
    partition.producers = producers = Producers()
    found = SimpleNamespace(
        find=lambda name, index: partition if name == "t" and index < 2 else None,
        missing=lambda name: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    )
    answers: list[DescribeProducersResponse] = []
    node = cast(Any, SimpleNamespace(partitions=found))
    context = cast(Any, SimpleNamespace(respond=answers.append))
    describe_producers.handle(node, context, DescribeProducersRequest(topics=list(topics)))
    (answer,) = answers
    return answer, producers


def test_every_partition_is_told_in_the_shape_of_the_request() -> None:
    answer, _ = describe(
        DescribeProducersTopic("t", [1, 7, 0]), DescribeProducersTopic("no", [0]), DescribeProducersTopic("t", [1])
    )
    told = [
        (topic.name, [(p.partition_index, p.error_code, len(p.active_producers)) for p in topic.partitions])
        for topic in answer.topics
    ]
    missing = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert told == [
        ("t", [(1, 0, PRODUCERS), (7, missing, 0), (0, 0, PRODUCERS)]),
        ("no", [(0, missing, 0)]),
        ("t", [(1, 0, PRODUCERS)]),
    ]
    assert describe()[0].topics == []


def test_a_partition_that_a_request_names_again_is_told_again_within_bounds() -> None:
    """Some kilobytes could have a million producers listed."""
    answer, producers = describe(DescribeProducersTopic("t", [0] * 1_000), DescribeProducersTopic("t", [1, 1]))
    codes = [p.error_code for topic in answer.topics for p in topic.partitions]
    assert producers.asked == 2
    assert 1 < codes.count(0) <= 2 + repeats.REPEATED_BYTES_MAX // (8 * PRODUCERS)
    refused = ErrorCode.UNKNOWN_SERVER_ERROR
    assert codes == [0] * (codes.count(0) - 1) + [refused] * (codes.count(refused) - 1) + [0, refused]
