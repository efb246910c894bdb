"""The shard hop of administrative requests: what they need of partitions whose home is another shard.

The counterpart of ``partition.hop.home`` for requests that are rare and may name any number of partitions: one call to
each shard that is concerned, answered when it has an answer for each of its partitions. A shard that does not answer in
time leaves the outcome unknown, and the client gets REQUEST_TIMED_OUT.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from millstream.errors import MillstreamError, Rejected, Retriable
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset, RaftGroupId, ShardId
from millstream.partition.append.restored import restore_batches
from millstream.partition.delete_records import NO_LOW_WATERMARK, Deleted, delete_records
from millstream.partition.hop.home import TIMEOUT_US
from millstream.partition.partition import Partition
from millstream.partition.replace_segments import replace_segments
from millstream.partition.table import PartitionTable, Remote
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.tiers.replacing import Replacement, Replacing

DELETE_RECORDS: Final = 36
LOG_SIZES: Final = 37
REPLACE_SEGMENTS: Final = 48
RESTORE_BATCHES: Final = 49

_encode = msgspec.msgpack.Encoder().encode
_decode_replacement = msgspec.msgpack.Decoder(tuple[int, Replacement]).decode
_decode_result = msgspec.msgpack.Decoder(tuple[int, int, str]).decode
_decode_batches = msgspec.msgpack.Decoder(tuple[int, bytes]).decode
_decode_pairs = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode

Sizes = list[tuple[int, int]]
"""(Raft group, bytes of the partition's segments)."""


class AdminHome:
    """Both ends of the hop on one shard.

    Lifecycle: made with the shard, after its mailbox.
    Shard: one each.
    """

    def __init__(
        self,
        shard: Shard,
        table: PartitionTable,
        accepts_writes: Callable[[], bool],
        replacing: Replacing | None = None,
    ) -> None:
        self._shard = shard
        self._accepts_writes = accepts_writes
        self._table = table
        self.replacing = replacing
        shard.mailbox.serve(DELETE_RECORDS, self._serve_delete_records)
        shard.mailbox.serve(LOG_SIZES, self._serve_log_sizes)
        shard.mailbox.serve(REPLACE_SEGMENTS, self._serve_replace_segments)
        shard.mailbox.serve(RESTORE_BATCHES, self._serve_restore_batches)

    # DeleteRecords

    def delete_records(
        self, to: int, wanted: Sequence[tuple[int, int]], done: Callable[[Sequence[Deleted]], None]
    ) -> None:
        """``partition.delete_records`` for (Raft group, offset) pairs whose home is shard ``to``, in their order."""

        def answered(answer: bytes | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done([(int(answer.code), NO_LOW_WATERMARK)] * len(wanted))
            else:
                done(_decode_pairs(answer))

        self._shard.mailbox.call(to, DELETE_RECORDS, _encode(wanted), answered, TIMEOUT_US)

    def _serve_delete_records(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender
        wanted = _decode_pairs(payload)
        results: list[Deleted] = [(int(ErrorCode.NOT_LEADER_OR_FOLLOWER), NO_LOW_WATERMARK)] * len(wanted)
        missing = 1 + len(wanted)

        def settled() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                reply.send(_encode(results))

        for slot, (raft_group, offset) in enumerate(wanted):

            def done(result: Deleted, slot: int = slot) -> None:
                results[slot] = result
                settled()

            partition = self._table.by_group.get(raft_group)
            if partition is None:
                results[slot] = (int(self._table.gone(RaftGroupId(raft_group))), NO_LOW_WATERMARK)
                settled()
            else:
                delete_records(partition, Offset(offset), done)
        settled()

    # ReplaceSegments

    def replace_segments(
        self, to: ShardId, raft_group: RaftGroupId, wanted: Replacement, done: Callable[[int | MillstreamError], None]
    ) -> None:
        """``partition.replace_segments`` for a partition whose home is shard ``to``."""
        call = _encode((raft_group, wanted))
        self._shard.mailbox.call(to, REPLACE_SEGMENTS, call, _answered(done), TIMEOUT_US)

    def _serve_replace_segments(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender
        raft_group, wanted = _decode_replacement(payload)
        done = _replies(reply)
        partition = self._table.by_group.get(raft_group)
        if partition is None:
            done(Rejected("the partition has moved or failed", self._table.gone(RaftGroupId(raft_group))))
        else:
            replace_segments(partition, self.replacing, wanted, done)

    # RestoreBatches

    def restore_batches(
        self, entry: Partition | Remote, data: bytes, done: Callable[[int | MillstreamError], None]
    ) -> None:
        """``partition.append.restored`` for a partition of this broker; a disk that is full refuses."""
        if isinstance(entry, Partition):
            self._restore_here(entry, data, done)
            return
        call = _encode((entry.raft_group, data))
        self._shard.mailbox.call(ShardId(entry.shard), RESTORE_BATCHES, call, _answered(done), TIMEOUT_US)

    def _restore_here(self, partition: Partition, data: bytes, done: Callable[[int | MillstreamError], None]) -> None:
        if self._accepts_writes():
            restore_batches(partition, data, self._shard.reactor.wall_ms(), done)
        else:
            done(Retriable("the broker's disk is full", ErrorCode.KAFKA_STORAGE_ERROR))

    def _serve_restore_batches(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender
        raft_group, data = _decode_batches(payload)
        done = _replies(reply)
        partition = self._table.by_group.get(raft_group)
        if partition is None:
            done(Retriable("the partition has moved or failed", self._table.gone(RaftGroupId(raft_group))))
        else:
            self._restore_here(partition, data, done)

    # Sizes

    def log_sizes(self, done: Callable[[Sizes | MillstreamError], None]) -> None:
        """The size of every partition of the broker."""
        shards = [shard for shard in range(self._shard.count) if shard != self._shard.id]
        sizes = self._own_sizes()
        missing = len(shards)
        failure: MillstreamError | None = None

        def answered(answer: bytes | MillstreamError) -> None:
            nonlocal missing, failure
            missing -= 1
            if isinstance(answer, MillstreamError):
                failure = answer
            else:
                sizes.extend(_decode_pairs(answer))
            if not missing:
                done(failure or sizes)

        for shard in shards:
            self._shard.mailbox.call(shard, LOG_SIZES, b"", answered, TIMEOUT_US)
        if not shards:
            done(sizes)

    def _serve_log_sizes(self, sender: int, payload: bytes, reply: Reply) -> None:
        _ = sender, payload
        reply.send(_encode(self._own_sizes()))

    def _own_sizes(self) -> Sizes:
        return [(partition.raft_group, partition.log.size_bytes) for partition in self._table.by_group.values()]


def _answered(done: Callable[[int | MillstreamError], None]) -> Callable[[bytes | MillstreamError], None]:
    """Gives ``done`` the number, or the error, that another shard answers with (``_replies``)."""

    def answered(answer: bytes | MillstreamError) -> None:
        if isinstance(answer, MillstreamError):
            done(answer)
        else:
            number, code, message = _decode_result(answer)
            done(Rejected(message, ErrorCode(code)) if code else number)

    return answered


def _replies(reply: Reply) -> Callable[[int | MillstreamError], None]:
    """Answers another shard with a number or an error."""

    def done(result: int | MillstreamError) -> None:
        failed = isinstance(result, MillstreamError)
        reply.send(_encode((-1, int(result.code), result.message) if failed else (result, 0, "")))

    return done
