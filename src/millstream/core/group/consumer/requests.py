"""Requests about consumer groups (KIP-848), as ``GroupCoordinator`` passes them on."""

from collections.abc import Callable
from typing import Final

from millstream.core.group.assigned.change import GroupChange
from millstream.core.group.assigned.requests import Verbs
from millstream.core.group.consumer import classic
from millstream.core.group.consumer.expressions import take_resolved
from millstream.core.group.consumer.heartbeat import check_request, heartbeat, refusal
from millstream.core.group.consumer.leaving import leave as go
from millstream.core.group.consumer.migrate import begin_classic_group, begin_consumer_group
from millstream.core.group.consumer_state.group import ConsumerGroup
from millstream.core.group.group import Group
from millstream.core.group.outputs import ExpressionsResolved, Join
from millstream.core.group.rebalance import join_error
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.step import Step, unanswered, unanswered_failed
from millstream.model.error_code import ErrorCode

CONSUMER: Final = Verbs(ConsumerGroup, check_request, begin_consumer_group, heartbeat, go, refusal)


def resolved(step: Step, holder: Group | None, found: ExpressionsResolved) -> None:
    """Process the resolved regular expressions of a group, which may be gone."""
    group = None if holder is None else holder.consumer
    if holder is not None and group is not None:
        change = GroupChange(holder, group)
        take_resolved(step, change, found)
        # If that fails, the expressions stay as they were; a later heartbeat resolves them again.
        change.write(step, None, unanswered, unanswered_failed)


# The classic protocol


def join(step: Step, holder: Group, given: Join, again: Callable[[Step], None]) -> None:
    """Handle a JoinGroup. ``again`` repeats it if the group became a classic one: an empty group does."""
    content = holder.assigned
    if isinstance(content, ConsumerGroup) and content.members:
        classic.join(step, GroupChange(holder, content), given)
    elif content is None or content.members or isinstance(content, ShareGroup):
        step.out.answer(given.token, join_error("", ErrorCode.INCONSISTENT_GROUP_PROTOCOL))
    elif given.request.member_id:
        step.out.answer(given.token, join_error(given.request.member_id, ErrorCode.UNKNOWN_MEMBER_ID))
    else:

        def failed(step: Step, error: ErrorCode) -> None:
            step.out.answer(given.token, join_error("", error))

        begin_classic_group(step, holder, given.token, again, failed)
