"""Reads one partition from its leader, with the next request always in flight.

::

    request(offset) ──► … ──► receive() ──► Fetched(records, …) ──► request(next offset) ──► decode what was received

The caller finds the next offset in the batch headers that it received, requests it, and decodes while the broker works.
The broker keeps no state (no fetch session), so a lost connection or a moved leader costs one retry: ``receive``
connects again and asks the new leader for the same offset, until its time is over.

From version 13 on a fetch names the topic by id. A topic that was deleted and created again under the same name is an
error (``TopicReplaced``).
"""

import time
from collections.abc import Sequence
from typing import Final, Self

import msgspec

from millstream.client.cluster import Cluster, error_of
from millstream.client.connection import Connection
from millstream.errors import Rejected, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from millstream.wire.schema import ZERO_UUID

_BY_ID: Final = 13
_PAUSE_S: Final = 0.05


class OffsetOutOfRange(Rejected):
    """The offset is no longer in the log, or not yet. ``log_start_offset`` is -1 if the broker does not report it."""

    default_code = ErrorCode.OFFSET_OUT_OF_RANGE

    def __init__(self, message: str, log_start_offset: int) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset


class TopicReplaced(Rejected):
    """The topic with this id was deleted. Another topic may have its name now."""

    default_code = ErrorCode.UNKNOWN_TOPIC_ID


class Fetched(msgspec.Struct, frozen=True):
    """One fetch response. ``records`` are raw batches, the last possibly truncated, valid until the next ``receive``.

    ``aborted`` are (producer id, first offset) of aborted transactions among them, for read_committed.
    """

    records: memoryview
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: Sequence[tuple[int, int]]


class PartitionLog:
    """A reader of one partition. It owns one connection. Close it, or use it as a context manager."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        *,
        topic_id: bytes = ZERO_UUID,
        read_committed: bool = True,
        max_bytes: int = 4 << 20,
        max_wait_s: float = 0.5,
    ) -> None:
        self.name = f"{topic}-{partition}"
        self.max_bytes = max_bytes
        self._cluster = cluster
        self._topic = topic
        self._topic_id = topic_id
        self._partition = partition
        self._isolation = int(read_committed)
        self._max_wait_s = max_wait_s
        self._connection: Connection | None = None
        self._offset = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def request(self, offset: int) -> None:
        """Request the log from ``offset`` on. The response to the request before must have been received."""
        self._offset = offset
        try:
            self._send()
        except (Unavailable, Retriable):
            self.close()  # receive() sends the request again

    def receive(self) -> Fetched:
        """The response to the last request; empty if no record arrived within the wait.

        Raises:
            OffsetOutOfRange: the offset is outside of the log.
            TopicReplaced: the topic was deleted.
            Unavailable: no leader answered within the cluster's time limit.
        """
        deadline = time.monotonic() + self._cluster.timeout_s
        while True:
            try:
                if self._connection is None:
                    self._send()
                assert self._connection is not None
                return self._fetched(_only(self._connection.receive(FetchResponse, self._max_wait_s)))
            except (Unavailable, Retriable) as error:
                self.close()
                self._cluster.forget(self._topic)
                if time.monotonic() + _PAUSE_S > deadline:
                    raise Unavailable(f"{self.name} cannot be read: {error.message}", error.code) from error
                time.sleep(_PAUSE_S)

    def _send(self) -> None:
        leader = self._cluster.leader(self._topic, self._partition)
        if self._connection is None or not self._connection.is_open:
            self._connection = self._cluster.connect(leader.node_id)
        by_id = self._topic_id != ZERO_UUID
        version = self._connection.version_of(FetchRequest.API_KEY, 4, 17 if by_id else 12)
        where = FetchPartition(self._partition, fetch_offset=self._offset, partition_max_bytes=self.max_bytes)
        topic = FetchTopic(self._topic, self._topic_id if version >= _BY_ID else ZERO_UUID, [where])
        request = FetchRequest(
            max_wait_ms=int(self._max_wait_s * 1000),
            min_bytes=1,
            max_bytes=self.max_bytes,
            isolation_level=self._isolation,
            topics=[topic],
        )
        self._connection.send(request, version)

    def _fetched(self, data: PartitionData) -> Fetched:
        code = data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            raise OffsetOutOfRange(f"{self.name} no longer has offset {self._offset}", data.log_start_offset)
        if code in (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            self._check_still_there()
        if code:
            raise error_of(code, f"fetch from {self.name}")
        aborted = [(entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or ()]
        records = data.records if data.records is not None else b""
        assert isinstance(records, bytes | bytearray | memoryview)
        return Fetched(
            memoryview(records), data.high_watermark, data.last_stable_offset, data.log_start_offset, aborted
        )

    def _check_still_there(self) -> None:
        """Distinguish a deleted topic from a broker whose metadata are old."""
        found = self._cluster.metadata([self._topic]).topics[self._topic]
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise TopicReplaced(f"topic {self._topic} no longer exists")
        if self._topic_id not in (ZERO_UUID, found.topic_id):
            raise TopicReplaced(f"topic {self._topic} was deleted and created again")


def _only(answer: FetchResponse) -> PartitionData:
    if answer.error_code:
        raise error_of(answer.error_code, "fetch")
    try:
        return answer.responses[0].partitions[0]
    except IndexError:
        raise Retriable("the response to a fetch is empty", ErrorCode.UNKNOWN_SERVER_ERROR) from None
