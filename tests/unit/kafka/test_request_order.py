"""Every API is known to have an effect that later requests must see, or to have none."""

from millstream.kafka.served import SERVED

WITHOUT_EFFECT = {
    "fetch",
    "list_offsets",
    "metadata",
    "offset_fetch",
    "find_coordinator",
    "describe_groups",
    "list_groups",
    "api_versions",
    "offset_for_leader_epoch",
    "sasl_handshake",
    "sasl_authenticate",
    "describe_user_scram_credentials",
    "describe_acls",
    "describe_configs",
    "describe_log_dirs",
    "list_partition_reassignments",
    "describe_client_quotas",
    "describe_quorum",
    "describe_cluster",
    "consumer_group_describe",
    "describe_producers",
    "describe_transactions",
    "list_transactions",
    "get_telemetry_subscriptions",
    "push_telemetry",
    "list_config_resources",
    "describe_topic_partitions",
    "feed_events",
    "fetch_event_data",
    "events_metadata",
    "describe_verifiers",
    "share_group_describe",
    "streams_group_describe",
    "share_fetch",
    "describe_share_group_offsets",
}
TAKEN_UP_IN_ORDER = {
    "join_group",
    "sync_group",
    "heartbeat",
    "consumer_group_heartbeat",
    "share_group_heartbeat",
    "streams_group_heartbeat",
}
"""By the coordinator, which answers when other clients have done their part."""
SENT_ON_IN_ORDER = {"share_acknowledge", "share_group_states"}
"""To the shards and coordinators, each of which takes what a connection asks of it in order."""


def test_every_api_is_known_to_have_an_effect_or_none():
    names = {row.handler.partition(".")[2]: row for row in SERVED.values()}
    with_effect = {name for name, row in names.items() if row.effect}
    in_order = TAKEN_UP_IN_ORDER | SENT_ON_IN_ORDER
    assert not with_effect & (WITHOUT_EFFECT | in_order)
    assert with_effect | WITHOUT_EFFECT | in_order == set(names)
