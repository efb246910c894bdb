"""Config resources of DescribeConfigs and IncrementalAlterConfigs, with Kafka's numbers and messages.

A resource is a type and a name: a topic; a broker by id, or every broker by the empty name; a broker's loggers; a
client metrics subscription; a consumer group.
"""

from enum import IntEnum
from typing import Final

from millstream.core.controller.commands import CLUSTER_DEFAULT
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

_DIGITS_MAX: Final = 10
"""Maximum digits of an int32."""


class ResourceType(IntEnum):
    """Kafka's numbers."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


def resource_type(number: int) -> ResourceType | None:
    """The type with this number, None if Kafka has none."""
    try:
        return ResourceType(number)
    except ValueError:
        return None


def broker_named(name: str, node_id: int, not_a_number: str, unexpected: str) -> int:
    """The broker with this name: this one, or ``CLUSTER_DEFAULT`` for the empty name. Rejected for another."""
    if not name:
        return CLUSTER_DEFAULT
    digits = name.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS_MAX):
        raise Rejected(f"{not_a_number}: {name}", ErrorCode.INVALID_REQUEST)
    if int(name) != node_id:
        raise Rejected(unexpected.format(node_id, name), ErrorCode.INVALID_REQUEST)
    return node_id
