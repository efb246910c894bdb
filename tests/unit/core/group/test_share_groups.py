"""Share groups (KIP-932) step by step: what is written and asked, what is told when either fails, what time does."""

import pytest
from group_driver import Driver

from group_bench import Topics
from millstream.core.group.assign.simple import assign_simple
from millstream.core.group.assign.spec import Subscriber
from millstream.core.group.describe import describe_group, list_groups
from millstream.core.group.outputs import (
    AlterShareOffsets,
    ConsumerHeartbeat,
    DeleteShareOffsets,
    DescribeShare,
    ShareHeartbeat,
    ShareSettings,
    ShareStatesOf,
    StateAnswered,
)
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_share_group_offsets import DeleteShareGroupOffsetsRequest, DeleteShareOffsetsTopic
from millstream.wire.messages.delete_share_group_state import (
    DeleteShareGroupStateRequest,
    DeleteShareGroupStateResponse,
)
from millstream.wire.messages.initialize_share_group_state import (
    InitializeShareGroupStateRequest,
    InitializeShareGroupStateResponse,
)
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.share_group_storage import (
    ShareGroupMetadataKey,
    ShareGroupStatePartitionMetadataKey,
)
from millstream.wire.messages.share_state_results import StatePartitionResult, StateTopicResult

T, U = b"t" * 16, b"u" * 16
SESSION_MS = 45_000


def one_topic(partitions=2):
    """``t``."""
    topics = Topics()
    topics.put("t", partitions, T)
    return topics


