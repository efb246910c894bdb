"""Events: small metadata and raw data that are read selectively. This package is the client of event topics.

``EventsClient`` creates and opens topics. A topic makes producers, which push events, and consumers, which pull them:
metadata of every event, and of its data only what a *data selector* wants, into the buffers of a *data allocator*.
What decides about events runs here, too: *validators* accept or refuse an event, *partition selectors* choose its
partition, *serializers* write its metadata. Each is chosen by a description that is stored with the topic, or is a
callable of the program.

Calls return at once what they can, and a ``Pending`` for what takes a round trip: threads use its ``result``,
coroutines await it. Errors are those of ``millstream.errors``; a wait that is over is ``TimeoutError``, and loses
nothing.

The package speaks the wire's five APIs of events and imports no broker.
"""

from millstream.events.client import EventsClient
from millstream.events.consumer import Consumer, DataAllocator, DataSelector
from millstream.events.descriptions import InvalidDescription
from millstream.events.event import Event
from millstream.events.futures import Pending
from millstream.events.handle import Topic
from millstream.events.producer import Ordering, Producer
from millstream.events.selectors import PartitionSelector, make_selector
from millstream.events.serializers import Serializer, make_serializer
from millstream.events.validators import InvalidEvent, Validator, make_validator
from millstream.format.events import DataDescriptor, Segment, StrideView, SubView, UnstructuredView, decode_descriptor

__all__ = [
    "Consumer",
    "DataAllocator",
    "DataDescriptor",
    "DataSelector",
    "Event",
    "EventsClient",
    "InvalidDescription",
    "InvalidEvent",
    "Ordering",
    "PartitionSelector",
    "Pending",
    "Producer",
    "Segment",
    "Serializer",
    "StrideView",
    "SubView",
    "Topic",
    "UnstructuredView",
    "Validator",
    "decode_descriptor",
    "make_selector",
    "make_serializer",
    "make_validator",
]
