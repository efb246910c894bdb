"""ElectLeaders: elect the preferred replica, or any remaining one, as leader of partitions.

The preferred replica is the first of a partition's list. A leader that is another one hands over to it, if it is alive
and in sync; the partition is answered when the preferred replica leads, or when the client's time is over
(REQUEST_TIMED_OUT). ``unclean`` asks for a leader that may lack acknowledged records. Raft elects none: a leader needs
the votes of a majority. A partition without a majority is answered ELIGIBLE_LEADERS_NOT_AVAILABLE.

A client that names partitions gets an answer for each; one that asks for all of them gets the elected ones only.
"""

from collections.abc import Callable
from typing import Final

from millstream.cluster.topic_table import PartitionMeta
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.timeouts import bounded_ms
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

_PREFERRED: Final = 0
_UNCLEAN: Final = 1
_CHECK_US: Final = 20_000

_TopicPartition = tuple[str, int]
_Result = tuple[ErrorCode, str | None]

_NOT_NEEDED: Final[_Result] = (ErrorCode.ELECTION_NOT_NEEDED, "Leader election not needed for topic partition.")


def handle(node: Node, ctx: RequestContext, request: ElectLeadersRequest) -> None:
    """Start what is needed, and answer when it is done."""
    named = request.topic_partitions
    if named is None:
        partitions = [(topic.name, part.index) for topic in node.metadata.topics() for part in topic.partitions]
    else:
        partitions = [(asked.topic, index) for asked in named for index in asked.partitions]
    results: dict[_TopicPartition, _Result] = {
        each: _decision(node, request.election_type, *each) for each in partitions
    }
    to_elect = [each for each, (error, _) in results.items() if error is ErrorCode.NONE]

    def answer() -> None:
        known = request.election_type in (_PREFERRED, _UNCLEAN)
        shown = [each for each, result in results.items() if named is not None or result is not _NOT_NEEDED]
        ctx.respond(
            ElectLeadersResponse(
                error_code=ErrorCode.NONE if known else ErrorCode.INVALID_REQUEST,
                replica_election_results=_by_topic(node, shown, results, everything=named is None),
            )
        )

    _Elections(node, to_elect, results, bounded_ms(request.timeout_ms), answer).start()


def _by_topic(
    node: Node, partitions: list[_TopicPartition], results: dict[_TopicPartition, _Result], *, everything: bool
) -> list[ReplicaElectionResult]:
    """By topic; a client that asked for everything gets each topic, as from Kafka."""
    by_topic: dict[str, list[PartitionResult]] = {name: [] for name in node.metadata.names()} if everything else {}
    for topic, index in partitions:
        error, message = results[topic, index]
        by_topic.setdefault(topic, []).append(
            PartitionResult(partition_id=index, error_code=error, error_message=message)
        )
    return [ReplicaElectionResult(topic=topic, partition_result=found) for topic, found in by_topic.items()]


def _decision(node: Node, election_type: int, topic: str, index: int) -> _Result:
    """NONE if there is to be an election, else the refusal."""
    if election_type not in (_PREFERRED, _UNCLEAN):
        return ErrorCode.INVALID_REQUEST, f"Unknown election type {election_type}"
    if node.metadata.topic(topic) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such topic as {topic}"
    part = node.metadata.partition(topic, index)
    if part is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"No such partition as {topic}-{index}"
    leader = node.metadata.leader_of(part)
    preferred = part.replicas[0]
    if election_type == _UNCLEAN:
        if leader is not None:
            return _NOT_NEEDED
        return ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, "A majority of the replicas has to be alive."
    if leader == preferred:
        return _NOT_NEEDED
    if leader is None or preferred not in node.metadata.in_sync(part):
        return ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, "The preferred leader was not available."
    return ErrorCode.NONE, None


class _Elections:
    """The elections of one request."""

    def __init__(
        self,
        node: Node,
        to_elect: list[_TopicPartition],
        results: dict[_TopicPartition, _Result],
        timeout_ms: int,
        answer: Callable[[], None],
    ) -> None:
        self._node = node
        self._pending = dict.fromkeys(to_elect)
        self._results = results
        self._limit_us = node.shard.reactor.now_us() + timeout_ms * 1000
        self._answer = answer

    def start(self) -> None:
        """Ask each leader to hand over."""
        for topic_partition in list(self._pending):
            part = self._node.metadata.partition(*topic_partition)
            transfers = self._node.transfers
            assert part is not None and transfers is not None, "a partition of one replica has another leader"
            transfers.move(part.raft_group, part.replicas[0], self._transferred(topic_partition))
        self._check()

    def _transferred(self, topic_partition: _TopicPartition) -> Callable[[MillstreamError | None], None]:
        def transferred(error: MillstreamError | None) -> None:
            if error is not None and topic_partition in self._pending:
                del self._pending[topic_partition]
                self._results[topic_partition] = (ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, error.message)

        return transferred

    def _check(self) -> None:
        """Answer when every preferred replica leads, or time is over."""
        reactor = self._node.shard.reactor
        for topic_partition in list(self._pending):
            part: PartitionMeta | None = self._node.metadata.partition(*topic_partition)
            if part is None or part.leader == part.replicas[0]:
                del self._pending[topic_partition]
        if self._pending and reactor.now_us() < self._limit_us:
            reactor.call_later(_CHECK_US, self._check)
            return
        for topic_partition in self._pending:
            self._results[topic_partition] = (
                ErrorCode.REQUEST_TIMED_OUT,
                "The leadership was not handed over in time.",
            )
        self._answer()