class ShareDriver(Driver):
    """A driver with topics, and a share coordinator that answers at once or when told."""

    def __init__(self, topics=None, **settings):
        self.topics = topics or one_topic()
        super().__init__(self.topics, share=ShareSettings(**{"assignment_interval_ms": 0, **settings}))
        self.asked = []
        self.requests = []
        self.hold_asks = False
        self.state_error = ErrorCode.NONE
        self.failing = None

    def take(self, out):
        self.asked += out.asks
        self.requests += [ask.request for ask in out.asks]
        super().take(out)
        if not self.hold_asks:
            self.reply()

    def reply(self, error=None):
        while self.asked:
            ask = self.asked.pop(0)
            kind = (
                InitializeShareGroupStateResponse
                if isinstance(ask.request, InitializeShareGroupStateRequest)
                else DeleteShareGroupStateResponse
            )
            results = [
                StateTopicResult(
                    topic.topic_id,
                    [
                        StatePartitionResult(
                            one.partition,
                            (error or self.state_error) if self.failing in (None, one.partition) else ErrorCode.NONE,
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in ask.request.topics
            ]
            self.step(StateAnswered(ask, kind(results)))

    def beat(self, member, epoch, group="g", **fields):
        token = next(self._tokens)
        request = ShareGroupHeartbeatRequest(group_id=group, member_id=member, member_epoch=epoch, **fields)
        self.step(ShareHeartbeat(token, request, "c", "/h"))
        return token

    def joins(self, member, names=("t",)):
        return self.beat(member, 0, subscribed_topic_names=list(names))

    def told(self, token):
        """(error, epoch, partitions or None)"""
        answer = self.answers[token]
        partitions = None
        if answer.assignment is not None:
            partitions = {topic.topic_id: topic.partitions for topic in answer.assignment.topic_partitions}
        return ErrorCode(answer.error_code), answer.member_epoch, partitions

    def alter(self, *starts, group="g"):
        token = next(self._tokens)
        topics = [AlterShareOffsetsTopic(name, [AlterShareOffsetsPartition(*one)]) for name, *one in starts]
        self.step(AlterShareOffsets(token, AlterShareGroupOffsetsRequest(group, topics)))
        return token

    def forget(self, *names, group="g"):
        token = next(self._tokens)
        topics = [DeleteShareOffsetsTopic(name) for name in names]
        self.step(DeleteShareOffsets(token, DeleteShareGroupOffsetsRequest(group, topics)))
        return token

    def states(self, group="g"):
        token = next(self._tokens)
        self.step(ShareStatesOf(token, group))
        return {
            topic.topic_name: [one.partition_index for one in topic.partitions] for topic in self.answers[token].topics
        }

    @property
    def share(self):
        return self.coordinator.groups["g"].share


def test_a_member_that_joins_has_all_partitions_at_once() -> None:
    driver = ShareDriver()
    assert driver.told(driver.joins("a")) == (ErrorCode.NONE, 3, {T: [0, 1]})
    (request,) = driver.requests
    assert isinstance(request, InitializeShareGroupStateRequest)
    assert [(one.partition, one.state_epoch, one.start_offset) for one in request.topics[0].partitions] == [
        (0, 2, -1),
        (1, 2, -1),
    ]
    assert driver.told(driver.beat("a", 3)) == (ErrorCode.NONE, 3, None)
    assert driver.state() == "Stable"


def test_a_quiet_heartbeat_writes_and_asks_nothing() -> None:
    driver = ShareDriver()
    driver.joins("a")
    written, asked = len(driver.log), len(driver.requests)
    driver.beat("a", 3)
    assert (len(driver.log), len(driver.requests)) == (written, asked)


def test_a_state_that_takes_long_is_not_waited_for() -> None:
    driver = ShareDriver()
    driver.hold_asks = True
    token = driver.joins("a")
    assert driver.waits(token)
    driver.advance(500)
    assert driver.told(token) == (ErrorCode.NONE, 2, {})
    driver.reply()
    assert driver.told(driver.beat("a", 2)) == (ErrorCode.NONE, 3, {T: [0, 1]})


def test_other_members_do_not_wait_for_the_state() -> None:
    driver = ShareDriver()
    driver.hold_asks = True
    first, second = driver.joins("a"), driver.joins("b")
    assert driver.waits(first)
    assert driver.told(second)[0] is ErrorCode.NONE
    driver.reply()
    assert driver.told(first) == (ErrorCode.NONE, 4, {T: [0]})
    assert driver.told(driver.beat("b", 3)) == (ErrorCode.NONE, 4, {T: [1]})


def test_a_failed_state_is_asked_for_again_and_never_assigned() -> None:
    driver = ShareDriver()
    driver.state_error, driver.failing = ErrorCode.COORDINATOR_NOT_AVAILABLE, 1
    assert driver.told(driver.joins("a")) == (ErrorCode.NONE, 3, {T: [0]})
    assert any("could not be initialized" in line for line in driver.lines)
    driver.state_error = ErrorCode.NONE
    assert driver.told(driver.beat("a", 3)) == (ErrorCode.NONE, 3, None)
    assert len(driver.requests) == 1, "a share coordinator that is away is not asked by every heartbeat"
    driver.advance(1_000)
    assert driver.told(driver.beat("a", 3)) == (ErrorCode.NONE, 4, {T: [0, 1]})
    assert [one.partition for one in driver.requests[-1].topics[0].partitions] == [1]


def test_a_state_is_asked_for_once_at_a_time_and_again_by_a_successor() -> None:
    driver = ShareDriver()
    driver.hold_asks = True
    driver.joins("a")
    driver.topics.put("t", 3)
    driver.beat("a", 2)
    driver.beat("a", 2)
    asked = [[one.partition for one in request.topics[0].partitions] for request in driver.requests]
    assert asked == [[0, 1], [2]]
    other = driver.restart()
    assert other.told(other.beat("a", 3)) == (ErrorCode.NONE, 4, {T: [0, 1, 2]})


def test_new_partitions_are_initialized_and_shared() -> None:
    driver = ShareDriver()
    driver.joins("a")
    driver.topics.put("t", 3)
    written = len(driver.log)
    assert driver.told(driver.beat("a", 3)) == (ErrorCode.NONE, 4, {T: [0, 1, 2]}), "one epoch for the new partition"
    assert [key.API_KEY for key, _ in driver.log[written:]] == [11, 15, 15, 13, 12, 14]
    assert driver.states() == {"t": [0, 1, 2]}


def test_members_share_partitions_when_there_are_more_of_them() -> None:
    driver = ShareDriver(one_topic(1))
    driver.joins("a")
    assert driver.told(driver.joins("b")) == (ErrorCode.NONE, 4, {T: [0]})
    assert driver.told(driver.beat("a", 3)) == (ErrorCode.NONE, 4, None)


def test_epochs_fence_members() -> None:
    driver = ShareDriver()
    driver.joins("a")
    driver.topics.put("t", 3)
    driver.beat("a", 3)
    assert driver.told(driver.beat("a", 2))[0] is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.told(driver.beat("a", 5))[0] is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.told(driver.beat("a", 3))[:2] == (ErrorCode.NONE, 4)  # the last response was lost
    assert driver.told(driver.beat("a", 0, subscribed_topic_names=["t"])) == (ErrorCode.NONE, 4, {T: [0, 1, 2]})
    assert driver.told(driver.beat("b", 1))[0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.told(driver.beat("b", -1))[0] is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.told(driver.beat("b", 1, group="x"))[0] is ErrorCode.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"member_id": ""}, None),
        ({"member_id": "m" * 37}, None),
        ({"group_id": ""}, "GroupId can't be empty."),
        ({"rack_id": ""}, "RackId can't be empty."),
        ({"subscribed_topic_names": []}, "SubscribedTopicNames must be set in first request."),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames must be set in first request."),
        ({"member_epoch": -2}, "MemberEpoch is invalid."),
    ],
)
def test_bad_requests_are_refused_in_kafkas_words(fields: dict, words: str | None) -> None:
    driver = ShareDriver()
    given = {"group_id": "g", "member_id": "a", "member_epoch": 0, "subscribed_topic_names": ["t"], **fields}
    driver.step(ShareHeartbeat("x", ShareGroupHeartbeatRequest(**given), "c", "/h"))
    answer = driver.answers["x"]
    assert (answer.error_code, answer.error_message) == (ErrorCode.INVALID_REQUEST, words)
    assert not driver.log


