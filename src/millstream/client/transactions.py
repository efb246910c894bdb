"""Transactions as an administrator sees them: transactional ids, and what is open in a partition.

A request is repeated while the reason for its failure is transient, as everywhere in ``Cluster``. ``abort_in`` is
sent once: a marker that is written twice could end the producer's next transaction. After a lost connection it raises
``OutcomeUnknown``; ``producers_of`` tells then whether the transaction is still open.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.client.cluster import Cluster, TopicPartition, error_of
from millstream.client.coordinators import TRANSACTION, find_coordinator
from millstream.errors import OutcomeUnknown, Rejected, Retriable, Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.describe_producers import (
    ActiveProducer,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersTopic,
)
from millstream.wire.messages.describe_transactions import DescribeTransactionsRequest, DescribeTransactionsResponse
from millstream.wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from millstream.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

UNDECIDED_OR_UNFINISHED: Final = frozenset({"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
"""States in which the coordinator will still end a transaction in its partitions."""


class ListedTransaction(NamedTuple):
    """A transactional id and the node id of its coordinator."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int


class DescribedTransaction(NamedTuple):
    """A transactional id. ``start_ms`` is -1 while there is no transaction; ``places`` are those without a marker."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int
    topic_partitions: list[TopicPartition]


def list_transactions(
    cluster: Cluster, states: Sequence[str] = (), producer_ids: Sequence[int] = ()
) -> list[ListedTransaction]:
    """The transactional ids of all brokers, by name; empty filters mean any.

    Raises:
        Unavailable: a broker does not answer, so that the list would not be whole.
        Rejected: a broker does not know a state.
    """
    request = ListTransactionsRequest(list(states), list(producer_ids))
    found: list[ListedTransaction] = []

    def ask(node_id: int) -> list[ListedTransaction]:
        connection = cluster.connection(node_id)
        answer = connection.ask(request, ListTransactionsResponse)
        if answer.error_code:
            raise error_of(answer.error_code, f"transactions of broker {node_id}")
        if answer.unknown_state_filters:
            raise Rejected(f"broker {node_id} does not know the state {answer.unknown_state_filters[0]}")
        return [
            ListedTransaction(one.transactional_id, one.transaction_state, node_id, one.producer_id)
            for one in answer.transaction_states
        ]

    for node_id in cluster.metadata([]).brokers:
        found += cluster.insist(f"transactions of broker {node_id}", lambda node_id=node_id: ask(node_id))
    return sorted(found)


def describe_transaction(cluster: Cluster, transactional_id: str) -> DescribedTransaction:
    """A transactional id, from its coordinator.

    Raises:
        Rejected: there is no such id (TRANSACTIONAL_ID_NOT_FOUND).
        Unavailable: its coordinator does not answer.
    """

    def ask() -> DescribedTransaction:
        node_id = find_coordinator(cluster, TRANSACTION, transactional_id)
        connection = cluster.connection(node_id)
        answer = connection.ask(DescribeTransactionsRequest([transactional_id]), DescribeTransactionsResponse)
        for one in answer.transaction_states:
            if one.error_code:
                raise error_of(one.error_code, f"transactional id {transactional_id}")
            return DescribedTransaction(
                one.transactional_id,
                one.transaction_state,
                node_id,
                one.producer_id,
                one.producer_epoch,
                one.transaction_timeout_ms,
                one.transaction_start_time_ms,
                sorted((topic.topic, partition) for topic in one.topics for partition in topic.partitions),
            )
        raise Retriable(f"broker {node_id} answered for other transactional ids than requested")

    return cluster.insist(f"transactional id {transactional_id}", ask, lambda: cluster.metadata([]))


def producers_of(cluster: Cluster, topic: str, partition: int) -> list[ActiveProducer]:
    """The producers that the leader of a partition knows, with what is open."""
    what = f"producers of {topic}-{partition}"

    def ask() -> list[ActiveProducer]:
        connection = cluster.connection(cluster.leader(topic, partition).node_id)
        request = DescribeProducersRequest([DescribeProducersTopic(topic, [partition])])
        answer = connection.ask(request, DescribeProducersResponse)
        for found in (one for described in answer.topics for one in described.partitions):
            if found.error_code:
                raise error_of(found.error_code, what, found.error_message)
            return found.active_producers
        raise Retriable(f"{what}: the response is empty")

    return cluster.insist(what, ask, lambda: cluster.forget(topic))


def open_in(cluster: Cluster, topic: str, partition: int) -> dict[int, ActiveProducer]:
    """The producers with a transaction that is open in the partition, by their ids."""
    return {
        one.producer_id: one for one in producers_of(cluster, topic, partition) if one.current_txn_start_offset >= 0
    }


def coordinated(cluster: Cluster, topic: str, partition: int, producer_id: int) -> DescribedTransaction | None:
    """The transactional id whose coordinator will still end the producer's transaction in the partition."""
    for listed in list_transactions(cluster, producer_ids=[producer_id]):
        found = describe_transaction(cluster, listed.transactional_id)
        if found.state in UNDECIDED_OR_UNFINISHED and (topic, partition) in found.topic_partitions:
            return found
    return None


def hanging_in(cluster: Cluster, topic: str, partition: int, producer_id: int) -> ActiveProducer:
    """The producer whose transaction hangs in the partition: it is open there, and no coordinator ends it.

    Raises:
        Rejected: it does not hang.
    """
    before = open_in(cluster, topic, partition).get(producer_id)
    owner = None if before is None else coordinated(cluster, topic, partition, producer_id)
    if owner is not None:
        raise Rejected(
            f"the transaction of producer {producer_id} does not hang: transactional id {owner.transactional_id!r} is "
            f"{owner.state} and its coordinator ends it (an ongoing one after its timeout of {owner.timeout_ms} ms)",
            ErrorCode.CONCURRENT_TRANSACTIONS,
        )
    found = open_in(cluster, topic, partition).get(producer_id)
    if before is None or found is None or found.current_txn_start_offset != before.current_txn_start_offset:
        raise Rejected(
            f"producer {producer_id} has no transaction that hangs in {topic}-{partition}",
            ErrorCode.INVALID_TXN_STATE,
        )
    return found


def abort_in(cluster: Cluster, topic: str, partition: int, producer: ActiveProducer) -> None:
    """End a producer's open transaction in one partition as aborted, and nowhere else; returns when it is committed.

    For transactions that no coordinator ends. Apache Kafka's tool writes the same marker: in the producer's epoch, and
    in the epoch of the coordinator that wrote last.

    Raises:
        OutcomeUnknown: the connection was lost after sending; the marker may be written.
        Retriable: the marker is not written, and another attempt can succeed.
        Rejected: the marker is not written, as the producer or its coordinator has gone on to a later epoch.
    """
    what = f"abort in {topic}-{partition}"
    marker = WritableTxnMarker(
        producer.producer_id,
        producer.producer_epoch,
        False,
        [WritableTxnMarkerTopic(topic, [partition])],
        max(producer.coordinator_epoch, 0),
    )
    connection = cluster.connection(cluster.leader(topic, partition).node_id)
    try:
        answer = connection.ask(WriteTxnMarkersRequest([marker]), WriteTxnMarkersResponse)
    except (Unavailable, ProtocolError) as error:
        raise OutcomeUnknown(f"{what}: {error.message}") from error
    codes = [one.error_code for ended in answer.markers for of in ended.topics for one in of.partitions]
    if len(codes) != 1:
        raise OutcomeUnknown(f"{what}: the response is about {len(codes)} partitions")
    if codes[0]:
        raise error_of(codes[0], what)
