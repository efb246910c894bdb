"""A topic's own properties over the node's defaults, and both as Kafka shows them."""

import pytest

from millstream.config import (
    TOPIC_PROPERTIES,
    ConfigError,
    Settings,
    describe_node,
    describe_topic,
    topic_config,
    validate_topic_property,
)
from millstream.config.describe import SOURCE_DEFAULT, SOURCE_DYNAMIC_BROKER, SOURCE_STATIC_BROKER, SOURCE_TOPIC
from millstream.config.topic_resolution import INDEX_ENTRY_BYTES, INDEX_INTERVAL_MIN_BYTES
from millstream.format import index as format_index
from millstream.storage.log.cache import PLACE_BYTES

# Every topic property of Apache Kafka 4.3 (its LogConfig), so that none is met with "no such setting".
KAFKA_TOPIC_PROPERTIES = """
cleanup.policy compression.gzip.level compression.lz4.level compression.type compression.zstd.level delete.retention.ms
file.delete.delay.ms flush.messages flush.ms follower.replication.throttled.replicas index.interval.bytes
leader.replication.throttled.replicas local.retention.bytes local.retention.ms max.compaction.lag.ms max.message.bytes
message.timestamp.after.max.ms message.timestamp.before.max.ms message.timestamp.type min.cleanable.dirty.ratio
min.compaction.lag.ms min.insync.replicas preallocate remote.log.copy.disable remote.log.delete.on.disable
remote.storage.enable retention.bytes retention.ms segment.bytes segment.index.bytes segment.jitter.ms segment.ms
unclean.leader.election.enable
""".split()  # noqa: SIM905

# Kafka's defaults (documented for 4.3) of what we honour; index.interval.bytes is ours by intent.
KAFKA_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.insync.replicas": "1",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
    "follower.replication.throttled.replicas": "",
    "leader.replication.throttled.replicas": "",
    "local.retention.bytes": "-2",
    "local.retention.ms": "-2",
    "preallocate": "false",
    "remote.log.copy.disable": "false",
    "remote.log.delete.on.disable": "false",
    "remote.storage.enable": "false",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
}
KAFKA_TYPES = {"cleanup.policy": 7, "retention.ms": 5, "segment.bytes": 3, "compression.type": 2, "write.caching": 1}


def entry(entries, name):
    return next(candidate for candidate in entries if candidate.name == name)


def test_every_kafka_topic_property_is_known():
    assert set(KAFKA_TOPIC_PROPERTIES) <= set(TOPIC_PROPERTIES)


def test_defaults_are_kafkas():
    shown = {found.name: found.value for found in describe_topic({}, Settings(shards=1))}
    assert {name: shown[name] for name in KAFKA_DEFAULTS} == KAFKA_DEFAULTS
    assert shown["index.interval.bytes"] == "32768"
    assert "internal.segment.bytes" not in shown


def test_a_topic_overrides_the_node():
    settings = Settings(shards=1, log_segment_bytes="2MiB", message_max_bytes=5000)
    resolved = topic_config(
        {"segment.bytes": "4194304", "cleanup.policy": "compact,delete", "write.caching": "true"}, settings
    )
    assert (resolved.segment_bytes, resolved.max_message_bytes, resolved.write_caching) == (4194304, 5000, True)
    assert resolved.cleanup_policy == ("compact", "delete")
    assert resolved.overrides["segment.bytes"] == "4194304"
    assert resolved != topic_config({}, settings)
    with pytest.raises(AttributeError, match="immutable"):
        resolved.segment_bytes = 1


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({}, 604_800_000),
        ({"log_retention_hours": 2}, 7_200_000),
        ({"log_retention_hours": 2, "log_retention_minutes": 3}, 180_000),
        ({"log_retention_hours": 2, "log_retention_minutes": 3, "log_retention_ms": 4}, 4),
        ({"log_retention_hours": -1}, -1),
    ],
)
def test_the_finest_of_the_three_retention_settings_wins(given, retention_ms):
    assert topic_config({}, Settings(shards=1, **given)).retention_ms == retention_ms


