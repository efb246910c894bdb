"""Records of ``__consumer_offsets`` that the classic groups and offset commits write.

Key and value each start with an int16: for a key the type of the record (1 an offset, 2 a group; 0 an offset of very
old brokers), for a value its version. A null value is a tombstone. Unknown key types are other features' records and
are skipped by readers.
"""

# ruff: noqa: RUF012 (msgspec copies an empty list that is a default)

from typing import Annotated

from millstream.wire.schema import ZERO_UUID, F, Int32, Int64, Message, Stored, StoredKey, Uuid


class OffsetCommitKey(StoredKey, api_key=1):
    """Key of a committed offset; record types 0 and 1 are laid out alike."""

    group: str = ""
    topic: str = ""
    partition: Int32 = 0


class OffsetCommitValue(Stored, api_key=1, versions=(0, 4), flexible=4):
    """A committed offset."""

    offset: Int64 = 0
    leader_epoch: Annotated[Int32, F("3+")] = -1
    metadata: str = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, F("1")] = -1
    topic_id: Annotated[Uuid, F("4+", tag=0)] = ZERO_UUID


class GroupMetadataKey(StoredKey, api_key=2):
    """Key of a classic group."""

    group: str = ""


class MemberMetadata(Message):
    """A member of a stored group."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, F("3+")] = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: Annotated[Int32, F("1+")] = -1
    session_timeout: Int32 = 0
    subscription: bytes = b""
    assignment: bytes = b""


class GroupMetadataValue(Stored, api_key=2, versions=(0, 4), flexible=4):
    """A classic group as of its last completed rebalance."""

    protocol_type: str = ""
    generation: Int32 = 0
    protocol: str | None = ""
    leader: str | None = ""
    current_state_timestamp: Annotated[Int64, F("2+")] = -1
    members: list[MemberMetadata] = []
