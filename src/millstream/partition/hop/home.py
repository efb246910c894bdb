"""The one shard hop: what a request on this shard needs of partitions whose home is another.

A handler calls ``append`` or ``read`` here when the partition table says *remote*; the other shard's ``Home`` does
exactly what a local handler would have done there. Batches do not travel: their fragments are lent, the home copies
them once into its log cache and the loan goes back; the answer to a read lends fragments of the log cache the other
way. What a few numbers answer is asked through ``partition.hop.lookups``. A read that finds nothing arms a watch
there (``partition.hop.watches``).

All appends of one loop turn for one shard travel as one message and are answered by one message, once every one of
them is settled: they are in the same group commit anyway.

Overload: without memory for the copy or room in the mailbox an append is refused (retriable) before anything was
done. A shard that does not answer in time leaves the outcome unknown (REQUEST_TIMED_OUT for the client). A shard that
dies takes the broker down.
"""

from typing import Final, Protocol

import msgspec

from millstream.core.fetch_session import SessionPartition
from millstream.errors import MillstreamError
from millstream.iobuf import MAX_FRAGMENT_BYTES, ArenaFull, IoBuf
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ArenaOffset, RaftGroupId, ShardId, SlotIndex
from millstream.partition.append.admission import Admission
from millstream.partition.append.batch import AppendResult, Batch, Outcome, ProducerTransaction
from millstream.partition.append.checks import settle
from millstream.partition.append.markers import Markers
from millstream.partition.hop.lookups import TIMEOUT_US, Lookups
from millstream.partition.hop.messages import (
    AppendAsked,
    Loan,
    ReadAnswer,
    ReadAsked,
    borrow_all,
    decode_appended,
    decode_appends,
    decode_read,
    decode_read_answers,
    lend_all,
    lent_result,
)
from millstream.partition.hop.watches import HopWatches
from millstream.partition.partition import ALL, Acks, Partition
from millstream.partition.read.batches import FetchResult, read_here, read_older, refused
from millstream.partition.read.request import ReadRequest
from millstream.partition.read.watch import Watch
from millstream.partition.table import PartitionTable, Remote
from millstream.shard.context import Shard
from millstream.shard.mailbox import Reply
from millstream.wire.inspection import Refusal

APPEND: Final = 20
READ: Final = 21

UNDER_WAY_MAX: Final = 8 << 20
"""Bytes of batches on their way to other shards, or waiting there, at which producers are held back: far less than the
64 MiB beyond which a shard refuses what waits for memory, so that who sends far ahead of the answers is slowed down.
"""

_encode = msgspec.msgpack.Encoder().encode
_GONE: Final = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
_TOO_FEW: Final = int(ErrorCode.NOT_ENOUGH_REPLICAS)


class ProduceSlots(Protocol):
    """A produce call as this file sees it."""

    def settle(self, slot: SlotIndex, result: AppendResult) -> None: ...
    def failed(self, slot: SlotIndex, error: ErrorCode) -> None: ...
    def explain(self, slot: SlotIndex, refusal: Refusal) -> None: ...
    def expire(self, now_us: int) -> None: ...


class FetchReads(Protocol):
    """A fetch call as this file sees it."""

    def take_many(self, results: list[tuple[SessionPartition, FetchResult]]) -> None: ...
    def watch(self, asked: SessionPartition) -> Watch: ...


