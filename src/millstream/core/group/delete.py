"""DeleteGroups and OffsetDelete: an administrator deletes a group, or some of its offsets (KIP-229, KIP-496).

Only a group without members can be deleted. Its offsets are deleted with it, including those of commits in flight to
the log and those in open transactions, which then commit nothing for the group. Single offsets may also be deleted from
an active consumer or streams group, if no member subscribes to their topic. The response is sent when the tombstones
are durable, so that nothing deleted comes back. A deletion that cannot be written is answered with an error, and may
have happened in part.
"""

from collections.abc import Callable

from millstream.core.group.commit import offsets_under_way
from millstream.core.group.group import CONSUMER_PROTOCOL, Group
from millstream.core.group.image import group_tombstones
from millstream.core.group.member import Token
from millstream.core.group.outputs import Delete, DeleteOffsets
from millstream.core.group.retention import PendingRemoval, tombstones
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_groups import DeletableGroupResult
from millstream.wire.messages.offset_delete import (
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from millstream.wire.schema import Message


def delete_group(step: Step, group: Group | None, delete: Delete, forgotten: list[Group]) -> None:
    """Handle one group of a DeleteGroups. ``forgotten`` gets the group once its deletion is durable."""

    def answer(error: ErrorCode) -> DeletableGroupResult:
        return DeletableGroupResult(group_id=delete.group_id, error_code=error)

    if group is None or not group.is_empty:
        error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else ErrorCode.NON_EMPTY_GROUP
        step.out.answer(delete.token, answer(error))
        return
    if group.streams is not None and is_being_deleted(step, group):
        # If this one failed and the other one did not, the group would be here and not in the log.
        step.out.answer(delete.token, answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS))
        return
    for deadline in group.rebalance.pending_joins.values():
        step.cancel(deadline)
    group.rebalance.pending_joins.clear()
    topic_partitions = [(topic, partition) for topic, partition, _ in group.offsets]
    topic_partitions += (offsets_under_way(step, group) | group.offsets.pending.topic_partitions()) - set(
        topic_partitions
    )
    step.log(group, f"deleted with {len(topic_partitions)} committed offsets")
    _remove(step, group, topic_partitions, forgotten, delete.token, answer)


def is_being_deleted(step: Step, group: Group) -> bool:
    """Whether the tombstones of the whole group are in flight to the log."""
    removals = (one.removal if isinstance(one, DeletionPart) else one for one in step.writes.values())
    return any(one.group is group and isinstance(one, PendingRemoval) and one.forgotten is not None for one in removals)


def delete_offsets(step: Step, group: Group | None, delete: DeleteOffsets) -> None:
    """Handle an OffsetDelete. Its topics exist."""
    error = ErrorCode.NONE
    if group is None or group.share is not None:
        error = ErrorCode.GROUP_ID_NOT_FOUND
    elif not group.is_empty and group.assigned is None and group.protocol_type != CONSUMER_PROTOCOL:
        error = ErrorCode.NON_EMPTY_GROUP  # the topics that its members consume are unknown
    if group is None or error is not ErrorCode.NONE:
        step.out.answer(delete.token, OffsetDeleteResponse(error_code=error))
        return
    not_visible = offsets_under_way(step, group) | group.offsets.pending.topic_partitions()
    topic_partitions: list[tuple[str, int]] = []
    topics: list[OffsetDeleteResponseTopic] = []
    for topic in delete.request.topics:
        consumed = group.consumes(topic.name)
        code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if consumed else ErrorCode.NONE
        indexes = [partition.partition_index for partition in topic.partitions]
        results = [OffsetDeleteResponsePartition(partition_index=index, error_code=code) for index in indexes]
        topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=results))
        if not consumed:
            topic_partitions += [
                (topic.name, index)
                for index in indexes
                if group.offsets.get(topic.name, index) is not None or (topic.name, index) in not_visible
            ]
    done = OffsetDeleteResponse(topics=topics)

    def answer(error: ErrorCode) -> OffsetDeleteResponse:
        return done if error is ErrorCode.NONE else OffsetDeleteResponse(error_code=error)

    if topic_partitions:
        _remove(step, group, topic_partitions, None, delete.token, answer)
    elif group.writes.in_flight:
        step.when_written(group, delete.token, answer)
    else:
        step.out.answer(delete.token, done)


def _remove(
    step: Step,
    group: Group,
    topic_partitions: list[tuple[str, int]],
    forgotten: list[Group] | None,
    token: Token,
    answer: Callable[[ErrorCode], Message],
) -> None:
    """Write tombstones for these offsets, and for the group if ``forgotten`` is given; then respond."""
    deletion = _Deletion(token, answer)
    parts = list(tombstones(group.group_id, topic_partitions)) or [([], ())]
    for number, (removed, records) in enumerate(parts, start=1):
        last = number == len(parts)
        if last and forgotten is not None:
            records += group_tombstones(group)
        step.write(records, DeletionPart(deletion, PendingRemoval(group, removed, forgotten if last else None), last))


class _Deletion:
    """A deletion in one or more writes. The response has the first error."""

    __slots__ = ("answer", "error", "token")

    def __init__(self, token: Token, answer: Callable[[ErrorCode], Message]) -> None:
        self.token = token
        self.answer = answer
        self.error = ErrorCode.NONE


class DeletionPart:
    """One write of a deletion. The last one sends the response."""

    __slots__ = ("deletion", "group", "is_last", "removal")

    def __init__(self, deletion: _Deletion, removal: PendingRemoval, is_last: bool) -> None:
        self.deletion = deletion
        self.removal = removal
        self.is_last = is_last
        self.group = removal.group

    @property
    def token(self) -> Token:
        return self.deletion.token

    def settle(self, step: Step, error: ErrorCode) -> None:
        self.removal.settle(step, error)
        deletion = self.deletion
        if deletion.error is ErrorCode.NONE:
            deletion.error = error
        if self.is_last:
            step.out.answer(deletion.token, deletion.answer(deletion.error))
