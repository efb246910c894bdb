"""The transactional ids of one partition of ``__transaction_state``: decisions of a transaction coordinator.

::

    request ──► step ──► write ──► log ──► step(Persisted) ──► the answer that waited for it
                                                   └─ an outcome is decided ─► markers ─► step(MarkersWritten) ─► write

The caller replays the log (``replay`` for each record, then ``loaded``), steps every request, appends every write in
order, steps ``Persisted`` for each write in that order, has markers written, and steps ``Tick`` at ``deadline_us``. A
shard that stops coordinating calls ``unload``, which returns the tokens that still wait.

**Promises.** An outcome is decided by its record and by nothing else: the response to EndTxn is sent when PrepareCommit
or PrepareAbort is durable, and markers follow (D5). A coordinator that loads a decided transaction writes its markers,
again if need be. A producer that starts fences the one before it, whose epoch is over when the response leaves (D4). A
transaction that is open for longer than its timeout is aborted. No producer gets the last epoch: one whose epochs are
exhausted gets another producer id, whichever way its transaction ends (`core.txn.image`).

**While something is in flight** for a transactional id, its further requests wait, up to ``PATIENCE_US``, and are then
refused with CONCURRENT_TRANSACTIONS, which clients repeat. (Apache Kafka refuses them at once.)

**Bad input** is answered with Kafka's error code; nothing that a client sends raises. **A failed write** leaves
everything as it was, and fails the request that it was for.

Source: KIP-98, KIP-360 (recovery of a producer), KIP-890 (an epoch per transaction).
"""

import heapq
from collections.abc import Iterable
from typing import Final

from millstream.core.txn.image import (
    EPOCH_MAX,
    EPOCH_PER_TRANSACTION,
    EXHAUSTED,
    NO_EPOCH,
    NO_PRODUCER,
    Image,
    completed,
    fenced,
    prepared,
    timed_out,
    with_new_id,
    with_next_epoch,
    with_partitions,
)
from millstream.core.txn.messages import (
    AbortOverdue,
    AddPartitions,
    Answer,
    DeadlinePassed,
    End,
    Expire,
    Identity,
    InitProducer,
    Input,
    MarkersWritten,
    Outputs,
    Persisted,
    Request,
    SendMarkers,
    Token,
    TransactionSettings,
    Write,
)
from millstream.core.txn.state import PREPARING, TransactionState
from millstream.core.txn.transaction import Transaction
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ProducerId

PATIENCE_US: Final = 1_000_000
WAITING_MAX: Final = 64
"""Requests that wait for one transactional id."""
_AGAIN_US: Final = 500_000
"""Until a record that could not be written is tried again."""

_NONE: Final = ErrorCode.NONE
_BUSY: Final = ErrorCode.CONCURRENT_TRANSACTIONS
_COMMITTED: Final = TransactionState.COMPLETE_COMMIT
_ABORTED: Final = TransactionState.COMPLETE_ABORT


class _Pending:
    """A record in flight: what it makes of its transactional id, and the answer that waits for it."""

    __slots__ = ("answer", "image", "token", "transaction")

    def __init__(
        self, transaction: Transaction, image: Image | None, token: Token | None, answer: Answer | None
    ) -> None:
        self.transaction = transaction
        self.image = image
        self.token = token
        self.answer = answer


