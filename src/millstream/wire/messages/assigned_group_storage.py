"""Five records that every type of group with assigned members writes, each under numbers of its own.

Consumer groups (KIP-848), share groups (KIP-932) and streams groups (KIP-1071) store the group epoch, each member's
facts, the epoch of the target assignment, what every member is to have (its target) and what each has (current).
"""

from typing import Annotated

from millstream.wire.schema import F, Int8, Int32, Int64, Stored, StoredKey


class GroupEpochKey(StoredKey):
    """Key of a group's epoch."""

    group: str = ""


class GroupEpochValue(Stored):
    """The group epoch; what else belongs to it follows."""

    epoch: Int32 = 0


class MemberKey(StoredKey):
    """Key of a member's facts, such as its subscription."""

    group: str = ""
    member_id: str = ""


class AssignmentEpochKey(StoredKey):
    """Key of the target assignment's epoch."""

    group: str = ""


class AssignmentEpochValue(Stored):
    """For which group epoch the target assignment was made, and when (wall clock, ms)."""

    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, F("0+", tag=0)] = 0


class TargetKey(StoredKey):
    """Key of what a member is to have."""

    group: str = ""
    member_id: str = ""


class CurrentKey(StoredKey):
    """Key of what a member has."""

    group: str = ""
    member_id: str = ""


class CurrentValue(Stored):
    """The epochs by which a member is known, and its state; what it has follows."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
