"""Requests about streams groups (KIP-1071), as ``GroupCoordinator`` passes them on."""

from typing import Final

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.requests import Verbs
from millstream.core.group.group import Group
from millstream.core.group.image import group_tombstone
from millstream.core.group.outputs import Key, Value
from millstream.core.group.step import Step
from millstream.core.group.streams.heartbeat import check_request, heartbeat, leave, refusal
from millstream.core.group.streams_state.group import StreamsGroup


def begin(step: Step, holder: Group) -> GroupChange[StreamsGroup] | None:
    """The change that makes a streams group of a new group or an empty classic one, whose committed offsets stay.
    Groups of other types do not change.
    """
    _ = step
    if holder.assigned is not None or not holder.is_empty:
        return None
    before: list[tuple[Key, Value | None]] = []
    if holder.standing.counts is not None:
        before.append(group_tombstone(holder.group_id))
    return GroupChange(holder, StreamsGroup(holder.group_id), before)


STREAMS: Final = Verbs(StreamsGroup, check_request, begin, heartbeat, leave, refusal)
