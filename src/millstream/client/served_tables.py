"""How the tables of topics are: what ``millstream pipeline serve`` has said last, how far behind, and whether it runs.

The statuses are in the compacted topic ``__pipelines``; where topics end and whether a group has members is asked of
the brokers at each call. Nothing is written.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from millstream.client.cluster import LATEST, Cluster
from millstream.client.compacted_topic import CompactedTopic, TopicReset
from millstream.client.connection import Connection
from millstream.client.coordinators import GROUP, Coordinators
from millstream.errors import MillstreamError
from millstream.model.pipelines import PIPELINES, RUNNER_GROUP
from millstream.wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from millstream.wire.records import Record


class ServedTables:
    """Reads the statuses of one cluster. It belongs to one thread at a time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._coordinators = Coordinators(cluster)
        self._log = CompactedTopic(cluster, PIPELINES)
        self._statuses: dict[str, dict[str, Any]] = {}

    def all(self) -> list[dict[str, Any]]:
        """Each status as ``pipeline serve`` wrote it, with ``lag`` in records (None: unknown) and ``served``, whether a
        process runs the table now; in order of topics.

        Raises:
            MillstreamError: no broker answers.
        """
        self._catch_up()
        return [self._view(status) for _, status in sorted(self._statuses.items())]

    def one(self, topic: str) -> dict[str, Any]:
        """As ``all`` for one topic; one without a status has ``lag`` and ``served`` alone."""
        self._catch_up()
        return self._view(self._statuses.get(topic, {"topic": topic}))

    def _catch_up(self) -> None:
        try:
            self._log.read_new(self._take)
        except TopicReset:
            self._statuses.clear()
            self._log.read_new(self._take)

    def _take(self, record: Record) -> None:
        name = bytes(record.key or b"").decode(errors="replace")
        try:
            found = None if record.value is None else msgspec.json.decode(record.value)
        except msgspec.DecodeError:
            found = None
        if isinstance(found, dict):
            self._statuses[name] = found
        else:
            self._statuses.pop(name, None)

    def _view(self, status: dict[str, Any]) -> dict[str, Any]:
        topic = str(status.get("topic"))
        lag = self._lag(topic, status.get("offsets") or {})
        return {**status, "lag": lag, "served": self._has_members(f"{RUNNER_GROUP}{topic}")}

    def _lag(self, topic: str, offsets: dict[str, int]) -> int | None:
        try:
            found = self._cluster.metadata([topic]).topics[topic]
            wanted: Iterable[int] = () if found.error_code else found.partitions
            ends = self._cluster.list_offsets({(topic, index): LATEST for index in wanted}, read_committed=True)
        except MillstreamError:
            return None
        if found.error_code or not offsets:
            return None
        return sum(max(0, end.offset - offsets.get(str(index), 0)) for (_, index), end in ends.items())

    def _has_members(self, group: str) -> bool:
        def ask(connection: Connection) -> bool:
            request = DescribeGroupsRequest(groups=[group])
            answer = connection.ask(request, DescribeGroupsResponse)
            return any(each.members for each in answer.groups)

        try:
            return self._coordinators.insist(f"group {group}", GROUP, group, ask)
        except MillstreamError:
            return False
