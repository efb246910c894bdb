"""What transactions ask of other brokers: to add partitions to one that is coordinated there, and to write markers.

A question goes to the broker that leads the partition, as this shard's metadata say, over the connections between
brokers. The receiver answers from its own shards and passes nothing on: if it does not lead either, the answer is
NOT_COORDINATOR or NOT_LEADER_OR_FOLLOWER, and the asker tries again with newer metadata. A broker that cannot be
reached, or does not answer in time, is COORDINATOR_NOT_AVAILABLE, or REQUEST_TIMED_OUT for a marker. These are tried
again too: to add or to mark twice is harmless.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.errors import MillstreamError
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ProducerEpoch, ProducerId, TransactionVersion
from millstream.model.replication import ReplicaId
from millstream.partition.append.markers import Marker

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.coordinator.marker_sender import WriteMarker
    from millstream.core.txn.image import TopicPartition
    from millstream.peers.calls import CallDone, Calls

ADD_PARTITIONS: Final = 16
WRITE_MARKER: Final = 17
"""Methods of ``peers.calls``."""

TIMEOUT_MS: Final = 10_000


class Addition(msgspec.Struct, frozen=True, array_like=True):
    """Partitions to add to a transaction, or (``verify_only``) to be asked about."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[tuple[str, int], ...]
    verify_only: bool
    client_version: TransactionVersion


AddHere = Callable[[Addition, Callable[[Sequence[ErrorCode]], None]], None]
"""Adds partitions, and gives one code for each."""

_encode = msgspec.msgpack.Encoder().encode
_decode_addition = msgspec.msgpack.Decoder(Addition).decode
_decode_marker = msgspec.msgpack.Decoder(tuple[tuple[str, int], Marker]).decode
_decode_codes = msgspec.msgpack.Decoder(list[int]).decode


class AcrossBrokers:
    """Both ends of these questions on one shard.

    Lifecycle: made with the shard, if the broker belongs to a cluster. Shard: one each; others ask shard 0.
    """

    def __init__(self, calls: "Calls", metadata: "MetadataCache", write_here: "WriteMarker") -> None:
        """``write_here`` writes markers to partitions that this broker leads."""
        self._calls = calls
        self._metadata = metadata
        self._write_here = write_here

    def serve(self, add_here: "AddHere") -> None:
        """Answer the other brokers from now on. ``add_here`` adds to transactions that this broker coordinates."""

        def added(sender: ReplicaId, payload: bytes, timeout_ms: int, done: "CallDone") -> None:
            _ = sender, timeout_ms
            add_here(_decode_addition(payload), lambda codes: done(_encode([int(code) for code in codes])))

        self._calls.serve(ADD_PARTITIONS, added)
        self._calls.serve(WRITE_MARKER, self._serve_marker)

    def leader_elsewhere(self, topic_partition: "TopicPartition") -> NodeId | None:
        """The other broker that leads a partition; None if it is this one, or no leader is known."""
        partition = self._metadata.partition(*topic_partition)
        if partition is None or partition.leader in (-1, self._metadata.node_id):
            return None
        return NodeId(partition.leader)

    def add(self, node: NodeId, addition: Addition, done: Callable[[Sequence[ErrorCode]], None]) -> None:
        """Have the coordinator on ``node`` add the partitions; ``done`` gets one code for each."""

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done((ErrorCode.COORDINATOR_NOT_AVAILABLE,) * len(addition.partitions))
            else:
                done(tuple(map(ErrorCode, _decode_codes(answer))))

        self._calls.call(node, ADD_PARTITIONS, _encode(addition), TIMEOUT_MS, answered)

    def write(self, topic_partition: "TopicPartition", marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """Write a marker, wherever its partition is led."""
        node = self.leader_elsewhere(topic_partition)
        if node is None:
            self._write_here(topic_partition, marker, done)
            return

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done(ErrorCode.REQUEST_TIMED_OUT)
            else:
                done(ErrorCode(_decode_codes(answer)[0]))

        self._calls.call(node, WRITE_MARKER, _encode((topic_partition, marker)), TIMEOUT_MS, answered)

    def _serve_marker(self, sender: ReplicaId, payload: bytes, timeout_ms: int, done: "CallDone") -> None:
        _ = sender, timeout_ms
        topic_partition, marker = _decode_marker(payload)
        self._write_here(topic_partition, marker, lambda code: done(_encode([int(code)])))
