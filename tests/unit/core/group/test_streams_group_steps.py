"""Streams groups (KIP-1071) step by step: what is refused, what a topology needs, who gets what and when."""

import msgspec
import pytest
from group_driver import Driver

from group_bench import Topics
from millstream.core.group.describe import describe_group, list_groups
from millstream.core.group.outputs import (
    ConsumerHeartbeat,
    DescribeStreams,
    ShareHeartbeat,
    StreamsHeartbeat,
    StreamsSettings,
)
from millstream.core.group.streams.sticky import TaskMember, TaskSpec, assign_tasks
from millstream.core.group.streams_state.configured import Status, configure
from millstream.core.group.streams_state.tasks import NOTHING, TaskSets
from millstream.core.group.streams_state.topology import topology_of
from millstream.model.error_code import ErrorCode
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsCopartitionGroup,
    StreamsGroupHeartbeatRequest,
    StreamsSubtopology,
    StreamsTaskIds,
    StreamsTaskOffset,
    StreamsTopicInfo,
    StreamsTopology,
)

ONE = StreamsTopology(1, [StreamsSubtopology("0", ["t"])])
SESSION_MS, DELAY_MS = 45_000, 3_000


class StreamsDriver(Driver):
    """A driver with topics."""

    def __init__(self, topics=None, **settings):
        self.topics = topics or Topics(t=2)
        super().__init__(self.topics, streams=StreamsSettings(**{"assignment_interval_ms": 0, **settings}))

    def beat(self, member="m", epoch=0, topology=ONE, owned=None, **more):
        joins = epoch == 0
        tasks = [] if joins else owned
        fields = {
            "active_tasks": tasks,
            "standby_tasks": None if tasks is None else [],
            "warmup_tasks": None if tasks is None else [],
            "rebalance_timeout_ms": 20_000 if joins else -1,
            "topology": topology if joins else None,
            "process_id": f"p-{member}" if joins else None,
        }
        token = next(self._tokens)
        request = StreamsGroupHeartbeatRequest("g", member, epoch, **{**fields, **more})
        self.step(StreamsHeartbeat(token, request, "c", "/h"))
        return self.answers[token].response

    def described(self):
        token = next(self._tokens)
        self.step(DescribeStreams(token, "g"))
        return self.answers[token]


def tasks(response):
    return {(one.subtopology_id, index) for one in response.active_tasks or () for index in one.partitions}


def statuses(response):
    return [Status(one.status_code) for one in response.status]


BOTH = [StreamsTaskIds("0", [0, 1])]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"member": ""}, "MemberId can't be empty."),
        ({"rack_id": " "}, "RackId can't be empty."),
        ({"instance_id": "i"}, "Static membership is not yet supported."),
        ({"task_offsets": [StreamsTaskOffset()]}, "TaskOffsets are not supported yet."),
        ({"warmup_tasks": BOTH}, "WarmupTasks are not supported yet."),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs must be provided in first request."),
        ({"active_tasks": BOTH}, "ActiveTasks must be empty when (re-)joining."),
        ({"topology": None}, "Topology must be non-null when (re-)joining."),
        ({"epoch": -2}, "InstanceId can't be null."),
        ({"epoch": -3}, "MemberEpoch is -3, but must be greater than or equal to -2."),
        (
            {"topology": StreamsTopology(1, [StreamsSubtopology("0", source_topic_regex=["t.*"])])},
            "Regular expressions for source topics are not supported yet.",
        ),
    ],
)
def test_requests_are_refused_with_kafkas_words(given, words):
    driver = StreamsDriver()
    response = driver.beat(**given)
    assert (response.error_code, response.error_message) == (ErrorCode.INVALID_REQUEST, words)
    assert not driver.log


def info(name, partitions=0):
    return StreamsTopicInfo(name, partitions)


