"""Share groups for the pages about groups: members, and how many records they have not finished.

A share group has no committed offsets. In each partition it has a start, before which every record is finished; some
are finished after it, too.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from millstream.client import group_offsets, share_groups
from millstream.client.cluster import Cluster
from millstream.console import facts
from millstream.console.facts import Described, Group, Lag, Member
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsResponse,
    ShareOffsetsPartition,
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
    known = _known(cluster, groups)
    left = {name: {place: at.lag for place, at in of.items() if at.lag >= 0} for name, of in known.items()}
    starts = {name: {place: at.start_offset for place, at in of.items()} for name, of in known.items()}
    found = facts.lags(cluster, starts)
    return {
        name: [
            lag._replace(finished=max(0, lag.records - left[name].get((lag.topic, lag.partition), lag.records)))
            for lag in lags
        ]
        for name, lags in found.items()
    }


def described(cluster: Cluster, group: Group) -> Described | None:
    """A group of any kind with its members; None if its coordinator does not describe it."""
    found = describe_shares(cluster, [group]) if group.kind == SHARE else facts.describe_groups(cluster, [group])
    return found.get(group.group_id)


def lags_of(cluster: Cluster, group: Group) -> list[Lag]:
    """How far a group of any kind is behind, by partition."""
    if group.kind == SHARE:
        found = share_lags(cluster, [group])
    else:
        found = facts.lags(cluster, facts.committed(cluster, [group]))
    return found.get(group.group_id, [])


def positions(cluster: Cluster, group: Group) -> dict[facts.TopicPartition, int]:
    """Where a group of any kind reads on: its committed offsets, or the starts of a share group."""
    if group.kind == SHARE:
        known = _known(cluster, [group]).get(group.group_id, {})
        return {place: at.start_offset for place, at in sorted(known.items())}
    return facts.committed(cluster, [group]).get(group.group_id, {})


def move(cluster: Cluster, group: str, kind: str, offsets: Mapping[facts.TopicPartition, int]) -> None:
    """Let a group without members read on at these offsets. Raises as `group_offsets.set_offsets`."""
    (share_groups.set_starts if kind == SHARE else group_offsets.set_offsets)(cluster, group, offsets)


def _known(cluster: Cluster, groups: Sequence[Group]) -> dict[str, dict[facts.TopicPartition, ShareOffsetsPartition]]:
    """The partitions that the share groups among ``groups`` have a start in, by id."""
    found: dict[str, dict[facts.TopicPartition, ShareOffsetsPartition]] = {}
    for node_id, ids in _by_coordinator(groups):
        request = DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsGroup(name) for name in ids])
        for one in facts.ask(cluster, node_id, request, DescribeShareGroupOffsetsResponse).groups:
            if not one.error_code:
                found[one.group_id] = {
                    (topic.topic_name, at.partition_index): at
                    for topic in one.topics
                    for at in topic.partitions
                    if at.start_offset >= 0 and not at.error_code
                }
    return found


def _by_coordinator(groups: Sequence[Group]) -> list[tuple[int, list[str]]]:
    found: dict[int, list[str]] = {}
    for group in groups:
        if group.kind == SHARE:
            found.setdefault(group.coordinator, []).append(group.group_id)
    return list(found.items())
