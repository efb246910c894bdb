"""Consumer groups (KIP-848) as seen on the wire: epochs, reconciliation, fencing, refusals, offsets.

What is expected here is what Apache Kafka 4.3 does: ``pytest tests/conformance/test_consumer_group_wire.py --peer
kafka`` runs the same against it.
"""

import pytest
from group_next import OK, fetch_as, owning, settle
from group_wire import commit, describe, leave

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.list_groups import ListGroupsRequest

pytestmark = pytest.mark.process


# Epochs and reconciliation


def test_the_first_member_gets_everything_at_epoch_2(someone):
    one = someone("A")
    assert one.join() is OK
    assert (one.epoch, one.partitions) == (2, [0, 1, 2, 3])
    assert one.answer.heartbeat_interval_ms in (300, 400)
    assert one.beat() is OK
    assert one.answer.assignment is None, "nothing new"
    assert one.join() is OK, "it may join again"
    assert (one.epoch, one.partitions) == (2, [0, 1, 2, 3])


def test_a_partition_changes_hands_only_when_it_was_given_back(someone):
    one, two = someone("A"), someone("B")
    assert one.join() is OK
    assert two.join() is OK
    assert (two.epoch, two.partitions) == (3, [])
    former = one.owned
    assert one.beat() is OK
    assert (one.epoch, len(one.partitions)) == (2, 2), "it is to give two back, in its old epoch"
    assert one.say(topic_partitions=owning(former)) is OK
    assert one.answer.assignment is None
    assert one.epoch == 2, "it still owns them"
    assert two.beat() is OK
    assert two.partitions == []
    assert one.described().group_state == "Reconciling"
    assert one.beat() is OK
    assert one.epoch == 3
    assert two.beat() is OK
    assert sorted(one.partitions + two.partitions) == [0, 1, 2, 3]
    group = one.described()
    assert (group.group_state, group.group_epoch, group.assignment_epoch) == ("Stable", 3, 3)


def test_a_lost_answer_is_made_up_for_and_other_epochs_are_fenced(someone):
    one, two = someone("A"), someone("B")
    one.join()
    two.join()
    one.beat()
    one.beat()
    assert one.epoch == 3
    assert one.say(member_epoch=2, topic_partitions=owning(one.owned)) is OK, "the answer with epoch 3 got lost"
    assert one.epoch == 3
    assert one.say(member_epoch=2) is ErrorCode.FENCED_MEMBER_EPOCH, "it does not say what it owns"
    assert "smaller member epoch (2)" in one.answer.error_message
    assert one.say(member_epoch=9) is ErrorCode.FENCED_MEMBER_EPOCH
    assert "greater member epoch (9)" in one.answer.error_message


def test_what_a_member_leaves_the_others_get(someone):
    one, two = someone("A"), someone("B")
    one.join()
    two.join()
    settle(one, two)
    assert two.leave() is OK
    assert (two.answer.member_id, two.answer.member_epoch, two.answer.heartbeat_interval_ms) == ("B", -1, 0)
    settle(one)
    assert (one.epoch, one.partitions) == (4, [0, 1, 2, 3])
    assert two.say(member_epoch=3) is ErrorCode.UNKNOWN_MEMBER_ID
    assert one.leave() is OK
    assert one.described().group_state == "Empty"
    assert one.join() is OK
    assert one.epoch == 6


def test_a_changed_subscription_takes_effect_at_once(someone):
    one = someone("A", topics=("t", "u"))
    one.join()
    assert one.partitions == [0, 0, 1, 1, 2, 3]
    assert one.say(subscribed_topic_names=["u"]) is OK
    assert one.partitions == [0, 1]
    assert one.beat() is OK
    assert one.described().group_epoch == one.epoch == 3


def test_a_member_asks_for_its_assignment_with_a_full_request(someone):
    one = someone("A")
    one.join()
    assert one.say(subscribed_topic_names=["t"], rebalance_timeout_ms=20_000, topic_partitions=owning(one.owned)) is OK
    assert one.answer.assignment is not None


def test_range_gives_runs_and_most_members_choose_the_assignor(someone):
    members = [someone(name, topics=("t", "u"), server_assignor="range") for name in "AB"]
    for member in members:
        assert member.join() is OK
    settle(*members)
    assert sorted(member.partitions for member in members) == [[0, 0, 1], [1, 2, 3]]
    assert members[0].described().assignor_name == "range"


