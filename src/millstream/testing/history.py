"""What clients saw, written down while they run: the evidence that `millstream.testing.history_check` judges.

A workload tells a `History` of every send, poll, assignment, commit and committed-offset query, of topics that it
creates, deletes and lists, of records that it deletes and log starts that it is told, each with the moment it began
and the moment its outcome was known. An outcome is one of three:

- ``OK``: the broker said yes, and said where;
- ``FAIL``: it certainly did not happen;
- ``INFO``: nobody knows: a time-out, a lost connection, a crash before the answer. Whatever has no outcome when the
  history is judged is of this kind. It is never counted as failure: it may appear, once, or not at all.

Values must be unique over the whole history: that is what lets a record that was read name the send that wrote it. A
topic's name is used for one topic only. A producer or consumer is known by the name of its *process*; one that is
started anew gets a new name. A send with a key says that its partition is compacted: all others there have one, too.

Recording is an append under a lock, so that delivery callbacks of any thread may call it. `History.save` writes JSON
lines, `History.load` reads them: a failing run leaves its history behind.
"""

from __future__ import annotations

import threading
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Sequence


class Outcome(StrEnum):
    """What is known about an operation."""

    OK = "ok"
    FAIL = "fail"
    INFO = "info"


class Place(msgspec.Struct, frozen=True, order=True):
    """A partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Send(msgspec.Struct, tag="send"):
    """One record given to a producer. `offset` is where the broker said it stands; `ended_ns` is 0 while unknown."""

    process: str
    place: Place
    value: str
    idempotent: bool
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO
    offset: int = -1
    key: str = ""


class Poll(msgspec.Struct, tag="poll"):
    """Records that one poll returned from one partition, in the order in which they came."""

    process: str
    group: str
    place: Place
    records: list[tuple[int, str]]
    at_ns: int


class Reset(msgspec.Struct, tag="reset"):
    """The position of a consumer on these partitions was set anew: assigned, sought, resumed from a commit."""

    process: str
    places: list[Place]
    at_ns: int


class Commit(msgspec.Struct, tag="commit"):
    """A group's next offset, given to the broker to keep."""

    process: str
    group: str
    place: Place
    next_offset: int
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO


class Committed(msgspec.Struct, tag="committed"):
    """What the broker said a group had committed; -1 is nothing."""

    group: str
    place: Place
    next_offset: int
    began_ns: int
    ended_ns: int


class TopicChange(msgspec.Struct, tag="topic"):
    """A topic was asked to be created (`exists`) or deleted."""

    topic: str
    exists: bool
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO


class TopicsSeen(msgspec.Struct, tag="topics"):
    """Every topic that the broker listed."""

    names: list[str]
    began_ns: int
    ended_ns: int


class Trim(msgspec.Struct, tag="trim"):
    """The records of a partition before an offset were asked to be deleted."""

    place: Place
    before: int
    began_ns: int
    ended_ns: int = 0
    outcome: Outcome = Outcome.INFO


class LogStart(msgspec.Struct, tag="start"):
    """What the broker said is the first offset of a partition."""

    place: Place
    offset: int
    began_ns: int
    ended_ns: int


Operation = Send | Poll | Reset | Commit | Committed | TopicChange | TopicsSeen | Trim | LogStart


class History:
    """All operations of one run, in the order in which they began."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self._lock = threading.Lock()

    def _append(self, operation: Operation) -> None:
        with self._lock:
            self.operations.append(operation)

    def send(
        self, process: str, topic: str, partition: int, value: str, *, key: str = "", idempotent: bool = True
    ) -> Send:
        """A send begins; give what this returns to `sent` when its outcome is known."""
        operation = Send(process, Place(topic, partition), value, idempotent, time.monotonic_ns(), key=key)
        self._append(operation)
        return operation

    def sent(self, operation: Send, outcome: Outcome, offset: int = -1) -> None:
        """The outcome of a send; `offset` with OK, -1 where the client does not tell (acks=0)."""
        operation.ended_ns = time.monotonic_ns()
        operation.offset = offset
        operation.outcome = outcome

    def polled(
        self, process: str, topic: str, partition: int, records: Iterable[tuple[int, str]], *, group: str = ""
    ) -> None:
        """A consumer was given records: (offset, value) in their order."""
        self._append(Poll(process, group, Place(topic, partition), list(records), time.monotonic_ns()))

    def reset(self, process: str, places: Iterable[tuple[str, int]]) -> None:
        """A consumer's position on these partitions starts anew."""
        self._append(Reset(process, [Place(topic, partition) for topic, partition in places], time.monotonic_ns()))

    def commit(self, process: str, group: str, topic: str, partition: int, next_offset: int) -> Commit:
        """A commit begins; give what this returns to `done`."""
        operation = Commit(process, group, Place(topic, partition), next_offset, time.monotonic_ns())
        self._append(operation)
        return operation

    def change_topic(self, topic: str, *, exists: bool) -> TopicChange:
        """A topic is to be created or deleted; give what this returns to `done`."""
        operation = TopicChange(topic, exists, time.monotonic_ns())
        self._append(operation)
        return operation

    def trim(self, topic: str, partition: int, before: int) -> Trim:
        """Records are to be deleted; give what this returns to `done`."""
        operation = Trim(Place(topic, partition), before, time.monotonic_ns())
        self._append(operation)
        return operation

    def done(self, operation: Commit | TopicChange | Trim, outcome: Outcome) -> None:
        """The outcome of anything but a send."""
        operation.ended_ns = time.monotonic_ns()
        operation.outcome = outcome

    def topics_seen(self, names: Iterable[str], *, began_ns: int) -> None:
        """The broker was asked, at `began_ns`, for all topics, and has answered now."""
        self._append(TopicsSeen(sorted(names), began_ns, time.monotonic_ns()))

    def log_start(self, topic: str, partition: int, offset: int, *, began_ns: int) -> None:
        """The broker was asked, at `began_ns`, where a log starts, and has answered now."""
        self._append(LogStart(Place(topic, partition), offset, began_ns, time.monotonic_ns()))

    def committed(self, group: str, topic: str, partition: int, next_offset: int, *, began_ns: int) -> None:
        """The broker was asked, at `began_ns`, what the group had committed, and has answered now."""
        self._append(Committed(group, Place(topic, partition), next_offset, began_ns, time.monotonic_ns()))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes one JSON document a line."""
        encode = msgspec.json.encode
        Path(path).write_bytes(b"".join(encode(operation) + b"\n" for operation in self.operations))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> History:
        """Reads what `save` wrote."""
        decoder = msgspec.json.Decoder(Operation)
        history = cls()
        history.operations = [decoder.decode(line) for line in Path(path).read_bytes().splitlines()]
        return history

    @classmethod
    def of_operations(cls, operations: Sequence[Operation]) -> History:
        """A history made by hand, for a test of the checker."""
        history = cls()
        history.operations = list(operations)
        return history