def test_internal_segment_bytes_goes_below_the_bound_for_tests():
    assert topic_config({"internal.segment.bytes": "4096"}, Settings(shards=1)).segment_bytes == 4096
    with pytest.raises(ConfigError, match=r"segment.bytes: '4096' is not valid, expected a size of at least 1 MiB"):
        validate_topic_property("segment.bytes", "4096")


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("retention.ms", "7d", "retention.ms: '7d' is not valid"),
        ("retention.ms", "-2", "at least -1"),
        ("retention.m", "1", "did you mean retention.ms?"),
        ("compression.gzip.level", "0", "from -1 to 9, but not 0"),
        ("compression.lz4.level", "18", "from 1 to 17"),
        ("compression.type", "zip", "expected producer"),
        ("remote.storage.enable", "true", "a topic is tiered with storage.mode"),
        ("min.insync.replicas", "0", "at least 1"),
        ("storage.mode", "remote", "expected local, tiered or shared"),
        ("message.timestamp.type", "createtime", "CreateTime or LogAppendTime"),
    ],
)
def test_a_bad_topic_property_is_named_with_what_was_expected(name, value, words):
    with pytest.raises(ConfigError) as caught:
        validate_topic_property(name, value)
    assert words in str(caught.value)
    with pytest.raises(ConfigError):
        topic_config({name: value}, Settings(shards=1))


@pytest.mark.parametrize(
    ("own", "broker", "words"),
    [
        ({}, {}, "a shared topic needs an object store that every broker reaches; start each broker with --set obj"),
        ({"cleanup.policy": "compact"}, {"objects_url": "s3://bucket"}, "a compacted topic cannot be shared"),
        ({"topic.kind": "events"}, {"objects_url": "s3://bucket"}, "an event topic cannot be shared"),
    ],
)
def test_a_topic_that_cannot_be_shared_is_refused_or_by_default_local(own, broker, words):
    defaults = Settings(shards=1, **broker)
    with pytest.raises(ConfigError) as caught:
        topic_config({"storage.mode": "shared", **own}, defaults)
    assert words in str(caught.value)
    if broker.get("objects_url"):
        assert topic_config(own, Settings(shards=1, storage_mode="shared", **broker)).storage_mode == "local"
    else:
        with pytest.raises(ConfigError, match=r"storage\.mode\.default"):
            Settings(shards=1, storage_mode="shared", **broker)


def test_a_shared_topic_is_archived_and_not_tiered():
    found = topic_config({"storage.mode": "shared"}, Settings(objects_url="s3://bucket"))
    assert (found.is_shared, found.is_tiered, found.is_archived) == (True, False, True)


def test_a_batch_larger_than_a_request_is_refused():
    with pytest.raises(ConfigError, match=r"socket\.request\.max\.bytes"):
        topic_config({"max.message.bytes": "104857601"}, Settings(shards=1))


def test_description_says_source_type_and_synonyms():
    settings = Settings(shards=1, log_retention_minutes=5, log_segment_bytes="2MiB").with_dynamic(
        {"message.max.bytes": "9"}
    )
    entries = describe_topic({"segment.bytes": "3000000"}, settings)
    assert {name: entry(entries, name).kafka_type for name in KAFKA_TYPES} == KAFKA_TYPES
    segment = entry(entries, "segment.bytes")
    assert (segment.value, segment.source, segment.read_only) == ("3000000", SOURCE_TOPIC, False)
    assert [tuple(synonym) for synonym in segment.synonyms] == [
        ("segment.bytes", "3000000", SOURCE_TOPIC),
        ("log.segment.bytes", "2097152", SOURCE_STATIC_BROKER),
        ("log.segment.bytes", "1073741824", SOURCE_DEFAULT),
    ]
    retention = entry(entries, "retention.ms")
    assert (retention.value, retention.source) == ("300000", SOURCE_STATIC_BROKER)
    assert [synonym.name for synonym in retention.synonyms] == ["log.retention.minutes", "log.retention.hours"]
    assert entry(entries, "max.message.bytes").source == SOURCE_DYNAMIC_BROKER
    untouched = entry(entries, "retention.bytes")
    assert untouched.source == SOURCE_DEFAULT
    assert untouched.documentation.startswith("Size that a partition keeps")


