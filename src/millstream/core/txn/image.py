"""What the record of a transactional id stores, and the steps from one record to the next.

::

    Empty ──add──► Ongoing ──end──► PrepareCommit ──markers written──► CompleteCommit ──add──► Ongoing …
                      └──end, time-out, new producer──► PrepareAbort ──► CompleteAbort

An `Image` is one record's content. The functions here make the next image of one; they decide nothing. A transaction of
version 2 ends with a new epoch (KIP-890), so that nothing of the ended one can be taken for the next.

An epoch is at most ``EPOCH_MAX``, which no producer ever has: it is for markers. A producer whose epoch is
``EXHAUSTED`` gets another id, with epoch 0, from the next request: InitProducerId, the end of a transaction of
version 2, or its time-out. An older broker gave ``EPOCH_MAX`` to producers; such a one adds no partition, and its open
transaction ends.
"""

from typing import Final

import msgspec

from millstream.core.txn.state import TransactionState
from millstream.model.quantities import ProducerEpoch, ProducerId, TransactionVersion

NO_PRODUCER: Final = -1
NO_EPOCH: Final = -1
EPOCH_MAX: Final = 0x7FFF
EXHAUSTED: Final = EPOCH_MAX - 1
"""From this epoch on a producer gets another id: the last epoch is for fencing it."""

EPOCH_PER_TRANSACTION: Final = 2
"""Version of transactions from which each ends with a new epoch."""

TopicPartition = tuple[str, int]
"""(topic, partition)"""


class Image(msgspec.Struct, frozen=True):
    """A transactional id as its record stores it. Times are wall-clock ms, -1 for none."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = -1
    update_ms: int = -1
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    """The producer's id after the end of this transaction, if its epochs are exhausted."""
    client_version: TransactionVersion = 0
    """Version of transactions that the producer speaks."""
    last_epoch: int = NO_EPOCH
    """Epoch before the last bump that the producer asked for itself. Not stored: after a load it is unknown."""

    @property
    def is_exhausted(self) -> bool:
        return self.producer_epoch >= EXHAUSTED

    @property
    def ends_with_epoch(self) -> bool:
        """Whether the transaction ends with a new epoch."""
        return self.client_version >= EPOCH_PER_TRANSACTION


_replace = msgspec.structs.replace


def with_next_epoch(image: Image, timeout_ms: int, wall_ms: int, *, recovers: bool) -> Image:
    """A producer starts, in the next epoch. ``recovers``: it is the same producer as before (KIP-360)."""
    return _replace(
        image,
        state=TransactionState.EMPTY,
        producer_epoch=image.producer_epoch + 1,
        last_epoch=image.producer_epoch if recovers else NO_EPOCH,
        timeout_ms=timeout_ms,
        partitions=frozenset(),
        start_ms=-1,
        update_ms=wall_ms,
    )


def with_new_id(image: Image, producer_id: ProducerId, timeout_ms: int, wall_ms: int, *, recovers: bool) -> Image:
    """A producer starts, with another id because the epochs are exhausted."""
    return Image(
        producer_id,
        0,
        timeout_ms,
        update_ms=wall_ms,
        previous_producer_id=image.producer_id,
        last_epoch=image.producer_epoch if recovers else NO_EPOCH,
        client_version=image.client_version,
    )


def with_partitions(
    image: Image, partitions: frozenset[TopicPartition], client_version: TransactionVersion, wall_ms: int
) -> Image:
    """Partitions are added; the first ones start the transaction."""
    ongoing = image.state is TransactionState.ONGOING
    return _replace(
        image,
        state=TransactionState.ONGOING,
        partitions=image.partitions | partitions if ongoing else partitions,
        start_ms=image.start_ms if ongoing else wall_ms,
        update_ms=wall_ms,
        client_version=client_version,
    )


def prepared(
    image: Image, client_version: TransactionVersion, next_producer_id: ProducerId, wall_ms: int, *, commits: bool
) -> Image:
    """The producer's decision. Without a transaction that is open, an abort only brings the next epoch."""
    bumps = client_version >= EPOCH_PER_TRANSACTION
    ongoing = image.state is TransactionState.ONGOING
    return _replace(
        image,
        state=TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT,
        producer_epoch=min(image.producer_epoch + 1, EPOCH_MAX) if bumps else image.producer_epoch,
        last_epoch=image.producer_epoch if bumps else image.last_epoch,
        next_producer_id=next_producer_id,
        start_ms=image.start_ms if ongoing else wall_ms,
        partitions=image.partitions if ongoing else frozenset(),
        update_ms=wall_ms,
        client_version=client_version,
    )


def fenced(image: Image, wall_ms: int) -> Image:
    """A new producer aborts the open transaction of the one before, in a later epoch. One epoch is left out where
    transactions end with a new one: the producer before must not take the abort for one that it asked for.
    """
    epoch = image.producer_epoch + (2 if image.ends_with_epoch else 1)
    return _replace(
        image,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=min(epoch, EPOCH_MAX),
        last_epoch=NO_EPOCH,
        update_ms=wall_ms,
    )


def timed_out(image: Image, wall_ms: int, next_producer_id: ProducerId = NO_PRODUCER) -> Image:
    """The transaction was open for too long, and is aborted in the next epoch. Its producer may continue in that, by an
    abort of its own or by InitProducerId (KIP-588). With ``next_producer_id`` it has that id afterwards.
    """
    return _replace(
        image,
        state=TransactionState.PREPARE_ABORT,
        producer_epoch=min(image.producer_epoch + 1, EPOCH_MAX),
        last_epoch=image.producer_epoch,
        next_producer_id=next_producer_id,
        update_ms=wall_ms,
    )


def completed(image: Image, wall_ms: int) -> Image:
    """Every marker is written."""
    commits = image.state is TransactionState.PREPARE_COMMIT
    state = TransactionState.COMPLETE_COMMIT if commits else TransactionState.COMPLETE_ABORT
    done = _replace(image, state=state, partitions=frozenset(), update_ms=wall_ms)
    if image.next_producer_id == NO_PRODUCER:
        return done
    return _replace(
        done,
        producer_id=image.next_producer_id,
        previous_producer_id=image.producer_id,
        producer_epoch=0,
        next_producer_id=NO_PRODUCER,
    )
