"""DeleteGroups of a share group: first its share state goes, then the group.

The topics are written as *deleting*, the share coordinator is asked to delete, and only if it has deleted everything
the group's records get their tombstones. What fails on the way leaves the group, without members and with its topics
*deleting*; to delete it again continues. No other request about the group is processed in that time, so that no member
finds half a group.
"""

from collections.abc import Iterable, Mapping

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.group import Group
from millstream.core.group.outputs import Delete, StateResponse
from millstream.core.group.share.initialize import Errors, errors_of, put_states
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.delete_groups import DeletableGroupResult
from millstream.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteStatePartition,
    DeleteStateTopic,
)


def why_not(step: Step, group: Group) -> ErrorCode:
    """Why an administrator's change of a share group is refused; NONE if it is not.

    While the state of partitions is being initialized, the answer is one after which administrators' clients ask again.
    """
    if group.share is None:
        return ErrorCode.GROUP_ID_NOT_FOUND
    if group.share.members:
        return ErrorCode.NON_EMPTY_GROUP
    return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if step.asks.of(group) else ErrorCode.NONE


def delete_share_group(step: Step, group: Group, delete: Delete, forgotten: list[Group]) -> None:
    """Handle one group of a DeleteGroups. ``forgotten`` gets the group once its deletion is durable."""

    def answer(step: Step, error: ErrorCode) -> None:
        step.out.answer(delete.token, DeletableGroupResult(group_id=delete.group_id, error_code=error))

    def removed(step: Step, error: ErrorCode) -> None:
        if error is ErrorCode.NONE:
            forgotten.append(group)
        answer(step, error)

    share = group.share
    error = why_not(step, group)
    if share is None or error is not ErrorCode.NONE:
        answer(step, error)
        return
    partitions = partitions_with_state(step, share)
    if not partitions:
        step.write_alone(group, tuple(share.tombstones()), delete.token, removed)
        return
    change = GroupChange(group, share)
    put_states(change, share.states.deleted(names_of(step, share, partitions)))

    def deleted(step: Step, response: StateResponse) -> None:
        error = next((code for code, _ in lasting(errors_of(response)).values()), ErrorCode.NONE)
        if error is not ErrorCode.NONE:
            answer(step, error)
            return
        step.log(group, f"deleted with the share state of {len(partitions)} topics")
        step.write_alone(group, tuple(share.tombstones()), delete.token, removed)

    change.write(
        step,
        delete.token,
        lambda step: step.ask(group, delete_request(share, partitions), deleted, delete.token),
        answer,
    )


def partitions_with_state(step: Step, share: ShareGroup) -> dict[bytes, frozenset[int]]:
    """All partitions whose state may exist. Of a topic that is *deleting* these are the ones that it has now."""
    partitions = {topic_id: named.partitions for topic_id, named in share.states.all.items()}
    for topic_id in share.states.deleting:
        topic = step.topics.by_id(topic_id)
        if topic is not None:
            partitions[topic_id] = partitions.get(topic_id, frozenset()) | frozenset(range(topic.partitions))
    return partitions


def lasting(errors: Errors) -> Errors:
    """The errors after which state may be left. The state of a topic that does not exist goes by itself."""
    return {place: error for place, error in errors.items() if error[0] is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def names_of(step: Step, share: ShareGroup, topic_ids: Iterable[bytes]) -> dict[bytes, str]:
    """The names of topics that the group knows."""
    known = share.states.all
    names: dict[bytes, str] = {}
    for topic_id in topic_ids:
        topic = step.topics.by_id(topic_id)
        noted = known[topic_id].name if topic_id in known else share.states.deleting.get(topic_id, "")
        names[topic_id] = noted if topic is None else topic.name
    return names


def delete_request(share: ShareGroup, partitions: Mapping[bytes, frozenset[int]]) -> DeleteShareGroupStateRequest:
    """The request that deletes the state of partitions."""
    return DeleteShareGroupStateRequest(
        group_id=share.group_id,
        topics=[
            DeleteStateTopic(topic_id, [DeleteStatePartition(index) for index in sorted(partitions[topic_id])])
            for topic_id in sorted(partitions)
        ],
    )
