"""Consumer groups (KIP-848) as seen on the wire: epochs, reconciliation, fencing, refusals, offsets, both protocols.

What is expected here is what Apache Kafka 4.3 does: ``pytest tests/conformance/test_consumer_group_wire.py --peer
kafka`` runs the same against it.
"""

import itertools

import pytest
from group_wire import Line, Member, commit, describe, leave, subscription, told_to_rejoin, wait_for_coordinator

from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from millstream.wire.messages.consumer_protocol import ConsumerProtocolAssignment
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from millstream.wire.stored import decode_versioned

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

OK = ErrorCode.NONE
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": 3,
    "group.min.session.timeout.ms": 200,
    "group.consumer.max.size": 4,
    "group.consumer.assignment.interval.ms": 0,
    "group.consumer.min.session.timeout.ms": 1_000,
    "group.consumer.session.timeout.ms": 6_000,
    "group.consumer.min.heartbeat.interval.ms": 100,
    "group.consumer.heartbeat.interval.ms": 300,
}
numbers = itertools.count()


@pytest.fixture(scope="module")
def bootstrap(module_broker):
    broker = module_broker(topics={"t": 4, "u": 2}, settings=SETTINGS)
    wait_for_coordinator(broker.bootstrap)
    return broker.bootstrap


@pytest.fixture
def someone(bootstrap):
    """``someone(name, …)`` → a new member-to-be of this test's own group."""
    group, made = f"next-{next(numbers)}", []

    def make(name, **options):
        made.append(NextMember(bootstrap, options.pop("group", group), name, **options))
        return made[-1]

    yield make
    for member in made:
        member.line.close()


class NextMember:
    """A member of the consumer protocol that says what a test tells it to; it remembers its epoch and what it owns."""

    def __init__(self, bootstrap, group, name, *, instance=None, topics=("t",), **options):
        self.line = Line(bootstrap)
        self.bootstrap, self.group, self.id, self.instance = bootstrap, group, name, instance
        self.topics, self.options = topics, options
        self.epoch = 0
        self.owned = {}
        self.answer = None

    def say(self, version=1, **fields):
        """One heartbeat; its error."""
        given = {"group_id": self.group, "member_id": self.id, "member_epoch": self.epoch, **fields}
        self.answer = self.line.ask(ConsumerGroupHeartbeatRequest(**given), version)
        error = ErrorCode(self.answer.error_code)
        if error is OK and self.answer.member_epoch >= 0:
            self.epoch = self.answer.member_epoch
            if self.answer.assignment is not None:
                self.owned = {t.topic_id: sorted(t.partitions) for t in self.answer.assignment.topic_partitions}
        return error

    def join(self, version=1, **fields):
        given = {
            "member_epoch": 0,
            "instance_id": self.instance,
            "rebalance_timeout_ms": 20_000,
            "subscribed_topic_names": None if self.topics is None else list(self.topics),
            "topic_partitions": [],
        }
        return self.say(version, **{**given, **self.options, **fields})

    def beat(self, **fields):
        """A heartbeat that says what it owns now."""
        return self.say(topic_partitions=owning(self.owned), instance_id=self.instance, **fields)

    def leave(self, epoch=-1):
        return self.say(member_epoch=epoch, instance_id=self.instance)

    @property
    def partitions(self):
        """All partitions, whatever their topics."""
        return sorted(itertools.chain.from_iterable(self.owned.values()))

    def described(self):
        (group,) = self.line.ask(ConsumerGroupDescribeRequest(group_ids=[self.group]), 1).groups
        return group


def owning(owned):
    return [OwnedTopicPartitions(topic_id=topic, partitions=partitions) for topic, partitions in owned.items()]


def settle(*members):
    """Heartbeats until nobody is told anything new."""
    for _ in range(20):
        before = [(member.epoch, member.owned) for member in members]
        for member in members:
            assert member.beat() is OK, member.answer
        if before == [(member.epoch, member.owned) for member in members] and len({m.epoch for m in members}) == 1:
            return
    raise AssertionError(before)


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


def fetch_as(line, group, member_id, epoch):
    topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
    asked = OffsetFetchRequestGroup(group_id=group, member_id=member_id, member_epoch=epoch, topics=topics)
    (answer,) = line.ask(OffsetFetchRequest(groups=[asked]), 9).groups
    return ErrorCode(answer.error_code) or answer.topics[0].partitions[0].committed_offset


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


# Lists, and the classic protocol


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


def classic(member, instance=None):
    return Member(member.bootstrap, member.group, instance, protocols={"range": subscription("t")})


def told(member):
    """What a classic member of a consumer group is told to own."""
    assert member.sync() is OK
    assignment = decode_versioned(ConsumerProtocolAssignment, member.answer.assignment)
    return sorted(partition for topic in assignment.assigned_partitions for partition in topic.partitions)


