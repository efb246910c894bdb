"""FetchEventData: the selected data of many events of a partition, sent from where they are."""

from millstream.iobuf import IoBuf
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.data.fetch_at_once import Lent
from millstream.model.error_code import ErrorCode
from millstream.partition.events.feeds import DataAsk, FoundData
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.fetch_event_data import FetchEventDataRequest, FetchEventDataResponse, FoundEventData


def handle(node: Node, ctx: RequestContext, request: FetchEventDataRequest) -> None:
    """Answer when the data were read."""
    entry = node.partitions.find(request.topic_id, request.partition_index)
    if not isinstance(entry, Partition | Remote):
        missing = node.partitions.missing(request.topic_id)
        ctx.respond(FetchEventDataResponse(error_code=missing if entry is None else ErrorCode.KAFKA_STORAGE_ERROR))
        return
    wanted = [(one.event_id, bytes(one.descriptor)) for one in request.events]
    ask = DataAsk(entry.raft_group, request.current_leader_epoch, request.max_bytes, wanted)

    def done(found: FoundData, data: IoBuf | None) -> None:
        answer = FetchEventDataResponse(
            error_code=found.error,
            error_message=found.message or None,
            events=[FoundEventData(error, size) for error, size in found.results],
            data=b"" if data is None else data,
        )
        ctx.respond_vectored(answer, None if data is None else Lent(node.shard.arena, [data], 0))

    node.events.fetch_data(entry, ask, done)