def test_a_full_group_refuses_new_members_only() -> None:
    driver = ShareDriver(max_size=1)
    driver.joins("a")
    assert driver.told(driver.joins("b"))[0] is ErrorCode.GROUP_MAX_SIZE_REACHED
    assert driver.told(driver.joins("a"))[0] is ErrorCode.NONE


def test_members_leave_and_are_removed_when_silent() -> None:
    driver = ShareDriver()
    driver.joins("a")
    driver.joins("b")
    assert driver.told(driver.beat("b", -1)) == (ErrorCode.NONE, -1, None)
    assert driver.told(driver.beat("a", 3)) == (ErrorCode.NONE, 5, None)
    driver.advance(SESSION_MS)
    assert (driver.state(), driver.share.members) == ("Empty", {})
    driver.advance(10**9)
    driver.expire()
    assert driver.state() == "Empty", "a share group does not expire"


def test_a_change_that_cannot_be_written_is_taken_back() -> None:
    driver = ShareDriver()
    driver.hold_log = True
    token = driver.joins("a")
    driver.persist(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driver.told(token)[0] is ErrorCode.NOT_ENOUGH_REPLICAS
    assert driver.state() == "Dead"
    assert not driver.requests
    driver.hold_log = False
    assert driver.told(driver.joins("a")) == (ErrorCode.NONE, 3, {T: [0, 1]})


def test_a_successor_knows_everything() -> None:
    driver = ShareDriver()
    driver.joins("a")
    driver.joins("b")
    other = driver.restart()
    assert (other.share.members, other.share.targets, other.share.states) == (
        driver.share.members,
        driver.share.targets,
        driver.share.states,
    )
    assert other.told(other.beat("b", 4)) == (ErrorCode.NONE, 4, None)
    other.advance(SESSION_MS)
    assert other.state() == "Empty"


def test_a_group_goes_after_its_state() -> None:
    driver = ShareDriver()
    driver.joins("a")
    assert driver.delete() is ErrorCode.NON_EMPTY_GROUP
    driver.beat("a", -1)
    driver.state_error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.delete() is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.state() == "Empty"
    assert driver.states() == {}
    driver = driver.restart()
    assert driver.delete() is ErrorCode.NONE
    assert [one.partition for one in driver.requests[-1].topics[0].partitions] == [0, 1]
    assert isinstance(driver.requests[-1], DeleteShareGroupStateRequest)
    assert driver.state() == "Dead"
    assert driver.restart().state() == "Dead"


def test_who_joins_during_a_deletion_finds_a_new_group() -> None:
    driver = ShareDriver()
    driver.joins("a")
    driver.beat("a", -1)
    driver.hold_asks = True
    deletion = driver.delete_async()
    token = driver.joins("b")
    assert driver.waits(token)
    driver.hold_asks = False
    driver.reply()
    assert driver.error(deletion) is ErrorCode.NONE
    assert driver.told(token) == (ErrorCode.NONE, 3, {T: [0, 1]})
    assert driver.restart().share.members.keys() == {"b"}


def test_a_deletion_waits_for_no_state_that_is_being_made() -> None:
    driver = ShareDriver()
    driver.hold_asks = True
    driver.joins("a")
    driver.beat("a", -1)
    assert driver.delete() is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.error(driver.alter(("t", 0, 5))) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_unloading_gives_back_every_request() -> None:
    driver = ShareDriver()
    driver.joins("a")
    driver.beat("a", -1)
    driver.hold_asks = True
    deletion, join = driver.delete_async(), driver.joins("b")
    assert sorted(driver.coordinator.unload()) == [deletion, join]
    driver = ShareDriver()
    driver.hold_asks = True
    join = driver.joins("a")
    assert driver.coordinator.unload() == [join]


def test_offsets_are_altered_of_a_group_without_members() -> None:
    driver = ShareDriver()
    token = driver.alter(("t", 0, 7), ("t", 2, 7), ("v", 0, 7), ("t", 1, -2))
    codes = [[one.error_code for one in topic.partitions] for topic in driver.answers[token].responses]
    assert codes == [
        [ErrorCode.NONE],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        [ErrorCode.INVALID_REQUEST],
    ]
    (one,) = driver.requests[0].topics[0].partitions
    assert (one.partition, one.state_epoch, one.start_offset) == (0, 2, 7)
    assert (driver.state(), driver.states()) == ("Empty", {"t": [0]})
    driver.joins("a")
    assert [one.partition for one in driver.requests[1].topics[0].partitions] == [1], "what was set stays"
    assert driver.error(driver.alter(("t", 0, 9))) is ErrorCode.NON_EMPTY_GROUP


def test_an_alteration_tells_what_failed() -> None:
    driver = ShareDriver()
    driver.state_error = ErrorCode.FENCED_STATE_EPOCH
    token = driver.alter(("t", 0, 7))
    assert driver.answers[token].responses[0].partitions[0].error_code == ErrorCode.FENCED_STATE_EPOCH
    assert driver.states() == {}


def test_each_alteration_fences_the_leaders_of_the_one_before() -> None:
    driver = ShareDriver()
    driver.alter(("t", 0, 7))
    driver.alter(("t", 0, 8))
    epochs = [request.topics[0].partitions[0].state_epoch for request in driver.requests]
    assert epochs == [2, 3]


def test_offsets_of_a_topic_are_deleted() -> None:
    driver = ShareDriver()
    assert driver.error(driver.forget("t")) is ErrorCode.GROUP_ID_NOT_FOUND
    driver.topics.put("u", 1, U)
    driver.joins("a", ("t", "u"))
    assert driver.error(driver.forget("t")) is ErrorCode.NON_EMPTY_GROUP
    driver.beat("a", -1)
    driver.state_error = ErrorCode.NOT_COORDINATOR
    (failed,) = driver.answers[driver.forget("t")].responses
    assert (failed.topic_name, failed.topic_id, failed.error_code) == ("t", T, ErrorCode.NOT_COORDINATOR)
    driver.state_error = ErrorCode.NONE
    done, unknown = driver.answers[driver.forget("t", "v")].responses
    assert (done.topic_name, done.error_code) == ("t", ErrorCode.NONE)
    assert (unknown.topic_name, unknown.error_code) == ("v", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert driver.states() == {"u": [0]}
    again = driver.answers[driver.forget("t")].responses[0]
    assert (again.error_code, again.error_message) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "There is no offset information to delete.",
    )


def test_a_deleted_topic_is_forgotten() -> None:
    driver = ShareDriver()
    driver.joins("a")
    driver.topics.delete("t")
    driver.delete_topic("t", T)
    assert not driver.share.states.initialized
    assert driver.told(driver.beat("a", 3)) == (ErrorCode.NONE, 4, {})
    driver.topics.put("t", 1, U)
    assert driver.told(driver.beat("a", 4)) == (ErrorCode.NONE, 5, {U: [0]})


def test_a_topic_that_is_deleted_while_its_group_is_written_is_forgotten_later() -> None:
    driver = ShareDriver()
    driver.joins("a")
    driver.hold_log = True
    driver.joins("b")
    driver.delete_topic("t", T)
    driver.hold_log = False
    driver.persist()
    assert not driver.share.states.initialized


def test_other_apis_find_no_group_of_theirs() -> None:
    driver = ShareDriver()
    driver.joins("a")
    assert driver.error(driver.join("", version=3)) is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert driver.error(driver.sync("a", 1)) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat("a", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.leave("a") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert driver.commit({("t", 0): 1}) is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.commit({("t", 0): 1}, producer=(1, 0)) is ErrorCode.GROUP_ID_NOT_FOUND
    assert driver.fetch(topics={"t": [0]}) == {("t", 0): -1}
    assert driver.delete_offsets(("t", 0)) is ErrorCode.GROUP_ID_NOT_FOUND
    request = ConsumerGroupHeartbeatRequest(
        "g", "m", 0, rebalance_timeout_ms=1, subscribed_topic_names=["t"], topic_partitions=[]
    )
    driver.step(ConsumerHeartbeat("x", request, 1, "c", "/h", "n"))
    assert driver.answers["x"].error_code == ErrorCode.GROUP_ID_NOT_FOUND
    other = ShareDriver()
    other.commit({("t", 0): 1})
    assert other.told(other.joins("a"))[0] is ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_is_listed_and_described() -> None:
    driver = ShareDriver()
    driver.joins("a")
    (listed,) = list_groups(driver.coordinator.groups.values(), [], ["share"])
    assert (listed.group_id, listed.protocol_type, listed.group_state, listed.group_type) == (
        "g",
        "share",
        "Stable",
        "share",
    )
    assert not list_groups(driver.coordinator.groups.values(), [], ["consumer", "classic"])
    assert describe_group("g", driver.group(), 6).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    driver.step(DescribeShare("x", "g"))
    answer = driver.answers["x"]
    (member,) = answer.members
    assert (answer.group_state, answer.group_epoch, answer.assignment_epoch, answer.assignor_name) == (
        "Stable",
        3,
        3,
        "simple",
    )
    assert (member.member_id, member.member_epoch, member.subscribed_topic_names) == ("a", 3, ["t"])
    (assigned,) = member.assignment.topic_partitions
    assert (assigned.topic_name, assigned.partitions) == ("t", [0, 1])
    driver.step(DescribeShare("y", "x"))
    assert driver.answers["y"].error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_the_records_are_kafkas() -> None:
    driver = ShareDriver()
    driver.joins("a")
    assert [key.API_KEY for key, _ in driver.log] == [10, 11, 13, 12, 14, 15, 15, 11, 13, 12, 14]
    driver.beat("a", -1)
    driver.log.clear()
    driver.delete()
    assert driver.log[0][0] == ShareGroupStatePartitionMetadataKey("g")
    assert [key.API_KEY for key, value in driver.log if value is None] == [12, 15, 11]
    assert driver.log[-1] == (ShareGroupMetadataKey("g"), None)


@pytest.mark.parametrize("members", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("partitions", [1, 2, 3, 7])
def test_the_simple_assignor_shares_evenly_and_keeps_what_it_can(members: int, partitions: int) -> None:
    names = [f"m{i}" for i in range(members)]
    places = {T: frozenset(range(partitions))}
    first = assign_simple({name: Subscriber(frozenset({T})) for name in names}, places)
    sharing = -(-members // partitions)
    for partition in range(partitions):
        assert sum(partition in one.get(T, ()) for one in first.values()) == sharing
    counts = [len(one.get(T, ())) for one in first.values()]
    assert max(counts) - min(counts) <= 1
    kept = assign_simple({name: Subscriber(frozenset({T}), first[name]) for name in names}, places)
    assert kept == first


def test_the_simple_assignor_shares_each_topic_among_its_subscribers() -> None:
    places = {T: frozenset({0, 1}), U: frozenset({0})}
    both, one = frozenset({T, U}), frozenset({T})
    found = assign_simple({"a": Subscriber(both), "b": Subscriber(one), "c": Subscriber(one)}, places)
    assert found["a"][U] == {0}
    assert all(sum(index in have.get(T, ()) for have in found.values()) == 2 for index in (0, 1))
    assert U not in found["b"]
    assert assign_simple({}, {}) == {}
