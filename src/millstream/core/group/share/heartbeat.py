"""ShareGroupHeartbeat: a member joins, changes its subscription, and receives its assignment.

Order: the request is checked; the group is found or created; the member is found or created. Then its subscription is
stored, the group epoch and the target assignment follow if necessary, and the member takes its target at once: what
another member also has need not be given back by it. The changes are written, and the response is sent when they are
durable. Most heartbeats change nothing and are answered at once.

If partitions lack their share state (``initialize``), the response waits for it up to ``WAIT_MS``, because what is
initialized in that time can be assigned in the same response; Kafka leaves it to the next heartbeat. The target
assignment waits with it, except for the first one, so that new partitions cost one group epoch, as in Kafka. After that
time the member gets what is there.

A member proves by its epoch that it knows its last response, or the one before, which may have been lost. Any other is
fenced and must rejoin with epoch 0.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from millstream.core.group.assign.spec import NOTHING
from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.leaving import remove_members
from millstream.core.group.assigned.requests import check_room, fenced, invalid, known_member, refused
from millstream.core.group.assigned.timers import renew
from millstream.core.group.assigned_state.group import FIRST_EPOCH
from millstream.core.group.assigned_state.member import JOINS, LEAVES
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.outputs import ShareHeartbeat, StateResponse
from millstream.core.group.share.initialize import answered, asks, missing_states, note_asked, settle
from millstream.core.group.share.target import follow_epoch, follow_topics, is_incomplete
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.share_records.member import ShareMember
from millstream.core.group.share_records.states import NamedPartitions
from millstream.core.group.step import Step
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import MemberEpoch
from millstream.wire.messages.consumer_group_heartbeat import AssignedTopicPartitions, MemberAssignment
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse
from millstream.wire.messages.share_group_storage import (
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupMemberMetadataKey,
)

WAIT_MS: Final = 500
"""Far less than a heartbeat interval, far more than the write of a state takes."""
SHARE_ANSWER: Final = "share answer"
MEMBER_ID_CHARACTERS_MAX: Final = 36
"""Characters of a UUID, which clients take as their id."""


def refusal(error: ErrorCode, message: str | None) -> ShareGroupHeartbeatResponse:
    """The response with an error only."""
    return ShareGroupHeartbeatResponse(error_code=error, error_message=message)


def check_request(step: Step, beat: ShareHeartbeat) -> None:
    """Check the request itself. Rejected with Kafka's messages."""
    _ = step
    request = beat.request
    if not 0 < len(request.member_id) <= MEMBER_ID_CHARACTERS_MAX:
        raise invalid("")  # without words, as in Kafka
    if not request.group_id.strip():
        raise invalid("GroupId can't be empty.")
    if request.rack_id is not None and not request.rack_id.strip():
        raise invalid("RackId can't be empty.")
    if request.member_epoch == JOINS:
        if not request.subscribed_topic_names:
            raise invalid("SubscribedTopicNames must be set in first request.")
    elif request.member_epoch < LEAVES:
        raise invalid("MemberEpoch is invalid.")


def _is_quiet(step: Step, share: ShareGroup, beat: ShareHeartbeat) -> bool:
    """Whether the heartbeat reports nothing new, and there is nothing to send to the member."""
    request = beat.request
    member = share.members.get(request.member_id)
    return (
        member is not None
        and request.member_epoch == member.epoch == share.epoch == share.assignment_epoch
        and request.rack_id is None
        and request.subscribed_topic_names is None
        and (member.client_id, member.client_host) == (beat.client_id, beat.client_host)
        and share.checked_revision == step.topics.revision
    )


