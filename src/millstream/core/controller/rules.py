"""What a decision depends on beside the state, and what it looks like when it is made."""

from collections.abc import Callable
from typing import Final

import msgspec

from millstream.config.settings import Settings
from millstream.core.controller.commands import AnyCommand
from millstream.core.controller.requests import Results
from millstream.core.quota.mutations import UNLIMITED, MutationClient, Spender
from millstream.model.cluster import NodeId

PARTITIONS_MAX: Final = 10_000
"""Partitions that one request may create, so that its commands stay one batch; Kafka's limit."""

TOO_MANY_PARTITIONS: Final = "Excessively large number of partitions per request."


def _never(_: NodeId) -> bool:
    return False


def _unlimited(_: MutationClient | None) -> Spender:
    return UNLIMITED


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
    founders: int = 1
    """Brokers that formed the cluster. Internal topics wait until enough of them are registered."""
    is_behind: Callable[[NodeId], bool] = _never
    """Whether a broker may not know yet that replicas moved away from it."""
    spender: Callable[[MutationClient | None], Spender] = _unlimited
    """The account of a client's changes, as of now."""


class Decision(msgspec.Struct, frozen=True):
    """One result for each part of the request, and the commands that make the good ones true, as one batch."""

    results: Results
    commands: tuple[AnyCommand, ...] = ()

    def throttled(self, spender: Spender) -> "Decision":
        """The same, with how long the client waits."""
        throttle_ms = -(-spender.throttle_us // 1000)
        if not throttle_ms:
            return self
        results = tuple(msgspec.structs.replace(result, throttle_ms=throttle_ms) for result in self.results)
        return Decision(results, self.commands)
