"""Records of ``__transaction_state``: one transactional id each.

Key and value each start with an int16: for the key the type of the record (0), for the value its version. A null value
is a tombstone.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import F, Int8, Int16, Int32, Int64, Message, Stored, StoredKey


class TransactionLogKey(StoredKey, api_key=0):
    """Key of a transactional id."""

    transactional_id: str = ""


class TransactionPartitions(Message):
    """Partitions of one topic that are part of the transaction."""

    topic: str = ""
    partition_ids: list[Int32] = []


class TransactionLogValue(Stored, api_key=0, versions=(0, 1), flexible=1):
    """A transactional id: its producer, and its transaction. Times are in ms since 1970, -1 for none."""

    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, F("1+", tag=0)] = -1
    next_producer_id: Annotated[Int64, F("1+", tag=1)] = -1
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[TransactionPartitions] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, F("1+", tag=2)] = 0
