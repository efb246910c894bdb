"""A transactional producer of the simulated brokers, and what must have become of its transactions.

It does what Kafka's clients do: a request without an answer is sent again with the same sequence and epoch, then the
transaction is aborted, and a producer that is refused starts over. At each heal the whole log is read.

==  ==================================================================================================================
D4  What was answered as committed is committed, and what was answered as aborted is not; all of a transaction or none.
D5  After a heal no transaction stays open.
==  ==================================================================================================================
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.core.txn.image import EPOCH_PER_TRANSACTION
from millstream.core.txn.messages import End, Identity, InitProducer
from millstream.model.error_code import ErrorCode
from millstream.partition.append.batch import ADDS_FROM, ProducerTransaction
from millstream.wire.batch import CONTROL, TRANSACTIONAL
from millstream.wire.records import COMMIT, OVERHEAD_BYTES, marker_of, unpack_header
from sim.brokers.clients import Client, idempotent_batch
from sim.brokers.coordinator import TRANSACTIONS_GROUP
from sim.brokers.world import GROUP
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable

    from sim.brokers.served import ServedBroker
    from sim.brokers.world import Cluster
    from sim.engine.requests import Produced

    Steps = Generator[Any, Any, Any]

TIMEOUT_MS: Final = 2_000
_NAME: Final = "id"
_PRODUCE_TRIES: Final = 20
AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)


class Attempt:
    """One transaction, as its producer saw it."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.acknowledged: list[int] = []
        self.committed: bool | None = None
        """What the coordinator has answered; None: nothing definite."""


class TransactionalProducer:
    """One transactional id.

    Lifecycle: `go_on` in each round, `stop` at its end; it is `idle` once its transaction has ended.
    """

    def __init__(self, cluster: Cluster, timeout_us: int, next_value: Callable[[], int]) -> None:
        self._cluster = cluster
        self._chance = cluster.chance("transactions")
        self._pause_us = timeout_us // 20
        self._next_value = next_value
        self._coordinator = Client(cluster, "transactional producer", TRANSACTIONS_GROUP, timeout_us)
        self._data = Client(cluster, "transactional producer's data", GROUP, timeout_us)
        self._who = Identity(ErrorCode.NOT_COORDINATOR)
        self._sequence = 0
        self._stopping = True
        self.idle = True
        self.attempts: list[Attempt] = []
        self._steps: Steps | None = None

    def go_on(self) -> None:
        """Write transactions until `stop`."""
        self._stopping = False
        if self.idle:
            self.idle = False
            self._steps = self._run()
            self._next(None)

    def stop(self) -> None:
        """Stop after the open transaction."""
        self._stopping = True

    def _next(self, answer: Any) -> None:
        assert self._steps is not None
        try:
            wanted = self._steps.send(answer)
        except StopIteration:
            self.idle = True
            return
        if isinstance(wanted, int):
            self._cluster.after(wanted, lambda: self._next(None))
            return
        client, serve = wanted
        if not client.connected:
            client.connect()
        client.ask(serve, self._next)

    def _run(self) -> Steps:
        while not self._stopping:
            if self._who.error is not ErrorCode.NONE:
                made = yield from self._insist(lambda token: InitProducer(token, _NAME, TIMEOUT_MS))
                if made is None:
                    continue
                self._who, self._sequence = made, 0
                self._coordinator.history.seen["transactional producer begun"] += 1
            yield from self._transaction()
            yield 1 + self._chance.randrange(self._pause_us)

    def _insist(self, request: Callable[[Any], Any]) -> Steps:
        """Ask the coordinator until it answers definitely; None if it refuses."""
        while True:

            def coordinate(broker: ServedBroker, reply: Callable[[Any], None]) -> None:
                broker.coordinate(request(reply))

            answer = yield self._coordinator, coordinate
            error = answer.error if isinstance(answer, Identity) else answer
            if error is ErrorCode.NONE:
                return answer
            self._coordinator.disconnect()
            if error is not None and error not in AGAIN:
                return None
            yield self._pause_us

    def _transaction(self) -> Steps:
        attempt = Attempt()
        self.attempts.append(attempt)
        who, good = self._who, True
        for _ in range(self._chance.randint(1, 3)):
            good = yield from self._produce(attempt)
            if not good:
                break
        commits = good and self._chance.random() < 0.7
        ended = yield from self._insist(
            lambda token: End(token, _NAME, who.producer_id, who.producer_epoch, commits, EPOCH_PER_TRANSACTION)
        )
        seen = self._coordinator.history.seen
        if ended is None:
            seen["transaction without a definite end"] += 1
            self._who = Identity(ErrorCode.PRODUCER_FENCED)
            return
        attempt.committed = commits
        seen["transaction committed" if commits else "transaction aborted"] += 1
        self._who, self._sequence = ended, 0

    def _produce(self, attempt: Attempt) -> Steps:
        """Write one batch; whether the partition has confirmed it."""
        value = self._next_value()
        attempt.values.append(value)
        self._data.history.sent.add(value)
        who = self._who
        data = idempotent_batch(
            value,
            1,
            self._chance.randint(0, 200),
            who.producer_id,
            self._sequence,
            epoch=who.producer_epoch,
            attributes=TRANSACTIONAL,
        )
        transaction = ProducerTransaction(_NAME, ADDS_FROM)

        def append(broker: ServedBroker, reply: Callable[[Produced], None]) -> None:
            broker.append_to(broker.partition, data, -1, reply, transaction)

        for _ in range(_PRODUCE_TRIES):
            answer: Produced | None = yield self._data, append
            if answer is not None and not answer.error:
                self._sequence += 1
                attempt.acknowledged.append(value)
                self._data.history.on_acknowledged(value, answer.base_offset, answer.base_offset + 1, answer.term)
                return True
            self._data.disconnect()
            if answer is not None and ErrorCode(answer.error) not in AGAIN:
                return False
            yield self._pause_us
        return False

    def check(self, whole: Iterable[memoryview]) -> None:
        """Hold what was answered against the whole log (D4, D5)."""
        committed = outcomes(whole)
        for attempt in self.attempts:
            found = {committed[value] for value in attempt.values if value in committed}
            if len(found) > 1:
                raise Violation(f"D4: a part of the transaction with {attempt.values} is committed")
            if attempt.committed is not None and attempt.committed is False and True in found:
                raise Violation(f"D4: the transaction with {attempt.values} was answered as aborted, and is committed")
            if attempt.committed and not all(committed.get(value) for value in attempt.acknowledged):
                raise Violation(f"D4: the transaction with {attempt.values} was answered as committed, and is not")


def outcomes(whole: Iterable[memoryview]) -> dict[int, bool]:
    """Whether each value of a transaction is committed, by a log from its start. Raises Violation (D5)."""
    open_: dict[int, list[int]] = {}
    found: dict[int, bool] = {}
    for data in whole:
        at = 0
        while at < len(data):
            header = unpack_header(data, at)
            size = header[1] + OVERHEAD_BYTES
            attributes, value, producer_id = header[5], header[8], header[9]
            if attributes & CONTROL and attributes & TRANSACTIONAL:
                commits = marker_of(data[at : at + size])[0] == COMMIT
                for each in open_.pop(producer_id, ()):
                    found[each] = commits
            elif attributes & TRANSACTIONAL:
                open_.setdefault(producer_id, []).append(value)
            at += size
    if open_:
        raise Violation(f"D5: transactions of producers {sorted(open_)} are open long after the heal")
    return found
