"""DescribeConfigs and IncrementalAlterConfigs in all their versions."""

import pytest
from control_bench import ControlBench, versions

from millstream.errors import Unavailable
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from millstream.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from millstream.wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(bench, *resources, version=4, **options):
    request = DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in resources
        ],
        **options,
    )
    return bench.ask(request, version).results


def alter(bench, *resources, version=1, **options):
    request = IncrementalAlterConfigsRequest(
        resources=[
            AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[AlterableConfig(name=k, config_operation=o, value=v) for k, o, v in changes],
            )
            for kind, name, changes in resources
        ],
        **options,
    )
    return [
        (ErrorCode(r.error_code).name, r.error_message, r.resource_type, r.resource_name)
        for r in bench.ask(request, version).responses
    ]


def one(results, name):
    (result,) = results
    return next(config for config in result.configs if config.name == name)


@pytest.mark.parametrize("version", versions(DescribeConfigsRequest))
def test_a_topic_shows_every_property_with_source_and_type(version):
    bench = ControlBench(log_segment_bytes=2 << 20)
    bench.create("t", retention_ms="5")
    (result,) = describe(bench, (TOPIC, "t", None), version=version)
    assert (result.error_code, result.resource_type, result.resource_name) == (0, TOPIC, "t")
    by_name = {config.name: config for config in result.configs}
    shown = {name: (c.value, c.config_source, c.read_only, c.is_sensitive) for name, c in by_name.items()}
    assert shown["retention.ms"] == ("5", 1, False, False)
    assert shown["segment.bytes"] == (str(2 << 20), 4, False, False)
    assert shown["cleanup.policy"] == ("delete", 5, False, False)
    assert by_name["retention.ms"].config_type == (5 if version >= 3 else 0)
    assert by_name["retention.ms"].synonyms == []
    assert "internal.segment.bytes" not in by_name


def test_keys_choose_and_an_empty_list_of_keys_means_all():
    bench = ControlBench()
    bench.create("t")
    results = describe(bench, (TOPIC, "t", ["segment.bytes", "nope"]), (TOPIC, "t", []))
    assert [config.name for config in results[0].configs] == ["segment.bytes"]
    assert len(results[1].configs) > 10


def test_synonyms_and_documentation_are_told_to_who_asks():
    bench = ControlBench()
    bench.create("t", retention_ms="5")
    config = one(describe(bench, (TOPIC, "t", ["retention.ms"]), include_synonyms=True), "retention.ms")
    first = config.synonyms[0]
    assert (first.name, first.value, first.source) == ("retention.ms", "5", 1)
    assert ("log.retention.hours", "168", 5) in [(s.name, s.value, s.source) for s in config.synonyms]
    assert config.documentation is None
    config = one(describe(bench, (TOPIC, "t", ["retention.ms"]), include_documentation=True), "retention.ms")
    assert "deleted" in config.documentation


@pytest.mark.parametrize(
    ("kind", "name", "code", "words"),
    [
        (TOPIC, "nope", "UNKNOWN_TOPIC_OR_PARTITION", ""),
        (TOPIC, "", "INVALID_TOPIC_EXCEPTION", "Topic name is invalid: the empty string is not allowed"),
        (BROKER, "2", "INVALID_REQUEST", "Unexpected broker id, expected 1 or empty string, but received 2"),
        (BROKER, "x", "INVALID_REQUEST", "Broker id must be an integer, but it is: x"),
        (BROKER, "99999999999", "INVALID_REQUEST", "Broker id must be an integer, but it is: 99999999999"),
        (LOGGER, "", "INVALID_REQUEST", "Broker id must not be empty"),
        (LOGGER, "2", "INVALID_REQUEST", "Unexpected broker id, expected 1 but received 2"),
        (LOGGER, "x", "INVALID_REQUEST", "Broker id must be an integer, but it is: x"),
        (METRICS, "", "INVALID_REQUEST", "Client metrics subscription name must not be empty"),
        (GROUP, "", "INVALID_REQUEST", "Group name must not be empty"),
        (64, "x", "INVALID_REQUEST", "Unexpected resource type 64 for resource x"),
    ],
)
def test_what_cannot_be_described_says_why(kind, name, code, words):
    (result,) = describe(ControlBench(), (kind, name, None))
    assert (ErrorCode(result.error_code).name, result.error_message) == (code, words)
    assert (result.resource_type, result.resource_name, result.configs) == (kind, name, [])