def heartbeat(step: Step, change: GroupChange[ShareGroup], beat: ShareHeartbeat) -> None:
    """Handle the heartbeat of a member that does not leave. Rejected if it is refused; nothing is decided then."""
    share, token = change.content, beat.token
    if _is_quiet(step, share, beat):
        member = share.members[beat.request.member_id]
        renew(step, change.group, share, member)
        step.out.answer(token, _answer(step, share, member, is_full=False))
        return
    member, bumped = _follow(step, change, beat)
    missing = missing_states(step, share)
    asks_now = bool(missing) and step.now_us >= share.requests.retry_us
    if not asks_now or share.assignment_epoch == FIRST_EPOCH:
        follow_epoch(step, change)
    respond = _reconcile(step, change, beat, member, subscription_changed=bumped)
    request = note_asked(change, missing) if asks_now else None
    if asks_now or not missing:
        share.checked_revision = step.topics.revision

    def done(step: Step) -> None:
        renew(step, change.group, share, share.members[beat.request.member_id])
        response = respond(step)
        if request is None:
            step.out.answer(token, response)
            return
        asks(share, missing)
        waits = _Waits(change.group, share, beat, missing)
        waits.start(step, response)
        step.ask(change.group, request, waits.answered)

    change.write(step, token, done, refused(token, refusal))


def _follow(step: Step, change: GroupChange[ShareGroup], beat: ShareHeartbeat) -> tuple[ShareMember, bool]:
    """Take over the facts of the request, and increase the group epoch if they ask for it. Returns the member as it was
    before, and whether the epoch increased. Rejected before anything is decided.
    """
    share, request = change.content, beat.request
    check_room(step, share, request.member_id)
    before = _member(share, request)
    member = _take_over(before, beat)
    if member.member_id not in share.members or member != before:
        change.put(ShareGroupMemberMetadataKey(share.group_id, member.member_id), member.metadata_value())
    changed = member.topic_names != before.topic_names
    return before, follow_topics(step, change, bump=changed or is_incomplete(share, step.topics))


def _reconcile(
    step: Step,
    change: GroupChange[ShareGroup],
    beat: ShareHeartbeat,
    before: ShareMember,
    *,
    subscription_changed: bool,
) -> Callable[[Step], ShareGroupHeartbeatResponse]:
    """Give the member its target. Returns what makes the response."""
    share, request = change.content, beat.request
    member = share.members[before.member_id]
    known = request.member_epoch or before.epoch
    after = _reconciled(step, share, known, subscription_changed=subscription_changed, of=member)
    if after != member:
        change.put(ShareGroupCurrentMemberAssignmentKey(share.group_id, after.member_id), after.current_value())
    is_full = (
        request.member_epoch == JOINS or request.subscribed_topic_names is not None or after.assigned != before.assigned
    )
    return lambda step: _answer(step, share, after, is_full=is_full)


def _member(share: ShareGroup, request: ShareGroupHeartbeatRequest) -> ShareMember:
    """The member that sent the request, as it was before."""
    epoch = request.member_epoch
    if epoch == JOINS and request.member_id not in share.members:
        return ShareMember(request.member_id)
    member = known_member(share.members, share.group_id, request.member_id)
    if epoch in (JOINS, member.epoch, member.previous_epoch):
        return member  # the previous one: the response with the new epoch was lost
    why = f", and it does not match the previous member epoch ({member.previous_epoch})"
    raise fenced(share, member, epoch, why if epoch < member.epoch else "")


def _take_over(member: ShareMember, beat: ShareHeartbeat) -> ShareMember:
    """The member with the facts of the request; what the request omits stays."""
    request = beat.request
    names = request.subscribed_topic_names
    return msgspec.structs.replace(
        member,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        topic_names=member.topic_names if names is None else frozenset(names),
        client_id=beat.client_id,
        client_host=beat.client_host,
    )


def _reconciled(
    step: Step, share: ShareGroup, known: MemberEpoch, *, subscription_changed: bool, of: ShareMember
) -> ShareMember:
    """The member with what the target gives it of the topics that it subscribes to. ``known``: the epoch that it
    knows.
    """
    epoch = share.assignment_epoch
    if of.epoch == epoch and not subscription_changed:
        return of
    subscribed = share.topic_ids_of(of, step.topics)
    target = share.targets.get(of.member_id, NOTHING)
    assigned = {topic_id: partitions for topic_id, partitions in target.items() if topic_id in subscribed}
    return of.at(epoch, assigned, known)


