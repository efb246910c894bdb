"""Which names a topic may have, and which topics are the broker's own.

The rules and the words are Kafka's: a name is part of file names and of metric names, and clients show the message.
"""

import re
from typing import Final

from millstream.core.controller.state import ControllerState, collision_key

NAME_LENGTH_MAX: Final = 249
"""A directory name of 255 bytes less what Kafka appends to it for a partition."""

GROUP_METADATA: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
SHARE_GROUP_STATE: Final = "__share_group_state"
CLUSTER_METADATA: Final = "__cluster_metadata"

INTERNAL_TOPICS: Final = frozenset({GROUP_METADATA, TRANSACTION_STATE, SHARE_GROUP_STATE})
"""Topics that the broker writes itself. Clients see them marked as internal, and may read them."""

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]+")


def illegal_topic_name(name: str) -> str | None:
    """Why ``name`` cannot be a topic's, in Kafka's words; None when it can."""
    if not name:
        reason = "the empty string is not allowed"
    elif name in (".", ".."):
        reason = f"'{name}' is not allowed"
    elif len(name) > NAME_LENGTH_MAX:
        reason = f"the length of '{name}' is longer than the max allowed length {NAME_LENGTH_MAX}"
    elif _LEGAL.fullmatch(name) is None:
        reason = f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"
    else:
        return None
    return f"Topic name is invalid: {reason}"


def colliding_topic(state: ControllerState, name: str) -> str | None:
    """An existing topic whose metrics would have the same names as those of ``name``."""
    others = state.topics.colliding.get(collision_key(name), set()) - {name} if "." in name or "_" in name else ()
    return min(others, default=None)
