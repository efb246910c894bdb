"""A change of a consumer group: records that apply as soon as they are decided, and are undone if they cannot be
written.

A group has at most one change in flight; requests that arrive meanwhile wait for its outcome (``Step.busy``). So no
decision and no response depends on a write that may fail. A change without records is done at once.
"""

from collections import deque
from collections.abc import Callable, Sequence

from millstream.core.group.consumer.install import show
from millstream.core.group.consumer_state.group import NEVER_CHECKED, ConsumerGroup, ConsumerGroupValue, ConsumerRecord
from millstream.core.group.group import Group
from millstream.core.group.member import Token
from millstream.core.group.outputs import Key, Value
from millstream.core.group.step import Step
from millstream.model.error_code import ErrorCode
from millstream.wire.stored import ConsumerGroupKey

Done = Callable[[Step], None]
Failed = Callable[[Step, ErrorCode], None]


class Change:
    """The records that one request changes in ``consumer``, the consumer group of ``group``."""

    __slots__ = ("_undo", "consumer", "group", "records", "regexes")

    def __init__(self, group: Group, consumer: ConsumerGroup, before: Sequence[tuple[Key, Value | None]] = ()) -> None:
        """``before``: records that precede the group's own, such as the end of the classic group."""
        self.group = group
        self.consumer = consumer
        self.records: list[tuple[Key, Value | None]] = list(before)
        self.regexes: tuple[str, ...] = ()
        """Regular expressions to resolve once this change is written."""
        self._undo: list[ConsumerRecord] = []

    def put(self, key: ConsumerGroupKey, value: ConsumerGroupValue | None) -> None:
        """Decide a record. It applies from now on."""
        self._undo.append((key, self.consumer.record(key)))
        self.consumer.apply(key, value)
        self.records.append((key, value))

    def put_all(self, records: list[ConsumerRecord]) -> None:
        for key, value in records:
            self.put(key, value)

    def undo(self) -> None:
        """Undo all decided records."""
        for key, value in reversed(self._undo):
            self.consumer.apply(key, value)
        self._undo.clear()
        self.consumer.checked_revision = NEVER_CHECKED

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


class ChangePending:
    """A change in flight to the log."""

    __slots__ = ("_change", "_done", "_failed", "group", "token")

    def __init__(self, change: Change, token: Token | None, done: Done, failed: Failed) -> None:
        self._change = change
        self.token = token
        self._done = done
        self._failed = failed
        self.group = change.group

    def settle(self, step: Step, error: ErrorCode) -> None:
        change = self._change
        if error is ErrorCode.NONE:
            show(step, change.group, change.consumer)
            self._done(step)
        else:
            change.undo()
            step.log(change.group, f"a change could not be written ({error.name}) and is taken back")
            self._failed(step, error)
