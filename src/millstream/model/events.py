"""Identifiers of event topics. At run time each is a plain ``int``."""

from typing import NewType

ChunkId = NewType("ChunkId", int)
"""Number of a chunk in its partition, from 0. A chunk has consecutive events; a later chunk has a higher number."""

DataPosition = NewType("DataPosition", int)
"""Byte in the data of one event, from 0, or in a view of them. An end is exclusive."""

PartitionIndex = NewType("PartitionIndex", int)
"""Number of a partition in its topic, from 0."""
