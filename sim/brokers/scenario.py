"""Simulated brokers, as the command line plays them: each kind of setting in turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.brokers.history import play
from sim.brokers.planted import PLANTED, hunt
from sim.brokers.settings import draw_for_campaign
from sim.engine.command import Scenario

if TYPE_CHECKING:
    from sim.engine.histories import Counts, Finding

REACHES: Final = (
    "acknowledgement by one disk",
    "commit fenced",
    "commit of a member",
    "committed offset",
    "controller's snapshot received",
    "damage made up for",
    "election",
    "feature level risen after an upgrade",
    "group: NOT_COORDINATOR",
    "install",
    "log start",
    "partition with a new owner",
    "producer: NOT_LEADER_OR_FOLLOWER",
    "producer: request without an answer",
    "read barrier",
    "read from a segment",
    "reader behind the log start",
    "older release refuses the cluster",
    "replica begun anew",
    "return to the older release",
    "set of groups at rest",
    "topic deleted",
    "topic made",
    "transaction aborted",
    "transaction committed",
    "truncation of several records",
)


def _play(seed: int, counts: Counts) -> Finding | None:
    return play(seed, counts, draw_for_campaign(seed))


SCENARIO: Final = Scenario(
    "Brokers with the production shell, log and recovery, and what stands on them.",
    _play,
    PLANTED,
    hunt,
    hours=1.0,
    reaches=REACHES,
)
