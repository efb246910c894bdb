"""Events: small metadata and raw data that are read selectively. This package is the client's side of event topics.

What decides about events runs here, in the producer and the consumer: *validators* accept or refuse an event,
*selectors* choose its partition, *serializers* write its metadata. Each is chosen by a description that is stored with
the topic, or is a callable of the program.
"""

from millstream.events.descriptions import InvalidDescription
from millstream.events.selectors import PartitionSelector, make_selector
from millstream.events.serializers import Serializer, make_serializer
from millstream.events.validators import InvalidEvent, Validator, make_validator

__all__ = [
    "InvalidDescription",
    "InvalidEvent",
    "PartitionSelector",
    "Serializer",
    "Validator",
    "make_selector",
    "make_serializer",
    "make_validator",
]
