"""Group properties: configuration of one consumer group, with defaults from the broker's settings.

They apply to groups whose members the coordinator assigns (KIP-848); members of classic groups bring their own
timeouts. The broker's minimum and maximum settings bound each property, so that no group can overload the broker.
Kafka's properties of share groups and streams groups are refused with the reason. Texts of the errors are Kafka's.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from millstream.config.errors import ConfigError
from millstream.config.property import Property, declared
from millstream.config.settings import Settings
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

if TYPE_CHECKING:
    from collections.abc import Mapping


# Settings behind a group property: its default, and the minimum and maximum that a group may have.
_Bounds = tuple[Property[int], Property[int] | None, Property[int] | None]
_BOUNDS: dict[str, _Bounds] = {}


def _inherits(
    name: str, default: Property[int], low: Property[int] | None = None, high: Property[int] | None = None, *, doc: str
) -> Property[int]:
    _BOUNDS[name] = (default, low, high)
    return Property(name, default.form, default.default, doc=doc)


class GroupConfig:
    """The properties of a consumer group."""

    session_timeout_ms = _inherits(
        "consumer.session.timeout.ms",
        Settings.group_consumer_session_timeout_ms,
        Settings.group_consumer_min_session_timeout_ms,
        Settings.group_consumer_max_session_timeout_ms,
        doc="Time without a heartbeat after which a member of the group is removed.",
    )
    heartbeat_interval_ms = _inherits(
        "consumer.heartbeat.interval.ms",
        Settings.group_consumer_heartbeat_interval_ms,
        Settings.group_consumer_min_heartbeat_interval_ms,
        Settings.group_consumer_max_heartbeat_interval_ms,
        doc="Heartbeat interval that the broker gives to members of the group.",
    )
    assignment_interval_ms = _inherits(
        "consumer.assignment.interval.ms",
        Settings.group_consumer_assignment_interval_ms,
        Settings.group_consumer_min_assignment_interval_ms,
        Settings.group_consumer_max_assignment_interval_ms,
        doc="Minimum time between two computations of the group's target assignment.",
    )


GROUP_PROPERTIES: Final[Mapping[str, Property[Any]]] = MappingProxyType(declared(GroupConfig))
"""Every group property, by name."""

_UNSUPPORTED: Final = {"share.": "share groups", "streams.": "streams groups"}


def group_setting(name: str) -> Property[Any]:
    """The broker setting that is the default of a group property."""
    return _BOUNDS[name][0]


def group_config(configs: Mapping[str, str], settings: Settings) -> dict[str, int]:
    """The values that a group sets itself, by property. Rejected if ``configs`` are invalid."""
    values = {name: _checked(name, text, settings) for name, text in configs.items()}

    def effective(declaration: Property[int]) -> int:
        own = values.get(declaration.name)
        return settings.value(group_setting(declaration.name).name) if own is None else own

    session, heartbeat = GroupConfig.session_timeout_ms, GroupConfig.heartbeat_interval_ms
    if effective(heartbeat) >= effective(session):
        raise Rejected(f"{heartbeat.name} must be less than {session.name}", ErrorCode.INVALID_CONFIG)
    return values


def _checked(name: str, text: str, settings: Settings) -> int:
    declaration = GROUP_PROPERTIES.get(name)
    if declaration is None:
        reason = next((what for prefix, what in _UNSUPPORTED.items() if name.startswith(prefix)), None)
        if reason is not None:
            raise ConfigError(name, f"is not supported: {reason} are not part of this version")
        raise Rejected(f"Unknown group config name: {name}", ErrorCode.INVALID_CONFIG)
    value = int(declaration.read(text, plain=True))
    _, low, high = _BOUNDS[name]
    if low is not None and value < settings.__dict__[low.field]:
        raise Rejected(f"{name} must be greater than or equal to {low.name}", ErrorCode.INVALID_CONFIG)
    if high is not None and value > settings.__dict__[high.field]:
        raise Rejected(f"{name} must be less than or equal to {high.name}", ErrorCode.INVALID_CONFIG)
    return value