@pytest.mark.parametrize(
    ("subtopologies", "words"),
    [
        ([StreamsSubtopology("0", ["t"], state_changelog_topics=[info("c", 1)])], "undefined partition count"),
        ([StreamsSubtopology("0", ["t"]), StreamsSubtopology("0", ["u"])], "two subtopologies 0"),
        ([StreamsSubtopology("0")], "No source topics found"),
        ([StreamsSubtopology("0", ["t"], copartition_groups=[StreamsCopartitionGroup([1])])], "names a topic"),
        ([StreamsSubtopology("0", repartition_source_topics=[info("r", -1)])], "-1 partitions"),
        ([StreamsSubtopology("0", repartition_source_topics=[info("r")])], "never used as a sink"),
        (
            [StreamsSubtopology("0", repartition_source_topics=[info("r")], repartition_sink_topics=["r"])],
            "There may be loops",
        ),
    ],
)
def test_topologies_that_fit_no_topics_are_refused(subtopologies, words):
    driver = StreamsDriver()
    response = driver.beat(topology=StreamsTopology(1, subtopologies))
    assert response.error_code == ErrorCode.STREAMS_INVALID_TOPOLOGY
    assert words in response.error_message
    assert not driver.log
    assert driver.group() is None


JOINED = StreamsTopology(
    1,
    [
        StreamsSubtopology("0", ["t"], repartition_sink_topics=["r"]),
        StreamsSubtopology(
            "1",
            ["u"],
            state_changelog_topics=[info("c")],
            repartition_source_topics=[info("r")],
            copartition_groups=[StreamsCopartitionGroup([0], [], [0])],
        ),
    ],
)


def test_internal_topics_have_as_many_partitions_as_the_topology_needs():
    found = configure(topology_of(JOINED), Topics(t=2, u=5))
    assert {topic.name: topic.num_partitions for topic in found.missing} == {"c": 5, "r": 5}
    assert found.tasks == {"0": 2, "1": 5}
    there = configure(topology_of(JOINED), Topics(t=2, u=5, r=5, c=5))
    assert there.problem is None
    assert not there.missing


@pytest.mark.parametrize(
    ("topics", "status", "words"),
    [
        ({"t": 1}, Status.MISSING_SOURCE_TOPICS, "Source topics u are missing."),
        ({"t": 1, "u": 2, "r": 1}, Status.INCORRECTLY_PARTITIONED_TOPICS, "expected 2, found 1"),
        ({"t": 1, "u": 2, "r": 2, "c": 3}, Status.INCORRECTLY_PARTITIONED_TOPICS, "Existing topic c"),
        ({"t": 1, "u": 2, "r": 2}, Status.MISSING_INTERNAL_TOPICS, "Internal topics are missing: c"),
    ],
)
def test_a_status_says_what_is_wrong_with_the_topics(topics, status, words):
    driver = StreamsDriver(Topics(**topics), initial_rebalance_delay_ms=0)
    response = driver.beat(topology=JOINED)
    assert (response.error_code, statuses(response), tasks(response)) == (0, [status], set())
    assert words in response.status[0].status_detail
    assert driver.state() == driver.described().group_state == "NotReady"


def test_copartitioned_sources_must_have_equal_numbers_of_partitions():
    group = StreamsCopartitionGroup([0, 1])
    topology = topology_of(StreamsTopology(1, [StreamsSubtopology("0", ["t", "u"], copartition_groups=[group])]))
    assert configure(topology, Topics(t=2, u=2)).problem is None
    problem = configure(topology, Topics(t=2, u=3)).problem
    assert problem.status_code == Status.INCORRECTLY_PARTITIONED_TOPICS
    assert "[t=2, u=3]" in problem.status_detail


def test_a_long_chain_of_repartition_topics_is_decided_in_one_pass():
    length = 5_000
    chain = [
        StreamsSubtopology(f"{i}", repartition_source_topics=[info(f"r{i + 1}")], repartition_sink_topics=[f"r{i}"])
        for i in range(length)
    ]
    chain.append(StreamsSubtopology("last", ["t"], repartition_sink_topics=[f"r{length}", "unread"]))
    found = configure(topology_of(StreamsTopology(0, chain)), Topics(t=3))
    assert set(found.partitions.values()) == {3}
    assert len(found.missing) == length


def test_members_that_start_together_share_one_assignment():
    driver = StreamsDriver()
    one, two = driver.beat("m"), driver.beat("n")
    assert statuses(one) == statuses(two) == [Status.ASSIGNMENT_DELAYED]
    assert tasks(one) == tasks(two) == set()
    driver.advance(DELAY_MS)
    one, two = driver.beat("m", one.member_epoch), driver.beat("n", two.member_epoch)
    assert tasks(one) | tasks(two) == {("0", 0), ("0", 1)}
    assert len(tasks(one)) == len(tasks(two)) == 1
    writes = len(driver.log)
    assert driver.beat("m", one.member_epoch).active_tasks is None
    assert len(driver.log) == writes, "a heartbeat that says nothing new writes nothing"


