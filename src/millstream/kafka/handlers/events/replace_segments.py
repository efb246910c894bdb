"""ReplaceSegments: a job commits new objects in the place of archived segments of one partition.

``tiers.replacing`` has the rules and the errors. A partition of another shard is reached through
``partition.hop.admin``. The answer follows the commit; a job whose request times out repeats it.
"""

from collections.abc import Sequence

from millstream.core.controller.commands import REPLACING_SEGMENTS
from millstream.errors import MillstreamError, Rejected
from millstream.format.manifest import ArchivedSegment
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, RaftGroupId, ShardId, TimestampMs
from millstream.model.replication import Term
from millstream.partition.partition import Partition
from millstream.partition.replace_segments import replace_segments
from millstream.partition.table import Remote
from millstream.tiers.replacing import Replacement
from millstream.wire.messages.replace_segments import (
    ReplaceSegmentsRequest,
    ReplaceSegmentsResponse,
    SegmentOfReplacement,
)


def handle(node: Node, ctx: RequestContext, request: ReplaceSegmentsRequest) -> None:
    """Find the partition's home and replace there; the answer follows the commit."""

    def done(result: int | MillstreamError) -> None:
        if isinstance(result, MillstreamError):
            ctx.respond(ReplaceSegmentsResponse(error_code=int(result.code), error_message=result.message))
        else:
            ctx.respond(ReplaceSegmentsResponse(version=result))

    state = node.metadata.state
    if state.registry.brokers and state.feature_level < REPLACING_SEGMENTS:
        done(Rejected("a broker of the cluster runs an older release: upgrade it", ErrorCode.UNSUPPORTED_VERSION))
        return
    wanted = Replacement(
        request.replacement_id, request.expected_version, _segments(request.before), _segments(request.after)
    )
    entry = node.partitions.find(request.topic_id, request.partition_index)
    if isinstance(entry, Partition):
        replace_segments(entry, node.admin_home.replacing, wanted, done)
    elif isinstance(entry, Remote):
        node.admin_home.replace_segments(ShardId(entry.shard), RaftGroupId(entry.raft_group), wanted, done)
    else:
        missing = node.partitions.missing(request.topic_id) if entry is None else ErrorCode.KAFKA_STORAGE_ERROR
        done(Rejected(f"partition {request.partition_index} is not here", missing))


def _segments(segments: Sequence[SegmentOfReplacement]) -> tuple[ArchivedSegment, ...]:
    return tuple(
        ArchivedSegment(
            Offset(one.base_offset),
            Offset(one.end_offset),
            one.size_bytes,
            one.checksum,
            TimestampMs(one.min_timestamp),
            TimestampMs(one.max_timestamp),
            Term(one.term),
            one.index_bytes,
            one.revision,
        )
        for one in segments
    )