def test_a_topic_that_does_not_exist_is_waited_for(someone):
    one = someone("A", topics=("nowhere",))
    assert one.join() is OK
    assert (one.epoch, one.partitions) == (2, [])


# Refusals


@pytest.mark.parametrize(
    ("fields", "error", "words"),
    [
        ({"group_id": ""}, ErrorCode.INVALID_REQUEST, "GroupId can't be empty."),
        ({"member_id": ""}, ErrorCode.INVALID_REQUEST, "MemberId can't be empty."),
        ({"instance_id": ""}, ErrorCode.INVALID_REQUEST, "InstanceId can't be empty."),
        ({"rack_id": ""}, ErrorCode.INVALID_REQUEST, "RackId can't be empty."),
        (
            {"rebalance_timeout_ms": -1},
            ErrorCode.INVALID_REQUEST,
            "RebalanceTimeoutMs must be provided in first request.",
        ),
        ({"topic_partitions": None}, ErrorCode.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining."),
        (
            {"subscribed_topic_names": None},
            ErrorCode.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        ({"member_epoch": -3}, ErrorCode.INVALID_REQUEST, "MemberEpoch is invalid."),
        ({"member_epoch": -2}, ErrorCode.INVALID_REQUEST, "InstanceId can't be null."),
        ({"member_epoch": -2, "instance_id": "i"}, ErrorCode.UNKNOWN_MEMBER_ID, "Instance id i is unknown."),
        (
            {"server_assignor": "sticky"},
            ErrorCode.UNSUPPORTED_ASSIGNOR,
            "ServerAssignor sticky is not supported. Supported assignors: uniform, range.",
        ),
        (
            {"subscribed_topic_regex": "t("},
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "SubscribedTopicRegex `t(` is not a valid regular expression: missing closing ).",
        ),
        (
            {"subscribed_topic_regex": "t(?=u)"},
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "SubscribedTopicRegex `t(?=u)` is not a valid regular expression: invalid or unsupported Perl syntax.",
        ),
        (
            {"subscribed_topic_regex": "*"},
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            "SubscribedTopicRegex `*` is not a valid regular expression: missing argument to repetition operator.",
        ),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_kafkas_words(someone, fields, error, words):
    one = someone("A")
    one.join()
    other = someone("B")
    assert other.join(**fields) is error
    assert other.answer.error_message == words
    assert (other.answer.member_id, other.answer.member_epoch) == (None, 0)
    assert one.beat() is OK
    assert one.epoch == 2, "nothing has changed"


def test_groups_and_members_that_nobody_knows(someone):
    one = someone("A")
    assert one.say(member_epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert one.answer.error_message == f"Consumer group {one.group} not found."
    assert one.leave() is ErrorCode.GROUP_ID_NOT_FOUND
    assert one.answer.error_message == f"Group {one.group} not found."
    one.join()
    other = someone("B")
    assert other.say(member_epoch=1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert other.leave() is ErrorCode.UNKNOWN_MEMBER_ID
    groups = one.line.ask(ConsumerGroupDescribeRequest(group_ids=["nobody's"]), 1).groups
    assert [(g.error_code, g.error_message) for g in groups] == [
        (ErrorCode.GROUP_ID_NOT_FOUND, "Group nobody's not found.")
    ]


def test_a_group_that_is_full_takes_nobody_more(someone):
    members = [someone(name) for name in "ABCDE"]
    assert [member.join() for member in members] == [OK] * 4 + [ErrorCode.GROUP_MAX_SIZE_REACHED]
    assert members[0].join() is OK


def test_version_0_is_given_its_member_id(someone):
    one = someone("")
    assert one.join(version=0) is OK
    assert len(one.answer.member_id) == 22
    assert one.epoch == 2


# Static members


def test_a_static_member_leaves_for_a_while_and_its_successor_has_what_it_had(someone):
    former, back, other = someone("A", instance="i"), someone("A2", instance="i"), someone("B")
    former.join()
    other.join()
    settle(former, other)
    assert back.join() is ErrorCode.UNRELEASED_INSTANCE_ID
    assert former.leave(-2) is OK
    assert (former.answer.member_id, former.answer.member_epoch) == ("A", -2)
    assert other.beat() is OK
    assert other.answer.assignment is None, "nobody else is disturbed"
    assert back.join() is OK
    assert (back.epoch, back.partitions) == (other.epoch, former.partitions)
    assert former.beat() is ErrorCode.FENCED_INSTANCE_ID
    assert back.leave(-1) is OK
    settle(other)
    assert other.partitions == [0, 1, 2, 3]


# Regular expressions


def test_topics_of_a_regular_expression_come_with_a_later_heartbeat(someone):
    one = someone("A", topics=None, subscribed_topic_regex="t|u")
    assert one.join() is OK
    assert (one.epoch, one.partitions) == (1, [])
    while not one.partitions:
        assert one.beat() is OK
    assert (one.epoch, one.partitions) == (2, [0, 0, 1, 1, 2, 3])
    assert one.say(subscribed_topic_regex="", subscribed_topic_names=["u"]) is OK
    assert one.partitions == [0, 1]
    (member,) = one.described().members
    assert (member.subscribed_topic_names, member.subscribed_topic_regex) == (["u"], "")


# Offsets


def test_offsets_are_committed_and_fetched_with_the_members_epoch(someone):
    one = someone("A")
    one.join()
    line, group, place = one.line, one.group, {("t", 0): 7}
    assert commit(line, group, place, generation=2, member_id="A") is OK
    assert commit(line, group, place, generation=3, member_id="A") is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(line, group, place, generation=1, member_id="A") is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(line, group, place, generation=2, member_id="B") is ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(line, group, place) is ErrorCode.UNKNOWN_MEMBER_ID, "no commit past the members"
    assert commit(line, group, place, 8, generation=2, member_id="A") is ErrorCode.UNSUPPORTED_VERSION
    assert fetch_as(line, group, "A", 2) == 7
    assert fetch_as(line, group, None, -1) == 7
    assert fetch_as(line, group, "A", 1) is ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_as(line, group, "B", 2) is ErrorCode.UNKNOWN_MEMBER_ID
    one.leave()
    assert commit(line, group, {("t", 0): 8}) is OK, "the group is empty"


def test_a_member_that_is_behind_commits_what_it_had_all_along(someone):
    one, two = someone("A"), someone("B")
    one.join()
    two.join()
    settle(one, two)
    kept, lost = one.partitions[0], two.partitions[0]
    assert one.epoch == 3
    assert commit(one.line, one.group, {("t", kept): 5}, generation=2, member_id="A") is OK
    assert commit(one.line, one.group, {("t", lost): 5}, generation=2, member_id="A") is ErrorCode.STALE_MEMBER_EPOCH
    assert commit(two.line, two.group, {("t", lost): 5}, generation=2, member_id="B") is ErrorCode.STALE_MEMBER_EPOCH


# Lists, and what administrators do


def test_a_consumer_group_is_listed_by_type_and_is_no_classic_group(someone):
    one = someone("A")
    one.join()
    for types, found in ((["consumer"], True), (["Consumer"], True), (["classic"], False), ([], True)):
        groups = one.line.ask(ListGroupsRequest(types_filter=types), 5).groups
        mine = [(g.group_state, g.group_type, g.protocol_type) for g in groups if g.group_id == one.group]
        assert mine == ([("Stable", "consumer", "consumer")] if found else [])
    group = describe(one.line, one.group)
    assert group.group_state == "Dead"
    assert group.members == []


def test_an_administrator_removes_members_of_either_protocol(someone):
    one, two = someone("A"), someone("B", instance="i")
    one.join()
    two.join()
    settle(one, two)
    gone = [("A", None), ("", "i"), ("nobody", None)]
    assert leave(one.line, one.group, *gone) == [OK, OK, ErrorCode.UNKNOWN_MEMBER_ID]
    assert one.described().members == []
    assert two.beat() is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_may_ask_for_heartbeats_of_its_own(someone):
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    one = someone("A")
    one.join()
    entry = ConfigEntry("consumer.heartbeat.interval.ms", "700", incremental_operation=AlterConfigOpType.SET)
    wanted = ConfigResource(ConfigResource.Type.GROUP, one.group, incremental_configs=[entry])
    client = AdminClient({"bootstrap.servers": one.bootstrap})
    client.incremental_alter_configs([wanted])[wanted].result(60)
    while one.answer.heartbeat_interval_ms != 700:
        assert one.beat() is OK
