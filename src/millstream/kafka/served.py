"""The APIs that this broker serves: API key → handler file, and what is known of them without a node.

What is not in the table is neither served nor advertised.
"""

import importlib
from typing import Final

from millstream.wire.codec import API_VERSIONS
from millstream.wire.codec import warm_up as codec_warm_up

PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS_KEY: Final = 18
PUSH_EVENTS: Final = 15100

SERVED: Final[dict[int, str]] = {
    0: "produce",
    1: "fetch",
    2: "list_offsets",
    3: "metadata",
    8: "offset_commit",
    9: "offset_fetch",
    10: "find_coordinator",
    11: "join_group",
    12: "heartbeat",
    13: "leave_group",
    14: "sync_group",
    15: "describe_groups",
    16: "list_groups",
    18: "api_versions",
    19: "create_topics",
    20: "delete_topics",
    21: "delete_records",
    22: "init_producer_id",
    23: "offset_for_leader_epoch",
    24: "add_partitions_to_txn",
    25: "add_offsets_to_txn",
    26: "end_txn",
    27: "write_txn_markers",
    28: "txn_offset_commit",
    29: "describe_acls",
    30: "create_acls",
    31: "delete_acls",
    32: "describe_configs",
    33: "alter_configs",
    34: "alter_replica_log_dirs",
    35: "describe_log_dirs",
    37: "create_partitions",
    43: "elect_leaders",
    42: "delete_groups",
    44: "incremental_alter_configs",
    47: "offset_delete",
    45: "alter_partition_reassignments",
    46: "list_partition_reassignments",
    48: "describe_client_quotas",
    55: "describe_quorum",
    57: "update_features",
    60: "describe_cluster",
    64: "unregister_broker",
    68: "consumer_group_heartbeat",
    69: "consumer_group_describe",
    61: "describe_producers",
    65: "describe_transactions",
    66: "list_transactions",
    71: "get_telemetry_subscriptions",
    72: "push_telemetry",
    74: "list_config_resources",
    75: "describe_topic_partitions",
    15100: "push_events",
    15101: "feed_events",
    15102: "fetch_event_data",
    15103: "acknowledge_events",
    15104: "events_metadata",
    15200: "replace_segments",
}
"""API key → handler file."""

_KEYS: Final = {file: key for key, file in SERVED.items()}

READING: Final = frozenset(
    _KEYS[file]
    for file in (
        "fetch",
        "list_offsets",
        "offset_fetch",
        "offset_for_leader_epoch",
        "list_groups",
        "describe_groups",
        "consumer_group_describe",
        "describe_log_dirs",
        "describe_producers",
        "describe_transactions",
        "list_transactions",
    )
)
"""APIs that ask other shards and keep partial results until all have answered, whatever their size."""

EFFECTS: Final = frozenset(
    _KEYS[file]
    for file in (
        "produce",
        "push_events",
        "offset_commit",
        "leave_group",
        "create_topics",
        "delete_topics",
        "delete_records",
        "init_producer_id",
        "add_partitions_to_txn",
        "add_offsets_to_txn",
        "end_txn",
        "write_txn_markers",
        "txn_offset_commit",
        "create_acls",
        "delete_acls",
        "alter_configs",
        "alter_replica_log_dirs",
        "create_partitions",
        "elect_leaders",
        "delete_groups",
        "incremental_alter_configs",
        "offset_delete",
        "alter_partition_reassignments",
        "update_features",
        "unregister_broker",
        "acknowledge_events",
        "replace_segments",
    )
)
"""APIs with an effect that later requests of the connection must see. It has taken place when they are answered, and
several requests of one API take effect in their order (``kafka.dispatch``). JoinGroup, SyncGroup and heartbeats are not
among them: the coordinator takes them up in their order, and their responses wait for other clients.
"""

EVERYDAY: Final = tuple(
    _KEYS[file]
    for file in (
        "api_versions",
        "metadata",
        "produce",
        "init_producer_id",
        "list_offsets",
        "fetch",
        "find_coordinator",
        "join_group",
        "sync_group",
        "heartbeat",
        "leave_group",
        "consumer_group_heartbeat",
        "offset_fetch",
        "offset_commit",
    )
)
"""APIs that producers and consumers use. The codecs of the others are compiled on first use (about 1 ms each)."""

OF_GROUPS: Final = frozenset({_KEYS["join_group"], _KEYS["sync_group"]})
"""JoinGroup and SyncGroup: parked, but not charged to the memory limit, because the group has copied what it needs."""


def advertised_versions() -> dict[int, tuple[int, int]]:
    """What ApiVersions answers: served APIs with their version ranges."""
    versions = {key: API_VERSIONS[key] for key in SERVED}
    versions[PRODUCE] = (0, versions[PRODUCE][1])
    return versions


def warm_up() -> None:
    """Import every handler and compile the newest codecs of `EVERYDAY`: once, before the shards are forked."""
    for file in SERVED.values():
        importlib.import_module(f"millstream.kafka.handlers.{file}")
    codec_warm_up((key, API_VERSIONS[key][1]) for key in EVERYDAY)
