"""Group properties: configuration of one consumer group, with defaults from the broker's settings.

They apply to groups whose members the coordinator assigns (KIP-848, KIP-932, KIP-1071); members of classic groups bring
their own timeouts. The broker's minimum and maximum settings bound each property, so that no group can overload the
broker. Texts of the errors are Kafka's.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from millstream.config.forms import Boolean, Form
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


LATEST: Final = -1
EARLIEST: Final = -2

_DURATION: Final = re.compile(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:\.(\d{1,3}))?S)?)?", re.IGNORECASE)
_BY_DURATION: Final = "by_duration:"


class OffsetReset(Form[int]):
    """``latest``, ``earliest``, or ``by_duration:`` and a duration of ISO 8601. Values are `LATEST`, `EARLIEST` or a
    duration in ms.
    """

    def read_plain(self, text: str) -> int:
        word = text.strip()
        if word in ("latest", "earliest"):
            return LATEST if word == "latest" else EARLIEST
        found = _DURATION.fullmatch(word.removeprefix(_BY_DURATION)) if word.startswith(_BY_DURATION) else None
        if found is None or not any(found.groups()):
            raise ValueError
        days, hours, minutes, seconds, fraction = (group or "0" for group in found.groups())
        whole_s = ((int(days) * 24 + int(hours)) * 60 + int(minutes)) * 60 + int(seconds)
        return whole_s * 1000 + int(fraction.ljust(3, "0"))

    def accepts(self, value: object) -> bool:
        return isinstance(value, int) and value >= EARLIEST

    def write(self, value: int) -> str:
        if value < 0:
            return "latest" if value == LATEST else "earliest"
        return f"{_BY_DURATION}PT{value / 1000:.10g}S"

    def expected(self) -> str:
        return "latest, earliest or by_duration: and a duration, as by_duration:PT1H"


READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1
_LEVELS: Final = ("read_uncommitted", "read_committed")


class IsolationLevel(Form[int]):
    """``read_uncommitted`` or ``read_committed``. The value is `READ_UNCOMMITTED` or `READ_COMMITTED`."""

    def read_plain(self, text: str) -> int:
        return _LEVELS.index(text.strip().lower())

    def accepts(self, value: object) -> bool:
        return value in (READ_UNCOMMITTED, READ_COMMITTED)

    def write(self, value: int) -> str:
        return _LEVELS[value]

    def expected(self) -> str:
        return " or ".join(_LEVELS)


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


class ShareGroupConfig:
    """The properties of a share group."""

    session_timeout_ms = _inherits(
        "share.session.timeout.ms",
        Settings.group_share_session_timeout_ms,
        Settings.group_share_min_session_timeout_ms,
        Settings.group_share_max_session_timeout_ms,
        doc="Time without a heartbeat after which a member of the share group is removed.",
    )
    heartbeat_interval_ms = _inherits(
        "share.heartbeat.interval.ms",
        Settings.group_share_heartbeat_interval_ms,
        Settings.group_share_min_heartbeat_interval_ms,
        Settings.group_share_max_heartbeat_interval_ms,
        doc="Heartbeat interval that the broker gives to members of the share group.",
    )
    assignment_interval_ms = _inherits(
        "share.assignment.interval.ms",
        Settings.group_share_assignment_interval_ms,
        Settings.group_share_min_assignment_interval_ms,
        Settings.group_share_max_assignment_interval_ms,
        doc="Minimum time between two computations of the share group's target assignment.",
    )
    record_lock_duration_ms = _inherits(
        "share.record.lock.duration.ms",
        Settings.group_share_record_lock_duration_ms,
        Settings.group_share_min_record_lock_duration_ms,
        Settings.group_share_max_record_lock_duration_ms,
        doc="Time after which an acquired record is released automatically.",
    )
    delivery_count_limit = _inherits(
        "share.delivery.count.limit",
        Settings.group_share_delivery_count_limit,
        Settings.group_share_min_delivery_count_limit,
        Settings.group_share_max_delivery_count_limit,
        doc="How often a record is delivered at most.",
    )
    partition_max_record_locks = _inherits(
        "share.partition.max.record.locks",
        Settings.group_share_partition_max_record_locks,
        Settings.group_share_min_partition_max_record_locks,
        Settings.group_share_max_partition_max_record_locks,
        doc="Maximum number of records between the start of a partition and the last one that was acquired.",
    )
    auto_offset_reset = Property(
        "share.auto.offset.reset",
        OffsetReset(),
        LATEST,
        doc="Where the group starts in a partition: at its latest or earliest record, or by_duration:PT1H ago.",
    )
    isolation_level = Property(
        "share.isolation.level",
        IsolationLevel(),
        READ_UNCOMMITTED,
        doc="read_committed: records of transactions are delivered once these are committed, and not if aborted.",
    )
    renew_acknowledge_enable = Property(
        "share.renew.acknowledge.enable",
        Boolean(),
        True,
        doc="Whether a member may ask for more time for records that it has acquired.",
    )


class StreamsGroupConfig:
    """The properties of a streams group."""

    session_timeout_ms = _inherits(
        "streams.session.timeout.ms",
        Settings.group_streams_session_timeout_ms,
        Settings.group_streams_min_session_timeout_ms,
        Settings.group_streams_max_session_timeout_ms,
        doc="Time without a heartbeat after which a member of the streams group is removed.",
    )
    heartbeat_interval_ms = _inherits(
        "streams.heartbeat.interval.ms",
        Settings.group_streams_heartbeat_interval_ms,
        Settings.group_streams_min_heartbeat_interval_ms,
        Settings.group_streams_max_heartbeat_interval_ms,
        doc="Heartbeat interval that the broker gives to members of the streams group.",
    )
    num_standby_replicas = _inherits(
        "streams.num.standby.replicas",
        Settings.group_streams_num_standby_replicas,
        None,
        Settings.group_streams_max_standby_replicas,
        doc="Number of members that keep a copy of the state of each task.",
    )
    initial_rebalance_delay_ms = _inherits(
        "streams.initial.rebalance.delay.ms",
        Settings.group_streams_initial_rebalance_delay_ms,
        doc="Time for which a group without members waits for more of them when the first one joins.",
    )
    assignment_interval_ms = _inherits(
        "streams.assignment.interval.ms",
        Settings.group_streams_assignment_interval_ms,
        Settings.group_streams_min_assignment_interval_ms,
        Settings.group_streams_max_assignment_interval_ms,
        doc="Minimum time between two computations of the streams group's target assignment.",
    )


GROUP_PROPERTIES: Final[Mapping[str, Property[Any]]] = MappingProxyType(
    declared(GroupConfig) | declared(ShareGroupConfig) | declared(StreamsGroupConfig)
)
"""Every group property, by name."""

SHARE_PREFIX: Final = "share."
"""Of the names of properties that only share groups have."""

STREAMS_PREFIX: Final = "streams."
"""Of the names of properties that only streams groups have."""


def group_setting(name: str) -> Property[Any] | None:
    """The broker setting that is the default of a group property, if there is one."""
    return _BOUNDS[name][0] if name in _BOUNDS else None


def group_config(configs: Mapping[str, str], settings: Settings) -> dict[str, int]:
    """The values that a group sets itself, by property. Rejected if ``configs`` are invalid."""
    values = {name: _checked(name, text, settings) for name, text in configs.items()}

    def effective(declaration: Property[int]) -> int:
        own = values.get(declaration.name)
        return settings.value(_BOUNDS[declaration.name][0].name) if own is None else own

    for heartbeat, session in (
        (GroupConfig.heartbeat_interval_ms, GroupConfig.session_timeout_ms),
        (ShareGroupConfig.heartbeat_interval_ms, ShareGroupConfig.session_timeout_ms),
        (StreamsGroupConfig.heartbeat_interval_ms, StreamsGroupConfig.session_timeout_ms),
    ):
        if effective(heartbeat) >= effective(session):
            raise Rejected(f"{session.name} must be greater than {heartbeat.name}", ErrorCode.INVALID_CONFIG)
    return values


def _checked(name: str, text: str, settings: Settings) -> int:
    declaration = GROUP_PROPERTIES.get(name)
    if declaration is None:
        raise Rejected(f"Unknown group config name: {name}", ErrorCode.INVALID_CONFIG)
    value = int(declaration.read(text, plain=True))
    _, low, high = _BOUNDS.get(name, (None, None, None))
    if low is not None and value < settings.__dict__[low.field]:
        raise Rejected(f"{name} must be greater than or equal to {low.name}", ErrorCode.INVALID_CONFIG)
    if high is not None and value > settings.__dict__[high.field]:
        raise Rejected(f"{name} must be less than or equal to {high.name}", ErrorCode.INVALID_CONFIG)
    return value