def test_a_classic_member_works_in_a_consumer_group(someone):
    one = someone("A")
    one.join()
    old = classic(one)
    assert old.join() is ErrorCode.MEMBER_ID_REQUIRED
    assert old.join() is OK
    assert (old.answer.leader, old.answer.members, old.answer.protocol_name) == ("", [], "range")
    assert old.generation == 3
    assert told(old) == []
    assert old.beat() is OK, "what it is to have is another's"
    assert one.beat() is OK
    assert one.beat() is OK
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS, "now it is free"
    assert old.join() is OK
    assert sorted(told(old) + one.partitions) == [0, 1, 2, 3]
    types = {member.member_id: member.member_type for member in one.described().members}
    assert types == {"A": 1, old.id: 0}
    assert commit(old.line, old.group, {("t", 0): 1}, generation=2, member_id=old.id) is ErrorCode.ILLEGAL_GENERATION
    assert old.beat(generation_id=2) is ErrorCode.ILLEGAL_GENERATION
    assert old.beat(member_id="A") is ErrorCode.UNKNOWN_MEMBER_ID, "that one speaks another protocol"
    assert old.leave() is OK
    settle(one)
    assert one.partitions == [0, 1, 2, 3]
    old.close()


def test_a_classic_group_is_upgraded_and_downgraded_while_its_member_stays(someone):
    one = someone("A")
    old = classic(one)
    old.come_in()
    assert old.joined() is OK
    everything = subscription_assignment()
    assert old.sync({old.id: everything}) is OK
    assert one.say(member_epoch=1) is ErrorCode.GROUP_ID_NOT_FOUND
    assert one.answer.error_message == f"Group {one.group} is not a consumer group."
    assert one.join() is OK
    assert one.epoch == old.generation + 1 == 2
    assert one.partitions == []
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert old.join() is OK
    kept = told(old)
    assert len(kept) == 2
    settle_with(one, old)
    assert sorted(one.partitions + told(old)) == [0, 1, 2, 3]
    assert one.leave() is OK
    told_to_rejoin(old)
    assert old.join() is OK
    assert old.leads, "it is a classic group again"
    assert describe(old.line, old.group).group_state == "CompletingRebalance"
    old.close()


def test_a_static_member_takes_its_place_in_the_other_protocol(someone):
    one = someone("A", instance="i")
    one.join()
    old = classic(one, instance="i")
    assert old.join() is OK, "the only member of the consumer protocol is replaced: a classic group"
    assert (old.generation, old.answer.leader, old.answer.protocol_name) == (2, "", "range")
    assert told(old) == [0, 1, 2, 3]
    assert old.beat() is OK, "and no rebalance"
    assert describe(old.line, old.group).group_state == "Stable"
    assert one.beat() is ErrorCode.GROUP_ID_NOT_FOUND
    assert one.join() is OK, "and back"
    assert one.partitions == [0, 1, 2, 3]
    assert old.beat() is ErrorCode.FENCED_INSTANCE_ID
    old.close()


def test_classic_members_are_called_when_the_new_assignment_is_there(someone):
    one = someone("A")
    one.join()
    old = classic(one)
    old.join()
    assert old.join() is OK
    assert told(old) == []
    two = someone("B", topics=("u",))
    assert two.join() is OK
    assert old.beat() is ErrorCode.REBALANCE_IN_PROGRESS
    assert old.join() is OK
    assert old.generation == two.epoch
    old.close()


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
    client.incremental_alter_configs([wanted])[wanted].result(20)
    while one.answer.heartbeat_interval_ms != 700:
        assert one.beat() is OK


def subscription_assignment():
    from millstream.wire.messages.consumer_protocol import TopicPartition
    from millstream.wire.stored import encode_versioned

    everything = [TopicPartition(topic="t", partitions=[0, 1, 2, 3])]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=everything), 0)


def settle_with(one, old):
    """Until neither is told to do anything more."""
    for _ in range(20):
        assert one.beat() is OK
        if old.beat() is OK:
            if len(one.partitions) == 2:
                return
        else:
            assert old.join() is OK
            told(old)
    raise AssertionError("it does not settle")


def test_an_empty_group_takes_the_kind_of_whoever_joins(someone):
    one = someone("A")
    one.join()
    commit(one.line, one.group, {("t", 0): 3}, generation=2, member_id="A")
    one.leave()
    old = classic(one)
    old.come_in()
    assert old.joined() is OK
    assert (old.leads, old.generation) == (True, 1)
    assert old.leave() is OK
    assert one.join() is OK
    assert one.epoch == 2
    assert fetch_as(one.line, one.group, None, -1) == 3, "offsets stay"
    old.close()
