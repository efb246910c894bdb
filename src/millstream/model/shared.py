"""Identifiers of shared storage: partitions, objects of many partitions, and ranges of offsets in them."""

from typing import Final, NamedTuple, NewType

from millstream.model.quantities import Offset
from millstream.model.replication import Term

ObjectId = NewType("ObjectId", int)
"""Number of a shared object, chosen so that numbers rise and are never used again."""

NO_OBJECT: Final = ObjectId(0)
"""No shared object has this number."""


class SharedPartition(NamedTuple):
    """A partition, by the id of its topic, which outlives the topic's name."""

    topic_id: bytes
    partition_index: int


class SharedRange(NamedTuple):
    """Offsets of one partition in a shared object."""

    partition: SharedPartition
    leader_epoch: Term
    """Epoch of the leader that uploads the range."""
    base_offset: Offset
    end_offset: Offset
    """Exclusive."""
