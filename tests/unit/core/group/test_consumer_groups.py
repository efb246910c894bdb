"""Consumer groups (KIP-848) step by step: what is written, what is told when a write fails, and what time does."""

import pytest
from group_driver import Driver

from group_bench import Topics
from millstream.core.group.outputs import (
    ConsumerHeartbeat,
    ConsumerSettings,
    DeadlinePassed,
    DescribeConsumer,
    Expire,
    ExpressionsResolved,
    Join,
    Persisted,
)
from millstream.core.group.regex import LENGTH_MAX, check_expression, matcher, weight
from millstream.core.group.state import GroupState
from millstream.core.group.topics import metadata_hash
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from millstream.wire.messages.consumer_group_storage import (
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMetadataKey,
    ConsumerGroupRegularExpressionKey,
)
from millstream.wire.messages.consumer_protocol import ConsumerProtocolSubscription
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.stored import encode_versioned

T = b"t" * 16
SESSION_MS = 45_000


def one_topic():
    """``t``, with four partitions."""
    topics = Topics()
    topics.put("t", 4, T)
    return topics


class ConsumerDriver(Driver):
    """A driver with topics, and members of the consumer protocol."""

    def __init__(self, topics=None, **settings):
        self.topics = topics or one_topic()
        super().__init__(self.topics, consumer=ConsumerSettings(**{"assignment_interval_ms": 0, **settings}))
        self.resolve = []

    def take(self, out):
        self.resolve += out.resolve
        super().take(out)

    def beat(self, member, epoch, *, owned=None, **fields):
        token = next(self._tokens)
        partitions = None if owned is None else [OwnedTopicPartitions(topic_id=T, partitions=list(owned))]
        request = ConsumerGroupHeartbeatRequest(
            **{
                "group_id": "g",
                "member_id": member,
                "member_epoch": epoch,
                "topic_partitions": partitions,
                **fields,
            }
        )
        self.step(ConsumerHeartbeat(token, request, 1, "c", "/h", "made-up"))
        return token

    def joins(self, member, **fields):
        given = {"rebalance_timeout_ms": 9_000, "subscribed_topic_names": ["t"], "topic_partitions": [], **fields}
        return self.beat(member, 0, **given)

    def joins_classic(self, member, assignors=("range",)):
        """A member of the classic protocol."""
        token = next(self._tokens)
        metadata = encode_versioned(ConsumerProtocolSubscription(topics=["t"]), 1)
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=9_000,
            member_id=member,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name in assignors],
        )
        self.step(Join(token, request, 9, "c", "/h", "made-up"))
        return token

    def told(self, token):
        """(error, epoch, partitions or None)"""
        answer = self.answers[token]
        partitions = None
        if answer.assignment is not None:
            partitions = [p for topic in answer.assignment.topic_partitions for p in topic.partitions]
        return ErrorCode(answer.error_code), answer.member_epoch, partitions

    @property
    def group(self):
        return self.coordinator.groups["g"].consumer

    @property
    def state(self):
        return self.coordinator.groups["g"].state


def shared():
    """Two members, each with two partitions, both at epoch 3."""
    driver = ConsumerDriver()
    driver.joins("a")
    driver.joins("b")
    driver.beat("a", 2, owned=[0, 1, 2, 3])
    kept = list(driver.group.members["a"].assigned[T])
    driver.beat("a", 2, owned=kept)
    driver.beat("b", 3, owned=[])
    assert driver.state is GroupState.STABLE
    return driver, kept


# Durability


def test_nothing_is_told_before_it_is_durable():
    driver = ConsumerDriver()
    driver.hold_log = True
    token = driver.joins("a")
    assert token not in driver.answers
    assert "g" not in driver.coordinator.groups
    driver.persist()
    assert driver.told(token) == (ErrorCode.NONE, 2, [0, 1, 2, 3])


def test_requests_wait_for_the_change_under_way_and_see_what_it_made():
    driver = ConsumerDriver()
    driver.hold_log = True
    first, second = driver.joins("a"), driver.joins("b")
    assert len(driver.held) == 1, "one change at a time"
    driver.persist(writes=1)
    assert driver.told(first)[1:] == (2, [0, 1, 2, 3])
    driver.persist()
    assert driver.told(second)[1:] == (3, [])


