"""Input and output of an assignor."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Topic id → partitions. No set is empty."""

NOTHING: Partitions = {}


class Subscriber(msgspec.Struct, frozen=True):
    """A member, the existing topics that it subscribes to, and its target assignment so far."""

    topic_ids: frozenset[bytes]
    target: Partitions = NOTHING
    instance_id: str | None = None


Subscribers: TypeAlias = Mapping[str, Subscriber]
"""Member id → member."""

Sizes: TypeAlias = Mapping[bytes, int]
"""Topic id → number of partitions, for every topic that anybody subscribes to."""

Assignment: TypeAlias = dict[str, Partitions]
"""Member id → what it is to have. Each partition of a topic that has a subscriber is there exactly once."""

Assignor: TypeAlias = Callable[[Subscribers, Sizes], Assignment]


def are_alike(members: Subscribers) -> bool:
    """Do all members subscribe to the same topics?"""
    first: frozenset[bytes] | None = None
    for member in members.values():
        if first is None:
            first = member.topic_ids
        elif member.topic_ids != first:
            return False
    return True
