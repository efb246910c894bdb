"""RestoreBatches: batches of a backup go to the end of a partition (``partition.append.restored``).

The answer follows the commit. A partition of another shard is reached through ``partition.hop.admin``.
"""

from millstream.errors import MillstreamError, Rejected
from millstream.iobuf import IoBuf
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.restore_batches import RestoreBatchesRequest, RestoreBatchesResponse


def handle(node: Node, ctx: RequestContext, request: RestoreBatchesRequest) -> None:
    """Find the partition's home and append there."""

    def done(result: int | MillstreamError) -> None:
        if isinstance(result, MillstreamError):
            ctx.respond(RestoreBatchesResponse(error_code=int(result.code), error_message=result.message))
        else:
            ctx.respond(RestoreBatchesResponse(next_offset=result))

    data = _copied(request.records)
    entry = node.partitions.find(request.topic_id, request.partition_index)
    if isinstance(entry, Partition | Remote):
        node.admin_home.restore_batches(entry, data, done)
    else:
        missing = node.partitions.missing(request.topic_id) if entry is None else ErrorCode.KAFKA_STORAGE_ERROR
        done(Rejected(f"partition {request.partition_index} is not here", missing))


def _copied(records: object) -> bytes:
    """The bytes of the request, which outlive it: the batches may wait for memory."""
    if isinstance(records, IoBuf):
        try:
            return b"".join(records.views())
        finally:
            records.release()
    return bytes(records) if isinstance(records, bytes | bytearray | memoryview) else b""
