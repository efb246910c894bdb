"""A group on a bench of handlers."""

from coordinator_fakes import Broker, call
from group_calls import ID_NONE, ID_T, ID_U

from millstream.kafka.handlers.groups import (
    offset_commit,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)


def commit_request(group: str, topics: dict, version: int, member_id: str = "", generation: int = -1):
    ids = {"t": ID_T, "u": ID_U, "none": ID_NONE}
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(
                name=name if version < 10 else "",
                topic_id=ids[name] if version >= 10 else bytes(16),
                partitions=[
                    OffsetCommitRequestPartition(partition_index=i, committed_offset=o, committed_metadata="x")
                    for i, o in offsets.items()
                ],
            )
            for name, offsets in topics.items()
        ],
    )


def commit(broker: Broker, group: str, topics: dict, version: int = 9, **options) -> dict:
    (answer,) = call(broker, offset_commit, commit_request(group, topics, version, **options), version)
    return {
        (topic.name or topic.topic_id, p.partition_index): ErrorCode(p.error_code)
        for topic in answer.topics
        for p in topic.partitions
    }
