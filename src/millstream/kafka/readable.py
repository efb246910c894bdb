"""Partitions as their readers name them: those of a topic, and those of an event topic through the topic of its data.

The data of event topic ``t`` are the topic ``t.data`` (``model.events``), which has no partitions of its own. Handlers
that read look partitions up here. Handlers that write do not, and answer with an error that names the kind of topic.
"""

from millstream.kafka.context import Node
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.partition.table import Entry


def find_readable(node: Node, topic: str | bytes, index: PartitionIndex) -> Entry | None:
    """A partition of a topic, by name or id, to read from it; None without one."""
    entry = node.partitions.find(topic, index)
    if entry is not None:
        return entry
    owner = _data_of(node, topic)
    return node.partitions.find(owner, index) if owner else None


def missing_to_write(node: Node, topic: str | bytes) -> ErrorCode:
    """The error for a writer whose topic or partition is not in the table."""
    return ErrorCode.INVALID_TOPIC_EXCEPTION if _data_of(node, topic) else node.partitions.missing(topic)


def _data_of(node: Node, topic: str | bytes) -> str:
    """The event topic whose data this topic has; "" for any other topic."""
    found = node.metadata.topic(topic) if isinstance(topic, str) else node.metadata.topic_by_id(topic)
    return "" if found is None else found.data_of