def test_no_broker_id_is_too_long_to_be_refused():
    (result,) = describe(ControlBench(), (BROKER, "0" * 5000, None))
    assert result.error_code == ErrorCode.INVALID_REQUEST


def test_a_good_resource_is_described_beside_a_bad_one_but_not_beside_one_that_cannot_exist():
    bench = ControlBench()
    bench.create("t")
    results = describe(bench, (TOPIC, "nope", None), (TOPIC, "t", None))
    assert [result.error_code for result in results] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0]
    results = describe(bench, (TOPIC, "t", None), (0, "x", None))
    assert [result.error_code for result in results] == [ErrorCode.INVALID_REQUEST] * 2


def test_a_broker_shows_its_settings_and_where_they_come_from():
    bench = ControlBench(num_partitions=4)
    names = ["num.partitions", "log.retention.ms", "log.retention.hours", "node.id"]
    (result,) = describe(bench, (BROKER, "1", names), include_synonyms=True)
    shown = {c.name: (c.value, c.config_source, c.read_only) for c in result.configs}
    assert shown == {
        "num.partitions": ("4", 4, True),
        "log.retention.ms": (None, 5, False),
        "log.retention.hours": ("168", 5, True),
        "node.id": ("1", 4, True),
    }


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://0.0.0.0:8080", "http://10.0.0.7:8080"),
        ("http://[::]:8080", "http://10.0.0.7:8080"),
    ],
)
def test_a_broker_shows_where_its_http_port_is(url, expected):
    bench = ControlBench()
    assert not describe(bench, (BROKER, "1", ["millstream.http.endpoint"]))[0].configs
    bench.node().metadata.http_endpoint = url
    config = one(describe(bench, (BROKER, "1", ["millstream.http.endpoint"])), "millstream.http.endpoint")
    assert (config.value, config.read_only, config.config_source) == (expected, True, 4)


# Altering


@pytest.mark.parametrize("version", versions(IncrementalAlterConfigsRequest))
def test_a_topic_is_changed_on_every_shard_and_shows_it(version):
    bench = ControlBench()
    bench.create("t")
    changes = [("retention.ms", SET, "7"), ("cleanup.policy", APPEND, "compact"), ("segment.ms", DELETE, None)]
    assert alter(bench, (TOPIC, "t", changes), version=version) == [("NONE", None, TOPIC, "t")]
    for node in bench.world.nodes:
        assert node.cache.topic_config("t").retention_ms == 7
        assert node.cache.topic_config("t").cleanup_policy == ("delete", "compact")
    assert one(describe(bench, (TOPIC, "t", None)), "retention.ms").value == "7"


def test_each_resource_is_answered_in_its_place():
    bench = ControlBench()
    bench.create("a")
    bench.create("b")
    good = [("retention.ms", SET, "7")]
    answers = alter(
        bench,
        (TOPIC, "a", good),
        (64, "x", good),
        (TOPIC, "nope", good),
        (TOPIC, "b", [("retention.ms", SET, "x")]),
        (METRICS, "m", good),
        (BROKER, "9", good),
        (BROKER, "y", good),
    )
    assert [(code, name) for code, _, _, name in answers] == [
        ("NONE", "a"),
        ("INVALID_REQUEST", "x"),
        ("UNKNOWN_TOPIC_OR_PARTITION", "nope"),
        ("INVALID_CONFIG", "b"),
        ("INVALID_REQUEST", "m"),
        ("INVALID_REQUEST", "9"),
        ("INVALID_REQUEST", "y"),
    ]
    assert answers[1][1] == "Unknown resource type 64"
    assert answers[2][1] == "The topic 'nope' does not exist."
    assert answers[5][1] == "Unexpected broker id, expected 1, but received 9"
    assert answers[6][1] == "Node id must be an integer, but it is: y"


