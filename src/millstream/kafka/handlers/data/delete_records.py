"""DeleteRecords: move the log start offset of partitions. Each has its own result.

``partition.delete_records`` has the rules. Partitions of other shards are reached through ``partition.hop.admin``, one
call per shard; the response is sent when all changes are durable. If ``timeout_ms`` passes first, the others are
answered REQUEST_TIMED_OUT: they may have been done, and a retry is harmless. An internal topic is refused, and a
partition that is named twice gets the last offset, both as in Kafka.
"""

from collections import defaultdict
from collections.abc import Sequence

from millstream.core.controller.topic_names import INTERNAL_TOPICS
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.timeouts import bounded_ms
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.delete_records import NO_LOW_WATERMARK, Deleted, delete_records
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

Key = tuple[str, int]


def handle(node: Node, ctx: RequestContext, request: DeleteRecordsRequest) -> None:
    """Trim every partition on its home shard. Answer when the last one is done."""
    wanted = {
        (topic.name, asked.partition_index): asked.offset for topic in request.topics for asked in topic.partitions
    }
    call = _Call(node, ctx, wanted)
    call.start(bounded_ms(request.timeout_ms))


class _Call:
    """One request: the results so far, and the deadline for the others."""

    __slots__ = ("ctx", "found", "missing", "node", "timer", "wanted")

    def __init__(self, node: Node, ctx: RequestContext, wanted: dict[Key, int]) -> None:
        self.node = node
        self.ctx = ctx
        self.wanted = wanted
        self.found: dict[Key, Deleted] = dict.fromkeys(wanted, (int(ErrorCode.REQUEST_TIMED_OUT), NO_LOW_WATERMARK))
        self.missing = 1 + len(wanted)
        self.timer = None

    def start(self, timeout_ms: int) -> None:
        table = self.node.partitions
        if timeout_ms > 0:
            self.timer = self.node.shard.reactor.call_later(timeout_ms * 1000, self.answer)
        remote: defaultdict[int, list[tuple[Key, int, int]]] = defaultdict(list)
        for key, offset in self.wanted.items():
            entry = table.find(*key)
            if entry is None:
                self.settle(key, (int(table.missing(key[0])), NO_LOW_WATERMARK))
            elif key[0] in INTERNAL_TOPICS:
                self.settle(key, (int(ErrorCode.INVALID_TOPIC_EXCEPTION), NO_LOW_WATERMARK))
            elif isinstance(entry, Partition):
                delete_records(entry, Offset(offset), lambda deleted, key=key: self.settle(key, deleted))
            elif isinstance(entry, Remote):
                remote[entry.shard].append((key, entry.raft_group, offset))
            else:
                self.settle(key, (int(ErrorCode.KAFKA_STORAGE_ERROR), NO_LOW_WATERMARK))
        for shard, asked in remote.items():
            keys = [key for key, _, _ in asked]
            self.node.admin_home.delete_records(
                shard,
                [(raft_group, offset) for _, raft_group, offset in asked],
                lambda results, keys=keys: self.settle_all(keys, results),
            )
        self.one_less()

    def settle_all(self, keys: list[Key], results: Sequence[Deleted]) -> None:
        for key, deleted in zip(keys, results, strict=True):
            self.settle(key, deleted)

    def settle(self, key: Key, deleted: Deleted) -> None:
        self.found[key] = deleted
        self.one_less()

    def one_less(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.answer()

    def answer(self) -> None:
        """Answer with the present results. Later ones have no effect."""
        if self.timer is not None:
            self.timer.cancel()
        if self.ctx.done:
            return
        topics: dict[str, list[DeleteRecordsPartitionResult]] = {}
        for (name, index), (error, start) in self.found.items():
            topics.setdefault(name, []).append(
                DeleteRecordsPartitionResult(partition_index=index, low_watermark=start, error_code=error)
            )
        self.ctx.respond(
            DeleteRecordsResponse(
                topics=[DeleteRecordsTopicResult(name=name, partitions=results) for name, results in topics.items()]
            )
        )
