"""Reads the records of many partitions without a group: no coordinator is looked up, no offset is stored.

::

    positions ──one Fetch a leader──► batches ──checksum ► aborted? ► decode──► records

A round sends one Fetch to each leader, with all partitions that it leads, and gives the records of the responses. The
partitions of a request change their order from round to round, so that a full response starves none of them.

A partition whose leader is lost or has moved is left out of the round, and ``failure`` says why; the next round looks
for its leader again. A position that the log has lost (retention, DeleteRecords) moves to the first offset there is, as
``auto.offset.reset=earliest`` does. A batch with a wrong checksum raises ``Corruption``; none of its records is given.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Self

from millstream.client.aborted import AbortedProducers
from millstream.client.cluster import EARLIEST, Cluster, TopicPartition, error_of
from millstream.client.connection import Connection
from millstream.errors import Corruption, MillstreamError, Rejected, Retriable, Unavailable
from millstream.model.error_code import RETRIABLE, ErrorCode
from millstream.wire.errors import BatchError
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from millstream.wire.records import Record, batch_crc_ok, iter_batches, iter_records, marker_of, parse_header

_LAST_BY_NAME: Final = 12
"""Newest version of Fetch that names topics; later ones send their ids."""
_RESPONSE_BYTES: Final = 16 << 20
_PARTITION_BYTES: Final = 1 << 20


class RecordReader:
    """Reads partitions from given positions. Owns its connections; close it, or use it as a context manager.

    ``positions`` are the next offsets to read, or EARLIEST and LATEST until a leader has named the offset. ``at_end``
    are the partitions whose last response left nothing to read: up to the last stable offset with ``read_committed``,
    to the high watermark otherwise. ``failure`` is why the last round lacks partitions, None if it lacks none.
    """

    def __init__(
        self,
        cluster: Cluster,
        starts: Mapping[TopicPartition, int],
        *,
        read_committed: bool = True,
        max_wait_s: float = 0.1,
        max_bytes: int = _RESPONSE_BYTES,
    ) -> None:
        """``max_wait_s`` is how long a broker waits for new records before it answers without any. ``max_bytes``
        bounds one response.
        """
        self.positions = dict(starts)
        self.at_end: set[TopicPartition] = set()
        self.failure: MillstreamError | None = None
        self._cluster = cluster
        self._committed = read_committed
        self._max_wait_s = max_wait_s
        self._max_bytes = max_bytes
        self._connections: dict[int, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. Responses in flight are lost."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def refresh(self) -> None:
        """Ask for fresh metadata once, without retries.

        Raises:
            Unavailable: no broker answers.
            Rejected: a topic no longer exists.
        """
        topics = sorted({topic for topic, _ in self.positions})
        for name, found in self._cluster.metadata_once(topics).topics.items():
            if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise Rejected(f"topic {name} does not exist", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

    def read_round(self) -> Iterator[tuple[TopicPartition, Record]]:
        """The records of one Fetch to each leader. Take all of them before the next round.

        Raises:
            Corruption: a batch does not match its checksum or its format.
            Rejected: a broker refuses to serve a partition, and a retry cannot succeed.
        """
        for target, data in self.fetch_round():
            yield from self._records(target, data)

    def fetch_round(self) -> Iterator[tuple[TopicPartition, PartitionData]]:
        """The undecoded responses of a round, those without an error. For callers that need the batches: they decode,
        and move ``positions`` themselves.
        """
        self.failure = None
        self._find_offsets()
        for node_id, connection, targets in self._send():
            try:
                answer = connection.receive(FetchResponse, self._max_wait_s)
                if answer.error_code:
                    raise error_of(answer.error_code, "fetch")
            except (Unavailable, Retriable) as error:
                self._lose(node_id, targets, error)
                continue
            for topic in answer.responses:
                for data in topic.partitions:
                    target = (topic.topic, data.partition_index)
                    if data.error_code:
                        self._refused(target, data.error_code)
                    else:
                        yield target, data

    def _find_offsets(self) -> None:
        """Replace EARLIEST and LATEST by offsets."""
        symbolic = {target: position for target, position in self.positions.items() if position < 0}
        if not symbolic:
            return
        try:
            found = self._cluster.list_offsets(symbolic, read_committed=self._committed)
        except (Unavailable, Retriable) as error:
            self.failure = error
            return
        for target, answer in found.items():
            self.positions[target] = answer.offset

    def _send(self) -> list[tuple[int, Connection, list[TopicPartition]]]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for target, position in self.positions.items():
            if position >= 0:
                try:
                    by_leader.setdefault(self._cluster.leader(*target).node_id, []).append(target)
                except (Unavailable, Retriable) as error:
                    self.failure = error
        sent: list[tuple[int, Connection, list[TopicPartition]]] = []
        for node_id, targets in by_leader.items():
            try:
                connection = self._connection(node_id)
                connection.send(self._request(targets), connection.version_of(FetchRequest.API_KEY, 4, _LAST_BY_NAME))
                sent.append((node_id, connection, targets))
            except (Unavailable, Retriable) as error:
                self._lose(node_id, targets, error)
        if self.positions:
            first = next(iter(self.positions))
            self.positions[first] = self.positions.pop(first)
        return sent

    def _connection(self, node_id: int) -> Connection:
        held = self._connections.get(node_id)
        if held is None or not held.is_open:
            held = self._connections[node_id] = self._cluster.connect(node_id)
        return held

    def _request(self, targets: Sequence[TopicPartition]) -> FetchRequest:
        by_topic: dict[str, list[FetchPartition]] = {}
        for topic, partition in targets:
            position = self.positions[topic, partition]
            by_topic.setdefault(topic, []).append(
                FetchPartition(partition, fetch_offset=position, partition_max_bytes=_PARTITION_BYTES)
            )
        return FetchRequest(
            max_wait_ms=int(self._max_wait_s * 1000),
            min_bytes=1,
            max_bytes=self._max_bytes,
            isolation_level=int(self._committed),
            topics=[FetchTopic(name, partitions=partitions) for name, partitions in by_topic.items()],
        )

    def _lose(self, node_id: int, targets: Sequence[TopicPartition], error: MillstreamError) -> None:
        """The leader did not answer: another connection and fresh metadata are needed."""
        self.failure = error
        lost = self._connections.pop(node_id, None)
        if lost is not None:
            lost.close()
        for topic in {topic for topic, _ in targets}:
            self._cluster.forget(topic)

    def _records(self, target: TopicPartition, data: PartitionData) -> Iterator[tuple[TopicPartition, Record]]:
        aborted = AbortedProducers((entry.producer_id, entry.first_offset) for entry in data.aborted_transactions or ())
        records = data.records if data.records is not None else b""
        assert isinstance(records, bytes | bytearray | memoryview)
        try:
            for batch in iter_batches(memoryview(records)):
                header = parse_header(batch)
                if not batch_crc_ok(batch):
                    raise BatchError("checksum does not match")
                if header.is_control:
                    aborted.end(header.producer_id, header.last_offset, marker_of(batch)[0])
                elif not (
                    self._committed
                    and header.is_transactional
                    and aborted.covers(header.producer_id, header.last_offset)
                ):
                    for record in iter_records(batch):
                        if record.offset >= self.positions[target]:
                            yield target, record
                self.positions[target] = max(self.positions[target], header.next_offset)
        except BatchError as error:
            raise Corruption(f"{_name(target)} at offset {self.positions[target]}: {error.message}") from error
        end = data.last_stable_offset if self._committed else data.high_watermark
        if self.positions[target] >= end:
            self.at_end.add(target)
        else:
            self.at_end.discard(target)

    def _refused(self, target: TopicPartition, code: int) -> None:
        self.at_end.discard(target)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self.positions[target] = EARLIEST
            return
        error = error_of(code, f"fetch from {_name(target)}")
        if error.code not in RETRIABLE:
            raise error
        self.failure = error
        self._cluster.forget(target[0])


def _name(target: TopicPartition) -> str:
    return f"{target[0]}-{target[1]}"
