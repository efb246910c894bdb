"""Settings of topics and brokers over Kafka's API: read with their sources, changed while brokers run.

A change is sent once: after a lost connection it raises ``OutcomeUnknown``.
"""

from collections.abc import Mapping
from typing import Final

from millstream.client.cluster import error_of, once, refuse
from millstream.client.connection import Connection
from millstream.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SOURCES: Final = {
    1: "topic",
    2: "broker",
    3: "cluster",
    4: "file",
    5: "default",
}
"""Where a value comes from, by Kafka's numbers; others are named by their number."""
SET_WHILE_RUNNING: Final = frozenset((1, 2, 3))
"""Sources of values that a change has set."""

_SET, _REMOVE = 0, 1


def read_settings(connection: Connection, resource_type: int, name: str) -> list[DescribeConfigsResourceResult]:
    """All settings of a topic, or of the broker at the other end, in order of their names."""
    request = DescribeConfigsRequest([DescribeConfigsResource(resource_type, name, None)])
    (result,) = connection.ask(request, DescribeConfigsResponse, lowest=1).results
    if result.error_code:
        raise error_of(result.error_code, f"settings of {name}", result.error_message)
    return sorted(result.configs, key=lambda one: one.name)


def change_settings(
    connection: Connection, resource_type: int, name: str, values: Mapping[str, str | None], *, check: bool = False
) -> None:
    """Set values, and take away those that are None; all or none. The empty name means every broker. ``check`` has the
    broker only say whether it would.

    Raises:
        Rejected: the broker refuses a value.
        OutcomeUnknown: the connection was lost; the values may be set.
    """
    changes = [AlterableConfig(key, _REMOVE if value is None else _SET, value) for key, value in values.items()]
    request = IncrementalAlterConfigsRequest([AlterConfigsResource(resource_type, name, changes)], check)
    doubt = "the settings may have been changed"
    (result,) = once(lambda: connection.ask(request, IncrementalAlterConfigsResponse), doubt).responses
    refuse(result.error_code, f"settings of {name or 'brokers'}", result.error_message)
