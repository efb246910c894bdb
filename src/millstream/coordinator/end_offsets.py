"""Where partitions end, asked of the brokers that lead them: for the lag of share groups.

A question goes to the broker that leads the partition, as this shard's metadata say; the receiver answers from its own
shards and passes nothing on. What cannot be asked, or is not answered in time, is an error, after which clients ask
again. Nothing is kept.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from millstream.errors import MillstreamError
from millstream.model.cluster import NodeId
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.model.quantities import Offset
from millstream.partition.partition import Partition
from millstream.partition.read.list_offsets import LATEST, READ_UNCOMMITTED, Found, list_offset
from millstream.partition.table import Remote

if TYPE_CHECKING:
    from millstream.cluster.metadata import MetadataCache
    from millstream.model.replication import ReplicaId
    from millstream.partition.hop.lookups import Lookups
    from millstream.partition.table import PartitionTable
    from millstream.peers.calls import CallDone, Calls

END_OFFSET: Final = 26
"""Method of ``peers.calls``."""

TIMEOUT_MS: Final = 10_000

_ANY_EPOCH: Final = -1
_NONE: Final = Offset(-1)

Place: TypeAlias = tuple[str, PartitionIndex]
Done: TypeAlias = Callable[[ErrorCode, Offset], None]

_encode = msgspec.msgpack.Encoder().encode
_decode_place = msgspec.msgpack.Decoder(Place).decode
_decode_end = msgspec.msgpack.Decoder(tuple[int, Offset]).decode


class EndOffsets:
    """Both ends of the question on one shard. Lifecycle: one per shard; ``across`` if there are other brokers."""

    def __init__(self, metadata: "MetadataCache", table: "PartitionTable", lookups: "Lookups") -> None:
        self._metadata = metadata
        self._table = table
        self._lookups = lookups
        self._calls: Calls | None = None

    def across(self, calls: "Calls") -> None:
        """There are other brokers: ask them, and answer them."""
        self._calls = calls
        calls.serve(END_OFFSET, self._serve)

    def find(self, place: Place, done: Done) -> None:
        """Call ``done`` once with the high watermark of a partition, or with why it is not known."""
        known = self._metadata.partition(*place)
        if known is None:
            done(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, _NONE)
        elif self._calls is None or known.leader == self._metadata.node_id:
            self._find_here(place, done)
        elif known.leader < 0:
            done(ErrorCode.LEADER_NOT_AVAILABLE, _NONE)
        else:

            def answered(answer: bytes | MillstreamError) -> None:
                if isinstance(answer, MillstreamError):
                    done(ErrorCode.LEADER_NOT_AVAILABLE, _NONE)
                else:
                    error, offset = _decode_end(answer)
                    done(ErrorCode(error), offset)

            self._calls.call(NodeId(known.leader), END_OFFSET, _encode(place), TIMEOUT_MS, answered)

    def _find_here(self, place: Place, done: Done) -> None:
        def found(answer: Found) -> None:
            done(ErrorCode(answer[0]), Offset(answer[2]))

        entry = self._table.find(*place)
        if isinstance(entry, Partition):
            list_offset(entry, LATEST, _ANY_EPOCH, READ_UNCOMMITTED, found)
        elif isinstance(entry, Remote):
            self._lookups.list_offset(entry, LATEST, _ANY_EPOCH, READ_UNCOMMITTED, found)
        else:
            done(self._table.missing(place[0]), _NONE)

    def _serve(self, sender: "ReplicaId", payload: bytes, timeout_ms: int, done: "CallDone") -> None:
        _ = sender, timeout_ms
        self._find_here(_decode_place(payload), lambda error, offset: done(_encode((int(error), offset))))
