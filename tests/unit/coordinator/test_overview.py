"""Groups as the HTTP port shows them: what a group has read, and not what a writer has marked."""

from types import SimpleNamespace
from typing import Any

from millstream.coordinator.overview import Summaries, summarize_groups
from millstream.coordinator.state_partition import State
from millstream.core.group.group import Group
from millstream.core.group.offsets import CommittedOffset
from millstream.model.marks import WRITE_MARK


def test_a_writers_marks_are_no_positions_of_a_reader() -> None:
    group = Group("g", 0)
    for topic, index, offset, metadata in (
        ("t", 0, 5, ""),
        ("t", 1, 3, WRITE_MARK),
        ("u", 0, 3, f"2 x {WRITE_MARK} done"),
    ):
        group.offsets.put(topic, index, CommittedOffset(offset, -1, metadata, 0))
    partition: Any = SimpleNamespace(state=State.ACTIVE, core=SimpleNamespace(groups={"g": group}))
    found = Summaries([])
    for _ in summarize_groups([partition], 10, found):
        pass
    assert [one.committed for one in found.groups] == [{"t": {0: 5}}]
