"""Changing configurations of topics and brokers."""

import pytest
from controller_bench import Bench

from millstream.core.controller.commands import CLUSTER_DEFAULT
from millstream.core.controller.configs import effective_settings
from millstream.core.controller.requests import AlterConfigs, AlterNode, AlterTopic, ConfigChange, CreateTopic
from millstream.model.error_code import ErrorCode

SET, DELETE, APPEND, SUBTRACT = range(4)


def topic(name, *changes):
    return AlterConfigs((AlterTopic(name, tuple(ConfigChange(*change) for change in changes)),))


def node(number, *changes):
    return AlterConfigs((AlterNode(number, tuple(ConfigChange(*change) for change in changes)),))


def test_a_topic_property_is_set_changed_and_deleted(bench):
    bench.create(CreateTopic("t", configs=(("segment.ms", "9"),)))
    assert bench.do(topic("t", ("retention.ms", SET, "7")))[0].error == ErrorCode.NONE
    assert bench.state.topics["t"].configs == {"retention.ms": "7", "segment.ms": "9"}
    bench.do(topic("t", ("retention.ms", SET, "8"), ("segment.ms", DELETE, None)))
    assert bench.state.topics["t"].configs == {"retention.ms": "8"}


def test_setting_what_is_set_and_deleting_what_is_not_change_nothing(bench):
    bench.create(CreateTopic("t", configs=(("retention.ms", "7"),)))
    decision = bench.decide(topic("t", ("retention.ms", SET, "7"), ("segment.ms", DELETE, None), ("foo", DELETE, None)))
    assert decision.results[0].error == ErrorCode.NONE
    assert not decision.commands


def test_lists_are_appended_to_and_subtracted_from_starting_with_the_default(bench):
    bench.create("t")
    bench.do(topic("t", ("cleanup.policy", APPEND, "compact,delete")))
    assert bench.state.topics["t"].configs == {"cleanup.policy": "delete,compact"}
    bench.do(topic("t", ("cleanup.policy", SUBTRACT, "delete")))
    assert bench.state.topics["t"].configs == {"cleanup.policy": "compact"}


def test_brokers_and_every_broker_cannot_contradict_each_other_in_one_request_or_in_two(bench):
    least = ConfigChange("log.cleaner.min.compaction.lag.ms", SET, "1000")
    most = ConfigChange("log.cleaner.max.compaction.lag.ms", SET, "10")
    both = AlterConfigs((AlterNode(CLUSTER_DEFAULT, (least,)), AlterNode(1, (most,))))
    assert [result.error.name for result in bench.do(both)] == ["NONE", "INVALID_REQUEST"]
    assert bench.do(AlterConfigs((AlterNode(1, (most,)),)))[0].error == ErrorCode.INVALID_REQUEST
    assert effective_settings(bench.state, bench.rules.start_settings, 1).log_cleaner_min_compaction_lag_ms == 1000


