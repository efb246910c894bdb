"""The kinds of topics of which pairs are played: the properties that a topic of the kind is created with, and what the
broker is told besides.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from millstream.core.controller.topic_names import GROUP_METADATA, TRANSACTION_STATE

TOPIC: Final = "t"
"""The topic that clients write to."""


class Kind(NamedTuple):
    """A kind of topics."""

    configs: dict[str, str]
    """Of the topic, as it is created."""
    name: str = TOPIC
    """Of the topic that is altered and deleted. Clients of an internal one are groups and transactions."""
    settings: dict[str, Any] = {}  # noqa: RUF012  # never changed
    """Of the broker."""
    replicas: int = 0
    """Of the topic in a cluster of three; 0 for one broker without a cluster."""

    @property
    def is_internal(self) -> bool:
        """Whether the broker itself writes the topic that is altered."""
        return self.name != TOPIC


_ANY_TIME: Final = {"message.timestamp.after.max.ms": str((1 << 63) - 1), "retention.ms": "-1"}
"""Records of any time are taken, and kept until an operation says otherwise."""
_SMALL: Final = {**_ANY_TIME, "internal.segment.bytes": "3000", "file.delete.delay.ms": "1000"}
_COMPACTED: Final = {**_SMALL, "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "60000"}
_ARCHIVED: Final = {**_SMALL, "retention.local.target.ms": "1000", "segment.upload.max.ms": "1000"}
_SHARED: Final = {**_ARCHIVED, "storage.mode": "shared"}
_EVENTS: Final = {**_ANY_TIME, "topic.kind": "events", "file.delete.delay.ms": "1000"}
_ARCHIVED_EVENTS: Final = {
    **_EVENTS,
    "storage.mode": "tiered",
    "retention.local.target.ms": "1000",
    "segment.upload.max.ms": "1000",
}
INTERNAL: Final = {"cleanup.policy": "compact", "internal.segment.bytes": "3000"}
"""Of internal topics, of which a segment fills soon."""
_INTERNAL: Final = {**_COMPACTED, "cleanup.policy": "compact", "internal.segment.bytes": "1000"}

KINDS: Final[dict[str, Kind]] = {
    "local": Kind(_SMALL),
    "compacted": Kind({**_COMPACTED, "cleanup.policy": "compact"}),
    "compacted and deleted": Kind({**_COMPACTED, "cleanup.policy": "compact,delete"}),
    "tiered": Kind({**_ARCHIVED, "storage.mode": "tiered"}),
    "shared": Kind(_SHARED),
    "shared, log in store": Kind(_SHARED, settings={"shared_wal": "object"}),
    "events": Kind(_EVENTS),
    "tiered events": Kind(_ARCHIVED_EVENTS),
    "offsets of groups": Kind(_INTERNAL, GROUP_METADATA),
    "state of transactions": Kind(_INTERNAL, TRANSACTION_STATE),
    "local, three replicas": Kind(_SMALL, replicas=3),
    "compacted, three replicas": Kind({**_COMPACTED, "cleanup.policy": "compact"}, replicas=3),
    "tiered, three replicas": Kind({**_ARCHIVED, "storage.mode": "tiered"}, replicas=3),
    "shared, three replicas": Kind(_SHARED, replicas=3),
    "events, three replicas": Kind(_EVENTS, replicas=3),
    "tiered events, three replicas": Kind(_ARCHIVED_EVENTS, replicas=3),
    "shared, log in store, three replicas": Kind(_SHARED, settings={"shared_wal": "object"}, replicas=3),
    "shared, taken over": Kind(
        _SHARED, settings={"shared_wal": "object", "dead_broker_take_over_after_ms": 5_000}, replicas=1
    ),
}
