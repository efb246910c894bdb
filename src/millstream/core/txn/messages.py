"""Inputs and outputs of a transaction coordinator."""

from typing import NamedTuple, TypeAlias

import msgspec

from millstream.core.txn.image import NO_EPOCH, NO_PRODUCER, Image, TopicPartition
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import ProducerEpoch, ProducerId, TransactionVersion

Token: TypeAlias = object
"""Names a request; the caller gets it back with the answer."""


class TransactionSettings(msgspec.Struct, frozen=True):
    """The settings that decisions depend on."""

    timeout_max_ms: int = 900_000
    expiration_ms: int = 7 * 24 * 3600 * 1000
    abort_interval_ms: int = 1
    """Between two looks for transactions that have timed out."""


# Inputs. ``spare_id`` is an unused producer id, if the coordinator has asked for one (``Outputs.wants_id``).


class InitProducer(msgspec.Struct, frozen=True):
    """An InitProducerId. ``producer_id`` and ``producer_epoch`` are those of a producer that recovers, -1 of a new one.
    Answered with an ``Identity``.
    """

    token: Token
    transactional_id: str
    timeout_ms: int
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: ProducerEpoch = NO_EPOCH
    spare_id: int = NO_PRODUCER


class AddPartitions(msgspec.Struct, frozen=True):
    """Partitions to add, or (``verify_only``) to be asked about. Answered with one error code each."""

    token: Token
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: tuple[TopicPartition, ...]
    verify_only: bool
    client_version: TransactionVersion


class End(msgspec.Struct, frozen=True):
    """An EndTxn. Answered with an ``Identity``: that of the next transaction."""

    token: Token
    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commits: bool
    client_version: TransactionVersion
    spare_id: int = NO_PRODUCER


class AbortOverdue(msgspec.Struct, frozen=True):
    """The producer's transaction has been open for longer than its timeout, and its epochs are exhausted: abort it, and
    give the producer the id ``spare_id``. No request waits for an answer.
    """

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    spare_id: int = NO_PRODUCER


class Persisted(msgspec.Struct, frozen=True):
    """Outcome of a ``Write``: durable, or (``error``) not in the log. Given in the order of the writes."""

    receipt: int
    error: ErrorCode = ErrorCode.NONE


class MarkersWritten(msgspec.Struct, frozen=True):
    """Every partition of a ``SendMarkers`` has its marker, or was deleted."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


class Expire(msgspec.Struct, frozen=True):
    """Look whether these ids have not been used for long."""

    transactional_ids: tuple[str, ...]


class DeadlinePassed(msgspec.Struct, frozen=True):
    """The coordinator's ``deadline_us`` has been reached."""


Request: TypeAlias = InitProducer | AddPartitions | End
NeedsId: TypeAlias = InitProducer | End | AbortOverdue
Input: TypeAlias = Request | AbortOverdue | Persisted | MarkersWritten | Expire | DeadlinePassed


# Outputs.


class Identity(NamedTuple):
    """A producer's id and epoch, or the error."""

    error: ErrorCode
    producer_id: ProducerId = NO_PRODUCER
    producer_epoch: ProducerEpoch = NO_EPOCH


Answer: TypeAlias = Identity | tuple[ErrorCode, ...]


class Write(msgspec.Struct, frozen=True):
    """A record to append, in order (None is a tombstone). Then ``Persisted(receipt)`` is stepped."""

    receipt: int
    transactional_id: str
    image: Image | None


class SendMarkers(msgspec.Struct, frozen=True):
    """Markers to write, for as long as it takes. Then ``MarkersWritten`` is stepped."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commits: bool
    client_version: TransactionVersion
    partitions: tuple[TopicPartition, ...]


class Outputs:
    """Effects of a step."""

    __slots__ = ("answers", "log_lines", "markers", "wants_id", "writes")

    def __init__(self) -> None:
        self.answers: list[tuple[Token, Answer]] = []
        self.writes: list[Write] = []
        self.markers: list[SendMarkers] = []
        self.wants_id: list[NeedsId] = []
        """What needs an unused producer id: to be stepped again with one."""
        self.log_lines: list[str] = []
