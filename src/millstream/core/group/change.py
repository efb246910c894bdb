"""A change of a group whose members the coordinator assigns: records that apply as soon as they are decided, and are
undone if they cannot be written.

A group has at most one change in flight; requests that arrive before it ends wait for its outcome (``Step.busy``). So
no decision and no response depends on a write that may fail. A change without records is done at once.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from millstream.core.group.consumer_state.topics import NEVER_CHECKED
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import Key, Value
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode

K = TypeVar("K", bound=Key)
K_contra = TypeVar("K_contra", bound=Key, contravariant=True)
V = TypeVar("V", bound=Value)


Done = Callable[[Step], None]
Failed = Callable[[Step, ErrorCode], None]


class Records(Protocol[K_contra, V]):
    """A group as the sum of its newest records."""

    checked_revision: int
    """Revision of the metadata with which the group was last compared."""

    def apply(self, key: K_contra, value: V | None) -> None: ...

    def record(self, key: K_contra) -> V | None: ...


class GroupChange(Generic[K, V]):
    """The records that one request changes in the content of ``group``."""

    __slots__ = ("_content", "_undo", "group", "records")

    def __init__(self, group: Group, content: Records[K, V], before: Sequence[tuple[Key, Value | None]] = ()) -> None:
        """``before``: records that precede the group's own, such as the end of the classic group."""
        self.group = group
        self.records: list[tuple[Key, Value | None]] = list(before)
        self._content = content
        self._undo: list[tuple[K, V | None]] = []

    def show(self, step: Step) -> None:
        """Make the durable content the one of ``group``."""
        raise NotImplementedError

    def put(self, key: K, value: V | None) -> None:
        """Decide a record. It applies from now on."""
        self._undo.append((key, self._content.record(key)))
        self._content.apply(key, value)
        self.records.append((key, value))

    def put_all(self, records: Sequence[tuple[K, V | None]]) -> None:
        for key, value in records:
            self.put(key, value)

    def undo(self) -> None:
        """Undo all decided records."""
        for key, value in reversed(self._undo):
            self._content.apply(key, value)
        self._undo.clear()
        self._content.checked_revision = NEVER_CHECKED

    def write(self, step: Step, token: Token | None, done: Done, failed: Failed) -> None:
        """Write the decided records, then call ``done``; on failure undo them and call ``failed``.

        ``token`` is the request that waits for it, if any.
        """
        if not self.records:
            done(step)
            return
        group_id = self.group.group_id
        assert group_id not in step.busy, "one change at a time"
        step.busy[group_id] = deque()
        step.write(tuple(self.records), ChangePending(self, token, done, failed))


class ChangePending(Generic[K, V]):
    """A change in flight to the log."""

    __slots__ = ("_change", "_done", "_failed", "group", "token")

    def __init__(self, change: GroupChange[K, V], token: Token | None, done: Done, failed: Failed) -> None:
        self._change = change
        self.token = token
        self._done = done
        self._failed = failed
        self.group = change.group

    def settle(self, step: Step, error: ErrorCode) -> None:
        change = self._change
        if error is ErrorCode.NONE:
            change.show(step)
            self._done(step)
        else:
            change.undo()
            step.log(change.group, f"a change could not be written ({error.name}) and is taken back")
            self._failed(step, error)