def test_node_description_hides_test_settings_and_carries_extra_facts():
    entries = describe_node(Settings(shards=1), {"millstream.http.endpoint": ("http://h:1", "Where it is.")})
    names = [found.name for found in entries]
    assert names == sorted(names)
    assert not [name for name in names if name.startswith("internal.")]
    assert entry(entries, "shards").read_only
    assert not entry(entries, "log.retention.ms").read_only
    assert entry(entries, "millstream.http.endpoint").value == "http://h:1"
    assert entry(entries, "advertised.listeners").value is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,compact"),
        ("retention.bytes", "-2"),
        ("local.retention.ms", "5"),
        ("local.retention.bytes", "-2"),
        ("remote.storage.enable", "false"),
        ("remote.log.copy.disable", "true"),
        ("remote.log.delete.on.disable", "TRUE"),
        ("preallocate", "false"),
        ("segment.index.bytes", "4"),
        ("segment.jitter.ms", "100"),
        ("leader.replication.throttled.replicas", "*"),
        ("leader.replication.throttled.replicas", ""),
        ("follower.replication.throttled.replicas", " 0:1, 1:1 "),
    ],
)
def test_what_kafka_takes_without_effect_on_one_node_is_taken_and_shown(name, value):
    config = topic_config({name: value}, Settings(shards=1))
    assert config.overrides == {name: value}
    assert entry(describe_topic({name: value}, Settings(shards=1)), name).value == value


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("preallocate", "true", "segment files grow as they are written"),
        ("preallocate", "yes", "expected false"),
        ("local.retention.ms", "-3", "at least -2"),
        ("segment.index.bytes", "3", "at least 4 B"),
        ("leader.replication.throttled.replicas", "0:1,*", "partition:broker"),
        ("follower.replication.throttled.replicas", "x", "partition:broker"),
        ("remote.copy.lag.ms", "1", "there is no such setting"),
    ],
)
def test_what_one_node_cannot_do_is_refused_with_the_reason(name, value, words):
    with pytest.raises(ConfigError) as failure:
        topic_config({name: value}, Settings(shards=1))
    assert words in failure.value.message


def test_compaction_cannot_be_due_before_it_may_begin():
    with pytest.raises(ConfigError, match="100 is more than max"):
        topic_config({"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "50"}, Settings(shards=1))


def test_a_segment_ends_where_its_index_would_be_too_large():
    settings = Settings(shards=1)
    small = {"segment.index.bytes": "2000", "index.interval.bytes": "8192"}
    assert topic_config(small, settings).segment_bytes == 100 * 8192
    assert topic_config({**small, "index.interval.bytes": "0"}, settings).segment_bytes == 100 * 4096
    assert (
        topic_config({**small, "segment.bytes": "1048576", "index.interval.bytes": "32768"}, settings).segment_bytes
        == 1048576
    )
    assert topic_config({"segment.index.bytes": "4"}, settings).segment_bytes == 1
    assert topic_config({}, settings).segment_bytes == 1 << 30


def test_the_index_is_reckoned_as_it_is_stored():
    assert format_index.ENTRY_BYTES == INDEX_ENTRY_BYTES
    assert PLACE_BYTES == INDEX_INTERVAL_MIN_BYTES


def test_a_tiered_topic_of_a_cluster_needs_a_store_that_all_brokers_reach():
    cluster = {"node_id": 1, "seeds": "127.0.0.1:9700", "peer_listen": "127.0.0.1:9700"}
    with pytest.raises(ConfigError, match=r"objects\.url"):
        topic_config({"storage.mode": "tiered"}, Settings(**cluster))
    assert topic_config({"storage.mode": "tiered"}, Settings(objects_url="s3://bucket", **cluster)).is_tiered
    with pytest.raises(ConfigError, match=r"objects\.url"):
        Settings(storage_mode="tiered", **cluster)


def test_a_compacted_topic_cannot_be_tiered_and_ignores_the_default():
    with pytest.raises(ConfigError, match="compacted topic cannot be tiered"):
        topic_config({"storage.mode": "tiered", "cleanup.policy": "compact"}, Settings())
    assert not topic_config({"cleanup.policy": "compact"}, Settings(storage_mode="tiered")).is_tiered