def test_a_task_is_given_when_its_former_member_has_given_it_back():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    one = driver.beat("m")
    assert len(tasks(one)) == 2
    two = driver.beat("n")
    assert not tasks(two)
    told = driver.beat("m", one.member_epoch, owned=BOTH)
    assert (len(tasks(told)), told.member_epoch) == (1, one.member_epoch)
    assert driver.beat("n", two.member_epoch).active_tasks is None
    done = driver.beat("m", told.member_epoch, owned=told.active_tasks)
    assert done.member_epoch > told.member_epoch
    got = driver.beat("n", two.member_epoch)
    assert tasks(got) == {("0", 0), ("0", 1)} - tasks(told)


def test_a_member_that_does_not_give_back_in_time_is_removed():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    one = driver.beat("m")
    two = driver.beat("n")
    driver.beat("m", one.member_epoch, owned=BOTH)
    driver.advance(19_000)
    assert driver.beat("m", one.member_epoch, owned=BOTH).error_code == 0
    two = driver.beat("n", two.member_epoch)
    driver.advance(1_500)
    assert driver.beat("m", one.member_epoch).error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert tasks(driver.beat("n", two.member_epoch)) == {("0", 0), ("0", 1)}


def test_a_lost_response_is_given_again():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    driver.beat()  # its response is lost
    again = driver.beat()
    assert tasks(again) == {("0", 0), ("0", 1)}
    told = driver.beat("m", again.member_epoch, owned=[])
    assert tasks(told) == {("0", 0), ("0", 1)}, "it says that it has none"
    assert driver.beat("m", again.member_epoch, owned=BOTH).active_tasks is None
    assert driver.beat("m", again.member_epoch + 1).error_code == ErrorCode.FENCED_MEMBER_EPOCH


def test_a_member_that_says_it_has_nothing_waits_for_an_assignment_that_is_due():
    driver = StreamsDriver(initial_rebalance_delay_ms=0, assignment_interval_ms=1_000)
    one = driver.beat("m")
    assert tasks(one) == {("0", 0), ("0", 1)}
    driver.topics.put("t", 3)
    waits = driver.beat("m", one.member_epoch, owned=[])
    assert (waits.active_tasks, statuses(waits)) == (None, [Status.ASSIGNMENT_DELAYED])
    driver.advance(1_000)
    assert tasks(driver.beat("m", one.member_epoch, owned=[])) == {("0", 0), ("0", 1), ("0", 2)}


def test_the_first_topology_stays():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    driver.beat("m")
    other = msgspec.structs.replace(ONE, subtopologies=[StreamsSubtopology("0", ["u"])])
    assert driver.beat("n", topology=other).error_message == "Topology updates are not supported yet."
    assert driver.beat("n", topology=msgspec.structs.replace(other, epoch=2)).error_code == ErrorCode.INVALID_REQUEST
    older = driver.beat("n", topology=msgspec.structs.replace(other, epoch=0))
    assert (older.error_code, statuses(older)) == (0, [Status.STALE_TOPOLOGY])
    assert set(driver.group().streams.members) == {"m", "n"}


def test_a_wish_to_shut_down_lasts_until_the_group_is_empty():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    one, two = driver.beat("m"), driver.beat("n")
    driver.beat("n", -1, shutdown_application=True)
    assert statuses(driver.beat("m", one.member_epoch)) == [Status.SHUTDOWN_APPLICATION]
    driver.beat("m", -1)
    assert statuses(driver.beat("m")) == []
    assert two.error_code == 0


def test_an_empty_classic_group_becomes_a_streams_group_and_back_with_its_offsets():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    assert driver.commit({("t", 0): 5}) is ErrorCode.NONE
    assert driver.beat().error_code == 0
    driver = driver.restart()
    (listed,) = list_groups(driver.coordinator.groups.values(), (), ["streams"])
    assert (listed.protocol_type, listed.group_state) == ("streams", "Stable")
    assert driver.fetch(topics={"t": [0]}) == {("t", 0): 5}
    assert driver.answer(driver.join()).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert describe_group("g", driver.group(), 6).error_message == "Group g is not a classic group."
    driver.beat("m", -1)
    driver.promised_id()
    assert driver.restart().group().streams is None
    assert driver.fetch(topics={"t": [0]}) == {("t", 0): 5}


