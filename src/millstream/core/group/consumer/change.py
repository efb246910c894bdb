"""A change of a consumer group."""

from collections.abc import Sequence

from millstream.core.group.change import GroupChange
from millstream.core.group.consumer.install import show
from millstream.core.group.consumer_state.group import ConsumerGroup, ConsumerGroupValue
from millstream.core.group.group import Group
from millstream.core.group.outputs import Key, Value
from millstream.core.group.step import Step
from millstream.wire.stored import ConsumerGroupKey


class Change(GroupChange[ConsumerGroupKey, ConsumerGroupValue]):
    """The records that one request changes in ``consumer``, the consumer group of ``group``."""

    __slots__ = ("consumer", "regexes")

    def __init__(self, group: Group, consumer: ConsumerGroup, before: Sequence[tuple[Key, Value | None]] = ()) -> None:
        """``before``: records that precede the group's own, such as the end of the classic group."""
        super().__init__(group, consumer, before)
        self.consumer = consumer
        self.regexes: tuple[str, ...] = ()
        """Regular expressions to resolve once this change is written."""

    def show(self, step: Step) -> None:
        """Make the durable group the content of its holder."""
        show(step, self.group, self.consumer)