@pytest.mark.parametrize(
    ("request_", "code", "words"),
    [
        (topic("t", ("foo", SET, "7")), "INVALID_CONFIG", "foo"),
        (topic("t", ("retention.ms", SET, "abc")), "INVALID_CONFIG", "retention.ms"),
        (topic("t", ("retention.ms", APPEND, "1")), "INVALID_CONFIG", "Can't APPEND to key retention.ms because its"),
        (topic("t", ("foo", SUBTRACT, "1")), "INVALID_CONFIG", "Can't SUBTRACT to key foo because its type"),
        (topic("nope", ("retention.ms", SET, "7")), "UNKNOWN_TOPIC_OR_PARTITION", "The topic 'nope' does not exist."),
        (topic("nope", ("foo", SET, "7")), "INVALID_CONFIG", "foo"),
        (topic("", ("retention.ms", SET, "7")), "INVALID_REQUEST", "Default topic resources are not allowed."),
        (topic("é", ("retention.ms", SET, "7")), "INVALID_TOPIC_EXCEPTION", "Topic name is invalid"),
        (topic("t", ("retention.ms", SET, None)), "INVALID_REQUEST", "Null value not supported for : retention.ms"),
        (
            topic("t", ("retention.ms", SET, "1"), ("retention.ms", DELETE, None)),
            "INVALID_REQUEST",
            "Error due to duplicate config keys",
        ),
        (topic("t", ("retention.ms", 9, "1")), "INVALID_REQUEST", "Unknown operations type 9"),
        (
            node(1, ("num.partitions", SET, "9")),
            "INVALID_REQUEST",
            "Cannot update these configs dynamically: [num.part",
        ),
        (
            node(1, ("listener.name.internal.ssl.keystore.location", SET, "/a.pem")),
            "INVALID_REQUEST",
            "Cannot update these configs dynamically: [listener.name.internal.ssl.keystore.location]",
        ),
        (node(1, ("log.retention.ms", SET, "abc")), "INVALID_REQUEST", "log.retention.ms"),
        (node(1, ("log.retention.ms", APPEND, "5")), "INVALID_CONFIG", "Config value append is not allowed for config"),
    ],
)
def test_a_change_that_cannot_be_made_says_why_and_changes_nothing(bench, request_, code, words):
    bench.create("t")
    before = bench.state.revision
    (result,) = bench.do(request_)
    assert result.error.name == code
    assert words in (result.message or "")
    assert bench.state.revision == before


def test_a_setting_of_a_listener_that_does_not_exist_is_kept_as_any_other(bench):
    for name in ("listener.name.internal.foo", "listener.name.internal.log.retention.ms"):
        (result,) = bench.do(node(1, (name, SET, "1")))
        assert result.error is ErrorCode.NONE
        assert bench.state.configs.nodes[1][name] == "1"


def test_one_bad_change_keeps_the_good_ones_of_the_same_resource_from_being_made(bench):
    bench.create("t", "u")
    changes = (ConfigChange("retention.ms", SET, "7"), ConfigChange("segment.ms", SET, "x"))
    good = (ConfigChange("retention.ms", SET, "7"),)
    results = bench.do(AlterConfigs((AlterTopic("t", changes), AlterTopic("u", good))))
    assert [result.error for result in results] == [ErrorCode.INVALID_CONFIG, ErrorCode.NONE]
    assert (bench.state.topics["t"].configs, bench.state.topics["u"].configs) == ({}, {"retention.ms": "7"})


def test_validate_only_makes_no_change(bench):
    bench.create("t")
    request = AlterConfigs((AlterTopic("t", (ConfigChange("retention.ms", SET, "7"),)),), validate_only=True)
    assert bench.do(request)[0].error == ErrorCode.NONE
    assert bench.state.topics["t"].configs == {}


def test_a_brokers_own_setting_wins_over_the_one_for_all_brokers(bench):
    start = bench.rules.start_settings
    bench.do(node(CLUSTER_DEFAULT, ("log.retention.ms", SET, "1000"), ("log.roll.ms", SET, "5")))
    bench.do(node(1, ("log.retention.ms", SET, "2000")))
    settings = effective_settings(bench.state, start, 1)
    assert (settings.log_retention_ms, settings.log_roll_ms) == (2000, 5)
    assert effective_settings(bench.state, start, 2).log_retention_ms == 1000
    bench.do(node(1, ("log.retention.ms", DELETE, None)))
    assert effective_settings(bench.state, start, 1).log_retention_ms == 1000
    bench.do(node(CLUSTER_DEFAULT, ("log.retention.ms", DELETE, None), ("log.roll.ms", DELETE, None)))
    assert effective_settings(bench.state, start, 1) is start
    assert bench.state.configs.nodes == {}


def test_an_append_to_a_broker_setting_starts_with_what_the_node_was_started_with(bench):
    bench.do(node(1, ("log.cleanup.policy", APPEND, "compact")))
    assert bench.state.configs.nodes == {1: {"log.cleanup.policy": "delete,compact"}}


