"""A Kafka cluster as one object: finds leaders, sends each request to the right broker, and retries.

A request that fails for a transient reason (a leader moved, a broker restarts) is retried with fresh metadata, after a
pause that grows from 50 ms to 1 s, until ``timeout_s`` is over. Then ``Unavailable`` carries the last error. A
permanent reason raises ``Rejected`` at once. Produce is not retried: after a lost connection the batch may be stored,
and a retry could store it twice. ``produce`` then raises ``OutcomeUnknown``, and its caller decides.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Self, TypeVar

from millstream.client.connection import Connection, Dial
from millstream.client.metadata import BrokerAddress, ClusterMetadata, read_metadata
from millstream.client.security import PLAIN, Security
from millstream.errors import MillstreamError, OutcomeUnknown, Rejected, Retriable, Unavailable
from millstream.model.error_code import RETRIABLE, ErrorCode
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from millstream.wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from millstream.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

EARLIEST: Final = -2
LATEST: Final = -1
MAX_TIMESTAMP: Final = -3
"""Special timestamps of ``list_offsets``."""

BROKER_RESOURCE: Final = 4
TOPIC_RESOURCE: Final = 2
GROUP_RESOURCE: Final = 32

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0

TopicPartition = tuple[str, int]
_T = TypeVar("_T")


class FoundOffset(NamedTuple):
    """Result of ``list_offsets`` for one partition. Offset -1: no record is that late."""

    offset: int
    timestamp: int
    leader_epoch: int


class Cluster:
    """Connections to the brokers of one cluster, opened on demand. Close it, or use it as a context manager."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "millstream-client",
        timeout_s: float = 30.0,
        security: Security = PLAIN,
        dial: Dial | None = None,
    ) -> None:
        """Store the bootstrap addresses; nothing is sent yet.

        Args:
            bootstrap: ``host:port`` of one or more brokers, separated by commas; or the path of a single broker's
                socket file, through which every request is then sent.
            client_id: client id in the brokers' logs and metrics.
            timeout_s: limit of one call, retries included.
            security: TLS and login of every connection.
            dial: makes the sockets of a single broker; then ``bootstrap`` is not used.

        Raises:
            Rejected: ``bootstrap`` does not have that form.
        """
        self.client_id = client_id
        self.timeout_s = timeout_s
        self.security = security
        self.dial = dial
        self._seeds = [("broker", 0)] if dial else _addresses(bootstrap)
        if not self._seeds:
            raise Rejected("bootstrap servers are missing: give host:port, several separated by commas")
        self._bootstrap = bootstrap
        self._metadata = ClusterMetadata(None, -1, {}, {})
        self._connections: dict[int, Connection] = {}
        self._any: Connection | None = None

    def another(self) -> "Cluster":
        """The same cluster through connections of its own, for another thread."""
        return Cluster(
            self._bootstrap,
            client_id=self.client_id,
            timeout_s=self.timeout_s,
            security=self.security,
            dial=self.dial,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every connection. A later call opens new ones."""
        for connection in (*self._connections.values(), *([self._any] if self._any else [])):
            connection.close()
        self._connections.clear()
        self._any = None

    def metadata(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """Metadata of topics by name (None: all). Unknown topics have an error code; none is created."""
        return self.insist("metadata", lambda: self.metadata_once(topics))

    def metadata_once(self, topics: Sequence[str] | None = None) -> ClusterMetadata:
        """As ``metadata``, without retries.

        Raises:
            Unavailable: no broker answers.
        """
        wanted = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=False)
        connection = self.any_connection()
        # Version 10 has topic ids (Kafka 2.8). Without them a topic that was deleted and created again goes unnoticed.
        found = read_metadata(connection.ask(request, MetadataResponse, lowest=10))
        known = found.topics if topics is None else {**self._metadata.topics, **found.topics}
        self._metadata = ClusterMetadata(found.cluster_id, found.controller_id, found.brokers, known)
        return found

    def connection(self, node_id: int) -> Connection:
        """The shared connection to one broker, for one request at a time."""
        held = self._connections.get(node_id)
        if held is None or not held.is_open:
            held = self._connections[node_id] = self.connect(node_id)
        return held

    def connect(self, node_id: int) -> Connection:
        """A new connection to one broker, owned by the caller."""
        if node_id not in self._metadata.brokers:
            self.metadata([])
        address = self._metadata.brokers.get(node_id)
        if address is None:
            raise Unavailable(f"broker {node_id} is not in the cluster", ErrorCode.BROKER_NOT_AVAILABLE)
        return self._open(address.host, address.port)

    def leader(self, topic: str, partition: int) -> BrokerAddress:
        """The leader of a partition, from cached or fresh metadata.

        Raises:
            Retriable: the partition has no leader at the moment.
            Rejected: the topic does not exist.
        """
        found = self._metadata.leader(topic, partition)
        if found is None:
            answer = self.metadata([topic]).topics.get(topic)
            if answer is not None and answer.error_code:
                raise error_of(answer.error_code, f"topic {topic}")
            found = self._metadata.leader(topic, partition)
        if found is None:
            raise Retriable(f"{topic}-{partition} has no leader", ErrorCode.LEADER_NOT_AVAILABLE)
        return found

    def forget(self, topic: str) -> None:
        """Drop a topic's cached metadata. The next request for it asks again."""
        topics = {name: found for name, found in self._metadata.topics.items() if name != topic}
        self._metadata = ClusterMetadata(
            self._metadata.cluster_id, self._metadata.controller_id, self._metadata.brokers, topics
        )

    def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, FoundOffset]:
        """First offset at or after a time in ms per partition, or ``EARLIEST``, ``LATEST``, ``MAX_TIMESTAMP``.

        With ``read_committed`` the latest offset is the last stable offset.
        """
        left = dict(timestamps)
        found: dict[TopicPartition, FoundOffset] = {}

        def ask() -> dict[TopicPartition, FoundOffset]:
            by_leader: dict[int, dict[TopicPartition, int]] = {}
            for target, timestamp in left.items():
                by_leader.setdefault(self.leader(*target).node_id, {})[target] = timestamp
            for node_id, targets in by_leader.items():
                for target, answer in self._ask_offsets(node_id, targets, read_committed).items():
                    found[target] = answer
                    del left[target]
            return found

        return self.insist("offsets", ask, lambda: [self.forget(topic) for topic, _ in left])

    def produce(
        self, topic: str, partition: int, batches: Sequence[bytes], *, acks: int = -1, timeout_s: float | None = None
    ) -> int:
        """Append record batches as they are, and return the base offset of the first.

        Raises:
            OutcomeUnknown: the connection was lost after sending; the batches may be stored.
            Retriable: the batches are not stored, and a retry can succeed.
            Rejected: the batches are not stored, and a retry cannot succeed.
        """
        outcome = self.produce_all({(topic, partition): batches}, acks=acks, timeout_s=timeout_s)[topic, partition]
        if isinstance(outcome, MillstreamError):
            raise outcome
        return outcome

    def produce_all(
        self,
        batches: Mapping[TopicPartition, Sequence[bytes]],
        *,
        acks: int = -1,
        timeout_s: float | None = None,
        transactional_id: str | None = None,
    ) -> dict[TopicPartition, int | MillstreamError]:
        """Append to many partitions, one request to each leader, all in flight together.

        Nothing is retried. The outcome of a partition is the base offset of its first batch, or one of the errors of
        ``produce``. The batches of a ``transactional_id`` go to partitions that were added to its transaction: only
        versions below 12 are used for them, in which brokers add none.
        """
        highest = 12 if transactional_id is None else 11
        limit_s = self.timeout_s if timeout_s is None else timeout_s
        outcomes: dict[TopicPartition, int | MillstreamError] = {}
        by_leader: dict[int, list[TopicPartition]] = {}
        for target in batches:
            try:
                by_leader.setdefault(self.leader(*target).node_id, []).append(target)
            except MillstreamError as error:
                outcomes[target] = error
        sent: list[tuple[Connection, list[TopicPartition]]] = []
        for node_id, targets in by_leader.items():
            try:
                connection = self.connection(node_id)
                request = _produce_request(targets, batches, acks, limit_s, transactional_id)
                connection.send(request, connection.version_of(ProduceRequest.API_KEY, highest=highest))
                sent.append((connection, targets))
            except MillstreamError as error:
                # A frame whose sending failed in the middle may still have arrived whole.
                unknown = OutcomeUnknown(error.message) if isinstance(error, Unavailable) else error
                outcomes.update(dict.fromkeys(targets, unknown))
        for connection, targets in sent:
            outcomes.update(self._produced(connection, targets, limit_s))
        for topic in {target[0] for target, outcome in outcomes.items() if isinstance(outcome, MillstreamError)}:
            self.forget(topic)
        return outcomes

    def _produced(
        self, connection: Connection, targets: Sequence[TopicPartition], limit_s: float
    ) -> dict[TopicPartition, int | MillstreamError]:
        outcomes: dict[TopicPartition, int | MillstreamError] = {
            target: OutcomeUnknown(f"the response to a produce lacks {target[0]}-{target[1]}") for target in targets
        }
        try:
            answer = connection.receive(ProduceResponse, limit_s)
        except (Unavailable, ProtocolError) as error:
            return dict.fromkeys(targets, OutcomeUnknown(f"produce: {error.message}"))
        for topic in answer.responses:
            for item in topic.partition_responses:
                what = f"produce to {topic.name}-{item.index}"
                failed = item.error_code and error_of(item.error_code, what, item.error_message)
                outcomes[topic.name, item.index] = failed or item.base_offset
        return outcomes

    def describe_configs(
        self, resource_type: int, name: str, keys: Sequence[str] | None = None, *, node_id: int | None = None
    ) -> dict[str, str | None]:
        """Properties of a topic or broker. A broker's properties are asked of the broker itself (``node_id``)."""
        resource = DescribeConfigsResource(resource_type, name, None if keys is None else list(keys))

        def ask() -> dict[str, str | None]:
            connection = self.any_connection() if node_id is None else self.connection(node_id)
            request = DescribeConfigsRequest(resources=[resource])
            result = connection.ask(request, DescribeConfigsResponse).results[0]
            if result.error_code:
                raise error_of(result.error_code, f"configuration of {name}", result.error_message)
            return {config.name: config.value for config in result.configs}

        return self.insist(f"configuration of {name}", ask)

    def topic_configs(self, names: Sequence[str], keys: Sequence[str]) -> dict[str, dict[str, str | None]]:
        """Some properties of topics, by topic. A topic that is not there, or may not be described, is left out."""
        resources = [DescribeConfigsResource(TOPIC_RESOURCE, name, list(keys)) for name in names]

        def ask() -> dict[str, dict[str, str | None]]:
            connection = self.any_connection()
            request = DescribeConfigsRequest(resources=resources)
            results = connection.ask(request, DescribeConfigsResponse).results
            return {
                result.resource_name: {config.name: config.value for config in result.configs}
                for result in results
                if not result.error_code
            }

        return self.insist("configurations of topics", ask) if names else {}

    def _ask_offsets(
        self, node_id: int, targets: Mapping[TopicPartition, int], read_committed: bool
    ) -> dict[TopicPartition, FoundOffset]:
        by_topic: dict[str, list[ListOffsetsPartition]] = {}
        for (topic, partition), timestamp in targets.items():
            by_topic.setdefault(topic, []).append(ListOffsetsPartition(partition, timestamp=timestamp))
        topics = [ListOffsetsTopic(name, partitions) for name, partitions in by_topic.items()]
        request = ListOffsetsRequest(replica_id=-1, isolation_level=int(read_committed), topics=topics)
        connection = self.connection(node_id)
        lowest = 7 if MAX_TIMESTAMP in targets.values() else 2
        answer = connection.ask(request, ListOffsetsResponse, lowest=lowest, highest=7)
        found: dict[TopicPartition, FoundOffset] = {}
        for topic in answer.topics:
            for item in topic.partitions:
                if item.error_code:
                    raise error_of(item.error_code, f"offsets of {topic.name}-{item.partition_index}")
                found[topic.name, item.partition_index] = FoundOffset(item.offset, item.timestamp, item.leader_epoch)
        if found.keys() != targets.keys():
            raise Retriable(f"broker {node_id} answered for other partitions than requested")
        return found

    def any_connection(self) -> Connection:
        """The shared connection to any broker: the one in use, else a known broker, else a bootstrap address."""
        if self._any is not None and self._any.is_open:
            return self._any
        known = [(address.host, address.port) for address in self._metadata.brokers.values()]
        failures: list[str] = []
        for host, port in dict.fromkeys([*self._seeds, *known]):
            try:
                self._any = self._open(host, port)
            except Unavailable as error:
                failures.append(error.message)
            else:
                return self._any
        raise Unavailable("; ".join(failures), ErrorCode.NETWORK_EXCEPTION)

    def _open(self, host: str, port: int) -> Connection:
        if self.dial is not None or self._seeds[0][0].startswith("/"):
            host, port = self._seeds[0]
        return Connection(
            host, port, client_id=self.client_id, timeout_s=self.timeout_s, security=self.security, dial=self.dial
        )

    def insist(self, what: str, ask: Callable[[], _T], before_again: Callable[[], object] | None = None) -> _T:
        """Repeat until ``ask`` succeeds, fails for a permanent reason, or time is over."""
        deadline = time.monotonic() + self.timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                return ask()
            except (Retriable, Unavailable) as error:
                if time.monotonic() + pause_s > deadline:
                    raise Unavailable(f"{what}: {error.message}", error.code) from error
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                if before_again is not None:
                    before_again()


