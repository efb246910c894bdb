"""Records of ``__share_group_state``, as Apache Kafka 4.3 lays them out (KIP-932).

A share partition is its newest snapshot (0) and the updates (1) after it, in order.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.messages.read_share_group_state import StateBatch
from millstream.wire.schema import ZERO_UUID, F, Int32, Int64, Stored, StoredKey, Uuid


class ShareSnapshotKey(StoredKey, api_key=0):
    """Key of a snapshot."""

    group_id: str = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


class ShareSnapshotValue(Stored, api_key=0, versions=(0, 0), flexible=0):
    """The whole state. The timestamps are wall clock, ms: of the state's first record, and of this one."""

    snapshot_epoch: Int32 = 0
    state_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, F("0+", tag=0)] = -1
    create_timestamp: Int64 = 0
    write_timestamp: Int64 = 0
    state_batches: list[StateBatch] = []


class ShareUpdateKey(StoredKey, api_key=1):
    """Key of an update."""

    group_id: str = ""
    topic_id: Uuid = ZERO_UUID
    partition: Int32 = 0


class ShareUpdateValue(Stored, api_key=1, versions=(0, 0), flexible=0):
    """What changed since the snapshot of this epoch; start -1 leaves it as it is."""

    snapshot_epoch: Int32 = 0
    leader_epoch: Int32 = 0
    start_offset: Int64 = 0
    delivery_complete_count: Annotated[Int32, F("0+", tag=0)] = -1
    state_batches: list[StateBatch] = []
