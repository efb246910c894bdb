"""What travels between a connection's shard and the home shard of a partition (``partition.hop.home``), as msgpack
arrays.

Shards of one broker run the same code, so that a message has no version. Payload does not travel: a `Loan` names bytes
in the lender's arena, which stay there until the loan is given back.
"""

from collections.abc import Iterable

import msgspec

from millstream.iobuf import IoBuf
from millstream.model.quantities import ArenaOffset, Offset, RaftGroupId, ShardId
from millstream.partition.append.batch import AppendResult, ProducerTransaction
from millstream.partition.read.batches import Aborted, Divergence, FetchResult
from millstream.shard.mailbox import Mailbox
from millstream.wire.inspection import Refusal


class Loan(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Bytes in the arena of the shard that lends them; ``token`` gives them back."""

    offset: ArenaOffset
    size_bytes: int
    token: int


class AppendAsked(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One batch to append at its home."""

    raft_group: RaftGroupId
    acks: int
    batch: list[Loan]
    transaction: ProducerTransaction | None


class ReadAsked(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One partition to read at its home."""

    raft_group: RaftGroupId
    offset: Offset
    max_bytes: int
    leader_epoch: int
    """Epoch in which the reader believes that the partition is led; -1 for none."""
    last_fetched_epoch: int
    """Epoch of the reader's last record; -1 for none."""
    watch: int
    """Number of the watch on the asking shard, which is armed if there is nothing to read."""
    near: bool
    """A replica that follows may serve (KIP-392)."""


class ReadAnswer(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A `FetchResult` whose data are lent."""

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    loans: list[Loan] | None
    diverging: Divergence | None
    aborted: Aborted | None
    late: bool

    def with_data(self, data: IoBuf | None) -> FetchResult:
        """The result at the shard that asked. ``data`` are the loans, borrowed."""
        return FetchResult(
            self.error_code,
            self.high_watermark,
            self.last_stable_offset,
            self.log_start_offset,
            data,
            self.diverging,
            self.aborted,
            self.late,
        )


def lent_result(mailbox: Mailbox, result: FetchResult) -> ReadAnswer:
    """The answer to a read, whose data are lent from here on."""
    return ReadAnswer(
        result.error_code,
        result.high_watermark,
        result.last_stable_offset,
        result.log_start_offset,
        None if result.data is None else lend_all(mailbox, result.data),
        result.diverging,
        result.aborted,
        result.late,
    )


def lend_all(mailbox: Mailbox, data: IoBuf) -> list[Loan]:
    """Lend the parts of ``data``, whose references go with them."""
    lend = mailbox.loans.lend
    return [Loan(ArenaOffset(piece.offset + start), end - start, lend(piece)) for piece, start, end in data.parts]


def borrow_all(mailbox: Mailbox, lender: ShardId, loans: Iterable[Loan]) -> IoBuf:
    """The bytes of the loans, which go back when the chain is released."""
    data = IoBuf()
    for loan in loans:
        data.append(mailbox.loans.borrow(lender, loan.offset, loan.size_bytes, loan.token), 0, loan.size_bytes)
    return data


decode_appends = msgspec.msgpack.Decoder(list[AppendAsked]).decode
decode_appended = msgspec.msgpack.Decoder(tuple[list[AppendResult], dict[int, Refusal] | None]).decode
decode_read = msgspec.msgpack.Decoder(tuple[int, bool, bool, bool, int, list[ReadAsked]]).decode
decode_read_answers = msgspec.msgpack.Decoder(list[ReadAnswer]).decode
decode_numbers = msgspec.msgpack.Decoder(list[int]).decode
