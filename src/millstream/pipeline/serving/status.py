"""How each served table is: the latest record of its key in the compacted topic ``__pipelines``.

``pipeline serve`` writes it at each commit and at each change of state; the broker's HTTP port and ``topic describe``
read it. Nothing is decided by it, but for two facts that the table's own records do not have: what the values were
taken for, and whether the table was made here. The truth about rows is in the table.
"""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from millstream.client import Cluster
from millstream.client.compacted_topic import CompactedTopic, TopicReset
from millstream.errors import Unavailable
from millstream.model.pipelines import PIPELINES

State = Literal["starting", "running", "failed", "off", "orphaned"]


class TableStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One served table. Counts are totals since its first batch; times are seconds since 1970.

    ``offsets`` are the next ones to read, by partition as text. ``reason`` says why it is ``failed`` or ``orphaned``
    (its topic was deleted and the table was kept). ``made``: the table did not exist before. ``format``, ``registry``
    and ``schema`` are what the values were taken for.
    """

    topic: str
    topic_id: str
    sink: str
    mode: str
    state: State
    runner: str
    updated_at: float
    reason: str = ""
    committed_at: float | None = None
    rows: int = 0
    rejected: int = 0
    bytes: int = 0
    batch: int = -1
    version: str = ""
    offsets: Mapping[str, int] = {}
    delete_with_topic: bool = False
    made: bool = False
    format: str = ""
    registry: str | None = None
    schema: dict[str, str] | None = None


class StatusTopic:
    """Reads and writes the statuses. It belongs to the thread that uses it."""

    def __init__(self, cluster: Cluster) -> None:
        self.found: dict[str, TableStatus] = {}
        self._log = CompactedTopic(cluster, PIPELINES)

    def make(self) -> None:
        """Create the topic unless it is there."""
        self._log.make()

    def read(self) -> dict[str, TableStatus]:
        """All statuses as they are now, by topic.

        Raises:
            MillstreamError: no broker answers.
        """
        for _ in range(3):
            try:
                self._log.read_new(self._take)
                return self.found
            except TopicReset:
                self.found.clear()
        raise Unavailable(f"topic {PIPELINES} is created again and again")

    def write(self, statuses: Mapping[str, TableStatus | None]) -> None:
        """Replace statuses; None removes one.

        Raises:
            MillstreamError: they may not have been stored.
        """
        self._log.write([(name.encode(), _encoded(status)) for name, status in statuses.items()])

    def _take(self, record: Any) -> None:
        name = bytes(record.key or b"").decode(errors="replace")
        try:
            if record.value is None:
                self.found.pop(name, None)
            else:
                self.found[name] = msgspec.json.decode(record.value, type=TableStatus)
        except msgspec.MsgspecError:
            self.found.pop(name, None)  # of a later release, or by another hand


def _encoded(status: TableStatus | None) -> bytes | None:
    return None if status is None else msgspec.json.encode(status)
