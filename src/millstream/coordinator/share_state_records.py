"""Records of ``__share_group_state``: snapshots and updates of share partitions, as Apache Kafka 4.3 writes them.

A null value of a snapshot's key deletes the share partition. A record that does not decode raises ``Corruption``: what
was acknowledged must not be forgotten. A record of another kind is skipped.
"""

from millstream.core.share.batches import Batch, RecordState
from millstream.core.share.stored import Change, Image, Key, Update
from millstream.errors import Corruption
from millstream.model.quantities import Offset
from millstream.wire.errors import ProtocolError
from millstream.wire.messages.read_share_group_state import StateBatch
from millstream.wire.messages.share_state_storage import (
    ShareSnapshotKey,
    ShareSnapshotValue,
    ShareUpdateKey,
    ShareUpdateValue,
)
from millstream.wire.records import Record
from millstream.wire.stored import decode_share_state_key, decode_versioned, encode_key, encode_versioned


def encode_change(key: Key, change: Change) -> tuple[bytes, bytes | None]:
    """Key and value of the record that makes ``change``."""
    if isinstance(change, Update):
        update = ShareUpdateValue(
            snapshot_epoch=change.snapshot_epoch,
            leader_epoch=change.leader_epoch,
            start_offset=change.start,
            delivery_complete_count=change.complete,
            state_batches=to_wire(change.batches),
        )
        return encode_key(ShareUpdateKey(*key)), encode_versioned(update, 0)
    snapshot_key = encode_key(ShareSnapshotKey(*key))
    if change is None:
        return snapshot_key, None
    snapshot = ShareSnapshotValue(
        snapshot_epoch=change.snapshot_epoch,
        state_epoch=change.state_epoch,
        leader_epoch=change.leader_epoch,
        start_offset=change.start,
        delivery_complete_count=change.complete,
        create_timestamp=change.created_ms,
        write_timestamp=change.written_ms,
        state_batches=to_wire(change.batches),
    )
    return snapshot_key, encode_versioned(snapshot, 0)


def decode_change(record: Record) -> tuple[Key, Change] | None:
    """The share partition and what the record makes of it; None for a record of another kind.

    Raises:
        Corruption: the record is invalid.
    """
    try:
        if record.key is None:
            raise ProtocolError("it has no key")
        key = decode_share_state_key(record.key)
        if key is None or (isinstance(key, ShareUpdateKey) and record.value is None):
            return None
        name = (key.group_id, key.topic_id, key.partition)
        if record.value is None:
            return name, None
        if isinstance(key, ShareUpdateKey):
            update = decode_versioned(ShareUpdateValue, record.value)
            return name, Update(
                update.snapshot_epoch,
                update.leader_epoch,
                Offset(update.start_offset),
                update.delivery_complete_count,
                from_wire(update.state_batches),
            )
        value = decode_versioned(ShareSnapshotValue, record.value)
        return name, Image(
            value.snapshot_epoch,
            value.state_epoch,
            value.leader_epoch,
            Offset(value.start_offset),
            value.delivery_complete_count,
            from_wire(value.state_batches),
            value.create_timestamp,
            value.write_timestamp,
        )
    except (ProtocolError, ValueError) as error:
        raise Corruption(f"the record at offset {record.offset} does not decode: {error}") from None


def to_wire(batches: list[Batch]) -> list[StateBatch]:
    """Batches of the protocol."""
    return [StateBatch(one.first, one.last, one.state, one.count) for one in batches]


def from_wire(batches: list[StateBatch]) -> list[Batch]:
    """Batches of the core, by first offset.

    Raises:
        ValueError: there is no such state.
    """
    found = [
        Batch(Offset(one.first_offset), Offset(one.last_offset), RecordState(one.delivery_state), one.delivery_count)
        for one in batches
    ]
    return sorted(found, key=_first)


def _first(batch: Batch) -> int:
    return batch.first
