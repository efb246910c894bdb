"""Records of ``__transaction_state``: one transactional id each, in Kafka's version 1. A null value deletes.

Written as by Apache Kafka 4.3, so that each reads the other's logs; version 0 is read, too. A record that does not
decode raises ``Corruption``: an outcome that was decided must not be forgotten.
"""

from typing import Final

from millstream.core.txn.image import Image
from millstream.core.txn.state import TransactionState
from millstream.errors import Corruption
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.transaction_storage import (
    TransactionLogKey,
    TransactionLogValue,
    TransactionPartitions,
)
from millstream.wire.records import Record
from millstream.wire.stored import decode_transaction_key, decode_versioned, encode_key, encode_versioned

_VERSION: Final = 1


def encode_transaction(transactional_id: str, image: Image | None) -> tuple[bytes, bytes | None]:
    """Key and value of the record that stores ``image``, or (None) deletes the stored one."""
    key = encode_key(TransactionLogKey(transactional_id=transactional_id))
    if image is None:
        return key, None
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(image.partitions):
        topics.setdefault(topic, []).append(partition)
    value = TransactionLogValue(
        producer_id=image.producer_id,
        previous_producer_id=image.previous_producer_id,
        next_producer_id=image.next_producer_id,
        producer_epoch=image.producer_epoch,
        transaction_timeout_ms=image.timeout_ms,
        transaction_status=image.state.value,
        # Kafka writes no list for a transactional id without a transaction.
        transaction_partitions=None
        if image.state is TransactionState.EMPTY
        else [TransactionPartitions(topic=topic, partition_ids=partitions) for topic, partitions in topics.items()],
        transaction_last_update_timestamp_ms=image.update_ms,
        transaction_start_timestamp_ms=image.start_ms,
        client_transaction_version=image.client_version,
    )
    return key, encode_versioned(value, _VERSION)


def decode_transaction(record: Record) -> tuple[str, Image | None] | None:
    """The transactional id and what the record stores of it; None for a record of another kind.

    Raises:
        Corruption: the record is invalid.
    """
    try:
        if record.key is None:
            raise ProtocolError("it has no key")
        key = decode_transaction_key(record.key)
        if key is None:
            return None
        if record.value is None:
            return key.transactional_id, None
        value = decode_versioned(TransactionLogValue, record.value)
        state = TransactionState(value.transaction_status)
    except (ProtocolError, ValueError) as error:
        raise Corruption(f"the record at offset {record.offset} does not decode: {error}") from None
    topic_partitions = frozenset(
        (topic.topic, partition) for topic in value.transaction_partitions or () for partition in topic.partition_ids
    )
    image = Image(
        value.producer_id,
        value.producer_epoch,
        value.transaction_timeout_ms,
        state,
        topic_partitions,
        value.transaction_start_timestamp_ms,
        value.transaction_last_update_timestamp_ms,
        value.previous_producer_id,
        value.next_producer_id,
        value.client_transaction_version,
    )
    return key.transactional_id, image