def test_a_change_that_could_not_be_written_has_not_happened():
    driver = ConsumerDriver()
    driver.joins("a")
    before = driver.group.members, driver.group.epoch
    driver.hold_log = True
    token = driver.joins("b")
    driver.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert driver.told(token)[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert (driver.group.members, driver.group.epoch) == before
    assert driver.state is GroupState.STABLE
    token = driver.joins("b")
    driver.persist()
    assert driver.told(token)[1] == 3


def test_topics_that_changed_are_looked_at_again_after_a_failed_write():
    driver = ConsumerDriver()
    driver.joins("a")
    driver.topics.put("t", 6)
    driver.hold_log = True
    driver.beat("a", 2)
    driver.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    token = driver.beat("a", 2)
    driver.persist()
    assert driver.told(token)[1:] == (3, [0, 1, 2, 3, 4, 5])


def test_a_group_that_was_never_written_leaves_no_trace():
    driver = ConsumerDriver()
    driver.hold_log = True
    driver.joins("a")
    driver.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert not driver.coordinator.groups
    assert driver.coordinator.counts.members == 0


def test_a_coordinator_that_stops_hands_back_all_who_wait():
    driver = ConsumerDriver()
    driver.hold_log = True
    tokens = [driver.joins("a"), driver.joins("b"), driver.beat("a", 2)]
    assert driver.coordinator.unload() == tokens


def test_unloading_while_the_end_of_a_member_is_written_gives_back_nobody():
    driver = ConsumerDriver()
    driver.joins("m")
    driver.hold_log = True
    driver.advance(SESSION_MS)
    assert driver.held
    assert driver.coordinator.unload() == []


@pytest.mark.parametrize("write", ["all", "last of each key"])
def test_the_successor_knows_the_group_and_moves_nothing(write):
    driver, kept = shared()
    if write != "all":
        driver.log = list(dict(driver.log).items())
    fresh = driver.restart()
    assert fresh.group.members == driver.group.members
    assert fresh.group.targets == driver.group.targets
    assert fresh.state is GroupState.STABLE
    assert fresh.told(fresh.beat("a", 3, owned=kept)) == (ErrorCode.NONE, 3, None)
    assert fresh.log == driver.log, "a heartbeat that says nothing new writes nothing"


def test_a_quiet_heartbeat_writes_nothing():
    driver, _ = shared()
    size = len(driver.log)
    assert driver.told(driver.beat("a", 3)) == (ErrorCode.NONE, 3, None)
    assert len(driver.log) == size


# Time


def test_a_silent_member_goes_and_its_partitions_are_free():
    driver, kept = shared()
    driver.advance(SESSION_MS - 1)
    driver.beat("a", 3)
    driver.advance(2)
    assert list(driver.group.members) == ["a"]
    assert driver.told(driver.beat("b", 3))[0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.told(driver.beat("a", 3, owned=kept))[1:] == (4, [0, 1, 2, 3])
    assert any("silent" in line for line in driver.lines)


def test_a_member_that_does_not_give_back_in_time_goes():
    driver = ConsumerDriver()
    driver.joins("a")
    driver.joins("b")
    driver.beat("a", 2)
    driver.advance(8_999)
    driver.beat("a", 2, owned=[0, 1, 2, 3])
    assert "a" in driver.group.members
    driver.advance(2)
    assert list(driver.group.members) == ["b"]


def test_a_member_whose_removal_could_not_be_written_is_removed_later():
    driver, _ = shared()
    driver.hold_log = True
    driver.advance(SESSION_MS + 1)
    driver.persist(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert len(driver.group.members) == 2
    driver.hold_log = False
    driver.persist()
    driver.advance(20_000)
    assert not driver.group.members


def test_a_heartbeat_that_waited_for_a_write_saves_its_member():
    driver, _ = shared()
    driver.hold_log = True
    driver.advance(SESSION_MS - 10)
    driver.joins("c")
    alive = driver.beat("a", 3)
    driver.ms += 20
    driver.step(DeadlinePassed())
    driver.hold_log = False
    driver.persist()
    assert driver.told(alive)[0] is ErrorCode.NONE
    assert "a" in driver.group.members
    assert "b" not in driver.group.members


def test_members_that_arrive_together_share_one_computation():
    driver = ConsumerDriver(assignment_interval_ms=1_000)
    driver.joins("a")
    for name in "bcd":
        assert driver.told(driver.joins(name)) == (ErrorCode.NONE, 2, [])
    assert (driver.group.epoch, driver.group.assignment_epoch) == (5, 2)
    assert driver.state is GroupState.ASSIGNING
    driver.advance(1_000)
    driver.beat("d", 2)
    assert driver.group.assignment_epoch == 5
    assert sorted(sum(map(len, target.values())) for target in driver.group.targets.values()) == [1, 1, 1, 1]


def test_offsets_of_a_consumer_group_expire_and_the_empty_group_with_them():
    driver = ConsumerDriver()
    driver.joins("a")
    driver.commit({("t", 0): 5}, "a", 2)
    driver.beat("a", -1)
    retention = driver.settings.offsets_retention_ms
    driver.ms += retention + 1
    driver.step(Expire(("g",)))
    assert not driver.coordinator.groups
    assert not driver.restart().coordinator.groups


# Regular expressions


def test_an_expression_is_looked_up_once_for_all_who_use_it_and_forgotten_with_the_last():
    driver = ConsumerDriver()
    regex = {"subscribed_topic_names": [], "subscribed_topic_regex": "t|u"}
    driver.joins("a", **regex)
    driver.joins("b", **regex)
    (wanted,) = driver.resolve
    assert wanted.expressions == ("t|u",)
    driver.step(ExpressionsResolved("g", {"t|u": frozenset({"t"})}, driver.topics.revision))
    token = driver.beat("a", 1)
    assert driver.told(token)[1:] == (2, driver.told(token)[2])
    assert driver.group.subscriptions.topics() == {"t"}
    driver.topics.put("u", 1)
    driver.advance(10_001)
    driver.beat("b", 1)
    assert len(driver.resolve) == 2, "a topic was created"
    driver.step(ExpressionsResolved("g", {"t|u": frozenset("tu")}, driver.topics.revision))
    assert driver.group.epoch == 3
    driver.beat("a", -1)
    driver.beat("b", -1)
    assert (ConsumerGroupRegularExpressionKey("g", "t|u"), None) in driver.log
    assert not driver.group.subscriptions.expressions


def test_what_comes_for_a_group_that_is_gone_is_dropped():
    driver = ConsumerDriver()
    driver.step(ExpressionsResolved("gone", {"t": frozenset("t")}, 1))
    assert not driver.log


def test_expressions_are_checked_and_bounded():
    check_expression("a{2,3}|(?i)b|[[:alpha:]]*|\\pL+")
    with pytest.raises(Rejected, match="missing closing"):
        check_expression("a(")
    with pytest.raises(Rejected, match="too long"):
        check_expression("a" * (LENGTH_MAX + 1))
    with pytest.raises(Rejected):
        check_expression("((a{100}){100}){100}")
    assert matcher("a.c")("abc")
    assert not matcher("a.c")("abcd"), "the whole name"
    assert not matcher("a(")("a("), "what is none matches nothing"
    assert weight("orders-.*") < 100 < weight("(a?b?){100}")
    assert weight("a(") == 1


def test_what_is_given_back_in_the_last_moment_counts_though_the_deadline_comes_while_it_is_written():
    driver = ConsumerDriver()
    driver.joins("a")
    driver.joins("b")
    assert driver.told(driver.beat("a", 2, owned=[0, 1, 2, 3])) == (ErrorCode.NONE, 2, [0, 1])
    driver.advance(8_999)
    driver.hold_log = True
    given_back = driver.beat("a", 2, owned=[0, 1])
    driver.advance(2)
    driver.hold_log = False
    driver.persist()
    assert driver.told(given_back)[:2] == (ErrorCode.NONE, 3)
    assert set(driver.group.members) == {"a", "b"}


@pytest.mark.parametrize("restart", [False, True])
def test_a_static_member_that_is_away_has_its_session_timeout_to_come_back(restart):
    driver = ConsumerDriver()
    driver.joins("a", instance_id="i")
    driver.joins("b")
    assert driver.told(driver.beat("a", 2, owned=[0, 1, 2, 3], instance_id="i")) == (ErrorCode.NONE, 2, [0, 1])
    driver.beat("a", -2, instance_id="i")
    if restart:
        driver = driver.restart()
    driver.advance(9_001)
    assert set(driver.group.members) == {"a", "b"}
    assert driver.told(driver.joins("a again", instance_id="i"))[0] is ErrorCode.NONE


def test_a_member_that_joins_again_under_another_instance_id_leaves_the_first_one_free():
    driver = ConsumerDriver()
    driver.joins("a", instance_id="i")
    driver.joins("a", instance_id="k")
    assert driver.group.statics == {"k": "a"}
    driver.beat("a", -1, instance_id="k")
    assert driver.told(driver.joins("b", instance_id="i"))[0] is ErrorCode.NONE


def test_a_group_that_somebody_joins_while_it_is_deleted_assigns_after_a_restart():
    driver = ConsumerDriver()
    driver.joins("a")
    driver.beat("a", -1)
    driver.joins("a")
    driver.beat("a", -1)
    driver.hold_log = True
    driver.delete_async()
    driver.joins("b", subscribed_topic_names=[])
    driver.hold_log = False
    driver.persist()
    again = driver.restart()
    assert again.told(again.joins("c"))[2] == [0, 1, 2, 3]


def test_a_member_that_an_administrator_removes_is_named_as_the_request_names_it():
    driver = ConsumerDriver()
    driver.joins("a", instance_id="i")
    driver.joins("b")
    answer = driver.answers[driver.leave_async(("", "i"), "b", ("", "strange"))]
    said = [(one.member_id, one.group_instance_id, ErrorCode(one.error_code).name) for one in answer.members]
    assert said == [("", "i", "NONE"), ("b", None, "NONE"), ("", "strange", "UNKNOWN_MEMBER_ID")]
    assert not driver.group.members


# The classic protocol


def test_a_classic_member_that_names_an_assignor_twice_counts_once():
    driver = ConsumerDriver()
    driver.joins("a")
    driver.joins_classic("b", ["range", "range"])
    assert driver.error(driver.joins_classic("c", ["range"])) is ErrorCode.NONE
    driver.beat("a", -1)
    assert driver.state is GroupState.PREPARING_REBALANCE, "it is a classic group again"
    assert set(driver.coordinator.groups["g"].members) == {"b", "c"}


def test_no_classic_member_joins_a_consumer_group_if_groups_may_not_migrate():
    driver = ConsumerDriver(migration_policy="disabled")
    driver.joins("a")
    for member in ("", "b"):
        answer = driver.answers[driver.joins_classic(member)]
        assert (ErrorCode(answer.error_code), answer.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")
    assert set(driver.group.members) == {"a"}


def test_a_classic_member_that_is_refused_is_told_no_member_id():
    driver = ConsumerDriver()
    driver.joins("a")
    driver.joins_classic("b", ["range"])
    answer = driver.answers[driver.joins_classic("c", ["made-up"])]
    assert (ErrorCode(answer.error_code), answer.member_id) == (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, "")


# What is shown


def test_a_consumer_group_is_described_with_names_of_topics_that_exist():
    driver, _ = shared()
    driver.step(DescribeConsumer(1_000, "g"))
    group = driver.answers[1_000]
    assert (group.group_state, group.group_epoch, group.assignor_name) == ("Stable", 3, "uniform")
    assert {t.topic_name for m in group.members for t in m.assignment.topic_partitions} == {"t"}
    del driver.topics.topics["t"]
    driver.step(DescribeConsumer(1_001, "g"))
    assert [m.assignment.topic_partitions for m in driver.answers[1_001].members] == [[], []]


def test_groups_and_members_of_both_kinds_are_counted():
    driver, _ = shared()
    counts = driver.coordinator.counts
    assert (counts.members, counts.states[GroupState.STABLE]) == (2, 1)
    driver.beat("a", -1)
    assert (counts.members, counts.states[GroupState.ASSIGNING]) == (1, 1)
    driver.beat("b", -1)
    assert (counts.members, counts.states[GroupState.EMPTY]) == (0, 1)


def test_the_hash_of_topics_tells_what_matters_apart():
    topics = one_topic()
    whole = metadata_hash(["t"], topics.by_name)
    assert whole == metadata_hash(["t", "nowhere"], topics.by_name)
    topics.put("t", 5)
    assert metadata_hash(["t"], topics.by_name) != whole
    topics.put("t", 4, b"n" * 16)
    assert metadata_hash(["t"], topics.by_name) != whole
    assert metadata_hash(["nowhere"], topics.by_name) == 0


def test_records_of_one_change_are_one_write():
    driver = ConsumerDriver()
    driver.hold_log = True
    driver.joins("a")
    (write,) = driver.held
    kinds = [type(key) for key, _ in write.records]
    assert kinds[:2] == [ConsumerGroupMemberMetadataKey, ConsumerGroupMetadataKey]
    assert len(kinds) == 5
    driver.step(Persisted(write.receipt))
    driver.held.clear()
