"""Identifiers of event topics, at run time plain values, and the name under which Kafka's clients read their data.

The data of event topic ``t`` are the read-only topic ``t.data``: same partitions, same offsets, each record's value is
the data of an event. It has an id of its own, which follows from that of ``t``.
"""

import uuid
from typing import Final, NewType

DATA_TOPIC_SUFFIX: Final = ".data"

ChunkId = NewType("ChunkId", int)
"""Number of a chunk in its partition, from 0. A chunk has consecutive events; a later chunk has a higher number."""

DataPosition = NewType("DataPosition", int)
"""Byte in the data of one event, from 0, or in a view of them. An end is exclusive."""

PartitionIndex = NewType("PartitionIndex", int)
"""Number of a partition in its topic, from 0."""


def data_topic_name(topic: str) -> str:
    """The topic that has the data of an event topic."""
    return topic + DATA_TOPIC_SUFFIX


def data_topic_id(topic_id: bytes) -> bytes:
    """Its id, 16 bytes, the same for all time (RFC 9562, version 5)."""
    return uuid.uuid5(uuid.UUID(bytes=topic_id), "data").bytes
