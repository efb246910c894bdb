"""The kinds of topics of which pairs are played, each by the properties that a topic of the kind is created with."""

from __future__ import annotations

from typing import Final

_ANY_TIME: Final = {"message.timestamp.after.max.ms": str((1 << 63) - 1), "retention.ms": "-1"}
"""Records of any time are taken, and kept until an operation says otherwise."""
_SMALL: Final = {**_ANY_TIME, "internal.segment.bytes": "3000", "file.delete.delay.ms": "1000"}
_COMPACTED: Final = {**_SMALL, "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "60000"}
_ARCHIVED: Final = {**_SMALL, "retention.local.target.ms": "1000", "segment.upload.max.ms": "1000"}

KINDS: Final[dict[str, dict[str, str]]] = {
    "local": _SMALL,
    "compacted": {**_COMPACTED, "cleanup.policy": "compact"},
    "compacted and deleted": {**_COMPACTED, "cleanup.policy": "compact,delete"},
    "tiered": {**_ARCHIVED, "storage.mode": "tiered"},
    "shared": {**_ARCHIVED, "storage.mode": "shared"},
    "events": {**_ANY_TIME, "topic.kind": "events", "file.delete.delay.ms": "1000"},
    "tiered events": {
        **_ANY_TIME,
        "topic.kind": "events",
        "storage.mode": "tiered",
        "file.delete.delay.ms": "1000",
        "retention.local.target.ms": "1000",
        "segment.upload.max.ms": "1000",
    },
}