def _produce_request(
    targets: Sequence[TopicPartition],
    batches: Mapping[TopicPartition, Sequence[bytes]],
    acks: int,
    limit_s: float,
    transactional_id: str | None,
) -> ProduceRequest:
    by_topic: dict[str, list[PartitionProduceData]] = {}
    for topic, partition in targets:
        data = PartitionProduceData(partition, list(batches[topic, partition]))
        by_topic.setdefault(topic, []).append(data)
    topics = [TopicProduceData(name, partition_data=data) for name, data in by_topic.items()]
    return ProduceRequest(transactional_id, acks=acks, timeout_ms=int(limit_s * 1000), topic_data=topics)


def error_of(code: int, what: str, detail: str | None = None) -> MillstreamError:
    """The error for a code in a response: ``Retriable`` if a retry can succeed, else ``Rejected``."""
    try:
        known = ErrorCode(code)
    except ValueError:
        return Rejected(f"{what}: error {code}", ErrorCode.UNKNOWN_SERVER_ERROR)
    kind = Retriable if known in RETRIABLE else Rejected
    return kind(f"{what}: {known.name}{f', {detail}' if detail else ''}", known)


def refuse(code: int, what: str, detail: str | None = None) -> None:
    """Raises Rejected for an error of a change, also one that a repetition may not have."""
    if code:
        failed = error_of(code, what, detail)
        raise Rejected(failed.message, failed.code)


def once(change: Callable[[], _T], doubt: str) -> _T:
    """Send a change. Raises OutcomeUnknown with ``doubt``, what may have happened, if the connection is lost."""
    try:
        return change()
    except Unavailable as error:
        raise OutcomeUnknown(f"{error.message}; {doubt}", error.code) from error


def _addresses(bootstrap: str) -> list[tuple[str, int]]:
    if bootstrap.startswith("/"):
        return [(bootstrap, 0)]  # a path may have commas and colons
    return [_address(part) for part in bootstrap.split(",") if part.strip()]


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isdecimal() or not 0 < int(port) < 65536 or not host:
        raise Rejected(f"{text.strip()!r} is not host:port")
    return host.strip("[]"), int(port)
