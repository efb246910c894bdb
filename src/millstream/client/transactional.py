"""A producer's side of transactions, in single steps: begin, add partitions, produce, add an offset, end.

::

    begin ──► add(partitions) ──► produce (Cluster.produce_all) ──► add_offset ──► end_transactions
    InitProducerId   AddPartitionsToTxn                     AddOffsetsToTxn, TxnOffsetCommit     EndTxn

A transaction may be ended by another process than started it: the protocol asks for the transactional id, the
producer id and the epoch only. Each transaction starts with InitProducerId and so has an epoch of its own. A late
request of an earlier one is refused for its epoch, as KIP-890 arranges for clients that keep their epoch. The versions
used are those before KIP-890, which every Apache Kafka since 2.5 serves.

Every step may be repeated, and is repeated while its failure is transient. ``begin`` aborts what the transactional id
has open and waits until that is done, so that offsets fetched after it are settled.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple

from millstream.client.cluster import TopicPartition, error_of
from millstream.client.connection import Connection
from millstream.client.coordinators import GROUP, TRANSACTION, Coordinators
from millstream.errors import MillstreamError, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from millstream.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from millstream.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from millstream.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from millstream.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)

FENCED: Final = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.UNKNOWN_PRODUCER_ID,
    }
)
"""Errors that say: this transaction is over, because a newer producer started or its time-out passed."""


class OpenTransaction(NamedTuple):
    """What must be known to end a transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class MarkedOffset(NamedTuple):
    """A committed offset of a group, with the text that was stored beside it. -1: no offset."""

    offset: int
    metadata: str = ""


class Transaction:
    """One transaction, from its start to its end."""

    def __init__(self, coordinators: Coordinators, open_transaction: OpenTransaction) -> None:
        self.open = open_transaction
        self._coordinators = coordinators
        self._partitions: set[TopicPartition] = set()

    @classmethod
    def begin(cls, coordinators: Coordinators, transactional_id: str, timeout_ms: int) -> "Transaction":
        """Fence every earlier producer of the id, and abort what it has open.

        Raises:
            Rejected: among others INVALID_TRANSACTION_TIMEOUT, if the broker allows less.
            Unavailable: no coordinator answers, or the earlier transaction does not end in time.
        """

        def ask(connection: Connection) -> OpenTransaction:
            request = InitProducerIdRequest(transactional_id, timeout_ms)
            answer = connection.ask(request, InitProducerIdResponse, highest=4)
            if answer.error_code:
                raise error_of(answer.error_code, f"begin of {transactional_id}")
            return OpenTransaction(transactional_id, answer.producer_id, answer.producer_epoch)

        opened = coordinators.insist(f"begin of {transactional_id}", TRANSACTION, transactional_id, ask)
        return cls(coordinators, opened)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Make partitions part of the transaction, before anything is written to them."""
        new = set(partitions) - self._partitions
        if not new:
            return
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(new):
            by_topic.setdefault(topic, []).append(partition)
        topics = [AddPartitionsToTxnTopic(name, numbers) for name, numbers in by_topic.items()]

        def ask(connection: Connection) -> None:
            request = AddPartitionsToTxnRequest([], *self.open, topics)
            answer = connection.ask(request, AddPartitionsToTxnResponse, highest=3)
            results = [one for topic in answer.results_by_topic_v3_and_below for one in topic.results_by_partition]
            _raise_first([one.partition_error_code for one in results], self._what("add of partitions"))

        self._ask("add of partitions", ask)
        self._partitions |= new

    def add_offset(self, group: str, place: TopicPartition, marked: MarkedOffset) -> None:
        """Let a group's offset become ``marked`` when the transaction commits."""

        def add_group(connection: Connection) -> None:
            answer = connection.ask(AddOffsetsToTxnRequest(*self.open, group), AddOffsetsToTxnResponse, highest=3)
            _raise_first([answer.error_code], self._what("add of an offset"))

        def commit(connection: Connection) -> None:
            one = TxnOffsetCommitRequestPartition(place[1], marked.offset, -1, marked.metadata)
            topics = [TxnOffsetCommitRequestTopic(place[0], [one])]
            who = self.open
            request = TxnOffsetCommitRequest(
                who.transactional_id, group, who.producer_id, who.producer_epoch, topics=topics
            )
            answer = connection.ask(request, TxnOffsetCommitResponse, highest=3)
            codes = [one.error_code for topic in answer.topics for one in topic.partitions]
            _raise_first(codes, self._what("an offset"))

        self._ask("add of an offset", add_group)
        self._coordinators.insist(self._what("an offset"), GROUP, group, commit)

    def _ask(self, step: str, ask: Callable[[Connection], None]) -> None:
        self._coordinators.insist(self._what(step), TRANSACTION, self.open.transactional_id, ask)

    def _what(self, step: str) -> str:
        return f"{step} in the transaction of {self.open.transactional_id}"


