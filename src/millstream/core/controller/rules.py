"""What a decision depends on beside the state, and what it looks like when it is made."""

from collections.abc import Callable
from typing import Final

import msgspec

from millstream.config.settings import Settings
from millstream.core.controller.commands import AnyCommand
from millstream.core.controller.requests import Results

PARTITIONS_MAX: Final = 10_000
"""Partitions that one request may create, so that its commands stay one batch; Kafka's limit."""

REPLICAS_MAX: Final = 2**15 - 1
"""Kafka's limit: the factor is an int16."""

TOO_MANY_PARTITIONS: Final = "Excessively large number of partitions per request."


class Rules(msgspec.Struct, frozen=True):
    """The node's side of a decision.

    ``node`` is the broker that decides. ``settings`` are the node's as they are now, ``start_settings`` the same
    without the live changes that the state holds. ``new_topic_id`` is the one source of randomness; it never gives the
    same id twice.
    """

    node: int
    settings: Settings
    start_settings: Settings
    new_topic_id: Callable[[], bytes]
    replicas_max: int = REPLICAS_MAX
    """Replicas that a partition may have, as far as the release that decides can keep them."""


def too_many_replicas(replica_count: int, rules: Rules) -> str | None:
    """Why a partition cannot have so many replicas; None if it can."""
    if replica_count <= rules.replicas_max:
        return None
    return (
        f"A replication factor of {replica_count} is not supported by this version, which keeps "
        f"{rules.replicas_max} replica of each partition."
    )


class Decision(msgspec.Struct, frozen=True):
    """One result for each part of the request, and the commands that make the good ones true, as one batch."""

    results: Results
    commands: tuple[AnyCommand, ...] = ()
