"""Share groups for the pages about groups: members, and how many records they have not finished.

A share group has no committed offsets. In each partition it has a start, before which every record is finished; some
are finished behind it, too.
"""

from collections.abc import Sequence
from typing import Final

from millstream.client.cluster import Cluster
from millstream.console import facts
from millstream.console.facts import Described, Group, Lag, Member
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
)
from millstream.wire.messages.share_group_describe import ShareGroupDescribeRequest, ShareGroupDescribeResponse

SHARE: Final = "share"
"""The kind of a group (``facts.Group``)."""


def describe_shares(cluster: Cluster, groups: Sequence[Group]) -> dict[str, Described]:
    """The share groups among ``groups`` with their members, by id."""
    found: dict[str, Described] = {}
    for node_id, ids in _by_coordinator(groups):
        for one in facts.ask(cluster, node_id, ShareGroupDescribeRequest(ids), ShareGroupDescribeResponse).groups:
            if not one.error_code:
                members = [
                    Member(
                        member.member_id,
                        None,
                        member.client_id,
                        member.client_host,
                        [(t.topic_name, p) for t in member.assignment.topic_partitions for p in t.partitions],
                    )
                    for member in one.members
                ]
                found[one.group_id] = Described(one.group_state, one.assignor_name, members)
    return found


def share_lags(cluster: Cluster, groups: Sequence[Group]) -> dict[str, list[Lag]]:
    """How far the share groups among ``groups`` are behind, by id. Partitions that were never read are left out."""
    left: dict[str, dict[facts.TopicPartition, int]] = {}
    starts: dict[str, dict[facts.TopicPartition, int]] = {}
    for node_id, ids in _by_coordinator(groups):
        request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsGroup(name) for name in ids])
        for one in facts.ask(cluster, node_id, request, DescribeShareGroupOffsetsResponse).groups:
            if not one.error_code:
                known = {
                    (topic.topic_name, at.partition_index): at
                    for topic in one.topics
                    for at in topic.partitions
                    if at.start_offset >= 0 and not at.error_code
                }
                starts[one.group_id] = {place: at.start_offset for place, at in known.items()}
                left[one.group_id] = {place: at.lag for place, at in known.items() if at.lag >= 0}
    found = facts.lags(cluster, starts)
    return {
        name: [
            lag._replace(finished=max(0, lag.records - left[name].get((lag.topic, lag.partition), lag.records)))
            for lag in lags
        ]
        for name, lags in found.items()
    }


def positions(cluster: Cluster, group: Group) -> dict[facts.TopicPartition, int]:
    """Where a group of any kind reads on: its committed offsets, or the starts of a share group."""
    if group.kind == SHARE:
        of = share_lags(cluster, [group]).get(group.group_id, ())
        return {(lag.topic, lag.partition): lag.committed for lag in of}
    return facts.committed(cluster, [group]).get(group.group_id, {})


def _by_coordinator(groups: Sequence[Group]) -> list[tuple[int, list[str]]]:
    found: dict[int, list[str]] = {}
    for group in groups:
        if group.kind == SHARE:
            found.setdefault(group.coordinator, []).append(group.group_id)
    return list(found.items())
