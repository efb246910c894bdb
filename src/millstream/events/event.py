"""An event as a consumer gets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from millstream.format.events.descriptor import DataDescriptor, decode_descriptor

if TYPE_CHECKING:
    from millstream.events.futures import Pending


class Acknowledges(Protocol):
    """The consumer of an event."""

    def acknowledge(self, partition_index: int, event_id: int) -> Pending[None]:
        """As ``Consumer.acknowledge``."""
        ...


class Event(msgspec.Struct, eq=False, weakref=True):
    """One event. ``id`` is None at the end of a completed topic, and everything else is empty then.

    ``data`` are the buffers that the allocator gave, filled; without an allocator one memoryview, or nothing for an
    event without (selected) data.
    """

    id: int | None
    partition: int = -1
    metadata: Any = None
    data: Sequence[Any] = ()
    timestamp_ms: int = -1
    stored_descriptor: bytes | memoryview = b""
    """The descriptor as the broker sent it."""
    consumer: Acknowledges | None = None

    @property
    def descriptor(self) -> DataDescriptor:
        """Where all data of the event are, the unselected included."""
        return decode_descriptor(self.stored_descriptor)

    def acknowledge(self) -> Pending[None]:
        """This event and all before it in its partition are done with. The result: it is durable."""
        assert self.id is not None and self.consumer is not None, "there is no event to acknowledge"
        return self.consumer.acknowledge(self.partition, self.id)