def test_groups_of_other_kinds_stay_what_they_are():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    driver.beat()
    token = next(driver._tokens)
    consumer = ConsumerGroupHeartbeatRequest("g", "c", 0, None, None, 1_000, ["t"], None, None, [])
    driver.step(ConsumerHeartbeat(token, consumer, 1, "c", "/h", "new"))
    assert driver.answer(token).error_message == "Group g is not a consumer group."
    token = next(driver._tokens)
    driver.step(ShareHeartbeat(token, ShareGroupHeartbeatRequest("g", "s", 0, None, ["t"]), "c", "/h"))
    assert driver.answer(token).error_message == "Group g is not a share group."
    active = StreamsDriver()
    active.stable(1)
    assert active.beat().error_message == "Group g is not a streams group."


def test_offsets_are_committed_with_the_epoch_of_the_member_or_of_the_task():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    first = driver.beat()
    assert driver.commit({("t", 0): 1}, "m", first.member_epoch) is ErrorCode.NONE
    assert driver.commit({("t", 0): 1}) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.beat("n")
    told = driver.beat("m", first.member_epoch, owned=BOTH)
    later = driver.beat("m", told.member_epoch, owned=told.active_tasks)
    ((_, kept),) = tasks(told)
    assert later.member_epoch > first.member_epoch
    assert driver.commit({("t", kept): 2}, "m", first.member_epoch) is ErrorCode.NONE, "it has had the task since"
    assert driver.commit({("t", 1 - kept): 2}, "m", first.member_epoch) is ErrorCode.STALE_MEMBER_EPOCH
    in_transaction = {"producer": (7, 0)}
    assert (
        driver.commit({("t", 1 - kept): 2}, "m", first.member_epoch, **in_transaction) is ErrorCode.ILLEGAL_GENERATION
    )


def test_a_failed_write_changes_nothing():
    driver = StreamsDriver(initial_rebalance_delay_ms=0)
    one = driver.beat("m")
    driver.hold_log = True
    token = next(driver._tokens)
    request = StreamsGroupHeartbeatRequest("g", "n", 0, 0, None, None, 1_000, ONE, [], [], [], process_id="p")
    driver.step(StreamsHeartbeat(token, request, "c", "/h"))
    assert driver.waits(token)
    driver.persist(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert driver.answer(token).response.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
    driver.hold_log = False
    assert set(driver.group().streams.members) == {"m"}
    assert driver.beat("m", one.member_epoch).active_tasks is None


def test_tasks_stay_where_they_are_and_no_process_has_one_twice():
    specs = {"0": TaskSpec(7, True), "1": TaskSpec(4, False)}
    members = {f"m{i}": TaskMember(f"p{i % 3}", NOTHING) for i in range(5)}
    given = assign_tasks(members, specs, 1)
    assert assign_tasks({one: TaskMember(members[one].process_id, given[one]) for one in members}, specs, 1) == given
    fewer = {one: TaskMember(members[one].process_id, given[one]) for one in members if one != "m4"}
    after = assign_tasks(fewer, specs, 1)
    for sets in (given, after):
        active = sorted((name, index) for one in sets.values() for name, parts in one.active.items() for index in parts)
        assert active == [("0", index) for index in range(7)] + [("1", index) for index in range(4)]
        assert sum(len(parts) for one in sets.values() for parts in one.standby.values()) == 7
        for process in {member.process_id for member in members.values()}:
            mine = [sets[one] for one in sets if members[one].process_id == process]
            held = [
                (name, index)
                for one in mine
                for kind in (one.active, one.standby)
                for name, parts in kind.items()
                for index in parts
            ]
            assert len(held) == len(set(held))
    moved = [one for one in fewer if not _within(given[one].active, after[one].active)]
    assert not moved, "what a remaining member had it keeps"


def _within(before, after):
    return all(parts <= after.get(name, frozenset()) for name, parts in before.items())


def test_with_one_process_there_are_no_standby_tasks():
    given = assign_tasks({"m": TaskMember("p", NOTHING)}, {"0": TaskSpec(2, True)}, 2)
    assert given == {"m": TaskSets({"0": frozenset({0, 1})})}
