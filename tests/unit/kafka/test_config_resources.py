"""AlterConfigs, ListConfigResources, and subscriptions to clients' metrics, in all their versions."""

import pytest
from control_bench import ControlBench, versions

from millstream.cluster.metadata import MetadataCache
from millstream.core.controller.state import ControllerState, decode_state, encode_state
from millstream.model.error_code import ErrorCode
from millstream.wire.messages import alter_configs as replacing
from millstream.wire.messages import describe_configs as describing
from millstream.wire.messages import incremental_alter_configs as changing
from millstream.wire.messages import list_config_resources as listing

TOPIC, BROKER, LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND = 0, 1, 2


def replace(bench, kind, name, *, validate_only=False, version=None, **configs):
    configs = [replacing.AlterableConfig(key.replace("_", "."), value) for key, value in configs.items()]
    request = replacing.AlterConfigsRequest([replacing.AlterConfigsResource(kind, name, configs)], validate_only)
    (answer,) = bench.ask(request, version).responses
    assert (answer.resource_type, answer.resource_name) == (kind, name)
    return ErrorCode(answer.error_code).name, answer.error_message


def change(bench, kind, name, *changes):
    configs = [changing.AlterableConfig(*each) for each in changes]
    request = changing.IncrementalAlterConfigsRequest([changing.AlterConfigsResource(kind, name, configs)])
    (answer,) = bench.ask(request).responses
    return ErrorCode(answer.error_code).name, answer.error_message


def described(bench, kind, name):
    request = describing.DescribeConfigsRequest([describing.DescribeConfigsResource(kind, name, None)])
    (answer,) = bench.ask(request).results
    return answer


def listed(bench, *types, version=1):
    answer = bench.ask(listing.ListConfigResourcesRequest(list(types)), version)
    return answer.error_code, [(each.resource_type, each.resource_name) for each in answer.config_resources]


# AlterConfigs


@pytest.mark.parametrize("version", versions(replacing.AlterConfigsRequest))
def test_what_is_not_named_goes_back_to_its_default(version):
    bench = ControlBench()
    bench.create("t", **{"retention.ms": "5", "segment.bytes": "2000000"})
    assert replace(bench, TOPIC, "t", version=version, retention_ms="6") == ("NONE", None)
    assert bench.node().metadata.topic("t").configs == {"retention.ms": "6"}
    assert replace(bench, TOPIC, "t", version=version) == ("NONE", None)
    assert bench.node().metadata.topic("t").configs == {}


def test_a_broker_and_every_broker_are_replaced_each_for_itself():
    bench = ControlBench()
    assert replace(bench, BROKER, "", log_retention_ms="7000")[0] == "NONE"
    assert replace(bench, BROKER, "1", log_segment_bytes="2000000")[0] == "NONE"
    settings = bench.node().metadata.settings
    assert (settings.log_retention_ms, settings.log_segment_bytes) == (7000, 2_000_000)
    assert replace(bench, BROKER, "1")[0] == "NONE"
    settings = bench.node().metadata.settings
    assert (settings.log_retention_ms, settings.log_segment_bytes) == (7000, 1 << 30)


def test_a_replacement_that_is_only_validated_or_refused_changes_nothing():
    bench = ControlBench()
    bench.create("t", **{"retention.ms": "5"})
    assert replace(bench, TOPIC, "t", validate_only=True, segment_bytes="2000000") == ("NONE", None)
    assert replace(bench, TOPIC, "t", retention_ms="x")[0] == "INVALID_CONFIG"
    assert replace(bench, TOPIC, "t", retention_ms=None) == (
        "INVALID_REQUEST",
        "Null value not supported for : retention.ms",
    )
    assert replace(bench, TOPIC, "nope", retention_ms="1")[0] == "UNKNOWN_TOPIC_OR_PARTITION"
    assert replace(bench, BROKER, "1", node_id="5") == (
        "INVALID_REQUEST",
        "Cannot update these configs dynamically: [node.id]",
    )
    assert replace(bench, LOGGER, "1", root="DEBUG") == ("INVALID_REQUEST", "Unknown resource type 8")
    assert replace(bench, 99, "1") == ("INVALID_REQUEST", "Unknown resource type 99")
    assert bench.node().metadata.topic("t").configs == {"retention.ms": "5"}


