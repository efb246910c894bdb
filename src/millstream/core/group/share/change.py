"""A change of a share group, and the sessions of its members."""

from typing import Final

from millstream.core.group.change import GroupChange
from millstream.core.group.deadlines import Deadline
from millstream.core.group.group import Group
from millstream.core.group.outputs import ShareGroupValue
from millstream.core.group.share_records.group import ShareGroup
from millstream.core.group.share_records.states import ShareStates
from millstream.core.group.step import Step
from millstream.wire.messages.share_group_storage import ShareGroupStatePartitionMetadataKey
from millstream.wire.stored import ShareGroupKey

SHARE_SESSION: Final = "share session"


class ShareChange(GroupChange[ShareGroupKey, ShareGroupValue]):
    """The records that one request changes in ``share``, the share group of ``group``."""

    __slots__ = ("share",)

    def __init__(self, group: Group, share: ShareGroup) -> None:
        super().__init__(group, share)
        self.share = share

    def show(self, step: Step) -> None:
        """Make the durable group the content of its holder."""
        _ = step
        if self.group.share is not self.share:
            self.group.begin_share(self.share)
        self.group.follow_assigned()

    def put_states(self, states: ShareStates) -> None:
        """Decide for which partitions the share state exists."""
        self.put(ShareGroupStatePartitionMetadataKey(self.share.group_id), states.value())


def renew(step: Step, holder: Group, share: ShareGroup, member_id: str) -> None:
    """The member is alive: let its session end one timeout from now."""
    session = share.sessions.get(member_id)
    if session is None:
        session = share.sessions[member_id] = Deadline(SHARE_SESSION, holder, member_id)
    step.after(session, step.settings.share.session_timeout_of(share.group_id))


def forget_session(step: Step, share: ShareGroup, member_id: str) -> None:
    """The member has been removed."""
    session = share.sessions.pop(member_id, None)
    if session is not None:
        step.cancel(session)