class TransactionCoordinator:
    """All transactional ids of one partition of ``__transaction_state``.

    Lifecycle: built, ``replay`` for each record of the log, ``loaded``, then ``step`` until ``unload``.
    """

    def __init__(self, settings: TransactionSettings) -> None:
        self.settings = settings
        self.transactions: dict[str, Transaction] = {}
        self._writes: dict[int, _Pending] = {}
        self._receipt = 0
        self._deadlines: list[tuple[int, int, str]] = []
        self._order = 0
        self._out = Outputs()
        self._now_us = self._wall_ms = 0

    @property
    def deadline_us(self) -> int | None:
        """Earliest time at which a ``Tick`` is due, in µs; None without one."""
        return self._deadlines[0][0] if self._deadlines else None

    def step(self, given: Input, now_us: int, wall_ms: int) -> Outputs:
        """Process one input. ``now_us`` is monotonic, ``wall_ms`` the wall clock."""
        out = self._begin(now_us, wall_ms)
        match given:
            case InitProducer() | AddPartitions() | End():
                self._request(given)
            case AbortOverdue():
                self._abort_overdue(given)
            case Persisted():
                self._persisted(given)
            case MarkersWritten():
                self._markers_written(given)
            case Expire():
                self._expire(given.transactional_ids)
            case DeadlinePassed():
                self._tick()
        return out

    def _begin(self, now_us: int, wall_ms: int) -> Outputs:
        self._now_us, self._wall_ms = now_us, wall_ms
        out = self._out = Outputs()
        return out

    def _answer(self, given: Request, error: ErrorCode, identity: Identity | None = None) -> None:
        answer: Answer = identity or Identity(error)
        if isinstance(given, AddPartitions):
            answer = (error,) * len(given.partitions)
        self._out.answers.append((given.token, answer))

    # Requests

    def _request(self, given: Request) -> None:
        if not given.transactional_id:
            self._answer(given, ErrorCode.INVALID_REQUEST)
            return
        transaction = self.transactions.get(given.transactional_id)
        if transaction is not None and (transaction.is_busy or transaction.waiting):
            self._wait(transaction, given)
        else:
            self._carry_out(transaction, given)

    def _wait(self, transaction: Transaction, given: Request) -> None:
        if len(transaction.waiting) >= WAITING_MAX:
            self._answer(given, _BUSY)
            return
        until_us = self._now_us + PATIENCE_US
        transaction.waiting.append((until_us, given))
        self._remind(until_us, transaction)

    def _release(self, transaction: Transaction) -> None:
        """Carry out what waits, up to the first request that makes the id busy again."""
        while transaction.waiting and not transaction.is_busy:
            _, given = transaction.waiting.popleft()
            current = self.transactions.get(given.transactional_id)
            if current is None or current is transaction:
                self._carry_out(current, given)
            else:
                self._request(given)  # the id expired, and one that waited before has started it again

    def _carry_out(self, transaction: Transaction | None, given: Request) -> None:
        match given:
            case InitProducer():
                self._init(transaction, given)
            case AddPartitions():
                self._add(transaction, given)
            case End():
                self._end(transaction, given)

    # InitProducerId

    def _init(self, transaction: Transaction | None, given: InitProducer) -> None:
        wall_ms, timeout_ms = self._wall_ms, given.timeout_ms
        if (given.producer_id < 0) != (given.producer_epoch < 0):
            self._answer(given, ErrorCode.INVALID_REQUEST)
            return
        if not 0 < timeout_ms <= self.settings.timeout_max_ms:
            self._answer(given, ErrorCode.INVALID_TRANSACTION_TIMEOUT)
            return
        recovers = given.producer_id >= 0
        image = None if transaction is None else transaction.image
        if transaction is None or image is None:
            if given.spare_id == NO_PRODUCER:
                self._out.wants_id.append(given)
                return
            if transaction is None:
                transaction = self.transactions[given.transactional_id] = Transaction(given.transactional_id, None)
            image = Image(given.spare_id, NO_EPOCH, timeout_ms)
            self._begin_producer(transaction, with_next_epoch(image, timeout_ms, wall_ms, recovers=False), given)
            return
        if recovers and not _may_recover(image, given):
            self._answer(given, ErrorCode.PRODUCER_FENCED)
            return
        if image.state is TransactionState.ONGOING:
            # Once the transaction of the producer before is aborted, this request is carried out.
            self._wait(transaction, given)
            self._out.log_lines.append(f"transaction {given.transactional_id}: aborted by a new producer")
            self._write(transaction, fenced(image, wall_ms))
            return
        if recovers and image.last_epoch == given.producer_epoch and image.producer_epoch != given.producer_epoch:
            self._answer(given, _NONE, Identity(_NONE, image.producer_id, image.producer_epoch))  # asked again
            return
        if recovers and (image.producer_id, image.producer_epoch) != (given.producer_id, given.producer_epoch):
            self._answer(given, ErrorCode.PRODUCER_FENCED)
            return
        if image.is_exhausted:
            if given.spare_id == NO_PRODUCER:
                self._out.wants_id.append(given)
                return
            following = with_new_id(image, given.spare_id, timeout_ms, wall_ms, recovers=recovers)
        else:
            following = with_next_epoch(image, timeout_ms, wall_ms, recovers=recovers)
        self._begin_producer(transaction, following, given)

    def _begin_producer(self, transaction: Transaction, image: Image, given: InitProducer) -> None:
        identity = Identity(_NONE, image.producer_id, image.producer_epoch)
        self._write(transaction, image, given.token, identity)

    # Partitions

    def _add(self, transaction: Transaction | None, given: AddPartitions) -> None:
        image = None if transaction is None else transaction.image
        if transaction is None or image is None or image.producer_id != given.producer_id:
            self._answer(given, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return
        if image.producer_epoch != given.producer_epoch or image.producer_epoch == EPOCH_MAX:
            self._answer(given, ErrorCode.PRODUCER_FENCED)
            return
        ongoing = image.state is TransactionState.ONGOING
        if given.verify_only:
            codes = tuple(
                _NONE if ongoing and topic_partition in image.partitions else ErrorCode.TRANSACTION_ABORTABLE
                for topic_partition in given.partitions
            )
            self._out.answers.append((given.token, codes))
            return
        partitions = frozenset(given.partitions)
        if ongoing and partitions <= image.partitions:
            self._answer(given, _NONE)
            return
        following = with_partitions(image, partitions, given.client_version, self._wall_ms)
        self._write(transaction, following, given.token, (_NONE,) * len(given.partitions))

    # EndTxn

    def _end(self, transaction: Transaction | None, given: End) -> None:
        image = None if transaction is None else transaction.image
        if transaction is None or image is None:
            self._answer(given, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
            return
        bumps = given.client_version >= EPOCH_PER_TRANSACTION
        found = _judge_end_with_epoch(image, given) if bumps else _judge_end(image, given)
        if found is not None:
            identity = Identity(found, image.producer_id, image.producer_epoch) if found is _NONE else None
            self._answer(given, found, identity)
            return
        next_id = NO_PRODUCER
        if bumps and image.is_exhausted:
            if given.spare_id == NO_PRODUCER:
                self._out.wants_id.append(given)
                return
            next_id = given.spare_id
        following = prepared(image, given.client_version, next_id, self._wall_ms, commits=given.commits)
        identity = Identity(_NONE, following.producer_id, following.producer_epoch)
        if next_id != NO_PRODUCER:
            identity = Identity(_NONE, next_id, 0)
        self._write(transaction, following, given.token, identity)

    # The log

    def _write(
        self, transaction: Transaction, image: Image | None, token: Token | None = None, answer: Answer | None = None
    ) -> None:
        assert not transaction.writing, f"transaction {transaction.transactional_id}: two records in flight"
        transaction.writing = True
        self._receipt += 1
        self._writes[self._receipt] = _Pending(transaction, image, token, answer)
        self._out.writes.append(Write(self._receipt, transaction.transactional_id, image))

    def _persisted(self, fate: Persisted) -> None:
        pending = self._writes.pop(fate.receipt)
        transaction = pending.transaction
        transaction.writing = False
        if fate.error is _NONE:
            if pending.token is not None and pending.answer is not None:
                self._out.answers.append((pending.token, pending.answer))
            self._enter(transaction, pending.image)
        else:
            self._failed(transaction, pending, fate.error)
        if transaction.image is None and not transaction.writing:
            self.transactions.pop(transaction.transactional_id, None)
        self._release(transaction)

    def _failed(self, transaction: Transaction, pending: _Pending, error: ErrorCode) -> None:
        if pending.token is not None:
            answer: Answer = Identity(error)
            if pending.answer is not None and not isinstance(pending.answer, Identity):
                answer = (error,) * len(pending.answer)
            self._out.answers.append((pending.token, answer))
        if transaction.image is not None and not transaction.is_idle:
            self._remind(self._now_us + _AGAIN_US, transaction)
        while transaction.waiting:  # what waited for it fails with it
            self._answer(transaction.waiting.popleft()[1], error)

    def _enter(self, transaction: Transaction, image: Image | None) -> None:
        """The log has this image."""
        transaction.image = image
        if image is None:
            return
        transaction.used_us = self._now_us - max(self._wall_ms - image.update_ms, 0) * 1000
        transaction.markers_written = False
        if image.state is TransactionState.ONGOING:
            began = (image.producer_id, image.producer_epoch, image.start_ms)
            if transaction.began != began:
                transaction.began = began
                transaction.overdue_us = self._now_us + self._left_ms(image) * 1000
            self._remind_of_timeout(transaction)
        elif image.state in PREPARING:
            self._send_markers(transaction, image)

    def _send_markers(self, transaction: Transaction, image: Image) -> None:
        if not image.partitions:
            self._write(transaction, completed(image, self._wall_ms))
            return
        self._out.markers.append(
            SendMarkers(
                transaction.transactional_id,
                image.producer_id,
                image.producer_epoch,
                image.state is TransactionState.PREPARE_COMMIT,
                image.client_version,
                tuple(sorted(image.partitions)),
            )
        )

    def _markers_written(self, given: MarkersWritten) -> None:
        transaction = self.transactions.get(given.transactional_id)
        image = None if transaction is None else transaction.image
        if transaction is None or image is None or image.state not in PREPARING or transaction.writing:
            return
        if (image.producer_id, image.producer_epoch) == (given.producer_id, given.producer_epoch):
            transaction.markers_written = True
            self._write(transaction, completed(image, self._wall_ms))

    # Time

    def _left_ms(self, image: Image) -> int:
        """Time until an open transaction is aborted, when this coordinator first sees it. Later only the monotonic
        clock counts, so that a wall clock that is set back keeps no transaction open, and one set ahead aborts none.
        """
        return min(max(image.start_ms + image.timeout_ms - self._wall_ms, 0), image.timeout_ms)

    def _remind_of_timeout(self, transaction: Transaction) -> None:
        """Look at an open transaction when its time is over, together with others: at the next look of all."""
        interval_us = self.settings.abort_interval_ms * 1000
        self._remind(-(-transaction.overdue_us // interval_us) * interval_us, transaction)

    def _remind(self, at_us: int, transaction: Transaction) -> None:
        """Look at a transaction at ``at_us``, or earlier: then it is decided what comes next."""
        if transaction.remind_us and transaction.remind_us <= at_us:
            return
        transaction.remind_us = at_us
        self._order += 1
        heapq.heappush(self._deadlines, (at_us, self._order, transaction.transactional_id))

    def _tick(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._now_us:
            at_us, _, transactional_id = heapq.heappop(self._deadlines)
            transaction = self.transactions.get(transactional_id)
            if transaction is not None and transaction.remind_us == at_us:
                transaction.remind_us = 0
                self._look_at(transaction)

    def _look_at(self, transaction: Transaction) -> None:
        """A time has come: that of the transaction, of who waits for it, or of a record to write again."""
        while transaction.waiting and transaction.waiting[0][0] <= self._now_us:
            self._answer(transaction.waiting.popleft()[1], _BUSY)
        if transaction.waiting:
            self._remind(transaction.waiting[0][0], transaction)
        image = transaction.image
        if image is None or transaction.writing:
            return
        if image.state is TransactionState.ONGOING:
            if self._now_us < transaction.overdue_us:
                self._remind_of_timeout(transaction)
            elif image.ends_with_epoch and image.is_exhausted:
                who = (transaction.transactional_id, image.producer_id, image.producer_epoch)
                self._remind(self._now_us + _AGAIN_US, transaction)  # an id may not be had now
                self._out.wants_id.append(AbortOverdue(*who))
            else:
                self._abort(transaction, image)
        elif image.state in PREPARING and (transaction.markers_written or not image.partitions):
            self._write(transaction, completed(image, self._wall_ms))

    def _abort_overdue(self, given: AbortOverdue) -> None:
        """There is an id for the producer of a transaction that is open for too long."""
        transaction = self.transactions.get(given.transactional_id)
        image = None if transaction is None else transaction.image
        if transaction is None or image is None or transaction.writing or image.state is not TransactionState.ONGOING:
            return
        if (image.producer_id, image.producer_epoch) == (given.producer_id, given.producer_epoch):
            self._abort(transaction, image, given.spare_id)

    def _abort(self, transaction: Transaction, image: Image, next_producer_id: ProducerId = NO_PRODUCER) -> None:
        self._out.log_lines.append(
            f"transaction {transaction.transactional_id}: aborted, open for more than {image.timeout_ms} ms"
        )
        self._write(transaction, timed_out(image, self._wall_ms, next_producer_id))

    def _expire(self, transactional_ids: Iterable[str]) -> None:
        # The wall clock counts once, when the image is entered: moved later, it makes no id older or younger.
        horizon_us = self._now_us - self.settings.expiration_ms * 1000
        for transactional_id in transactional_ids:
            transaction = self.transactions.get(transactional_id)
            if transaction is None or not transaction.is_idle or transaction.waiting:
                continue
            if transaction.image is not None and transaction.used_us <= horizon_us:
                self._write(transaction, None)

    # Loading and unloading

    def replay(self, transactional_id: str, image: Image | None) -> None:
        """Process one record of the log, in order, before ``loaded``."""
        if image is None or image.state is TransactionState.DEAD:
            self.transactions.pop(transactional_id, None)
        else:
            self.transactions[transactional_id] = Transaction(transactional_id, image)

    def loaded(self, now_us: int, wall_ms: int) -> Outputs:
        """The log has been read: continue with its state."""
        out = self._begin(now_us, wall_ms)
        for transaction in self.transactions.values():
            self._enter(transaction, transaction.image)
        return out

    def unload(self) -> list[Token]:
        """Stop, and return the tokens of requests that will get no response from here."""
        tokens = [pending.token for pending in self._writes.values() if pending.token is not None]
        for transaction in self.transactions.values():
            tokens += [given.token for _, given in transaction.waiting]
        self.transactions.clear()
        self._writes.clear()
        self._deadlines.clear()
        return tokens


def _may_recover(image: Image, given: InitProducer) -> bool:
    """Whether a producer that recovers is the one of this transactional id. One whose id was changed at the end of its
    epochs may not know of that.
    """
    return given.producer_id == image.producer_id or (
        given.producer_id == image.previous_producer_id and given.producer_epoch >= EXHAUSTED
    )


def _judge_end(image: Image, given: End) -> ErrorCode | None:
    """What is in the way of an EndTxn before version 5; NONE if it was carried out before; None to carry it out."""
    if image.producer_id != given.producer_id:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if image.producer_epoch != given.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if image.state is TransactionState.ONGOING:
        return None
    return _NONE if image.state is (_COMMITTED if given.commits else _ABORTED) else ErrorCode.INVALID_TXN_STATE


def _judge_end_with_epoch(image: Image, given: End) -> ErrorCode | None:
    """The same for version 5 and later, where the epoch tells a repetition from the next transaction's end."""
    overflowed = (
        image.previous_producer_id == given.producer_id
        and given.producer_epoch >= EXHAUSTED
        and image.producer_epoch == 0
    )
    if image.producer_id != given.producer_id and not overflowed:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    ended = image.state in (_COMMITTED, _ABORTED)
    following = given.producer_epoch == image.producer_epoch - 1 and image.producer_epoch < EPOCH_MAX
    again = ended and (overflowed or following)
    if not again and given.producer_epoch != image.producer_epoch:
        return ErrorCode.PRODUCER_FENCED
    if again:
        return _NONE if image.state is (_COMMITTED if given.commits else _ABORTED) else ErrorCode.INVALID_TXN_STATE
    if image.state is TransactionState.ONGOING or not given.commits:
        return None  # an abort without a transaction brings the next epoch
    return ErrorCode.INVALID_TXN_STATE