# Client metrics


def test_a_subscription_lives_as_long_as_it_says_something():
    bench = ControlBench()
    assert (
        change(bench, CLIENT_METRICS, "s", ("metrics", SET, "org.apache.,x"), ("interval.ms", SET, "1000"))[0] == "NONE"
    )
    entries = {
        entry.name: (entry.value, entry.config_source) for entry in described(bench, CLIENT_METRICS, "s").configs
    }
    assert entries == {"metrics": ("org.apache.,x", 7), "interval.ms": ("1000", 7), "match": ("", 5)}
    assert listed(bench, version=0) == (0, [(CLIENT_METRICS, "s")])
    assert replace(bench, CLIENT_METRICS, "s", match="client_id=a.*")[0] == "NONE"
    entries = {entry.name: entry.value for entry in described(bench, CLIENT_METRICS, "s").configs}
    assert entries == {"metrics": "", "interval.ms": "300000", "match": "client_id=a.*"}
    assert change(bench, CLIENT_METRICS, "s", ("match", DELETE, None))[0] == "NONE"
    assert listed(bench, version=0) == (0, [])


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("interval.ms", "99", "INVALID_REQUEST"),
        ("interval.ms", "3600001", "INVALID_REQUEST"),
        ("interval.ms", "x", "INVALID_CONFIG"),
        ("match", "nonsense", "INVALID_CONFIG"),
        ("match", "colour=x", "INVALID_CONFIG"),
        ("match", "client_id=[", "INVALID_CONFIG"),
        ("match", "client_id=", "INVALID_CONFIG"),
        ("match", "client_id=(?=a)a", "INVALID_CONFIG"),
        ("match", "client_id=" + "a" * 1_025, "INVALID_CONFIG"),
        ("metrics", "a,,b", "INVALID_CONFIG"),
        ("no.such", "1", "INVALID_REQUEST"),
        ("match", " client_id = x ,client_software_version=1", "NONE"),
        ("metrics", "*", "NONE"),
        ("interval.ms", "100", "NONE"),
    ],
)
def test_what_a_subscription_may_say(name, value, code):
    bench = ControlBench()
    assert change(bench, CLIENT_METRICS, "s", (name, SET, value))[0] == code


def test_a_subscription_has_a_name_and_no_lists():
    bench = ControlBench()
    assert change(bench, CLIENT_METRICS, "", ("metrics", SET, "x")) == (
        "INVALID_REQUEST",
        "Subscription name can't be empty",
    )
    assert described(bench, CLIENT_METRICS, "").error_code == ErrorCode.INVALID_REQUEST
    assert change(bench, CLIENT_METRICS, "s", ("metrics", APPEND, "x")) == (
        "INVALID_CONFIG",
        "Can't APPEND to key metrics because its type is not LIST.",
    )


def test_subscriptions_outlive_a_snapshot():
    bench = ControlBench()
    change(bench, CLIENT_METRICS, "s", ("metrics", SET, "x"))
    state = bench.node().metadata.state
    again = decode_state(encode_state(state))
    assert again == state
    assert again.configs.client_metrics == {"s": {"metrics": "x"}}
    assert decode_state(encode_state(ControllerState())).configs.client_metrics == {}


# Groups


