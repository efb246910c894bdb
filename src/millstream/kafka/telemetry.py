"""Client telemetry on one shard: subscriptions, and the storage of pushed metrics (KIP-714).

``core.client_telemetry`` decides. Subscriptions are configurations (resource CLIENT_METRICS) and follow changes.
Accepted metrics become records of the topic in the setting ``client.telemetry.topic``: the key is the client's instance
id in Kafka's notation, the value is the payload as pushed (OpenTelemetry's MetricsData, compressed as the header
``compression`` says), and headers identify the client. The response is sent when the record is durable. A client whose
metrics cannot be stored now is throttled and retries after its interval.

Without such a topic these APIs are not advertised, as in an Apache Kafka without a receiver. Requests are answered all
the same; pushes are checked and dropped.
"""

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from crc32c import crc32c

from millstream.cluster.metadata import MetadataCache, MetadataListener, Steps
from millstream.cluster.topic_table import TopicMeta
from millstream.core.client_telemetry import Attributes, ClientTelemetry, id_text
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.net.client import Client
from millstream.partition.append.internal import InternalLog
from millstream.partition.partition import Partition
from millstream.partition.table import PartitionTable, Remote
from millstream.wire.records import build_batch

if TYPE_CHECKING:
    from millstream.cluster.client import ControllerClient
    from millstream.config.settings import Settings
    from millstream.partition.append.batch import AppendResult
    from millstream.partition.hop.home import Home
    from millstream.shard.context import Shard
    from millstream.storage.shard_storage import ShardStorage
    from millstream.wire.inspection import Refusal
    from millstream.wire.messages.push_telemetry import PushTelemetryRequest

RECORD_OVERHEAD_BYTES: Final = 4096
"""Generous size of batch header, key and headers around a payload."""

COMPRESSION_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")

Done = Callable[[ErrorCode], None]


class Telemetry(MetadataListener):
    """The client telemetry of one shard.

    Lifecycle: made with the shard's node, after its partitions. Shard: one each.
    """

    def __init__(
        self,
        shard: "Shard",
        settings: "Settings",
        metadata: MetadataCache,
        storage: "ShardStorage",
        controller: "ControllerClient",
        partitions: PartitionTable,
        home: "Home",
    ) -> None:
        self._shard = shard
        self._topic = settings.client_telemetry_topic
        self._metadata = metadata
        self._storage = storage
        self._controller = controller
        self._partitions = partitions
        self._home = home
        self.clients = ClientTelemetry(lambda: uuid.uuid4().bytes, _max_bytes(settings))
        self._follow()
        metadata.subscribe(self)

    def client_metrics_changed(self, name: str) -> Steps:
        _ = name
        self._follow()
        return None

    def _follow(self) -> None:
        self.clients.subscribe(self._metadata.state.configs.client_metrics.values())

    def receive(self, client: Attributes, request: "PushTelemetryRequest", done: Done) -> None:
        """Store what a client pushed."""
        if not self._topic or not request.metrics:
            done(ErrorCode.NONE)
            return
        if not self._storage.accepts_writes:
            done(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            return
        batch = self._batch(client, request)
        place = crc32c(request.client_instance_id)

        def ensured(topic: TopicMeta | MillstreamError) -> None:
            if isinstance(topic, MillstreamError):
                done(ErrorCode.THROTTLING_QUOTA_EXCEEDED)
            else:
                self._append(topic.name, place % len(topic.partitions), batch, done)

        self._controller.ensure_topic(self._topic, ensured)

    def _append(self, name: str, index: int, batch: bytes, done: Done) -> None:
        entry = self._partitions.find(name, index)
        if isinstance(entry, Partition):
            InternalLog(entry).append(batch, lambda result: done(_outcome(isinstance(result, int))))
        elif isinstance(entry, Remote):
            self._home.append(entry.shard, entry.raft_group, memoryview(batch), _RemoteAppend(done), 0)
        else:
            done(ErrorCode.THROTTLING_QUOTA_EXCEEDED)

    def _batch(self, client: Attributes, request: "PushTelemetryRequest") -> bytes:
        key = id_text(request.client_instance_id).encode()
        headers = [(name, value.encode()) for name, value in client.items()]
        headers.append(("compression", COMPRESSION_NAMES[request.compression_type].encode()))
        headers.append(("terminating", b"true" if request.terminating else b"false"))
        return build_batch([(key, request.metrics, headers, self._shard.reactor.wall_ms())])


class _RemoteAppend:
    """The result of one append on another shard, for the response."""

    __slots__ = ("_done",)

    def __init__(self, done: Done) -> None:
        self._done = done

    def settle(self, slot: int, result: "AppendResult") -> None:
        _ = slot
        self._done(_outcome(result.error_code == ErrorCode.NONE))

    def failed(self, slot: int, error: ErrorCode) -> None:
        _ = slot, error
        self._done(_outcome(False))

    def explain(self, slot: int, refusal: "Refusal") -> None:
        """No effect: the client cannot act on the reason."""

    def expire(self, now_us: int) -> None:
        """No effect: a push has no timeout of its own."""


def _outcome(stored: bool) -> ErrorCode:
    return ErrorCode.NONE if stored else ErrorCode.THROTTLING_QUOTA_EXCEEDED


def attributes(client: Client) -> Attributes:
    """Facts about a client, for subscriptions."""
    name, version = client.software
    return {
        "client_id": client.id or "",
        "client_software_name": name,
        "client_software_version": version,
        "client_source_address": client.host,
        "client_source_port": str(client.port),
    }


def _max_bytes(settings: "Settings") -> int:
    """Maximum size of a push: the setting, limited to what fits into a record of the topic."""
    if not settings.client_telemetry_topic:
        return settings.telemetry_max_bytes
    return min(settings.telemetry_max_bytes, max(settings.message_max_bytes - RECORD_OVERHEAD_BYTES, 1))
