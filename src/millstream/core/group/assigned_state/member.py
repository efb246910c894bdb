"""A member of a group whose members the coordinator assigns, as stored in its two records: its own facts, and what it
has.

Members are immutable values.
"""

from typing import Final, Self

import msgspec

from millstream.model.quantities import MemberEpoch
from millstream.wire.schema import Stored

JOINS: Final = 0
LEAVES: Final = -1
LEAVES_FOR_A_WHILE: Final = -2
"""Special epochs in a request: join, leave, and (static members) leave for a while."""


class AssignedMember(msgspec.Struct, frozen=True):
    """A member. ``previous_epoch`` is the one before ``epoch``: the response with the newer one may be lost."""

    member_id: str
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    epoch: int = JOINS
    previous_epoch: int = JOINS

    def is_reconciled_to(self, epoch: MemberEpoch) -> bool:
        """Whether it has everything that the target assignment of ``epoch`` gives it."""
        return self.epoch == epoch

    @property
    def must_revoke(self) -> bool:
        """Whether it has yet to give something back. Its epoch stays until then."""
        return False

    @property
    def own_session_timeout_ms(self) -> int | None:
        """Set for a member that brought its session timeout; others have their group's."""
        return None

    # As records

    def metadata_value(self) -> Stored:
        """The record of its facts."""
        raise NotImplementedError

    def with_metadata(self, value: Stored) -> Self:
        """The member with the facts of a record."""
        raise NotImplementedError

    def current_value(self) -> Stored:
        """The record of what it has."""
        raise NotImplementedError

    def with_current(self, value: Stored | None) -> Self:
        """The member as the record has it; None: the record was deleted, and the member has nothing."""
        raise NotImplementedError
