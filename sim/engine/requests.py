"""What clients ask a simulated broker for, as its handlers and coordinators see it: appends, offsets of groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.model.error_code import ErrorCode
from millstream.partition.append.batch import AppendResult
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.append.admission import Admission
    from millstream.partition.append.batch import ProducerTransaction
    from millstream.partition.partition import Partition
    from sim.engine.local_storage import LocalShard


class Produced(NamedTuple):
    """Answer to a produce."""

    error: int
    base_offset: int
    term: int


class ProduceCall:
    """A produce call of one slot, as `append_here` sees it. It is answered once."""

    def __init__(
        self,
        partition: Partition,
        acks: int,
        reply: Callable[[Produced], None],
        transaction: ProducerTransaction | None = None,
    ) -> None:
        self.request = SimpleNamespace(acks=acks)
        self.results: list[AppendResult] = [AppendResult(0)]
        self.context = SimpleNamespace(hold=_nothing)
        self.transaction = transaction
        self.unsettled = 0  # the timeout of a call is the client's here
        self._partition = partition
        self._reply = reply

    def acked(self, slot: int) -> None:
        """The batch is committed, or refused."""
        result = self.results[slot]
        self._reply(Produced(result.error_code, result.base_offset, self._partition.leader_epoch))

    def failed(self, slot: int, error: ErrorCode) -> None:
        """The batch is refused."""
        self.settle(slot, AppendResult(int(error)))

    def settle(self, slot: int, result: AppendResult) -> None:
        """This is the answer."""
        self.results[slot] = result
        self.acked(slot)

    def explain(self, slot: int, refusal: Any) -> None:
        """No client here asks why."""

    def expire(self, now_us: int) -> None:
        """The client has a deadline of its own."""


class Polling:
    """A reader that asks again."""

    def arm(self, partition: Partition) -> None:
        """Nothing to arm."""


def handlers_node(shard: LocalShard, admission: Admission) -> Any:
    """What the handler of a produce sees of a shard."""
    return SimpleNamespace(
        shard=shard.context, storage=shard.storage, admission=admission, ack_timeouts=SimpleNamespace(armed=True)
    )


def commit_request(group_id: str, topic: str, offset: int) -> OffsetCommitRequest:
    """OffsetCommit of partition 0 of a topic, as a consumer without membership sends it."""
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topics = [OffsetCommitRequestTopic(name=topic, partitions=[partition])]
    return OffsetCommitRequest(group_id=group_id, topics=topics)


def commit_error(answer: Any) -> ErrorCode:
    """The error of the answer to a `commit_request`, or of its refusal."""
    if isinstance(answer, OffsetCommitResponse):
        return ErrorCode(answer.topics[0].partitions[0].error_code)
    return answer


def fetch_request(group_id: str) -> OffsetFetchRequestGroup:
    """OffsetFetch of all that a group has committed."""
    return OffsetFetchRequestGroup(group_id=group_id, topics=None)


def fetched_offsets(answer: Any) -> tuple[ErrorCode, dict[str, int]]:
    """The error of the answer to a `fetch_request`, or of its refusal, and the offset of each topic."""
    if not isinstance(answer, OffsetFetchResponseGroup):
        return answer, {}
    return ErrorCode(answer.error_code), {one.name: one.partitions[0].committed_offset for one in answer.topics}


def _nothing() -> None:
    """A connection here is never held back."""