def test_a_group_says_what_it_needs_and_coordinators_hear_it_at_once():
    bench = ControlBench()
    kept = [node.cache.group_configs for node in bench.world.nodes]
    changes = [("consumer.session.timeout.ms", SET, "50000"), ("consumer.heartbeat.interval.ms", SET, "6000")]
    assert change(bench, GROUP, "g", *changes) == ("NONE", None)
    expected = {"g": {"consumer.session.timeout.ms": 50_000, "consumer.heartbeat.interval.ms": 6_000}}
    assert kept == [expected] * len(kept)
    entries = {entry.name: (entry.value, entry.config_source) for entry in described(bench, GROUP, "g").configs}
    assert {name: entry for name, entry in entries.items() if name.startswith("consumer.")} == {
        "consumer.session.timeout.ms": ("50000", 8),
        "consumer.heartbeat.interval.ms": ("6000", 8),
        "consumer.assignment.interval.ms": ("1000", 5),
    }
    assert listed(bench, GROUP) == (0, [(GROUP, "g")])
    assert replace(bench, GROUP, "g", consumer_session_timeout_ms="51000")[0] == "NONE"
    assert kept[0] == {"g": {"consumer.session.timeout.ms": 51_000}}
    assert change(bench, GROUP, "g", ("consumer.session.timeout.ms", DELETE, None))[0] == "NONE"
    assert kept == [{}] * len(kept)
    assert listed(bench, GROUP) == (0, [])


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("consumer.session.timeout.ms", "1", "must be greater than or equal to group.consumer.min.session.timeout.ms"),
        ("consumer.session.timeout.ms", "70000", "must be less than or equal to group.consumer.max.session.timeout.ms"),
        ("consumer.session.timeout.ms", "x", "'x' is not valid"),
        ("consumer.heartbeat.interval.ms", "50000", "must be less than or equal to"),
        ("consumer.assignment.interval.ms", "-1", "'-1' is not valid"),
        ("no.such", "1", "Unknown group config name: no.such"),
    ],
)
def test_what_a_group_may_not_say(name, value, words):
    code, message = change(ControlBench(), GROUP, "g", (name, SET, value))
    assert code == "INVALID_CONFIG"
    assert words in message


def test_a_group_that_heartbeats_slower_than_its_session_ends_is_refused():
    bench = ControlBench(group_consumer_min_session_timeout_ms=8_000)
    assert change(bench, GROUP, "g", ("consumer.session.timeout.ms", SET, "9000"))[0] == "NONE"
    code, message = change(bench, GROUP, "g", ("consumer.heartbeat.interval.ms", SET, "9000"))
    assert (code, message) == (
        "INVALID_CONFIG",
        "consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms",
    )
    assert change(bench, GROUP, "", ("consumer.session.timeout.ms", SET, "50000")) == (
        "INVALID_REQUEST",
        "Default group resources are not allowed.",
    )


def test_what_a_share_group_needs_is_taken():
    bench = ControlBench()
    wanted = [("share.session.timeout.ms", SET, "50000"), ("share.heartbeat.interval.ms", SET, "6000")]
    assert change(bench, GROUP, "g", *wanted)[0] == "NONE"
    entries = {entry.name: (entry.value, entry.config_source) for entry in described(bench, GROUP, "g").configs}
    assert entries["share.session.timeout.ms"] == ("50000", 8)
    assert entries["share.assignment.interval.ms"] == ("1000", 5)
    for name, value, words in (
        ("share.session.timeout.ms", "44999", "must be greater than or equal to group.share.min.session.timeout.ms"),
        ("share.heartbeat.interval.ms", "15001", "must be less than or equal to group.share.max.heartbeat.interval.ms"),
        ("share.assignment.interval.ms", "-1", "is not valid"),
    ):
        error, said = change(bench, GROUP, "g", (name, SET, value))
        assert (error, words in said) == ("INVALID_CONFIG", True), said


def test_what_groups_say_outlives_a_snapshot():
    bench = ControlBench()
    change(bench, GROUP, "g", ("consumer.session.timeout.ms", SET, "50000"))
    state = decode_state(encode_state(bench.node().metadata.state))
    assert state.configs.groups == {"g": {"consumer.session.timeout.ms": "50000"}}
    cache = MetadataCache(state, {}, bench.world.settings)
    assert cache.group_configs == {"g": {"consumer.session.timeout.ms": 50_000}}


# ListConfigResources


def test_resources_are_listed_by_type_or_all_of_them():
    bench = ControlBench()
    bench.create("b")
    bench.create("a")
    change(bench, CLIENT_METRICS, "s", ("metrics", SET, "x"))
    assert listed(bench, TOPIC) == (0, [(TOPIC, "a"), (TOPIC, "b")])
    assert listed(bench, BROKER, LOGGER, BROKER) == (0, [(BROKER, "1"), (LOGGER, "1")])
    assert listed(bench, GROUP) == (0, [])
    assert sorted(listed(bench)[1]) == [(2, "a"), (2, "b"), (4, "1"), (8, "1"), (16, "s")]
    assert listed(bench, TOPIC, 99) == (ErrorCode.UNSUPPORTED_VERSION, [])
