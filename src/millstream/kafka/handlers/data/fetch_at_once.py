"""A fetch without a session, whose data are on this shard and in memory, read and answered in one call.

Most fetches of a consumer that catches up, or keeps up with a busy topic, are like that, and librdkafka has no sessions
at all. The data of a request for one partition may also be in the page cache. Of more partitions these are read by
``fetch.FetchCall``, because what is read of one would be for nothing if the next one has to wait. Any other request (an
error, old data, another shard, less data than ``min_bytes``) is left to ``fetch.FetchCall``, which starts from the
beginning, because this module has changed nothing.

The response shares fragments of the log cache until it is sent, within the arena's share for responses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.core.fetch_session import FINAL_EPOCH, NO_SESSION, is_follower
from millstream.iobuf import MemoryClass
from millstream.kafka.handlers.data.fetch_refusals import BY_ID
from millstream.kafka.handlers.data.nearest import selects_by_rack
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.partition import Gate, Partition
from millstream.partition.read.batches import offset_error, read_cached, read_pages
from millstream.partition.read.list_offsets import READ_COMMITTED
from millstream.wire.messages.fetch import FetchResponse
from millstream.wire.packed_fetch import ReadTopic, pack_fetch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.iobuf import Arena, IoBuf, Releasable
    from millstream.kafka.context import Node, RequestContext
    from millstream.wire.messages.fetch import FetchPartition, FetchRequest
    from millstream.wire.packed_fetch import ReadPartition

ROOM_MAX: Final = 1 << 20
"""Maximum size of one response in bytes. Consumers request 50 MiB and accept less; large responses would leave room for
few.
"""

_NONE: Final = ErrorCode.NONE


class Lent:
    """The record data behind a response in flight, what else it holds, and its reservation."""

    __slots__ = ("_arena", "_data", "_reserved")

    def __init__(self, arena: Arena, data: Sequence[Releasable], reserved: int) -> None:
        self._arena = arena
        self._data = data
        self._reserved = reserved

    def release(self) -> None:
        """Release both: the response was sent or dropped."""
        for data in self._data:
            data.release()
        if self._reserved:
            self._arena.unreserve(MemoryClass.FETCH, self._reserved)


def answer_at_once(node: Node, ctx: RequestContext, request: FetchRequest) -> bool:
    """Answer, or return False and leave everything unchanged."""
    version = ctx.api_version
    if request.session_epoch != FINAL_EPOCH or request.session_id != NO_SESSION or is_follower(request, version):
        return False
    if ctx.merge is not None or selects_by_rack(node, request.rack_id):
        return False
    held: list[IoBuf] = []
    room = ctx.fetch_room(min(request.max_bytes, node.settings.fetch_max_bytes, ROOM_MAX))
    topics = _read(node, request, version, held, room)
    size = sum(map(len, held))
    arena = node.shard.arena
    if topics is not None and size >= max(1, request.min_bytes) and arena.reserve(MemoryClass.FETCH, size):
        lent = Lent(arena, held, size)
        if ctx.charge_fetch(size):
            lent.release()
            ctx.respond(FetchResponse())
            return True
        node.meters.fetched.inc(size)
        committed = request.isolation_level == READ_COMMITTED
        ctx.respond_packed(pack_fetch(version, ctx.head(), NO_SESSION, topics, committed=committed), lent)
        return True
    for data in held:
        data.release()
    return False


def _read(node: Node, request: FetchRequest, version: int, held: list[IoBuf], room: int) -> list[ReadTopic] | None:
    """The requested data, or None if the request needs more than this module. ``held`` gets the data."""
    find = node.partitions.find
    alone = len(request.topics) == 1 and len(request.topics[0].partitions) == 1
    seen: set[Partition] = set()
    topics: list[ReadTopic] = []
    for topic in request.topics:
        key = topic.topic if version < BY_ID else topic.topic_id
        answers: list[ReadPartition] = []
        for asked in topic.partitions:
            partition = find(key, asked.partition)
            if not isinstance(partition, Partition) or partition in seen or not _is_plain(partition, asked):
                return None
            seen.add(partition)
            high_watermark = partition.high_watermark
            start = partition.log.start_offset
            data = None
            limit = min(asked.partition_max_bytes, room)
            if asked.fetch_offset < high_watermark and (limit > 0 or not held):
                try:
                    offset = Offset(asked.fetch_offset)
                    data = read_cached(partition, offset, limit, minimum_one=not held)
                    if data is None and alone:
                        data = read_pages(partition, offset, Offset(high_watermark), limit, minimum_one=True)
                except Exception as error:  # noqa: BLE001 - the boundary
                    partition.failed("read", error)
                if data is None:
                    return None
                held.append(data)
                room -= len(data)
            elif asked.fetch_offset >= high_watermark and not partition.group.knows_committed:
                return None
            answers.append((asked.partition, high_watermark, high_watermark, start, data))
        topics.append(ReadTopic(topic.topic, topic.topic_id, answers))
    return topics


def _is_plain(partition: Partition, asked: FetchPartition) -> bool:
    """Whether a plain read of the partition is the whole answer."""
    epoch = asked.current_leader_epoch
    return (
        not (partition.gate and partition.gate & Gate.EVENTS)
        and offset_error(partition, Offset(asked.fetch_offset)) is _NONE
        and not partition.transactions
        and asked.last_fetched_epoch < 0
        and (epoch < 0 or partition.serving(epoch) is _NONE)
    )