def _answer(step: Step, share: ShareGroup, member: ShareMember, *, is_full: bool) -> ShareGroupHeartbeatResponse:
    """The member's epoch and, if ``is_full``, its assignment."""
    assignment = None
    if is_full:
        assignment = MemberAssignment(
            [AssignedTopicPartitions(topic_id, sorted(partitions)) for topic_id, partitions in member.assigned.items()]
        )
    return ShareGroupHeartbeatResponse(
        member_id=member.member_id,
        member_epoch=member.epoch,
        heartbeat_interval_ms=step.settings.share.heartbeat_interval_of(share.group_id),
        assignment=assignment,
    )


def leave(step: Step, change: GroupChange[ShareGroup], beat: ShareHeartbeat) -> None:
    """Handle the heartbeat of a member that leaves. Raises Rejected if the group does not have it.

    What the member acquired is not released here: that is what the end of its share session does.
    """
    request, share = beat.request, change.content
    known_member(share.members, share.group_id, request.member_id)
    answer = ShareGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch)

    def done(step: Step) -> None:
        step.out.answer(beat.token, answer)

    remove_members(step, change, [request.member_id], beat.token, done, refused(beat.token, refusal))


class _Waits:
    """A heartbeat whose partitions are being initialized, and its response if that takes too long."""

    __slots__ = ("_beat", "_deadline", "_group", "_missing", "_response", "_share")

    def __init__(self, group: Group, share: ShareGroup, beat: ShareHeartbeat, missing: NamedPartitions) -> None:
        self._group = group
        self._share = share
        self._beat = beat
        self._missing = missing
        self._response: ShareGroupHeartbeatResponse | None = None
        """None: the heartbeat is answered."""
        self._deadline: Deadline[Group] = Deadline(SHARE_ANSWER, group, beat.request.member_id)

    def start(self, step: Step, response: ShareGroupHeartbeatResponse) -> None:
        """The heartbeat waits from now on."""
        self._response = response
        self._share.requests.waits[self._deadline] = (self._beat.token, self.time_is_over)
        step.after(self._deadline, WAIT_MS)

    def time_is_over(self, step: Step) -> None:
        """Answer with what was known at first."""
        if self._response is not None:
            step.out.answer(self._beat.token, self._response)
            self._end(step)

    def _end(self, step: Step) -> None:
        self._response = None
        step.cancel(self._deadline)
        self._share.requests.waits.pop(self._deadline, None)

    def answered(self, step: Step, response: StateResponse) -> None:
        """The share coordinator has answered: note it, and decide the heartbeat again."""
        share, beat = self._share, self._beat
        waits = self._response is not None
        if waits:
            self._end(step)
        if self._group.share is not share:
            return
        change = GroupChange(self._group, share)
        errors = settle(change, self._missing, response)
        answered(step, share, self._missing, failed=bool(errors))
        if errors:
            (topic_id, partition), (error, message) = next(iter(errors.items()))
            name = self._missing[topic_id].name if topic_id in self._missing else topic_id.hex()
            step.log(
                self._group,
                f"the share state of {len(errors)} partitions could not be initialized, {name}-{partition} among them: "
                f"{error.name}{f' ({message})' if message else ''}; a later heartbeat tries again",
            )
        respond = self._decided_again(step, change) if waits else None

        def done(step: Step) -> None:
            if respond is not None:
                step.out.answer(beat.token, respond(step))

        def failed(step: Step, error: ErrorCode) -> None:
            if waits:
                step.out.answer(beat.token, refusal(error, None))

        change.write(step, beat.token if waits else None, done, failed)

    def _decided_again(
        self, step: Step, change: GroupChange[ShareGroup]
    ) -> Callable[[Step], ShareGroupHeartbeatResponse]:
        """What makes the response now. The member may have left, or have sent another heartbeat."""
        try:
            member, bumped = _follow(step, change, self._beat)
        except Rejected as error:
            refused = refusal(error.code, error.message or None)
            return lambda _: refused
        follow_epoch(step, change)
        return _reconcile(step, change, self._beat, member, subscription_changed=bumped)
