"""AlterShareGroupOffsets and DeleteShareGroupOffsets: an administrator lets a group without members start elsewhere.

Both write what they are about to do (record 15), ask the share coordinator, and write the outcome. No other request
about the group is processed in that time. To set offsets increases the group epoch, whose number the new state has:
a leader that still has the former state in memory is fenced when it writes.
"""

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.target import next_epoch
from millstream.core.group.group import Group
from millstream.core.group.outputs import AlterShareOffsets, DeleteShareOffsets, StateResponse
from millstream.core.group.share.deleting import delete_request, lasting, partitions_with_state, why_not
from millstream.core.group.share.initialize import UNKNOWN_START, Errors, errors_of, put_states, request_for, settle
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.share_records.states import Named
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_share_group_offsets import (
    AlteredShareOffsetsPartition,
    AlteredShareOffsetsTopic,
    AlterShareGroupOffsetsResponse,
)
from millstream.wire.messages.delete_share_group_offsets import (
    DeletedShareOffsetsTopic,
    DeleteShareGroupOffsetsResponse,
)
from millstream.wire.schema import ZERO_UUID

_NO_TOPIC = "This server does not host this topic-partition."
_NO_OFFSETS = "There is no offset information to delete."


def alter(step: Step, group: Group | None, given: AlterShareOffsets) -> None:
    """Handle an AlterShareGroupOffsets. A group that does not exist is created."""
    request = given.request
    error = ErrorCode.NONE if group is None else why_not(step, group)
    if not request.group_id:
        error = ErrorCode.INVALID_GROUP_ID
    if error is not ErrorCode.NONE:
        step.out.answer(
            given.token,
            AlterShareGroupOffsetsResponse(error_code=error, error_message=_words(error, request.group_id, group)),
        )
        return
    starts: dict[bytes, dict[int, int]] = {}
    wanted: dict[bytes, Named] = {}
    answers: list[AlteredShareOffsetsTopic] = []
    for topic in request.topics:
        known = step.topics.by_name(topic.topic_name)
        topic_id = ZERO_UUID if known is None else known.topic_id
        results: list[AlteredShareOffsetsPartition] = []
        for one in topic.partitions:
            code, message = ErrorCode.NONE, None
            if known is None or not 0 <= one.partition_index < known.partitions:
                code, message = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_TOPIC
            elif one.start_offset < UNKNOWN_START:
                code, message = ErrorCode.INVALID_REQUEST, f"{one.start_offset} is no offset."
            else:
                starts.setdefault(topic_id, {})[one.partition_index] = one.start_offset
            results.append(AlteredShareOffsetsPartition(one.partition_index, code, message))
        answers.append(AlteredShareOffsetsTopic(topic.topic_name, topic_id, results))
        if topic_id in starts:
            wanted[topic_id] = Named(topic.topic_name, frozenset(starts[topic_id]))
    response = AlterShareGroupOffsetsResponse(responses=answers)
    if not starts:
        step.out.answer(given.token, response)
        return
    holder = Group(request.group_id, step.wall_ms) if group is None else group
    share = holder.share or ShareGroup(request.group_id)
    change = GroupChange(holder, share)
    next_epoch(step, change)
    put_states(change, share.states.begun(wanted, is_whole=False))

    def failed(step: Step, error: ErrorCode) -> None:
        step.out.answer(given.token, AlterShareGroupOffsetsResponse(error_code=error))

    def asked(step: Step, found: StateResponse) -> None:
        change = GroupChange(holder, share)
        errors = settle(change, wanted, found)

        def done(step: Step) -> None:
            step.out.answer(given.token, AlterShareGroupOffsetsResponse(responses=_with(answers, errors)))

        change.write(step, given.token, done, failed)

    change.write(
        step, given.token, lambda step: step.ask(holder, request_for(share, starts), asked, given.token), failed
    )


def _with(answers: list[AlteredShareOffsetsTopic], errors: Errors) -> list[AlteredShareOffsetsTopic]:
    return [
        AlteredShareOffsetsTopic(
            topic.topic_name,
            topic.topic_id,
            [
                AlteredShareOffsetsPartition(one.partition_index, *errors[topic.topic_id, one.partition_index])
                if not one.error_code and (topic.topic_id, one.partition_index) in errors
                else one
                for one in topic.partitions
            ],
        )
        for topic in answers
    ]


def delete(step: Step, group: Group | None, given: DeleteShareOffsets) -> None:
    """Handle a DeleteShareGroupOffsets."""
    request = given.request
    error = ErrorCode.GROUP_ID_NOT_FOUND if group is None else why_not(step, group)
    if not request.group_id:
        error = ErrorCode.INVALID_GROUP_ID
    share = None if group is None else group.share
    if group is None or share is None or error is not ErrorCode.NONE:
        response = DeleteShareGroupOffsetsResponse(
            error_code=error, error_message=_words(error, request.group_id, group)
        )
        step.out.answer(given.token, response)
        return
    answers: list[DeletedShareOffsetsTopic] = []
    partitions: dict[bytes, frozenset[int]] = {}
    names: dict[bytes, str] = {}
    there = partitions_with_state(step, share)
    for topic in request.topics:
        name = topic.topic_name
        known = step.topics.by_name(name)
        if known is None:
            answers.append(DeletedShareOffsetsTopic(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_TOPIC))
        elif known.topic_id in there:
            names[known.topic_id] = name
            partitions[known.topic_id] = there[known.topic_id]
        else:
            answers.append(DeletedShareOffsetsTopic(name, ZERO_UUID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NO_OFFSETS))
    if not partitions:
        step.out.answer(given.token, DeleteShareGroupOffsetsResponse(responses=answers))
        return
    change = GroupChange(group, share)
    put_states(change, share.states.deleted(names))

    def failed(step: Step, error: ErrorCode) -> None:
        step.out.answer(given.token, DeleteShareGroupOffsetsResponse(error_code=error))

    def asked(step: Step, found: StateResponse) -> None:
        bad = {topic_id: error for (topic_id, _), error in lasting(errors_of(found)).items()}
        change = GroupChange(group, share)
        put_states(change, share.states.without(topic_id for topic_id in names if topic_id not in bad))
        nothing = (ErrorCode.NONE, None)
        deleted = [
            DeletedShareOffsetsTopic(name, topic_id, *bad.get(topic_id, nothing)) for topic_id, name in names.items()
        ]

        def done(step: Step) -> None:
            step.out.answer(given.token, DeleteShareGroupOffsetsResponse(responses=[*deleted, *answers]))

        change.write(step, given.token, done, failed)

    change.write(
        step, given.token, lambda step: step.ask(group, delete_request(share, partitions), asked, given.token), failed
    )


def _words(error: ErrorCode, group_id: str, group: Group | None) -> str | None:
    kind = "not found" if group is None else "is not a share group"
    words = {
        ErrorCode.GROUP_ID_NOT_FOUND: f"Group {group_id} {kind}.",
        ErrorCode.NON_EMPTY_GROUP: "The group is not empty.",
        ErrorCode.INVALID_GROUP_ID: "The group id is invalid.",
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "The coordinator is loading and hence can't process requests.",
    }
    return words.get(error)