def end_transactions(
    coordinators: Coordinators, ended: Sequence[OpenTransaction], *, commit: bool, timeout_s: float
) -> dict[OpenTransaction, MillstreamError]:
    """Commit or abort transactions, all requests in flight together; returns the errors of those that failed.

    Each is repeated while its failure is transient. ``Unavailable`` in the result means that its outcome is unknown.
    """
    failed: dict[OpenTransaction, MillstreamError] = {}
    left = list(ended)

    def once() -> None:
        nonlocal left
        again: dict[OpenTransaction, MillstreamError] = {}
        for who, error in _end_once(coordinators, left, commit).items():
            if isinstance(error, Retriable | Unavailable):
                again[who] = error
            elif error is not None:
                failed[who] = error
        left = list(again)
        if again:
            raise next(iter(again.values()))

    def look_again() -> None:
        for who in left:
            coordinators.forget(TRANSACTION, who.transactional_id)

    limit_s, coordinators.cluster.timeout_s = coordinators.cluster.timeout_s, timeout_s
    try:
        coordinators.cluster.insist("end of transactions", once, look_again)
    except Unavailable as error:
        failed |= dict.fromkeys(left, error)
    finally:
        coordinators.cluster.timeout_s = limit_s
    return failed


def _end_once(
    coordinators: Coordinators, ended: Sequence[OpenTransaction], commit: bool
) -> dict[OpenTransaction, MillstreamError | None]:
    outcomes: dict[OpenTransaction, MillstreamError | None] = {}
    sent: list[tuple[Connection, OpenTransaction]] = []
    for who in ended:
        try:
            connection = coordinators.cluster.connection(coordinators.node(TRANSACTION, who.transactional_id))
            connection.send(
                EndTxnRequest(*who, committed=commit), connection.version_of(EndTxnRequest.API_KEY, highest=3)
            )
            sent.append((connection, who))
        except MillstreamError as error:
            outcomes[who] = error
    for connection, who in sent:
        if not connection.is_open:
            outcomes[who] = Unavailable(f"the connection to {connection.address} was lost")
            continue
        try:
            code = connection.receive(EndTxnResponse).error_code
            outcomes[who] = error_of(code, f"end of the transaction of {who.transactional_id}") if code else None
        except MillstreamError as error:
            outcomes[who] = error
    return outcomes


def committed_offsets(coordinators: Coordinators, group: str, *, stable: bool) -> dict[TopicPartition, MarkedOffset]:
    """Every offset that a group has committed. If ``stable``, open transactions that commit offsets are waited for."""

    def ask(connection: Connection) -> dict[TopicPartition, MarkedOffset]:
        answer = connection.ask(
            OffsetFetchRequest(group, None, require_stable=stable), OffsetFetchResponse, lowest=2, highest=7
        )
        found = {(topic.name, one.partition_index): one for topic in answer.topics for one in topic.partitions}
        _raise_first([answer.error_code, *(one.error_code for one in found.values())], f"offsets of {group}")
        return {place: MarkedOffset(one.committed_offset, one.metadata or "") for place, one in found.items()}

    return coordinators.insist(f"offsets of {group}", GROUP, group, ask)


def marked_offset(coordinators: Coordinators, group: str) -> MarkedOffset:
    """The largest offset that a group has committed in any partition, transactions that are being ended waited for."""
    return max(committed_offsets(coordinators, group, stable=True).values(), default=MarkedOffset(-1))


def mark_offset(coordinators: Coordinators, group: str, place: TopicPartition, marked: MarkedOffset) -> None:
    """Commit an offset of a group without members, outside of transactions."""

    def ask(connection: Connection) -> None:
        one = OffsetCommitRequestPartition(place[1], marked.offset, -1, marked.metadata)
        request = OffsetCommitRequest(group, topics=[OffsetCommitRequestTopic(place[0], partitions=[one])])
        answer = connection.ask(request, OffsetCommitResponse, lowest=2, highest=8)
        codes = [one.error_code for topic in answer.topics for one in topic.partitions]
        _raise_first(codes, f"an offset of {group}")

    coordinators.insist(f"an offset of {group}", GROUP, group, ask)


def _raise_first(codes: Iterable[int], what: str) -> None:
    for code in codes:
        if code:
            raise error_of(code, what)
