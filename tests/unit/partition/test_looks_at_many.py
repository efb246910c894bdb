"""The weekly look at what replicas have on disk goes through any number of logs, empty ones included."""

from collections import deque
from types import SimpleNamespace
from typing import Any

from millstream.partition.replica.repairing import LOOK_AGAIN_US, LOOK_BEGIN_US, Looks
from millstream.raft.replicated import ReplicatedGroup
from millstream.telemetry.metrics import StatsSlab


class Turns:
    """A reactor whose turns the test takes."""

    def __init__(self) -> None:
        self.ready: deque[Any] = deque()
        self.later: list[tuple[int, Any]] = []

    def call_soon(self, callback: Any) -> None:
        self.ready.append(callback)

    def call_later(self, delay_us: int, callback: Any) -> None:
        self.later.append((delay_us, callback))


def test_thousands_of_empty_logs_are_passed_one_by_one() -> None:
    turns = Turns()
    asked: list[int] = []

    class Empty:
        closed = lost = False
        first_local_offset = written_position = 0

        def __init__(self, number: int) -> None:
            self.number = number
            self.files = self.ends = self

        @property
        def segments(self) -> list[Any]:
            asked.append(self.number)
            return []

    def partition(number: int) -> Any:
        config = SimpleNamespace(has_events=False)
        return SimpleNamespace(group=object.__new__(ReplicatedGroup), log=Empty(number), config=config)

    table: Any = SimpleNamespace(by_group={number: partition(number) for number in range(5_000)})
    storage: Any = SimpleNamespace(stopping=False, stats=StatsSlab(0, "shard"))
    reactor: Any = turns
    Looks(reactor, storage, table).start()
    (delay_us, begin) = turns.later.pop()
    assert delay_us == LOOK_BEGIN_US
    begin()
    while turns.ready:
        turns.ready.popleft()()
    assert sorted(asked) == list(range(5_000))
    assert [delay for delay, _ in turns.later] == [LOOK_AGAIN_US]
