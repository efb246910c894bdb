"""Asking a partition's leader to have other objects in the place of archived segments (ReplaceSegments)."""

import uuid
from collections.abc import Sequence

from millstream.client.cluster import Cluster, error_of
from millstream.format.manifest import ArchivedSegment, ArchiveId
from millstream.wire.messages.replace_segments import (
    ReplaceSegmentsRequest,
    ReplaceSegmentsResponse,
    SegmentOfReplacement,
)


def replace_segments(
    cluster: Cluster,
    topic: str,
    owner: ArchiveId,
    replacement_id: uuid.UUID,
    expected_version: int,
    before: Sequence[ArchivedSegment],
    after: Sequence[ArchivedSegment],
) -> int:
    """Have the segments ``after`` in the place of ``before``; the version of the manifest after it.

    A retriable answer, and a connection that is lost, are repeated for the cluster's ``timeout_s``: the leader knows by
    the id what it has carried out.

    Raises:
        Rejected: it is not carried out, for the reason that the code names.
        Unavailable: whether it is done is unknown; a later call with the same id tells.
    """
    request = ReplaceSegmentsRequest(
        owner.topic_id.bytes,
        owner.partition_index,
        replacement_id.bytes,
        expected_version,
        [_described(one) for one in before],
        [_described(one) for one in after],
    )

    def ask() -> int:
        connection = cluster.connection(cluster.leader(topic, owner.partition_index).node_id)
        answer = connection.ask(request, ReplaceSegmentsResponse)
        if answer.error_code:
            what = f"segments of {topic}-{owner.partition_index} are not replaced"
            raise error_of(answer.error_code, what, answer.error_message)
        return answer.version

    return cluster.insist("ReplaceSegments", ask, lambda: cluster.forget(topic))


def _described(one: ArchivedSegment) -> SegmentOfReplacement:
    return SegmentOfReplacement(
        one.base_offset,
        one.end_offset,
        one.size_bytes,
        one.checksum,
        one.min_timestamp,
        one.max_timestamp,
        one.term,
        one.index_bytes,
        one.revision,
    )
