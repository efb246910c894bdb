"""Topic properties of event topics, and what an event topic may not have.

``topic.kind`` is fixed for a topic's life. An event topic keeps chunks, whose limits take the place of
``segment.bytes``; a batch may be as large as a request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.config.forms import Boolean, Choice, Form, Integer, Text, UnsupportedValue
from millstream.config.property import Property
from millstream.errors import Rejected

if TYPE_CHECKING:
    from millstream.config.event_partition import EventPartition


class EventPartitionText(Form[str]):
    """JSON text of an ``EventPartition``."""

    def read_plain(self, text: str) -> str:
        try:
            _event_partition(text)
        except Rejected as error:
            raise UnsupportedValue(error.message) from error
        return text

    def accepts(self, value: object) -> bool:
        if not isinstance(value, str):
            return False
        try:
            _event_partition(value)
        except Rejected:
            return False
        return True

    def expected(self) -> str:
        return 'a JSON object of Mofka\'s keys, such as {"max_chunk_size": 67108864}'


class EventProperties:
    """The properties; ``TopicConfig`` inherits them."""

    topic_kind = Property(
        "topic.kind",
        Choice("records", "events"),
        "records",
        doc="records: a Kafka topic. events: small JSON metadata with raw data that are read selectively, kept in "
        "chunks. Fixed when the topic is created.",
    )
    events_partition = Property(
        "events.partition",
        EventPartitionText(),
        "{}",
        doc="How an event topic keeps its partitions: a JSON object with Mofka's keys max_chunk_size, "
        "max_events_per_chunk, sync, fd_cache_capacity, producers and consumers. The last two are the buffer "
        "pools: with num_buffers they bound what pushes and feeds of a partition hold at once.",
    )
    events_max_bytes = Property(
        "events.max.bytes",
        Integer(1, unit="bytes"),
        16 * 2**20,
        doc="Maximum size of one event of an event topic, metadata and data together.",
    )
    events_validator = Property(
        "events.validator",
        Text("a JSON object with a type"),
        "",
        doc="How clients check the events of an event topic before they send them.",
    )
    events_selector = Property(
        "events.selector",
        Text("a JSON object with a type"),
        "",
        doc="How clients choose the partition of an event.",
    )
    events_serializer = Property(
        "events.serializer",
        Text("a JSON object with a type"),
        "",
        doc="How clients encode the metadata of an event topic. Without it they are JSON text.",
    )
    kafka_view = Property(
        "kafka.view",
        Choice("metadata", "data", "envelope"),
        "metadata",
        doc="What a Kafka consumer gets of an event topic. metadata: JSON text, with small data in a header. data: the "
        "data, with the metadata in a header. envelope: sizes, metadata and data in one value.",
    )
    events_complete = Property(
        "events.complete",
        Boolean(),
        False,
        doc="Whether an event topic is complete: nothing is added to it, and consumers end there.",
    )

    @property
    def has_events(self) -> bool:
        """Whether it is an event topic."""
        return self.topic_kind == "events"

    @property
    def event_partition(self) -> EventPartition:
        """How an event topic keeps its partitions."""
        return _event_partition(self.events_partition)


def of_events(name: str) -> bool:
    """Whether a topic property is for event topics only."""
    return name.startswith(("events.", "kafka.view"))


def _event_partition(text: str) -> EventPartition:
    """``read_event_partition``, whose module is imported only where there are event topics."""
    from millstream.config.event_partition import read_event_partition

    return read_event_partition(text)
