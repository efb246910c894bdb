"""ShareAcknowledge: what a member of a share group did with records that it has acquired (KIP-932).

Each partition is answered when its acknowledgements are stored. Epoch -1 ends the session, which releases what the
member still holds, after the acknowledgements.
"""

from millstream.kafka.context import Node, RequestContext
from millstream.kafka.handlers.data.share_places import Finish, acknowledge, is_member, leader_of
from millstream.model.error_code import ErrorCode
from millstream.share.sessions import FINAL_EPOCH, INITIAL_EPOCH, ShareSession, TopicPartition
from millstream.wire.messages.leader import NodeEndpoint
from millstream.wire.messages.share_acknowledge import (
    AcknowledgedPartition,
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)


def handle(node: Node, ctx: RequestContext, request: ShareAcknowledgeRequest) -> None:
    """Check the session, acknowledge, and answer when all is stored."""
    group_id, member_id, epoch = request.group_id, request.member_id, request.share_session_epoch
    if group_id is None or member_id is None or not is_member(group_id, member_id):
        ctx.respond(_refusal(ErrorCode.INVALID_REQUEST))
        return
    if epoch == INITIAL_EPOCH:
        ctx.respond(_refusal(ErrorCode.INVALID_SHARE_SESSION_EPOCH))
        return

    def found(session: ShareSession | ErrorCode) -> None:
        if isinstance(session, ErrorCode):
            ctx.respond(_refusal(session))
            return
        batches = {
            (topic.topic_id, one.partition_index): one.acknowledgement_batches
            for topic in request.topics
            for one in topic.partitions
            if one.acknowledgement_batches
        }
        results: dict[TopicPartition, ErrorCode] = {}
        finish = Finish(len(batches) + 1, lambda: ctx.respond(_answer(node, ctx, group_id, results)))
        acknowledge(node, ctx, group_id, member_id, batches, results, finish, renews=request.is_renew_ack)
        if epoch == FINAL_EPOCH:
            node.share_sessions.end(session)
        finish.settled()

    node.share_sessions.seek(group_id, member_id, epoch, found)


def _refusal(error: ErrorCode) -> ShareAcknowledgeResponse:
    return ShareAcknowledgeResponse(error_code=error, error_message=error.name)


def _answer(
    node: Node, ctx: RequestContext, group_id: str, results: dict[TopicPartition, ErrorCode]
) -> ShareAcknowledgeResponse:
    endpoints: list[NodeEndpoint] = []
    topics: dict[bytes, ShareAcknowledgeTopicResponse] = {}
    for topic_partition, error in results.items():
        topic_id, index = topic_partition
        leader = leader_of(node, ctx, topic_partition, error, endpoints)
        message = error.name if error else None
        topic = topics.setdefault(topic_id, ShareAcknowledgeTopicResponse(topic_id))
        topic.partitions.append(AcknowledgedPartition(index, error, message, leader))
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=node.share_partitions.limits_of(group_id).lock_us // 1000,
        responses=[*topics.values()],
        node_endpoints=endpoints,
    )
