"""Creating, deleting and growing topics: Kafka's codes and words, as a real Apache Kafka 4.3.1 gives them."""

import pytest
from controller_bench import Bench

from millstream.core.controller.commands import (
    ASSIGNING_LEADERS,
    FIRST_EPOCH_0,
    TopicCreated,
    decode_command,
    encode_command,
    level_of,
)
from millstream.core.controller.requests import (
    AddPartitions,
    CreatePartitions,
    CreateTopic,
    CreateTopics,
    DeleteTopics,
    TopicReference,
)
from millstream.core.controller.state import decode_state, encode_state
from millstream.errors import Corruption
from millstream.model.error_code import ErrorCode


def outcome(results):
    return [(result.error.name, result.message) for result in results]


def test_a_topic_gets_the_defaults_an_id_and_new_raft_groups(bench):
    (result,) = bench.create(CreateTopic("a"))
    assert (result.error, result.message, result.partitions, result.replication_factor) == (ErrorCode.NONE, None, 4, 1)
    topic = bench.state.topics["a"]
    assert topic.topic_id == result.topic_id
    assert [p.raft_group for p in topic.partitions] == [1, 2, 3, 4]
    assert all(p.replicas == (1,) and p.leader == 1 and p.leader_epoch == 0 for p in topic.partitions)
    bench.create(CreateTopic("b", 2, 1))
    assert [p.raft_group for p in bench.state.topics["b"].partitions] == [5, 6]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "the empty string is not allowed"),
        (".", "'.' is not allowed"),
        ("..", "'..' is not allowed"),
        ("n" * 250, f"the length of '{'n' * 250}' is longer than the max allowed length 249"),
        ("hé", "'hé' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a b", "'a b' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
        ("a\n", "'a\n' contains one or more characters other than ASCII alphanumerics, '.', '_' and '-'"),
    ],
)
def test_an_illegal_name_is_refused_with_the_reason(bench, name, words):
    (result,) = bench.create(name)
    assert (result.error, result.message) == (ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {words}")
    assert not bench.state.topics


def test_a_name_of_249_characters_and_names_with_dots_are_legal(bench):
    results = bench.create("n" * 249, "...", "a.b-c_d", "__foo")
    assert [result.error for result in results] == [0, 0, 0, 0]


def test_names_that_metrics_could_not_tell_apart_collide_until_the_first_is_deleted(bench):
    bench.create("a.b", "a_c")
    results = bench.create("a_b", "a.c", "a.b", "ab")
    assert outcome(results) == [
        ("INVALID_TOPIC_EXCEPTION", "Topic 'a_b' collides with existing topic: a.b"),
        ("INVALID_TOPIC_EXCEPTION", "Topic 'a.c' collides with existing topic: a_c"),
        ("TOPIC_ALREADY_EXISTS", "Topic 'a.b' already exists."),
        ("NONE", None),
    ]
    bench.do(DeleteTopics((TopicReference("a.b"),)))
    assert bench.create("a_b")[0].error == ErrorCode.NONE


def test_a_name_given_twice_is_refused_and_the_others_are_created(bench):
    results = bench.create("x", "y", "x")
    assert outcome(results) == [("INVALID_REQUEST", "Duplicate topic name."), ("NONE", None)]
    assert list(bench.state.topics) == ["y"]


def test_the_cluster_metadata_topic_is_not_to_be_created(bench):
    (result,) = bench.create("__cluster_metadata")
    assert (result.error, result.message) == (
        ErrorCode.INVALID_REQUEST,
        "Creation of internal topic __cluster_metadata is prohibited.",
    )


@pytest.mark.parametrize(
    ("partitions", "factor", "code", "words"),
    [
        (0, 1, "INVALID_PARTITIONS", "Number of partitions was set to an invalid non-positive value."),
        (-2, 1, "INVALID_PARTITIONS", "Number of partitions was set to an invalid non-positive value."),
        (
            0,
            0,
            "INVALID_REPLICATION_FACTOR",
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            1,
            -2,
            "INVALID_REPLICATION_FACTOR",
            "Replication factor must be larger than 0, or -1 to use the default value.",
        ),
        (
            1,
            2,
            "INVALID_REPLICATION_FACTOR",
            (
                "Unable to replicate the partition 2 time(s): The target replication factor of 2 cannot be reached "
                "because only 1 broker(s) are registered."
            ),
        ),
        (10_001, 1, "POLICY_VIOLATION", "Excessively large number of partitions per request."),
    ],
)
def test_counts_that_cannot_be_are_refused(bench, partitions, factor, code, words):
    assert outcome(bench.create(CreateTopic("t", partitions, factor))) == [(code, words)]
    assert bench.state.next_raft_group == 1


@pytest.mark.parametrize(
    ("topic", "code", "words"),
    [
        (
            CreateTopic("t", 2, -1, ((0, (1,)),)),
            "INVALID_REQUEST",
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        (
            CreateTopic("t", -1, 1, ((0, (1,)),)),
            "INVALID_REQUEST",
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            CreateTopic("t", assignments=((0, (1,)), (2, (1,)))),
            "INVALID_REPLICATION_ASSIGNMENT",
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            CreateTopic("t", assignments=((0, (1,)), (0, (1,)))),
            "INVALID_REPLICATION_ASSIGNMENT",
            "Found multiple manual partition assignments for partition 0",
        ),
        (
            CreateTopic("t", assignments=((0, (2,)),)),
            "INVALID_REPLICATION_ASSIGNMENT",
            "The manual partition assignment includes broker 2, but no such broker is registered.",
        ),
        (
            CreateTopic("t", assignments=((0, ()),)),
            "INVALID_REPLICATION_ASSIGNMENT",
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            CreateTopic("t", assignments=((0, (1, 1)),)),
            "INVALID_REPLICATION_ASSIGNMENT",
            "The manual partition assignment includes the broker 1 more than once.",
        ),
    ],
)
def test_a_manual_assignment_that_cannot_be_is_refused(bench, topic, code, words):
    assert outcome(bench.create(topic)) == [(code, words)]


def test_a_manual_assignment_is_kept_in_partition_order():
    bench = Bench(brokers=(1, 2, 3))
    (result,) = bench.create(CreateTopic("t", assignments=((1, (2, 3)), (0, (3, 1)))))
    assert (result.error, result.partitions, result.replication_factor) == (ErrorCode.NONE, 2, 2)
    assert [p.replicas for p in bench.state.topics["t"].partitions] == [(3, 1), (2, 3)]
    assert [p.leader for p in bench.state.topics["t"].partitions] == [3, 2]


@pytest.mark.parametrize(
    ("level", "first_term", "version"),
    [
        (int(ASSIGNING_LEADERS) - 1, None, 0),
        (int(ASSIGNING_LEADERS), 1, 1),
        (int(FIRST_EPOCH_0) - 1, 1, 1),
        (int(FIRST_EPOCH_0), 0, 2),
    ],
)
def test_the_first_leader_is_assigned_in_a_term_that_every_broker_knows(level, first_term, version):
    """A partition of one replica has none, and keeps the oldest version of the command."""
    bench = Bench(brokers=(1, 2, 3), level=level)
    for name, replicas, known in (("several", 3, (first_term, version)), ("one", 1, (None, 0))):
        decision = bench.decide(CreateTopics((CreateTopic(name, 2, replicas),)))
        (command,) = decision.commands
        assert {(one.first_term, command.version) for one in command.partitions} == {known}
        assert {one.leader_epoch for one in command.partitions} == {known[0] or 0}
        assert decode_command(encode_command(command)) == command
        bench.state.apply(command)
    assert decode_state(encode_state(bench.state)) == bench.state
    older = Bench(brokers=(1, 2, 3), level=level - 1)
    (command,) = bench.decide(CreateTopics((CreateTopic("later", 1, 3),))).commands
    if level_of(command) == level:
        with pytest.raises(Corruption, match=f"feature level {level} in a cluster of level {level - 1}"):
            older.state.apply(command)


def test_leaders_are_spread_over_the_brokers():
    bench = Bench(brokers=(1, 2, 3))
    bench.create(CreateTopic("t", 3, 2))
    assert [p.replicas for p in bench.state.topics["t"].partitions] == [(1, 2), (2, 3), (3, 1)]


@pytest.mark.parametrize(
    ("configs", "words"),
    [
        ((("foo", "bar"),), "foo"),
        ((("retention.ms", "abc"),), "retention.ms"),
        (
            (("retention.ms", None), ("segment.ms", None)),
            "Null value not supported for topic configs: retention.ms,seg",
        ),
        ((("remote.storage.enable", "true"),), "storage.mode"),
    ],
)
def test_a_bad_configuration_is_refused_with_the_reason(bench, configs, words):
    (result,) = bench.create(CreateTopic("t", configs=configs))
    assert result.error == ErrorCode.INVALID_CONFIG
    assert words in (result.message or "")
    assert not bench.state.topics


def test_of_a_property_given_twice_the_last_value_counts(bench):
    bench.create(CreateTopic("t", configs=(("retention.ms", "1"), ("retention.ms", "2"))))
    assert bench.state.topics["t"].configs == {"retention.ms": "2"}


def test_validate_only_answers_as_if_and_changes_nothing(bench):
    bench.create("a")
    before = bench.state.revision
    results = bench.do(CreateTopics((CreateTopic("v", 3), CreateTopic("a")), validate_only=True))
    assert outcome(results) == [("NONE", None), ("TOPIC_ALREADY_EXISTS", "Topic 'a' already exists.")]
    assert results[0].partitions == 3
    assert bench.state.revision == before


def test_a_name_used_again_gets_a_new_id_and_new_raft_groups(bench):
    bench.create("a")
    first = bench.state.topics["a"]
    bench.do(DeleteTopics((TopicReference("a"),)))
    assert not bench.state.topics
    assert not bench.state.topics.by_id
    bench.create("a")
    second = bench.state.topics["a"]
    assert second.topic_id != first.topic_id
    assert second.partitions[0].raft_group > first.partitions[0].raft_group


def test_topics_are_deleted_by_name_and_by_id(bench):
    bench.create("a", "b", "c")
    of_b = bench.state.topics["b"].topic_id
    results = bench.do(DeleteTopics((TopicReference("a"), TopicReference(None, of_b))))
    assert [(result.error, result.name, result.topic_id) for result in results][1] == (0, "b", of_b)
    assert list(bench.state.topics) == ["c"]


def test_what_cannot_be_deleted_says_why(bench):
    bench.create("a", "b", "c")
    of_b = bench.state.topics["b"].topic_id
    of_c = bench.state.topics["c"].topic_id
    results = bench.do(
        DeleteTopics(
            (
                TopicReference("nope"),
                TopicReference(None, b"\7" * 16),
                TopicReference(),
                TopicReference("a", of_b),
                TopicReference("a"),
                TopicReference("a"),
                TopicReference("b"),
                TopicReference(None, of_b),
                TopicReference(None, of_c),
                TopicReference(None, of_c),
            )
        )
    )
    twice = "The provided topic name maps to an ID that was already supplied."
    assert outcome(results) == [
        ("UNKNOWN_TOPIC_OR_PARTITION", "This server does not host this topic-partition."),
        ("UNKNOWN_TOPIC_ID", "This server does not host this topic ID."),
        ("INVALID_REQUEST", "Neither topic name nor id were specified."),
        ("INVALID_REQUEST", "You may not specify both topic name and topic id."),
        ("INVALID_REQUEST", "Duplicate topic name."),
        ("INVALID_REQUEST", twice),
        ("INVALID_REQUEST", twice),
        ("INVALID_REQUEST", "Duplicate topic id."),
    ]
    assert set(bench.state.topics) == {"a", "b", "c"}


def test_the_topic_of_the_groups_keeps_its_count_which_says_where_each_group_is(bench):
    bench.create("__consumer_offsets")
    ((error, words),) = outcome(bench.do(CreatePartitions((AddPartitions("__consumer_offsets", 5),))))
    assert error == "INVALID_PARTITIONS"
    assert "__consumer_offsets" in words
    assert len(bench.state.topics["__consumer_offsets"].partitions) == 1


def test_a_topic_grows_and_keeps_what_it_has(bench):
    bench.create(CreateTopic("a", 2))
    bench.create("b")
    (result,) = bench.do(CreatePartitions((AddPartitions("a", 4),)))
    assert result.error == ErrorCode.NONE
    assert [p.raft_group for p in bench.state.topics["a"].partitions] == [1, 2, 4, 5]
    assert bench.state.topics.by_id[bench.state.topics["a"].topic_id] is bench.state.topics["a"]


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        (AddPartitions("a", 2), "INVALID_PARTITIONS", "Topic already has 2 partition(s)."),
        (
            AddPartitions("a", 1),
            "INVALID_PARTITIONS",
            "The topic a currently has 2 partition(s); 1 would not be an increase.",
        ),
        (
            AddPartitions("a", -1),
            "INVALID_PARTITIONS",
            "The topic a currently has 2 partition(s); -1 would not be an increase.",
        ),
        (AddPartitions("nope", 3), "UNKNOWN_TOPIC_OR_PARTITION", None),
        (
            AddPartitions("a", 4, ((1,),)),
            "INVALID_REPLICATION_ASSIGNMENT",
            "Attempted to add 2 additional partition(s), but only 1 assignment(s) were specified.",
        ),
        (
            AddPartitions("a", 3, ((),)),
            "INVALID_REPLICATION_ASSIGNMENT",
            "The manual partition assignment includes an empty replica list.",
        ),
        (
            AddPartitions("a", 3, ((2,),)),
            "INVALID_REPLICATION_ASSIGNMENT",
            "The manual partition assignment includes broker 2, but no such broker is registered.",
        ),
        (AddPartitions("a", 10_003), "POLICY_VIOLATION", "Excessively large number of partitions per request."),
    ],
)
def test_partitions_that_cannot_be_added_say_why(bench, asked, code, words):
    bench.create(CreateTopic("a", 2))
    assert outcome(bench.do(CreatePartitions((asked,)))) == [(code, words)]
    assert len(bench.state.topics["a"].partitions) == 2


def test_growing_twice_in_one_request_is_refused_and_validate_only_grows_nothing(bench):
    bench.create(CreateTopic("a", 2), CreateTopic("b", 2))
    results = bench.do(CreatePartitions((AddPartitions("a", 3), AddPartitions("b", 3), AddPartitions("a", 4))))
    assert outcome(results) == [("INVALID_REQUEST", "Duplicate topic name."), ("NONE", None)]
    bench.do(CreatePartitions((AddPartitions("a", 3),), validate_only=True))
    assert [len(bench.state.topics[name].partitions) for name in "ab"] == [2, 3]


def test_the_commands_of_one_request_do_not_share_raft_groups(bench):
    decision = bench.decide(CreateTopics((CreateTopic("a", 2), CreateTopic("b", 3))))
    groups = [p.raft_group for c in decision.commands if isinstance(c, TopicCreated) for p in c.partitions]
    assert groups == [1, 2, 3, 4, 5]