def test_a_resource_given_twice_is_refused_both_times():
    bench = ControlBench()
    bench.create("t")
    good = [("retention.ms", SET, "7")]
    answers = alter(bench, (TOPIC, "t", good), (TOPIC, "t", good))
    assert answers == [("INVALID_REQUEST", "Each resource must appear at most once.", TOPIC, "t")] * 2
    assert bench.node().metadata.topic("t").configs == {}


def test_nothing_asked_is_nothing_answered():
    assert alter(ControlBench()) == []


def test_validate_only_changes_nothing():
    bench = ControlBench()
    bench.create("t")
    assert alter(bench, (TOPIC, "t", [("retention.ms", SET, "7")]), validate_only=True)[0][0] == "NONE"
    assert alter(bench, (TOPIC, "t", [("retention.ms", SET, "x")]), validate_only=True)[0][0] == "INVALID_CONFIG"
    assert bench.node().metadata.topic("t").configs == {}


def test_live_settings_of_the_broker_change_at_once_and_outlive_a_restart():
    bench = ControlBench(log_segment_bytes=2 << 20)
    bench.create("t")
    names = ["log.segment.bytes"]
    assert alter(bench, (BROKER, "1", [("log.segment.bytes", SET, str(4 << 20))]))[0][0] == "NONE"
    assert alter(bench, (BROKER, "", [("log.segment.bytes", SET, str(3 << 20))]))[0][0] == "NONE"
    config = one(describe(bench, (BROKER, "1", names), include_synonyms=True), "log.segment.bytes")
    assert (config.value, config.config_source, config.read_only) == (str(4 << 20), 2, False)
    assert [(s.value, s.source) for s in config.synonyms] == [
        (str(4 << 20), 2),
        (str(3 << 20), 3),
        (str(2 << 20), 4),
        (str(1 << 30), 5),
    ]
    default = one(describe(bench, (BROKER, "", None), include_synonyms=True), "log.segment.bytes")
    assert (default.value, default.config_source) == (str(3 << 20), 3)
    assert [(s.value, s.source) for s in default.synonyms] == [(str(3 << 20), 3)]
    topic = one(describe(bench, (TOPIC, "t", None)), "segment.bytes")
    assert (topic.value, topic.config_source) == (str(4 << 20), 2)

    bench.world = bench.world.restart().start()
    assert bench.node().metadata.topic_config("t").segment_bytes == 4 << 20
    assert alter(bench, (BROKER, "1", [("log.segment.bytes", DELETE, None)]))[0][0] == "NONE"
    assert one(describe(bench, (TOPIC, "t", None)), "segment.bytes").config_source == 3
    (created,) = bench.ask(
        CreateTopicsRequest(topics=[CreatableTopic(name="u", num_partitions=1, replication_factor=1)])
    ).topics
    assert [(c.value, c.config_source) for c in created.configs if c.name == "segment.bytes"] == [(str(3 << 20), 3)]


def test_every_broker_shows_nothing_when_nothing_was_set_for_every_broker():
    assert describe(ControlBench(), (BROKER, "", None))[0].configs == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "Node id must be an integer, but it is: "),
        ("2", "Unexpected node id. Expected 1, but received 2"),
    ],
)
def test_loggers_of_no_broker_cannot_be_changed(name, words):
    assert alter(ControlBench(), (LOGGER, name, [("root", SET, "INFO")])) == [("INVALID_REQUEST", words, LOGGER, name)]


def test_a_change_that_cannot_be_written_is_answered_for_each_resource():
    bench = ControlBench()
    bench.create("t")
    bench.world.log.refuse = Unavailable("disk full")
    answers = alter(bench, (TOPIC, "t", [("retention.ms", SET, "7")]), (64, "x", []))
    assert [code for code, *_ in answers] == ["KAFKA_STORAGE_ERROR", "INVALID_REQUEST"]


