"""Features of the cluster and their levels, as Kafka's clients see and change them (KIP-584).

| Feature | Level |
|---|---|
| ``group.version`` | 1: consumer groups of the next generation (KIP-848). Always in force. |
| ``share.version`` | 1: share groups (KIP-932). In force when all brokers of a cluster know them. |
| ``streams.version`` | 1: streams groups (KIP-1071). In force when all brokers of a cluster know them. |
| ``transaction.version`` | 2: every transaction ends with a new epoch (KIP-890). The setting lowers it for clients. |
| ``millstream.version`` | The feature level of the cluster (``commands.FEATURE_LEVEL``). A single broker has none. |

``millstream.version`` rises by itself when every registered broker knows more; a client may ask for the same. No level
is ever lowered: what a higher level has written, a lower one cannot read. A request is carried out as a whole, or
refused as a whole with the first reason.
"""

from typing import Final

import msgspec

from millstream.config.settings import Settings
from millstream.core.controller.commands import (
    FEATURE_LEVEL,
    SHARE_GROUPS,
    STREAMS_GROUPS,
    AnyCommand,
    FeatureLevelRaised,
)
from millstream.core.controller.requests import Result, UpdateFeatures
from millstream.core.controller.rules import Decision, Rules
from millstream.core.controller.state import ControllerState
from millstream.errors import Rejected
from millstream.model.cluster import FeatureLevel
from millstream.model.error_code import ErrorCode

CLUSTER: Final = "millstream.version"
SHARE: Final = "share.version"
STREAMS: Final = "streams.version"
TRANSACTIONS: Final = "transaction.version"

UPGRADE: Final = 1
SAFE_DOWNGRADE: Final = 2
UNSAFE_DOWNGRADE: Final = 3


class Feature(msgspec.Struct, frozen=True):
    """The levels of a feature that this release supports; both ends inclusive."""

    name: str
    lowest: int
    highest: int


FEATURES: Final = (
    Feature("group.version", 0, 1),
    Feature(SHARE, 0, 1),
    Feature(STREAMS, 0, 1),
    Feature(TRANSACTIONS, 0, 2),
    Feature(CLUSTER, 1, int(FEATURE_LEVEL)),
)

_BY_NAME: Final = {feature.name: feature for feature in FEATURES}


_OF_KAFKA_ALONE: Final = {
    "metadata.version": f"the controllers' log is Millstream's own, and its level is {CLUSTER}, which rises by itself",
    "kraft.version": f"the controllers' log is Millstream's own, and its level is {CLUSTER}, which rises by itself",
    "eligible.leader.replicas.version": "a majority of the replicas elects a leader, which then has every record",
}
"""Kafka's other features, and why they have no level here."""


def level_in_force(feature: Feature, cluster_level: FeatureLevel, settings: Settings) -> int:
    """The level of ``feature`` in a cluster of ``cluster_level``."""
    if feature.name == CLUSTER:
        return int(cluster_level)
    if feature.name == SHARE:
        return feature.highest if has_share_groups(cluster_level) else feature.lowest
    if feature.name == STREAMS:
        return feature.highest if has_streams_groups(cluster_level) else feature.lowest
    return settings.transaction_version if feature.name == TRANSACTIONS else feature.highest


def has_share_groups(cluster_level: FeatureLevel) -> bool:
    """Whether a cluster of ``cluster_level`` has share groups; a single broker, which is of level 0, has them."""
    return not cluster_level or cluster_level >= SHARE_GROUPS


def has_streams_groups(cluster_level: FeatureLevel) -> bool:
    """Whether a cluster of ``cluster_level`` has streams groups; a single broker, which is of level 0, has them."""
    return not cluster_level or cluster_level >= STREAMS_GROUPS


def decide_update_features(state: ControllerState, request: UpdateFeatures, rules: Rules) -> Decision:
    """Change levels, if each of them can have the level that is asked for."""
    commands: list[AnyCommand] = []
    try:
        for name, level, kind in request.updates:
            commands += _changed(state, name, level, kind, rules)
    except Rejected as error:
        return Decision((Result(error.code, error.message),))
    return Decision((Result(),), () if request.validate_only else tuple(commands))


def _changed(state: ControllerState, name: str, level: int, kind: int, rules: Rules) -> list[AnyCommand]:
    def refused(why: str) -> Rejected:
        return Rejected(f"Invalid update version {level} for feature {name}. {why}", ErrorCode.INVALID_UPDATE_VERSION)

    if kind not in (UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE):
        raise refused("The controller does not support the given upgrade type.")
    if level < 0:
        raise refused("A feature version cannot be less than 0.")
    feature = _BY_NAME.get(name)
    if feature is None:
        why = _OF_KAFKA_ALONE.get(name)
        more = f" It has no level here: {why}." if why else ""
        raise refused(f"Local controller {rules.node} does not support this feature.{more}")
    if not feature.lowest <= level <= feature.highest:
        raise refused(f"Local controller {rules.node} only supports versions {feature.lowest}-{feature.highest}")
    current = level_in_force(feature, state.feature_level, rules.settings)
    if level < current:
        if kind == UPGRADE:
            raise refused(
                "Can't downgrade the version of this feature without setting the upgrade type to either safe or "
                "unsafe downgrade."
            )
        raise refused(f"It is at level {current}, and no level is lowered here.")
    if level == current:
        return []
    if kind != UPGRADE:
        raise refused("Can't downgrade to a newer version.")
    if name != CLUSTER:
        raise refused(
            f"The setting {name} of each broker is {current}: change it there."
            if name == TRANSACTIONS
            else f"It rises with {CLUSTER}, when all brokers run this release."
        )
    if not state.registry.brokers:
        raise refused("A single broker has no such level: it belongs to a cluster.")
    for node in state.registry.nodes():
        profile = state.registry.brokers[node].profile
        if profile.feature_level < level:
            raise refused(
                f"Broker {node} runs release {profile.release} and only supports versions up to "
                f"{profile.feature_level}: upgrade it, or take it out of the cluster."
            )
    return [FeatureLevelRaised(FeatureLevel(level))]
