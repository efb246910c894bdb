"""Transactional ids: requests about them, for handlers on any shard.

::

    handler ─► Transactions ─► the partition that keeps the id ─► here, or one call through the mailbox

The partition is Kafka's hash of the transactional id. ``__transaction_state`` is created when a client first looks for
a coordinator. While it does not exist, or its partition is not led by this broker, requests are refused with
NOT_COORDINATOR, after which clients look for the coordinator again. A shard that does not take the call (overload), or
does not answer in time, is COORDINATOR_NOT_AVAILABLE, which clients repeat.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from millstream.coordinator.across_brokers import AcrossBrokers, Addition
from millstream.coordinator.marker_sender import WriteMarker
from millstream.coordinator.state_partition import State
from millstream.coordinator.state_topic import Loads, StateTopic
from millstream.coordinator.transactions_partition import Done, NextId, TransactionsPartition
from millstream.core.controller.topic_names import TRANSACTION_STATE
from millstream.core.txn.image import EPOCH_PER_TRANSACTION, TopicPartition
from millstream.core.txn.messages import (
    AddPartitions,
    Answer,
    End,
    Identity,
    InitProducer,
    Request,
    TransactionSettings,
)
from millstream.core.txn.state import TransactionState
from millstream.errors import MillstreamError
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ProducerEpoch, ProducerId, TransactionVersion
from millstream.partition.append.internal import InternalLog, InternalLogs
from millstream.partition.append.verification import Question

if TYPE_CHECKING:
    from millstream.cluster.client import ControllerClient
    from millstream.cluster.metadata import MetadataCache
    from millstream.config.settings import Settings
    from millstream.shard.context import Shard
    from millstream.shard.mailbox import Reply

# Methods of the mailbox.
INIT: Final = 63
ADD: Final = 64
END: Final = 65
DESCRIBE: Final = 66
LIST: Final = 67

_TIMEOUT_US: Final = 30_000_000
_EXPIRY_SHARE: Final = 0.1
_COUNT_US: Final = 1_000_000

Described = tuple[int, str, int, int, int, int, list[TopicPartition]]
"""(error, state, timeout in ms, start in ms, producer id, producer epoch, partitions)"""

Listed = tuple[str, int, str, int]
"""(transactional id, producer id, state, start in ms; -1 while there is no transaction)"""

_encode = msgspec.msgpack.Encoder().encode
_REQUESTS: Final[dict[int, tuple[Callable[..., Request], Callable[[bytes], tuple[int, str, tuple[object, ...]]]]]] = {
    INIT: (InitProducer, msgspec.msgpack.Decoder(tuple[int, str, tuple[int, int, int]]).decode),
    ADD: (
        AddPartitions,
        msgspec.msgpack.Decoder(tuple[int, str, tuple[int, int, tuple[TopicPartition, ...], bool, int]]).decode,
    ),
    END: (End, msgspec.msgpack.Decoder(tuple[int, str, tuple[int, int, bool, int]]).decode),
}
"""What a method carries between shards: the request's struct, and the decoder of (partition, transactional id, the
struct's further fields).
"""
_decode_ids = msgspec.msgpack.Decoder(tuple[int, str]).decode
_decode_answer = msgspec.msgpack.Decoder(tuple[int, list[int]]).decode
_decode_described = msgspec.msgpack.Decoder(Described).decode
_decode_listed = msgspec.msgpack.Decoder(tuple[int, list[Listed]]).decode

_RUNNING: Final = frozenset({TransactionState.ONGOING, TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})


def _refused(error: ErrorCode) -> Described:
    return (int(error), "", 0, 0, 0, 0, [])


class Transactions:
    """Routes requests to the shard of their coordinator, and runs the coordinators of this shard.

    Lifecycle: one per shard, built before the mailbox runs and before partitions open. ``stop`` when the broker drains.
    """

    def __init__(
        self,
        shard: "Shard",
        settings: "Settings",
        metadata: "MetadataCache",
        controller: "ControllerClient",
        logs: InternalLogs,
        write_marker: WriteMarker,
        next_id: NextId,
        across: AcrossBrokers | None = None,
    ) -> None:
        """``across`` is the way to other brokers, if there are any: their questions are answered from now on."""
        self._shard = shard
        self._topic = StateTopic(TRANSACTION_STATE, metadata, controller, shard.reactor)
        self._settings = TransactionSettings(
            settings.transaction_max_timeout_ms,
            settings.transactional_id_expiration_ms,
            settings.transaction_abort_timed_out_interval_ms,
        )
        self._expiry_interval_us = settings.transaction_remove_expired_interval_ms * 1000
        self._write_marker = write_marker
        self._next_id = next_id
        self._across = across
        self.partitions: dict[int, TransactionsPartition] = {}
        self.loads = Loads()
        self._gauges = {
            state: shard.stats.gauge("transactional_ids", state=state.shown)
            for state in TransactionState
            if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
        }
        mailbox = shard.mailbox
        for method in _REQUESTS:
            mailbox.serve(method, self._server(method))
        mailbox.serve(DESCRIBE, self._serve_describe)
        mailbox.serve(LIST, self._serve_list)
        if across is not None:
            across.serve(self.add_here)
        logs.on_open(self._opened)
        logs.on_close(self._closed)
        shard.reactor.call_later(self._expiry_interval_us, self._expire)
        shard.reactor.call_later(_COUNT_US, self._count)

    # The partitions of this shard

    def _opened(self, partition: InternalLog) -> None:
        if partition.name == TRANSACTION_STATE:
            self.loads.began()
            self.partitions[partition.index] = TransactionsPartition(
                partition, self._shard.reactor, self._settings, self._write_marker, self._next_id, self.loads.ended
            )

    def when_loaded(self, done: Callable[[], None]) -> None:
        """Call ``done`` when no partition of this shard is loading, maybe at once."""
        self.loads.when_none(done)

    def _closed(self, partition: InternalLog) -> None:
        if partition.name == TRANSACTION_STATE:
            closed = self.partitions.pop(partition.index, None)
            if closed is not None:
                closed.close()

    def stop(self) -> None:
        """Refuse all waiting requests, so that clients look for the next coordinator."""
        for partition in self.partitions.values():
            partition.stop()

    def _expire(self) -> None:
        def walk() -> Generator[None, None, None]:
            for partition in list(self.partitions.values()):
                yield from partition.expire()

        def done() -> None:
            self._shard.reactor.call_later(self._expiry_interval_us, self._expire)

        self._shard.reactor.background("expiry", walk(), _EXPIRY_SHARE, done)

    def _count(self) -> None:
        """Keep the numbers of transactional ids by state in the metrics."""
        counts = dict.fromkeys(self._gauges, 0)

        def walk() -> Generator[None, None, None]:
            for partition in list(self.partitions.values()):
                for place, transaction in enumerate(list(partition.core.transactions.values())):
                    if transaction.image is not None:
                        counts[transaction.image.state] += 1
                    if place % 64 == 0:
                        yield

        def done() -> None:
            for state, gauge in self._gauges.items():
                gauge.set(counts[state])
            self._shard.reactor.call_later(_COUNT_US, self._count)

        self._shard.reactor.background("other", walk(), _EXPIRY_SHARE, done)

    # Finding

    def ensure(self, done: Callable[[ErrorCode], None]) -> None:
        """Call ``done(NONE)`` when there is a coordinator. Creates ``__transaction_state`` if necessary."""
        self._topic.ensure(done)

    def _here(self, partition: int, request: Request) -> None:
        """Process a request for a transactional id of ``partition`` on this shard."""
        ask_or_refuse(self.partitions.get(partition), request)

    def _route(self, method: int, transactional_id: str, fields: tuple[object, ...], done: Done) -> None:
        """Have the coordinator process a request, on whichever shard of this broker it is."""
        partition, home = self._topic.place(transactional_id)
        if home is None:
            done(ErrorCode.NOT_COORDINATOR)
            return
        if home == self._shard.id:
            self._here(partition, _REQUESTS[method][0](done, transactional_id, *fields))
            return

        def answered(answer: bytes | memoryview | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                done(ErrorCode.COORDINATOR_NOT_AVAILABLE)
                return
            refusal, numbers = _decode_answer(answer)
            if refusal:
                done(ErrorCode(refusal))
            elif method == ADD:
                done(tuple(map(ErrorCode, numbers)))
            else:
                done(Identity(ErrorCode(numbers[0]), numbers[1], numbers[2]))

        self._shard.mailbox.call(home, method, _encode((partition, transactional_id, fields)), answered, _TIMEOUT_US)

    def _server(self, method: int) -> Callable[[int, bytes, "Reply"], None]:
        """The other end of `_route`."""
        request, decode = _REQUESTS[method]

        def serve(sender: int, payload: bytes, reply: "Reply") -> None:
            _ = sender
            partition, transactional_id, fields = decode(payload)
            self._here(partition, request(_replying(reply), transactional_id, *fields))

        return serve

    # Requests

    def init(
        self,
        transactional_id: str,
        timeout_ms: int,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        done: Callable[[Identity], None],
    ) -> None:
        """Start a producer: fence the one before it and get an epoch."""
        self._route(INIT, transactional_id, (timeout_ms, producer_id, producer_epoch), _identity(done))

    def add(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: tuple[TopicPartition, ...],
        client_version: TransactionVersion,
        done: Callable[[Sequence[ErrorCode]], None],
        *,
        verify_only: bool = False,
    ) -> None:
        """Add partitions to a transaction, or ask about them, on whichever broker coordinates it. ``done`` gets one
        code for each.
        """
        addition = Addition(transactional_id, producer_id, producer_epoch, partitions, verify_only, client_version)
        if self._across is not None:
            node = self._across.leader_elsewhere((TRANSACTION_STATE, self._topic.place(transactional_id)[0]))
            if node is not None:
                self._across.add(node, addition, done)
                return
        self.add_here(addition, done)

    def add_here(self, addition: Addition, done: Callable[[Sequence[ErrorCode]], None]) -> None:
        """``add``, if this broker coordinates the transaction."""

        def answered(answer: Answer | ErrorCode) -> None:
            if isinstance(answer, Identity):
                answer = answer.error
            done((answer,) * len(addition.partitions) if isinstance(answer, ErrorCode) else answer)

        fields = (
            addition.producer_id,
            addition.producer_epoch,
            addition.partitions,
            addition.verify_only,
            addition.client_version,
        )
        self._route(ADD, addition.transactional_id, fields, answered)

    def verify(self, question: Question, answer: Callable[[Sequence[int]], None]) -> None:
        """``partition.append.verification.Ask``: of a client that leaves adding to the broker add, of others ask."""
        self.add(
            question.transactional_id,
            question.producer_id,
            question.producer_epoch,
            question.partitions,
            EPOCH_PER_TRANSACTION if question.adds else 0,
            answer,
            verify_only=not question.adds,
        )

    def end(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commits: bool,
        client_version: TransactionVersion,
        done: Callable[[Identity], None],
    ) -> None:
        """Commit or abort a transaction."""
        fields = (producer_id, producer_epoch, commits, client_version)
        self._route(END, transactional_id, fields, _identity(done))

    # Descriptions

    def describe(self, transactional_id: str, done: Callable[[Described], None]) -> None:
        """One transactional id."""
        partition, home = self._topic.place(transactional_id)
        if not transactional_id:
            done(_refused(ErrorCode.INVALID_REQUEST))
        elif home is None:
            done(_refused(ErrorCode.NOT_COORDINATOR))
        elif home == self._shard.id:
            done(self._describe_here(partition, transactional_id))
        else:

            def answered(answer: bytes | memoryview | MillstreamError) -> None:
                failed = isinstance(answer, MillstreamError)
                done(_refused(ErrorCode.COORDINATOR_NOT_AVAILABLE) if failed else _decode_described(answer))

            self._shard.mailbox.call(home, DESCRIBE, _encode((partition, transactional_id)), answered, _TIMEOUT_US)

    def _serve_describe(self, sender: int, payload: bytes, reply: "Reply") -> None:
        _ = sender
        reply.send(_encode(self._describe_here(*_decode_ids(payload))))

    def _describe_here(self, partition: int, transactional_id: str) -> Described:
        found = self.partitions.get(partition)
        if found is None:
            return _refused(ErrorCode.NOT_COORDINATOR)
        if found.state is not State.ACTIVE:
            return _refused(found.refusal)
        transaction = found.core.transactions.get(transactional_id)
        image = None if transaction is None else transaction.image
        if image is None:
            return _refused(ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
        return (
            0,
            image.state.shown,
            image.timeout_ms,
            image.start_ms,
            image.producer_id,
            image.producer_epoch,
            sorted(image.partitions),
        )

    def list(self, done: Callable[[ErrorCode, "list[Listed]"], None]) -> None:
        """Every transactional id of this broker; an error if a shard did not answer or is still loading."""
        found: list[Listed] = []
        failed = ErrorCode.NONE
        missing = self._shard.count

        def take(error: ErrorCode, listed: "Sequence[Listed]") -> None:
            nonlocal missing, failed
            missing -= 1
            failed = error if error is not ErrorCode.NONE else failed
            found.extend(listed)
            if not missing:
                done(failed, [] if failed is not ErrorCode.NONE else found)

        def take_bytes(answer: bytes | memoryview | MillstreamError) -> None:
            if isinstance(answer, MillstreamError):
                take(ErrorCode.COORDINATOR_NOT_AVAILABLE, [])
            else:
                error, listed = _decode_listed(answer)
                take(ErrorCode(error), listed)

        for shard in range(self._shard.count):
            if shard == self._shard.id:
                take(*self._list_here())
            else:
                self._shard.mailbox.call(shard, LIST, b"", take_bytes, _TIMEOUT_US)

    def _serve_list(self, sender: int, payload: bytes, reply: "Reply") -> None:
        _ = sender, payload
        error, listed = self._list_here()
        reply.send(_encode((int(error), listed)))

    def _list_here(self) -> "tuple[ErrorCode, list[Listed]]":
        listed: list[Listed] = []
        for partition in self.partitions.values():
            if partition.state is State.LOADING:
                return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, []
            for transactional_id, transaction in partition.core.transactions.items():
                image = transaction.image
                if image is not None:
                    start_ms = image.start_ms if image.state in _RUNNING else -1
                    listed.append((transactional_id, image.producer_id, image.state.shown, start_ms))
        return ErrorCode.NONE, listed


def _identity(done: Callable[[Identity], None]) -> Done:
    def answered(answer: Answer | ErrorCode) -> None:
        assert isinstance(answer, Identity | ErrorCode)
        done(Identity(answer) if isinstance(answer, ErrorCode) else answer)

    return answered


def _replying(reply: "Reply") -> Done:
    def answered(answer: Answer | ErrorCode) -> None:
        if isinstance(answer, ErrorCode):
            reply.send(_encode((int(answer), [])))
        else:
            reply.send(_encode((0, [int(number) for number in answer])))

    return answered


def ask_or_refuse(coordinator: TransactionsPartition | None, request: Request) -> None:
    """Have a coordinator process a request whose token takes the answer; None and one that does not serve refuse it."""
    assert callable(request.token)
    if coordinator is None:
        request.token(ErrorCode.NOT_COORDINATOR)
    elif coordinator.state is not State.ACTIVE:
        request.token(coordinator.refusal)
    else:
        coordinator.ask(request)
