"""PushEvents: append one event batch, and answer with the id of its first event when it is committed.

It is a produce with one slot (``kafka.handlers.data.produce``): same checks, same hop to the partition's home, same
group commit, same idempotence. Only the answer differs: it has an error message.
"""

from millstream.iobuf import IoBuf
from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.data.produce import ProduceCall, append_here
from millstream.model.error_code import ErrorCode
from millstream.partition.append.batch import AppendResult
from millstream.partition.partition import Partition
from millstream.partition.table import Remote
from millstream.wire.messages.produce import ProduceRequest
from millstream.wire.messages.push_events import PushEventsRequest, PushEventsResponse


class PushCall(ProduceCall):
    """A push in progress."""

    __slots__ = ("_name", "_node")

    def __init__(self, node: Node, context: RequestContext, request: PushEventsRequest, name: str) -> None:
        super().__init__(context, ProduceRequest(acks=-1, timeout_ms=request.timeout_ms), 1)
        self._node = node
        self._name = name

    def answer(self, *, settled: bool = True) -> None:
        """Build and send the answer."""
        result = self.results[0] if settled else AppendResult(int(ErrorCode.REQUEST_TIMED_OUT))
        error, base = result.error_code, result.base_offset
        message = self._message(error) if error else None
        self.context.respond(PushEventsResponse(error_code=error, error_message=message, first_event_id=base))

    def _message(self, error: int) -> str | None:
        topic = self._node.metadata.topic(self._name)
        match error:
            case ErrorCode.MESSAGE_TOO_LARGE:
                most = topic.config.events_max_bytes if topic is not None else 0
                return (
                    f"an event of more than events.max.bytes, which is {most}, or a batch larger than a request may be:"
                    " split it, or keep the data elsewhere and their address in the metadata"
                )
            case ErrorCode.POLICY_VIOLATION:
                return f"{self._name} is complete: nothing is added to it"
            case ErrorCode.INVALID_RECORD:
                return "the bytes are no event batch"
            case ErrorCode.INVALID_TOPIC_EXCEPTION:
                return f"{self._name} is no event topic: create one with topic.kind=events"
            case ErrorCode.THROTTLING_QUOTA_EXCEEDED:
                return (
                    f"no buffer of the producers' pools of {self._name} (events.partition) was free in time: "
                    "send less at once, or give the pools more buffers"
                )
            case ErrorCode.NOT_ENOUGH_REPLICAS:
                return "the broker has no memory for the batch now"
            case ErrorCode.KAFKA_STORAGE_ERROR:
                return "the broker cannot store the batch now: its disk is full or the log is faulty"
            case _:
                return None


def handle(node: Node, ctx: RequestContext, request: PushEventsRequest) -> None:
    """Find the partition's home and append there; the answer follows the commit."""
    topic = node.metadata.topic_by_id(request.topic_id)
    call = PushCall(node, ctx, request, "" if topic is None else topic.name)
    entry = node.partitions.find(request.topic_id, request.partition_index)
    records = request.batch
    if topic is not None and not topic.config.has_events:
        call.failed(0, ErrorCode.INVALID_TOPIC_EXCEPTION)
    elif isinstance(entry, Partition):
        append_here(node, entry, records, call, 0)
    elif isinstance(entry, Remote):
        if node.home.append(entry.shard, entry.raft_group, records, call, 0):
            ctx.hold()
    else:
        missing = node.partitions.missing(request.topic_id)
        call.failed(0, missing if entry is None else ErrorCode.KAFKA_STORAGE_ERROR)
    if isinstance(records, IoBuf):
        records.release()
    if call.unsettled and not node.ack_timeouts.armed:
        node.ack_timeouts.arm()
