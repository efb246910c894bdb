"""Questions about a partition that a few numbers answer, asked across shards.

``Lookups`` answers for the partitions of other shards what ``list_offset``, ``epoch_end`` and ``describe_producers``
answer for those of this one. A question is a row of numbers whose first is the partition's Raft group; the answer is a
row of numbers whose first is an error code. A shard that does not answer in time is an error of its own; one that
dies takes the broker down.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from millstream.errors import MillstreamError
from millstream.model.quantities import LeaderEpoch, RaftGroupId, RequestedTime
from millstream.partition.read.epoch_end import EpochEnd, epoch_end
from millstream.partition.read.list_offsets import Found, list_offset
from millstream.partition.table import PartitionTable, Remote
from millstream.shard.mailbox import Mailbox, Reply

LIST_OFFSET: Final = 24
EPOCH_END: Final = 25
PRODUCERS: Final = 26

TIMEOUT_US: Final = 30_000_000
"""For a shard that does not answer: the default request timeout of Kafka's clients."""

ActiveProducer = tuple[int, int, int, int, int, int]
"""As ``ProducerState.active`` lists it."""

Producers = tuple[int, list[ActiveProducer]]
"""(error code, producers)"""

_encode = msgspec.msgpack.Encoder().encode
_decode_numbers = msgspec.msgpack.Decoder(list[int]).decode
_decode_producers = msgspec.msgpack.Decoder(Producers).decode


class Lookups:
    """Both ends of these questions on one shard.

    Lifecycle: made with the shard's ``Home``. Shard: one each.
    """

    def __init__(self, mailbox: Mailbox, table: PartitionTable) -> None:
        self._mailbox = mailbox
        self._table = table
        mailbox.serve(LIST_OFFSET, self._serve_list_offset)
        mailbox.serve(EPOCH_END, self._serve_epoch_end)
        mailbox.serve(PRODUCERS, self._serve_producers)

    def _ask(
        self, entry: Remote, method: int, question: Sequence[int], answered: Callable[[bytes | memoryview | int], None]
    ) -> None:
        """Ask the partition's home; ``answered`` gets its answer or an error code."""

        def finish(answer: bytes | memoryview | MillstreamError) -> None:
            answered(int(answer.code) if isinstance(answer, MillstreamError) else answer)

        self._mailbox.call(entry.shard, method, _encode([entry.raft_group, *question]), finish, TIMEOUT_US)

    def list_offset(
        self,
        entry: Remote,
        timestamp: RequestedTime,
        leader_epoch: LeaderEpoch,
        isolation_level: int,
        done: Callable[[Found], None],
    ) -> None:
        """``partition.read.list_offsets.list_offset`` on the partition's home."""

        def answered(answer: bytes | memoryview | int) -> None:
            if isinstance(answer, int):
                done((answer, -1, -1, -1))
            else:
                error, at, offset, epoch = _decode_numbers(answer)
                done((error, at, offset, epoch))

        self._ask(entry, LIST_OFFSET, (timestamp, leader_epoch, isolation_level), answered)

    def _serve_list_offset(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        _ = sender
        raft_group, timestamp, leader_epoch, isolation_level = _decode_numbers(payload)
        partition = self._table.by_group.get(raft_group)
        if partition is None:
            reply.send(_encode((int(self._table.gone(RaftGroupId(raft_group))), -1, -1, -1)))
            return
        list_offset(partition, timestamp, leader_epoch, isolation_level, lambda found: reply.send(_encode(found)))

    def epoch_end(
        self,
        entry: Remote,
        current_leader_epoch: LeaderEpoch,
        leader_epoch: LeaderEpoch,
        done: Callable[[EpochEnd], None],
    ) -> None:
        """``partition.read.epoch_end.epoch_end`` on the partition's home."""

        def answered(answer: bytes | memoryview | int) -> None:
            if isinstance(answer, int):
                done((answer, -1, -1))
            else:
                error, epoch, end = _decode_numbers(answer)
                done((error, epoch, end))

        self._ask(entry, EPOCH_END, (current_leader_epoch, leader_epoch), answered)

    def _serve_epoch_end(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        _ = sender
        raft_group, current_leader_epoch, leader_epoch = _decode_numbers(payload)
        partition = self._table.by_group.get(raft_group)
        if partition is None:
            reply.send(_encode((int(self._table.gone(RaftGroupId(raft_group))), -1, -1)))
        else:
            reply.send(_encode(epoch_end(partition, current_leader_epoch, leader_epoch)))

    def describe_producers(self, entry: Remote, done: Callable[[Producers], None]) -> None:
        """The producers that the partition's home remembers."""

        def answered(answer: bytes | memoryview | int) -> None:
            done((answer, []) if isinstance(answer, int) else _decode_producers(answer))

        self._ask(entry, PRODUCERS, (), answered)

    def _serve_producers(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        _ = sender
        (raft_group,) = _decode_numbers(payload)
        partition = self._table.by_group.get(raft_group)
        if partition is None:
            reply.send(_encode((int(self._table.gone(RaftGroupId(raft_group))), [])))
        else:
            reply.send(_encode((0, partition.producers.active())))
