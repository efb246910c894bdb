"""Producers: each starts, and writes transactions until it is fenced or killed.

A producer is a generator. It yields a question, which is a function that gets a callback, and is sent the answer, or
None if there was none in time. What it does is what Kafka's clients do: a lost answer is asked for again with the same
sequence and the same epoch, a few times or often; then the transaction is aborted. A fenced producer ends. Version 2 is
that of KIP-890, with an epoch per transaction; only its EndTxn comes late, because version 0 cannot tell that of one
transaction from that of the next.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from millstream.core.txn.image import EPOCH_PER_TRANSACTION
from millstream.core.txn.messages import AddPartitions, End, Identity, InitProducer
from millstream.model.error_code import ErrorCode
from sim.transactions.judge import Attempt
from sim.transactions.parts import Write

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.core.txn.image import TopicPartition
    from sim.transactions.world import World

    Question: TypeAlias = Callable[[Callable[[Any], None]], None]
    Steps: TypeAlias = Generator[Question | int, Any, Any]

TIMEOUT_MS: Final = 2_000
_AGAIN: Final = frozenset(
    {
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
)
_PAUSE_US: Final = 20_000


class Producer:
    """One instance of a producer."""

    def __init__(self, world: World, name: str, version: int) -> None:
        self._world = world
        self._name = name
        self._version = version
        self._sequences: dict[tuple[int, int, TopicPartition], int] = {}
        self._who = Identity(ErrorCode.NONE)

    def run(self) -> Steps:
        """Start, then write transactions until the world stops it."""
        world, name = self._world, self._name
        found = yield from self._insist(lambda token: InitProducer(token, name, TIMEOUT_MS))
        if found is None:
            return
        self._who = found
        world.judge.begun(name, found.producer_id, found.producer_epoch)
        while not world.healed:
            if not (yield from self._transaction()):
                return
            yield world.chance.randrange(1, 30_000)

    def _insist(self, request: Callable[[Any], Any]) -> Steps:
        """Ask the coordinator until it answers definitely; None if it refuses."""
        while True:
            late = self._version >= EPOCH_PER_TRANSACTION
            answer = yield partial(self._world.ask_coordinator, request, unruly=True, late=late)
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            if isinstance(answer, Identity):
                error = answer.error
            elif isinstance(answer, tuple):
                error = answer[0]
            elif answer is not None:
                error = answer
            if error is ErrorCode.NONE:
                return answer
            if error not in _AGAIN:
                return None
            yield _PAUSE_US

    def _transaction(self) -> Steps:
        """One transaction. False if this producer is fenced."""
        world, chance, who = self._world, self._world.chance, self._who
        attempt = Attempt(self._name)
        world.judge.attempts.append(attempt)
        places = chance.sample(sorted(world.partitions), chance.randint(1, len(world.partitions)))
        adds = self._version >= EPOCH_PER_TRANSACTION
        if not adds:
            added = yield from self._insist(
                lambda token: AddPartitions(
                    token, self._name, who.producer_id, who.producer_epoch, tuple(places), False, 0
                )
            )
            if added is None:
                return False
        good = True
        for _ in range(chance.randint(1, 6)):
            good = (yield from self._produce(attempt, chance.choice(places))) and good
            if not good:
                break
            yield chance.randrange(1, 8_000)
        commits = good and chance.random() < 0.7
        attempt.asks_commit = commits
        version = self._version
        ended = yield from self._insist(
            lambda token: End(token, self._name, who.producer_id, who.producer_epoch, commits, version)
        )
        if ended is None:
            return False
        attempt.committed = commits
        if adds:
            world.judge.given(self._name, ended.producer_epoch)
            self._who = ended
        return good or adds

    def _produce(self, attempt: Attempt, place: TopicPartition) -> Steps:
        """Write one value; whether the partition has confirmed it."""
        world, who = self._world, self._who
        key = (who.producer_id, who.producer_epoch, place)
        sequence = self._sequences.get(key, 0)
        world.next_value += 1
        value = world.next_value
        attempt.sent.add(value)
        write = Write(
            self._name, who.producer_id, who.producer_epoch, sequence, value, self._version >= EPOCH_PER_TRANSACTION
        )
        for _ in range(world.chance.choice((1, 20, 20))):
            error = yield partial(world.ask_partition, place, write)
            if error is ErrorCode.NONE:
                self._sequences[key] = sequence + 1
                attempt.acknowledged.append(value)
                return True
            if error is not None and error not in _AGAIN:
                return False
            yield _PAUSE_US
        return False