def test_no_property_of_a_topic_is_null_and_those_of_events_are_of_event_topics():
    bench = ControlBench()
    bench.create("t")
    bench.create("e", topic_kind="events")
    plain, events = describe(bench, (TOPIC, "t", None), (TOPIC, "e", None))
    assert all(isinstance(config.value, str) for result in (plain, events) for config in result.configs)
    of_events = {config.name for config in events.configs} - {config.name for config in plain.configs}
    assert {"kafka.view", "events.validator"} <= of_events
    assert all(name.startswith(("events.", "kafka.view")) for name in of_events)


@pytest.mark.parametrize("broker", ["1", ""])
def test_a_broker_setting_that_does_not_exist_is_kept_and_shown_without_its_value(broker, capfd):
    bench = ControlBench()
    assert alter(bench, (BROKER, broker, [("of.a.plugin", SET, "secret"), ("log.retention.ms", SET, "7000")])) == [
        ("NONE", None, BROKER, broker)
    ]
    found = one(describe(bench, (BROKER, broker, None), include_synonyms=True), "of.a.plugin")
    assert (found.value, found.is_sensitive, found.read_only, found.config_type) == (None, True, False, 0)
    assert [(each.name, each.value) for each in found.synonyms] == [("of.a.plugin", None)]
    assert one(describe(bench, (BROKER, broker, None)), "log.retention.ms").value == "7000", "others act beside it"
    assert "of.a.plugin: there is no such setting" in capfd.readouterr().err
    assert alter(bench, (BROKER, broker, [("of.a.plugin", DELETE, None)])) == [("NONE", None, BROKER, broker)]
    assert not [config for config in describe(bench, (BROKER, broker, None))[0].configs if config.name == "of.a.plugin"]


def test_what_is_taken_without_effect_is_said_and_what_promises_too_much_is_refused(capfd):
    bench = ControlBench()
    bench.create("t", local_retention_ms="7")
    assert "topic t: local.retention.ms: No effect" in capfd.readouterr().err
    assert alter(bench, (TOPIC, "t", [("remote.log.copy.disable", SET, "true")]))[0][0] == "NONE"
    assert "topic t: remote.log.copy.disable: No effect" in capfd.readouterr().err
    assert alter(bench, (TOPIC, "t", [("unclean.leader.election.enable", SET, "false")]))[0][0] == "NONE"
    ((code, message, _, _),) = alter(bench, (TOPIC, "t", [("unclean.leader.election.enable", SET, "true")]))
    assert code == "INVALID_CONFIG"
    assert "a majority of the replicas elects" in message


def test_the_time_after_which_a_replica_lags_is_a_long_as_in_kafka():
    assert one(describe(ControlBench(), (BROKER, "1", None)), "replica.lag.time.max.ms").config_type == 5


def test_a_property_of_a_group_names_every_source_below_its_own():
    bench = ControlBench(group_consumer_assignment_interval_ms=1_100)
    setting = "group.consumer.assignment.interval.ms"
    for broker, value in (("1", "1200"), ("", "1300")):
        assert alter(bench, (BROKER, broker, [(setting, SET, value)]))[0][0] == "NONE"
    assert alter(bench, (GROUP, "g", [("consumer.assignment.interval.ms", SET, "1400")]))[0][0] == "NONE"
    config = one(describe(bench, (GROUP, "g", None), include_synonyms=True), "consumer.assignment.interval.ms")
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("consumer.assignment.interval.ms", "1400", 8),
        (setting, "1200", 2),
        (setting, "1300", 3),
        (setting, "1100", 4),
        (setting, "1000", 5),
    ]


def test_a_throttle_is_shown_while_it_is_set():
    bench = ControlBench()
    rate = "leader.replication.throttled.rate"

    def shown():
        (result,) = describe(bench, (BROKER, "1", [rate]))
        return [(each.value, each.config_source) for each in result.configs]

    assert shown() == []
    assert alter(bench, (BROKER, "1", [(rate, SET, "5000")]))[0][0] == "NONE"
    assert shown() == [("5000", 2)]
    assert alter(bench, (BROKER, "1", [(rate, DELETE, None)]))[0][0] == "NONE"
    assert shown() == []
