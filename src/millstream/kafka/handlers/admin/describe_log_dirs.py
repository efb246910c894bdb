"""DescribeLogDirs: the size of every partition on disk, and the space of the disk.

The only directory is ``data.dir``. A partition's size is that of its segments; the shared write-ahead log counts for
none. Requested partitions that do not exist are left out, as in Kafka. No replica lags, and none moves to another
directory.
"""

import os

from millstream.cluster.metadata import MetadataCache
from millstream.errors import MillstreamError
from millstream.kafka.context import Node, RequestContext
from millstream.model.error_code import ErrorCode
from millstream.partition.hop.admin import Sizes
from millstream.wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)


def handle(node: Node, ctx: RequestContext, request: DescribeLogDirsRequest) -> None:
    """Collect the sizes of all shards' partitions."""

    def done(sizes: Sizes | MillstreamError) -> None:
        log_dir = os.path.abspath(node.settings.data_dir)
        if isinstance(sizes, MillstreamError):
            result = DescribeLogDirsResult(error_code=sizes.code, log_dir=log_dir)
        else:
            result = _described(node, request, log_dir, dict(sizes))
        ctx.respond(DescribeLogDirsResponse(results=[result]))

    node.admin_home.log_sizes(done)


def _described(
    node: Node, request: DescribeLogDirsRequest, log_dir: str, sizes: dict[int, int]
) -> DescribeLogDirsResult:
    topics: list[DescribeLogDirsTopic] = []
    for name, indexes in _wanted(node.metadata, request):
        meta = node.metadata.topic(name)
        if meta is None:
            continue
        partitions = [
            DescribeLogDirsPartition(partition_index=part.index, partition_size=sizes[part.raft_group])
            for part in meta.partitions
            if (indexes is None or part.index in indexes) and part.raft_group in sizes
        ]
        if partitions:
            topics.append(DescribeLogDirsTopic(name=name, partitions=partitions))
    try:
        disk, directory = node.storage.disk, node.settings.data_dir
        total, usable = disk.total_bytes(directory), disk.free_bytes(directory)
    except OSError:
        return DescribeLogDirsResult(error_code=ErrorCode.KAFKA_STORAGE_ERROR, log_dir=log_dir)
    return DescribeLogDirsResult(log_dir=log_dir, topics=topics, total_bytes=total, usable_bytes=usable)


def _wanted(metadata: MetadataCache, request: DescribeLogDirsRequest) -> list[tuple[str, set[int] | None]]:
    """Topics with the requested partitions; None is all of them."""
    if request.topics is None:
        return [(name, None) for name in metadata.names()]
    wanted: dict[str, set[int] | None] = {}
    for topic in request.topics:
        known = wanted.setdefault(topic.topic, set())
        assert known is not None
        known.update(topic.partitions)
    return list(wanted.items())
