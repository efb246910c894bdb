"""The table of APIs that this broker serves.

One row an API: its key, the file of its handler, and what the dispatcher has to know before a handler runs. Name,
versions and metric label come from the messages (``wire.apis``). What is not in the table is neither served nor
advertised.
"""

import importlib
from typing import Final

import msgspec

from millstream.core.quota.limits import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
from millstream.wire.codec import API_VERSIONS, api_name
from millstream.wire.codec import warm_up as codec_warm_up

PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS_KEY: Final = 18
PUSH_EVENTS: Final = 15100


class Served(msgspec.Struct, frozen=True):
    """One served API.

    Fields:
        key: the API key.
        handler: the file below ``kafka/handlers``, as ``folder.file``. Its function ``handle`` serves the API.
        effect: whether later requests of the connection must see the effect of this one. The effect has taken place
            when the request is answered, and several requests of one API take effect in their order
            (``kafka.dispatch``). JoinGroup, SyncGroup and heartbeats have none: the coordinator takes them up in their
            order, and their responses wait for other clients.
        gathers: whether it asks other shards and keeps partial results until all have answered, of any size.
        weightless: whether a parked request is not charged to the memory limit, because the group has copied what it
            needs.
        everyday: whether producers and consumers use it. The codecs of the others are compiled on first use (about
            1 ms each).
        quota: the byte quota that it counts against: requests with records against the producer's, answers with records
            against the consumer's (``kafka.quotas``).
    """

    key: int
    handler: str
    effect: bool = False
    gathers: bool = False
    weightless: bool = False
    everyday: bool = False
    quota: str = ""

    @property
    def name(self) -> str:
        """Kafka's name of the API; the label of its metrics."""
        return api_name(self.key)

    @property
    def versions(self) -> tuple[int, int]:
        """Lowest and highest served version, both inclusive."""
        return API_VERSIONS[self.key]


