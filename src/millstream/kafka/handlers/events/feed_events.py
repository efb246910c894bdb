"""FeedEvents: metadata and descriptors of the next events of a partition, within what the consumer granted.

``partition.events.home`` reads, and waits, on the partition's home shard, no longer than the connection lasts. The
metadata are sent without a copy; their buffers of the partition's pools go back once they were sent.
"""

from typing import Final

from millstream.iobuf import IoBuf, Releasable
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.data.fetch_at_once import Lent
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from millstream.partition.events.feeds import Fed, FeedAsk
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.feed_events import EventTimes, FeedEventsRequest, FeedEventsResponse

MAX_WAIT_MS: Final = 60_000
"""A consumer that grants more time is answered after this."""


def handle(node: Node, ctx: RequestContext, request: FeedEventsRequest) -> None:
    """Answer when there are events, or when the granted time has passed."""
    entry = node.partitions.find(request.topic_id, request.partition_index)
    if not isinstance(entry, Partition | Remote):
        missing = node.partitions.missing(request.topic_id)
        ctx.respond(FeedEventsResponse(error_code=missing if entry is None else ErrorCode.KAFKA_STORAGE_ERROR))
        return
    ask = FeedAsk(
        entry.raft_group,
        id(ctx.connection),
        request.current_leader_epoch,
        Offset(request.next_event_id),
        request.max_events,
        request.max_bytes,
        min(max(0, request.max_wait_ms), MAX_WAIT_MS),
        request.stop,
    )

    parking = ctx.connection.intake.parking

    def done(fed: Fed, metadata: IoBuf | None, lease: Releasable | None) -> None:
        parking.go_on(ctx)
        answer = FeedEventsResponse(
            error_code=fed.error,
            error_message=fed.message or None,
            first_event_id=fed.first,
            high_watermark=fed.high_watermark,
            log_start_offset=fed.start,
            no_more_events=fed.no_more,
            times=[EventTimes(count, timestamp) for count, timestamp in fed.times],
            metadata_sizes=fed.metadata_sizes,
            metadata=b"" if metadata is None else metadata,
            descriptor_sizes=fed.descriptor_sizes,
            descriptors=fed.descriptors,
        )
        held = [one for one in (metadata, lease) if one is not None]
        ctx.respond_vectored(answer, Lent(node.shard.arena, held, 0) if held else None)

    end = node.events.feed(entry, ask, done)
    if not ctx.done:
        parking.wait(ctx, end)
