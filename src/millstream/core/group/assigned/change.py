"""A change of a group whose members the coordinator assigns: records that apply as soon as they are decided, and are
undone if they cannot be written.

A group has at most one change in flight; requests that arrive before it ends wait for its outcome (``Step.busy``). So
no decision and no response depends on a write that may fail. A change without records is done at once.
"""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from millstream.core.group.assigned.timers import start_timers
from millstream.core.group.assigned_state.group import AnyGroup, AssignedRecord
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import Key, Value
from millstream.core.group.rebalance import end_classic
from millstream.core.group.step import Step
from millstream.core.group.topics import NEVER_CHECKED
from millstream.model.error_code import ErrorCode
from millstream.wire.stored import AssignedGroupKey

G = TypeVar("G", bound=AnyGroup)

Done = Callable[[Step], None]
Failed = Callable[[Step, ErrorCode], None]


class GroupChange(Generic[G]):
    """The records that one request changes in ``content``, which is, or is to become, the content of ``group``."""

    __slots__ = ("_undo", "content", "group", "records")

    def __init__(self, group: Group, content: G, before: Sequence[tuple[Key, Value | None]] = ()) -> None:
        """``before``: records that precede the group's own, such as the end of the classic group."""
        self.group = group
        self.content = content
        self.records: list[tuple[Key, Value | None]] = list(before)
        self._undo: list[AssignedRecord] = []

    def put(self, key: AssignedGroupKey, value: Value | None) -> None:
        """Decide a record. It applies from now on."""
        self._undo.append((key, self.content.record(key)))
        self.content.apply(key, value)
        self.records.append((key, value))

    def put_all(self, records: Sequence[AssignedRecord]) -> None:
        for key, value in records:
            self.put(key, value)

    def undo(self) -> None:
        """Undo all decided records."""
        if self._undo:
            for key, value in reversed(self._undo):
                self.content.apply(key, value)
            self._undo.clear()
            self.content.checked_revision = NEVER_CHECKED

    def write(self, step: Step, token: Token | None, done: Done, failed: Failed) -> None:
        """Write the decided records, then call ``done``; on failure undo them and call ``failed``.

        ``token`` is the request that waits for it, if any.
        """
        if not self.records:
            done(step)
            return

        def settled(step: Step, error: ErrorCode) -> None:
            if error is ErrorCode.NONE:
                self._show(step)
                done(step)
            else:
                self.undo()
                step.log(self.group, f"a change could not be written ({error.name}) and is taken back")
                failed(step, error)

        step.write_alone(self.group, tuple(self.records), token, settled)

    def _show(self, step: Step) -> None:
        """Make the durable content the one of the group."""
        if self.group.assigned is not self.content:
            end_classic(step, self.group)
            self.group.begin_assigned(self.content)
            start_timers(step, self.group, self.content)
        self.group.follow_assigned()
        self.content.settled()
