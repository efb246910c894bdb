"""A simulated broker's part in transactions: the coordinator of one partition of ``__transaction_state``.

::

    TransactionalProducer ──► Coordinating.request ──► TransactionsPartition ─ InternalLog ─ Partition ─ its Raft group
    a partition's first batch ──► Coordinating.ask ──► (network) the coordinator, wherever it leads
    decided ──► MarkerSender ──► Coordinating.write_marker ──► (network) the leader of the partition ──► append_marker

Questions between brokers go through the simulated network, as `coordinator.across_brokers` has them: one without an
answer is tried again by who asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.coordinator.transactions import ask_or_refuse
from millstream.coordinator.transactions_partition import TransactionsPartition
from millstream.core.controller.topic_names import TRANSACTION_STATE
from millstream.core.txn.image import EPOCH_PER_TRANSACTION
from millstream.core.txn.messages import AddPartitions, Identity, Request, TransactionSettings
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import RaftGroupId
from millstream.partition.append.markers import append_marker
from sim.brokers.world import GROUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.core.txn.image import TopicPartition
    from millstream.partition.append.internal import InternalLog, InternalLogs
    from millstream.partition.append.markers import Marker
    from millstream.partition.append.verification import Answer, Question
    from sim.brokers.served import ServedBroker
    from sim.brokers.world import Broker

TRANSACTIONS_GROUP: Final = RaftGroupId(70_011)
_ANSWER_US: Final = 1_000_000
"""Until a question without an answer is given up."""


class Coordinating:
    """Of one life of a broker."""

    def __init__(self, broker: ServedBroker, logs: InternalLogs) -> None:
        self._broker = broker
        self._partition: TransactionsPartition | None = None
        logs.on_open(self._opened)
        logs.on_close(self._closed)
        broker.admission.verification.ask = self.ask

    def _opened(self, log: InternalLog) -> None:
        if log.name == TRANSACTION_STATE:
            shard: Any = self._broker.shard
            self._partition = TransactionsPartition(
                log, shard.reactor, TransactionSettings(), self.write_marker, self._next_id, _nothing
            )

    def _closed(self, log: InternalLog) -> None:
        if log.name == TRANSACTION_STATE and self._partition is not None:
            self._partition.close()
            self._partition = None

    def _next_id(self, done: Callable[[int], None]) -> None:
        done(next(self._broker.cluster.producer_ids))

    def request(self, given: Request) -> None:
        """Process a request, or refuse it, as `coordinator.transactions` does."""
        ask_or_refuse(self._partition, given)

    def ask(self, question: Question, answer: Answer) -> None:
        """``partition.append.verification.Ask``."""
        count = len(question.partitions)

        def serve(other: ServedBroker, reply: Callable[[Any], None]) -> None:
            assert other.transactions is not None
            other.transactions.request(
                AddPartitions(
                    reply,
                    question.transactional_id,
                    question.producer_id,
                    question.producer_epoch,
                    question.partitions,
                    not question.adds,
                    EPOCH_PER_TRANSACTION if question.adds else 0,
                )
            )

        def answered(found: Any) -> None:
            if isinstance(found, Identity):
                found = found.error
            answer((found,) * count if isinstance(found, ErrorCode) else found)

        self._call(TRANSACTIONS_GROUP, serve, answered, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def write_marker(self, place: TopicPartition, marker: Marker, done: Callable[[ErrorCode], None]) -> None:
        """``coordinator.marker_sender.WriteMarker``."""
        _ = place

        def serve(other: ServedBroker, reply: Callable[[Any], None]) -> None:
            assert other.shard is not None
            append_marker(other.partition, marker, other.shard.reactor.wall_ms(), reply)

        self._call(GROUP, serve, done, ErrorCode.REQUEST_TIMED_OUT)

    def _call(
        self,
        group: RaftGroupId,
        serve: Callable[[ServedBroker, Callable[[Any], None]], None],
        done: Callable[[Any], None],
        unanswered: ErrorCode,
    ) -> None:
        """Have the leader of a group answer, this broker or another."""
        mine: Any = self._broker
        cluster, life, open_ = mine.cluster, mine.life, True

        def finish(answer: Any) -> None:
            nonlocal open_
            if open_ and mine.life == life and mine.is_up:
                open_ = False
                done(answer)

        mine.shard.reactor.call_later(_ANSWER_US, lambda: finish(unanswered))
        to = next((one for one in cluster.brokers.values() if one.is_up and one.leads(group)), None)
        if to is mine:
            mine.shard.reactor.call_soon(serve, mine, finish)
        elif to is not None:

            def arrive(other: Broker) -> None:
                served: Any = other

                def reply(answer: Any) -> None:
                    def heard(_: Broker) -> None:
                        finish(answer)

                    cluster.send(other.replica, mine.replica, heard)

                serve(served, reply)

            cluster.send(mine.replica, to.replica, arrive)


def _nothing() -> None:
    """It refuses requests until it has loaded."""
