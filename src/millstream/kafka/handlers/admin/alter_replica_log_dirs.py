"""AlterReplicaLogDirs: move replicas to another directory of the broker, which has only ``data.dir``.

A request for the present directory succeeds; any other directory is LOG_DIR_NOT_FOUND.
"""

import os

from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDirPartitionResult,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopicResult,
)


def handle(node: Node, ctx: RequestContext, request: AlterReplicaLogDirsRequest) -> None:
    """Check the requested directory of each replica."""
    own = os.path.abspath(node.settings.data_dir)
    results: dict[str, list[AlterReplicaLogDirPartitionResult]] = {}
    for wanted in request.dirs:
        for topic in wanted.topics:
            for index in topic.partitions:
                if wanted.path != own:
                    error = ErrorCode.LOG_DIR_NOT_FOUND
                elif node.metadata.partition(topic.name, index) is None:
                    error = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                else:
                    error = ErrorCode.NONE
                results.setdefault(topic.name, []).append(
                    AlterReplicaLogDirPartitionResult(partition_index=index, error_code=error)
                )
    ctx.respond(
        AlterReplicaLogDirsResponse(
            results=[
                AlterReplicaLogDirTopicResult(topic_name=name, partitions=partitions)
                for name, partitions in results.items()
            ]
        )
    )