@pytest.mark.parametrize(
    ("configs", "change", "words"),
    [
        ({"storage.mode": "tiered"}, ("cleanup.policy", "compact"), "create another topic and copy the records"),
        ({"cleanup.policy": "compact"}, ("storage.mode", "tiered"), "set cleanup.policy=delete"),
        ({"storage.mode": "tiered"}, ("storage.mode", "local"), "create another topic and copy the records"),
        ({"storage.mode": "shared"}, ("cleanup.policy", "compact"), "compaction rewrites what is uploaded"),
        ({"storage.mode": "shared"}, ("storage.mode", "tiered"), "create another topic and copy the records"),
        ({"cleanup.policy": "compact"}, ("storage.mode", "shared"), "compaction rewrites what is uploaded"),
        ({}, ("storage.mode", "shared"), "create another topic and copy the records"),
    ],
)
def test_a_change_that_a_log_cannot_bear_is_refused_with_the_way_round(configs, change, words):
    bench = Bench(objects_url="s3://bucket")
    bench.create(CreateTopic("t", configs=tuple(configs.items())))
    before = bench.state.topics["t"].configs
    result = bench.do(topic("t", (change[0], SET, change[1])))[0]
    assert (result.error, words in result.message) == (ErrorCode.INVALID_CONFIG, True), result.message
    assert bench.state.topics["t"].configs == before


@pytest.mark.parametrize(
    ("mode", "configs", "change", "words"),
    [
        ("tiered", {}, ("cleanup.policy", SET, "compact"), "a tiered topic cannot be compacted"),
        ("shared", {}, ("cleanup.policy", SET, "compact"), "a shared topic cannot be compacted"),
        ("shared", {"cleanup.policy": "compact"}, ("cleanup.policy", DELETE, None), "set storage.mode=local, too"),
    ],
)
def test_the_default_of_all_topics_makes_no_change_that_a_log_cannot_bear(mode, configs, change, words):
    bench = Bench(objects_url="s3://bucket", storage_mode=mode)
    bench.create(CreateTopic("t", configs=tuple(configs.items())))
    result = bench.do(topic("t", change))[0]
    assert (result.error, words in result.message) == (ErrorCode.INVALID_CONFIG, True), result.message


@pytest.mark.parametrize("where", [CLUSTER_DEFAULT, 1])
@pytest.mark.parametrize(
    ("mode", "configs", "change", "words"),
    [
        ("tiered", {}, ("storage.mode.default", "local"), "a tiered topic cannot become local"),
        ("tiered", {}, ("log.cleanup.policy", "compact"), "t would change with the default"),
        ("local", {"storage.mode": "tiered"}, ("log.cleanup.policy", "compact"), "a compacted topic cannot be tiered"),
        ("local", {}, ("storage.mode.default", "shared"), "shared from its creation on or never"),
        ("shared", {}, ("storage.mode.default", "local"), "shared from its creation on or never"),
    ],
)
def test_a_default_is_not_changed_so_that_it_changes_a_topic_as_no_one_may(where, mode, configs, change, words):
    bench = Bench(objects_url="s3://bucket", storage_mode=mode)
    bench.create(CreateTopic("t", configs=tuple(configs.items())))
    wanted = node(where, (change[0], SET, change[1]))
    result = bench.do(wanted)[0]
    assert (result.error, words in result.message) == (ErrorCode.INVALID_REQUEST, True), result.message
    own = {"storage.mode": configs.get("storage.mode", mode), "cleanup.policy": "delete"}
    assert bench.do(topic("t", *((name, SET, value) for name, value in own.items())))[0].error == ErrorCode.NONE
    assert bench.do(wanted)[0].error == ErrorCode.NONE, "the topic has its own by now"


def test_a_topic_that_was_compacted_becomes_tiered_in_one_change_or_in_two(bench):
    for name, steps in (
        ("one", (("cleanup.policy", "storage.mode"),)),
        ("two", (("cleanup.policy",), ("storage.mode",))),
    ):
        bench.create(CreateTopic(name, configs=(("cleanup.policy", "compact"),)))
        wanted = {"cleanup.policy": "delete", "storage.mode": "tiered"}
        for step in steps:
            result = bench.do(topic(name, *((one, SET, wanted[one]) for one in step)))[0]
            assert result.error == ErrorCode.NONE, result.message
        assert bench.state.topics[name].configs == wanted