_TABLE: Final = (
    Served(0, "data.produce", effect=True, everyday=True, quota=PRODUCER_BYTE_RATE),
    Served(1, "data.fetch", gathers=True, everyday=True, quota=CONSUMER_BYTE_RATE),
    Served(2, "data.list_offsets", gathers=True, everyday=True),
    Served(3, "data.metadata", everyday=True),
    Served(8, "groups.offset_commit", effect=True, everyday=True),
    Served(9, "groups.offset_fetch", gathers=True, everyday=True),
    Served(10, "groups.find_coordinator", everyday=True),
    Served(11, "groups.join_group", weightless=True, everyday=True),
    Served(12, "groups.heartbeat", everyday=True),
    Served(13, "groups.leave_group", effect=True, everyday=True),
    Served(14, "groups.sync_group", weightless=True, everyday=True),
    Served(15, "groups.describe_groups", gathers=True),
    Served(16, "groups.list_groups", gathers=True),
    Served(17, "access.sasl_handshake"),
    Served(18, "admin.api_versions", everyday=True),
    Served(19, "admin.create_topics", effect=True),
    Served(20, "admin.delete_topics", effect=True),
    Served(21, "data.delete_records", effect=True),
    Served(22, "transactions.init_producer_id", effect=True, everyday=True),
    Served(23, "data.offset_for_leader_epoch", gathers=True),
    Served(24, "transactions.add_partitions_to_txn", effect=True),
    Served(25, "transactions.add_offsets_to_txn", effect=True),
    Served(26, "transactions.end_txn", effect=True),
    Served(27, "transactions.write_txn_markers", effect=True),
    Served(28, "transactions.txn_offset_commit", effect=True),
    Served(29, "access.describe_acls"),
    Served(30, "access.create_acls", effect=True),
    Served(31, "access.delete_acls", effect=True),
    Served(32, "admin.describe_configs"),
    Served(33, "admin.alter_configs", effect=True),
    Served(34, "admin.alter_replica_log_dirs", effect=True),
    Served(35, "admin.describe_log_dirs", gathers=True),
    Served(36, "access.sasl_authenticate"),
    Served(37, "admin.create_partitions", effect=True),
    Served(42, "groups.delete_groups", effect=True),
    Served(43, "admin.elect_leaders", effect=True),
    Served(44, "admin.incremental_alter_configs", effect=True),
    Served(45, "admin.alter_partition_reassignments", effect=True),
    Served(46, "admin.list_partition_reassignments"),
    Served(47, "groups.offset_delete", effect=True),
    Served(48, "admin.describe_client_quotas"),
    Served(49, "admin.alter_client_quotas", effect=True),
    Served(50, "access.describe_user_scram_credentials"),
    Served(51, "access.alter_user_scram_credentials", effect=True),
    Served(55, "admin.describe_quorum"),
    Served(57, "admin.update_features", effect=True),
    Served(60, "admin.describe_cluster"),
    Served(61, "transactions.describe_producers", gathers=True),
    Served(64, "admin.unregister_broker", effect=True),
    Served(65, "transactions.describe_transactions", gathers=True),
    Served(66, "transactions.list_transactions", gathers=True),
    Served(68, "groups.consumer_group_heartbeat", everyday=True),
    Served(69, "groups.consumer_group_describe", gathers=True),
    Served(71, "admin.get_telemetry_subscriptions"),
    Served(72, "admin.push_telemetry"),
    Served(74, "admin.list_config_resources"),
    Served(75, "admin.describe_topic_partitions"),
    Served(76, "groups.share_group_heartbeat"),
    Served(77, "groups.share_group_describe", gathers=True),
    Served(78, "data.share_fetch", gathers=True, quota=CONSUMER_BYTE_RATE),
    Served(79, "data.share_acknowledge", gathers=True),
    Served(83, "groups.share_group_states", gathers=True),
    Served(84, "groups.share_group_states", gathers=True),
    Served(85, "groups.share_group_states", gathers=True),
    Served(86, "groups.share_group_states", gathers=True),
    Served(87, "groups.share_group_states", gathers=True),
    Served(88, "groups.streams_group_heartbeat"),
    Served(89, "groups.streams_group_describe", gathers=True),
    Served(90, "groups.describe_share_group_offsets", gathers=True),
    Served(91, "groups.alter_share_group_offsets", effect=True),
    Served(92, "groups.delete_share_group_offsets", effect=True),
    Served(15100, "events.push_events", effect=True, quota=PRODUCER_BYTE_RATE),
    Served(15101, "events.feed_events", quota=CONSUMER_BYTE_RATE),
    Served(15102, "events.fetch_event_data", quota=CONSUMER_BYTE_RATE),
    Served(15103, "events.acknowledge_events", effect=True),
    Served(15104, "events.events_metadata"),
    Served(15200, "events.replace_segments", effect=True),
    Served(15300, "restoring.restore_batches", effect=True),
    Served(15301, "restoring.reserve_producer_ids", effect=True),
    Served(15302, "restoring.describe_verifiers"),
    Served(15303, "restoring.restore_verifiers", effect=True),
)

SERVED: Final[dict[int, Served]] = {row.key: row for row in _TABLE}
"""The table by API key."""

SHARE_GROUPS: Final = frozenset({76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92})
"""APIs of share groups: see ``core.controller.features.has_share_groups``."""

STREAMS_GROUPS: Final = frozenset({88, 89})
"""APIs of streams groups: see ``core.controller.features.has_streams_groups``."""


def handler_module(row: Served) -> str:
    """The full name of the module that serves the API."""
    return f"millstream.kafka.handlers.{row.handler}"


def advertised_versions() -> dict[int, tuple[int, int]]:
    """What ApiVersions answers: served APIs with their version ranges."""
    versions = {key: row.versions for key, row in SERVED.items()}
    versions[PRODUCE] = (0, versions[PRODUCE][1])
    return versions


def warm_up() -> None:
    """Import every handler and compile the newest codecs of everyday APIs: once, before the shards are forked."""
    for row in SERVED.values():
        importlib.import_module(handler_module(row))
    codec_warm_up((row.key, row.versions[1]) for row in SERVED.values() if row.everyday)