class Home:
    """Both ends of the hop on one shard.

    Lifecycle: made with the shard, after its mailbox and storage.
    Shard: one each.
    """

    def __init__(self, shard: Shard, table: PartitionTable, admission: Admission) -> None:
        self._shard = shard
        self.mailbox = shard.mailbox
        self._table = table
        self._admission = admission
        self._outgoing: dict[int, tuple[list[AppendAsked], list[tuple[ProduceSlots, int]]]] = {}
        self._unanswered: dict[int, list[tuple[ProduceSlots, int]]] = {}  # what was sent, by message
        self._next_message = 0
        self._under_way = 0  # bytes of batches that other shards were given and did not settle
        self.watches = HopWatches(shard.mailbox)
        mailbox = shard.mailbox
        mailbox.serve(APPEND, self._serve_append)
        mailbox.serve(READ, self._serve_read)
        self.lookups = Lookups(mailbox, table)
        self.markers = Markers(mailbox, shard.reactor, table)

    # Append

    def append(
        self,
        to: ShardId,
        raft_group: RaftGroupId,
        records: object,
        call: ProduceSlots,
        slot: SlotIndex,
        *,
        acks: Acks = ALL,
        transaction: ProducerTransaction | None = None,
    ) -> bool:
        """Append one batch on shard ``to``; the slot is settled when its home has (``Partition.park``). ``acks`` are
        the client's.

        True: so much is in flight to there that the producer has to be held back until this is answered.
        """
        try:
            loans = self._lend_records(records)
        except ArenaFull:
            call.failed(slot, ErrorCode.NOT_ENOUGH_REPLICAS)
            return False
        if loans is None:
            call.failed(slot, ErrorCode.INVALID_RECORD)
            return False
        for loan in loans:
            self._under_way += loan.size_bytes
        outgoing = self._outgoing
        if not outgoing:
            self._shard.reactor.end_of_turn(self._send_appends)
        batch = outgoing.get(to)
        if batch is None:
            batch = outgoing[to] = ([], [])
        batch[0].append(AppendAsked(raft_group, acks, loans, transaction))
        batch[1].append((call, slot))
        return self._under_way > UNDER_WAY_MAX

    def _lend_records(self, records: object) -> list[Loan] | None:
        """Lend what was received: fragments as they are, bytes of the shared receive buffer after one copy."""
        if isinstance(records, IoBuf):
            return lend_all(self.mailbox, records.share(0, len(records)))
        if not isinstance(records, memoryview):
            return None
        lend = self.mailbox.loans.lend
        loans: list[Loan] = []
        allocate = self._shard.arena.allocate
        for position in range(0, len(records), MAX_FRAGMENT_BYTES):
            part = records[position : position + MAX_FRAGMENT_BYTES]
            size = len(part)
            try:
                fragment = allocate(size)
            except ArenaFull:
                for loan in loans:
                    self.mailbox.loans.take_back(loan.token)
                raise
            fragment.view[:size] = part
            loans.append(Loan(ArenaOffset(fragment.offset), size, lend(fragment)))
        return loans

    def _send_appends(self) -> None:
        """Send what this turn gathered, one message per shard."""
        outgoing, self._outgoing = self._outgoing, {}
        for to, (appends, slots) in outgoing.items():
            self._next_message += 1

            def answered(
                answer: bytes | memoryview | MillstreamError,
                message: int = self._next_message,
                size: int = sum(loan.size_bytes for one in appends for loan in one.batch),
            ) -> None:
                slots = self._unanswered.pop(message)
                self._under_way -= size
                if isinstance(answer, MillstreamError):
                    for call, slot in slots:
                        call.failed(slot, answer.code)
                    return
                results, refusals = decode_appended(answer)
                for place, refusal in (refusals or {}).items():
                    call, slot = slots[place]
                    call.explain(slot, refusal)
                for (call, slot), result in zip(slots, results, strict=True):
                    call.settle(slot, result)

            self._unanswered[self._next_message] = slots
            loans = [loan.token for one in appends for loan in one.batch]
            self.mailbox.call(to, APPEND, _encode(appends), answered, TIMEOUT_US, loans)

    def unanswered(self) -> list[ProduceSlots]:
        """Who waits for other shards to append; their time may be over before that."""
        return [call for slots in self._unanswered.values() for call, _ in slots]

    def _serve_append(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        appends = decode_appends(payload)
        batch = _RemoteAppends([one.acks == 1 for one in appends], reply)
        view = self._shard.arenas[sender].view
        for slot, one in enumerate(appends):
            loans = one.batch
            partition = self._table.by_group.get(one.raft_group)
            if partition is None or (one.acks == ALL and partition.lacks_replicas):
                if partition is not None:
                    partition.gaps.expect(self._shard.reactor.wall_ms())
                code = int(self._table.gone(one.raft_group)) if partition is None else _TOO_FEW
                batch.settle(slot, AppendResult(code))
                self._return_loans(sender, loans)
                continue
            views = [view[loan.offset : loan.offset + loan.size_bytes] for loan in loans]
            size = sum(len(part) for part in views)
            kept: list[Loan] = []

            def done(
                outcome: Outcome,
                refusal: Refusal | None,
                partition: Partition = partition,
                slot: int = slot,
                kept: list[Loan] = kept,
            ) -> None:
                batch.appended(partition, slot, outcome, refusal)
                self._return_loans(sender, kept)

            if self._admission.submit(Batch(partition, views, size, one.transaction), done):
                self._return_loans(sender, loans)
            else:
                kept += loans  # until there is memory for the copy

    def _return_loans(self, lender: int, loans: list[Loan]) -> None:
        for loan in loans:
            self.mailbox.loans.give_back(ShardId(lender), loan.token)

    # Read

    def read(
        self,
        to: ShardId,
        items: list[tuple[SessionPartition, Remote]],
        max_bytes: int,
        call: FetchReads,
        *,
        minimum_one: bool,
        gather: bool,
        committed: bool,
        patience_us: int,
    ) -> None:
        """Read partitions of shard ``to`` for one fetch; ``call.take_many`` gets all results at once."""
        reads: list[ReadAsked] = []
        for asked, entry in items:
            watch = call.watch(asked)
            number = self.watches.enter(watch, to) if watch.remote is None else watch.remote[1]
            reads.append(
                ReadAsked(
                    entry.raft_group,
                    asked.fetch_offset,
                    asked.max_bytes,
                    asked.current_leader_epoch,
                    asked.last_fetched_epoch,
                    number,
                    asked.near,
                )
            )

        def take(answer: bytes | memoryview | MillstreamError) -> None:
            results: list[tuple[SessionPartition, FetchResult]] = []
            if isinstance(answer, MillstreamError):
                failure = refused(_GONE)  # no consumer knows that a read timed out, and Java's ends with it
                results.extend((asked, failure) for asked, _ in items)
            else:
                for (asked, _), answered in zip(items, decode_read_answers(answer), strict=True):
                    data = None if answered.loans is None else borrow_all(self.mailbox, to, answered.loans)
                    result = answered.with_data(data)
                    if result.error_code or result.diverging is not None or (data is not None and not gather):
                        self.watches.not_armed(asked)
                    results.append((asked, result))
            call.take_many(results)

        wanted = _encode((max_bytes, minimum_one, gather, committed, patience_us, reads))
        self.mailbox.call(to, READ, wanted, take, TIMEOUT_US)

    def _serve_read(self, sender: int, payload: bytes | memoryview, reply: Reply) -> None:
        room, minimum_one, gather, committed, patience_us, reads = decode_read(payload)
        batch = _RemoteReads(self, len(reads), reply)
        granted = not minimum_one
        for slot, one in enumerate(reads):
            partition = self._table.by_group.get(one.raft_group)
            if partition is None:
                batch.put(slot, refused(int(self._table.gone(one.raft_group))))
                continue
            watch = self.watches.remote_watch(ShardId(sender), one.watch)
            request = ReadRequest(
                one.offset,
                min(one.max_bytes, room),
                not granted,
                committed,
                one.leader_epoch,
                one.last_fetched_epoch,
                gather,
                one.near,
                patience_us,
            )
            result = read_here(partition, request, watch)
            if result is None:

                def done(result: FetchResult, slot: int = slot) -> None:
                    batch.put(slot, result)

                taken = read_older(partition, request, done)
            else:
                taken = 0 if result.data is None else len(result.data)
                batch.put(slot, result)
            granted = granted or taken > 0
            room -= taken


class _RemoteAppends:
    """The appends of one message at their home; answered when all are settled."""

    __slots__ = ("_own_sync", "_refusals", "_reply", "_unsettled", "results")

    def __init__(self, own_sync: list[bool], reply: Reply) -> None:
        self.results: list[AppendResult] = [AppendResult(_GONE)] * len(own_sync)
        self._own_sync = own_sync
        self._unsettled = len(own_sync)
        self._reply = reply
        self._refusals: dict[int, Refusal] | None = None

    def appended(self, partition: Partition, slot: int, outcome: Outcome, refusal: Refusal | None = None) -> None:
        """Enter the outcome of an append; the slot is settled now or when the commit covers it."""
        if refusal is not None:
            self._refusals = {**(self._refusals or {}), slot: refusal}
        settle(partition, outcome, self, slot, own_sync=self._own_sync[slot])

    def acked(self, slot: int) -> None:
        _ = slot
        self._unsettled -= 1
        if not self._unsettled:
            self._reply.send(_encode((self.results, self._refusals)))

    def failed(self, slot: int, error: ErrorCode) -> None:
        self.settle(slot, AppendResult(int(error)))

    def settle(self, slot: int, result: AppendResult) -> None:
        self.results[slot] = result
        self.acked(slot)

    def expire(self, now_us: int) -> None:
        """The shard that asked has a deadline of its own."""


class _RemoteReads:
    """The reads of one message at their home; answered when all are done."""

    __slots__ = ("_home", "_missing", "_reply", "_results")

    def __init__(self, home: Home, count: int, reply: Reply) -> None:
        self._home = home
        self._missing = count
        self._reply = reply
        self._results: list[ReadAnswer | None] = [None] * count

    def put(self, slot: int, result: FetchResult) -> None:
        self._results[slot] = lent_result(self._home.mailbox, result)
        self._missing -= 1
        if not self._missing:
            lent = [loan.token for answer in self._results if answer is not None for loan in answer.loans or ()]
            self._reply.send(_encode(self._results), lent)
