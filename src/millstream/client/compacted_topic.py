"""A compacted topic of one partition that holds a program's state: the latest value of each key.

A reader first asks where the log ends and then reads up to there, so an answer has everything that was acknowledged
before the question. A write is acknowledged by every replica in sync. One whose outcome is unknown is written again:
the same key with the same value changes nothing. Nothing is kept on disk here; after a crash at any point the state is
what the topic says.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

from millstream.client import EARLIEST, LATEST, Cluster, PartitionLog
from millstream.client.cluster import error_of
from millstream.errors import OutcomeUnknown, Rejected, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.batch import check_batch, iter_batches
from millstream.wire.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from millstream.wire.records import CONTROL, NewRecord, Record, build_batch, iter_records, parse_header

WRITE_TIMEOUT_S: Final = 15.0
_PAUSE_S: Final = 0.1


class TopicReset(Exception):
    """The topic is another one than before, or shorter: what was read of it is no longer true."""


class CompactedTopic:
    """Reads and writes one topic, which the first write makes. Lifecycle: ``read_new`` and ``write`` as often as
    needed, then ``close``. It belongs to the thread that uses it.

    ``position`` is the offset after the last record read; ``_topic_id`` is None until the topic was seen.
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.position = 0
        self._topic = topic
        self._cluster = cluster
        self._topic_id: bytes | None = None

    def close(self) -> None:
        self._cluster.close()

    def read_new(self, take: Callable[[Record], None]) -> None:
        """Hand every record to ``take`` that was acknowledged and not read before.

        Raises:
            TopicReset: the topic was created again; read it again, with an empty state.
            Unavailable: no leader answers.
        """
        if not self._exists():
            if self.position or self._topic_id is not None:
                self._forget()
                raise TopicReset
            return
        end = self._cluster.list_offsets({(self._topic, 0): LATEST})[self._topic, 0].offset
        if end < self.position:
            self._forget()
            raise TopicReset
        if end > self.position:
            self._read_to(end, take)

    def make(self) -> None:
        """Create the topic unless it is there.

        Raises:
            Rejected: the broker refuses.
            Unavailable: it does not appear.
        """
        if not self._exists():
            self._create()

    def write(
        self, records: Sequence[tuple[bytes, bytes | None]], headers: tuple[tuple[str, bytes | None], ...] = ()
    ) -> None:
        """Append keys with their values (None deletes) and ``headers`` in one batch; returns when they are stored.

        Raises:
            OutcomeUnknown: they may have been stored, or not.
            Rejected: a broker refuses them; nothing is stored.
        """
        self.make()
        now = time.time_ns() // 1_000_000
        new: list[NewRecord] = [(key, value, headers, now) for key, value in records]
        batch = build_batch(new)
        deadline = time.monotonic() + WRITE_TIMEOUT_S
        while True:
            try:
                self._cluster.produce(self._topic, 0, [batch], timeout_s=WRITE_TIMEOUT_S)
                return
            except (OutcomeUnknown, Unavailable, Retriable) as error:
                if time.monotonic() + _PAUSE_S > deadline:
                    raise OutcomeUnknown(f"{self._topic} cannot be written: {error.message}") from error
                time.sleep(_PAUSE_S)

    def _read_to(self, end: int, take: Callable[[Record], None]) -> None:
        start = self.position or self._cluster.list_offsets({(self._topic, 0): EARLIEST})[self._topic, 0].offset
        deadline = time.monotonic() + self._cluster.timeout_s
        with PartitionLog(self._cluster, self._topic, 0, topic_id=self._topic_id or bytes(16)) as log:
            self.position = start
            while self.position < end:
                if time.monotonic() > deadline:
                    raise Unavailable(
                        f"{self._topic} gives no record at offset {self.position}, and {end} is where it ends"
                    )
                log.request(self.position)
                fetched = log.receive()
                before = self.position
                for batch in iter_batches(fetched.records):
                    check_batch([batch])
                    deadline = time.monotonic() + self._cluster.timeout_s
                    self._take_batch(batch, take)
                if self.position == before and len(fetched.records) >= log.max_bytes:
                    log.max_bytes *= 2  # a batch is larger than a fetch

    def _take_batch(self, batch: memoryview, take: Callable[[Record], None]) -> None:
        header = parse_header(batch)
        if not header.attributes & CONTROL:
            for record in iter_records(batch):
                if record.offset >= self.position:
                    take(record)
        self.position = max(self.position, header.base_offset + header.last_offset_delta + 1)

    def _exists(self) -> bool:
        found = self._cluster.metadata([self._topic]).topics[self._topic]
        if found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return False
        if found.error_code:
            raise error_of(found.error_code, f"topic {self._topic}")
        if self._topic_id not in (None, found.topic_id):
            self._forget()
            raise TopicReset
        self._topic_id = found.topic_id
        return True

    def _forget(self) -> None:
        self.position, self._topic_id = 0, None

    def _create(self) -> None:
        """Create the topic: one partition, compacted, as many replicas as there are brokers, three at most."""
        found = self._cluster.metadata([])
        connection = self._cluster.connection(found.controller_id)
        topic = CreatableTopic(
            self._topic,
            num_partitions=1,
            replication_factor=min(3, len(found.brokers)),
            configs=[CreatableTopicConfig("cleanup.policy", "compact")],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=int(WRITE_TIMEOUT_S * 1000))
        answer = connection.ask(request, CreateTopicsResponse, lowest=4)
        code = answer.topics[0].error_code
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise Rejected(f"topic {self._topic} cannot be created: {answer.topics[0].error_message}", ErrorCode(code))
        self._cluster.forget(self._topic)
        deadline = time.monotonic() + WRITE_TIMEOUT_S
        while not self._exists():
            if time.monotonic() > deadline:
                raise Unavailable(f"topic {self._topic} was created and does not appear")
            time.sleep(_PAUSE_S)
