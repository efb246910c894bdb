"""Streams groups (KIP-1071): membership, topologies, tasks, and what other kinds of groups make of them."""

from msgspec.structs import replace

from differential.cases.consumer_groups import joined as consumer_joined
from differential.cases.consumer_groups import settled
from differential.cases.groups import stable
from differential.cases.share_groups import joined as share_joined
from differential.good import commit_request, join_request, offset_fetch_request
from differential.good_admin import heartbeat_request, offset_delete_request
from differential.good_share import MEMBER, OTHER, streams_beat, streams_join
from differential.table import case
from differential.talk import Talk, Topic
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from millstream.wire.messages.streams_group_describe import StreamsGroupDescribeRequest
from millstream.wire.messages.streams_group_heartbeat import (
    StreamsCopartitionGroup,
    StreamsEndpoint,
    StreamsGroupHeartbeatRequest,
    StreamsKeyValue,
    StreamsSubtopology,
    StreamsTaskIds,
    StreamsTaskOffset,
    StreamsTopicInfo,
    StreamsTopology,
)


def look(t: Talk) -> None:
    t.look(StreamsGroupDescribeRequest([t.name("g")], True))


def joined(t: Talk, *topics: Topic, member: str = MEMBER, **options: object) -> int:
    """A member that has its tasks; its epoch."""
    answer = t.quiet(streams_join(t, *(topic.name for topic in topics), member=member, **options))
    assert answer.error_code == 0, answer
    return with_tasks(t, member, answer.member_epoch)


def with_tasks(t: Talk, member: str, epoch: int) -> int:
    """Heartbeats of a member until it has tasks; its epoch then."""
    while True:
        answer = t.quiet(streams_beat(t, member, epoch))
        assert answer.error_code == 0, answer
        epoch = answer.member_epoch
        (group,) = t.quiet(StreamsGroupDescribeRequest([t.name("g")])).groups
        if any(one.member_id == member and one.assignment.active_tasks for one in group.members):
            return epoch


def tasks(subtopology: str, *partitions: int) -> list[StreamsTaskIds]:
    return [StreamsTaskIds(subtopology, list(partitions))]


def topology(*subtopologies: StreamsSubtopology, epoch: int = 1) -> StreamsTopology:
    return StreamsTopology(epoch, list(subtopologies))


@case("a member alone", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 3)
    answer = t.ask(streams_join(t, topic.name))
    epoch = with_tasks(t, MEMBER, answer.member_epoch)
    look(t)
    t.ask(streams_beat(t, MEMBER, epoch))
    held = tasks("0", 0, 1, 2)
    t.ask(streams_beat(t, MEMBER, epoch, active_tasks=held, standby_tasks=[], warmup_tasks=[]))
    look(t)
    t.ask(streams_beat(t, MEMBER, -1))
    look(t)


_CHANGES: dict[str, dict[str, object]] = {
    "no member id": {"member_id": ""},
    "an odd member id": {"member_id": "m"},
    "a member id of 37 characters": {"member_id": "m" * 37},
    "no group": {"group_id": ""},
    "epoch 5": {"member_epoch": 5},
    "epoch -1": {"member_epoch": -1},
    "epoch -2": {"member_epoch": -2},
    "epoch -3": {"member_epoch": -3},
    "no rebalance timeout": {"rebalance_timeout_ms": -1},
    "a rebalance timeout of 0": {"rebalance_timeout_ms": 0},
    "no topology": {"topology": None},
    "an empty topology": {"topology": topology()},
    "topology epoch 0": {"topology": topology(epoch=0)},
    "topology epoch -1": {"topology": topology(epoch=-1)},
    "no active tasks": {"active_tasks": None},
    "no standby tasks": {"standby_tasks": None},
    "no warm-up tasks": {"warmup_tasks": None},
    "active tasks at first": {"active_tasks": tasks("0", 0)},
    "standby tasks at first": {"standby_tasks": tasks("0", 0)},
    "warm-up tasks at first": {"warmup_tasks": tasks("0", 0)},
    "an instance id": {"instance_id": "i-1"},
    "an empty instance id": {"instance_id": ""},
    "an empty rack": {"rack_id": ""},
    "a rack": {"rack_id": "r"},
    "no process id": {"process_id": None},
    "an empty process id": {"process_id": ""},
    "an endpoint": {"user_endpoint": StreamsEndpoint("h", 8080)},
    "an endpoint without a host": {"user_endpoint": StreamsEndpoint("", 0)},
    "client tags": {"client_tags": [StreamsKeyValue("zone", "a"), StreamsKeyValue("zone", "b")]},
    "task offsets": {
        "task_offsets": [StreamsTaskOffset("0", 0, 5)],
        "task_end_offsets": [StreamsTaskOffset("0", 0, 9)],
    },
    "a shutdown of the application": {"shutdown_application": True},
}

for _what, _change in _CHANGES.items():

    @case(_what, StreamsGroupHeartbeatRequest)
    def _(t: Talk, change: dict[str, object] = _change) -> None:
        t.ask(replace(streams_join(t, settled(t).name), **change))
        look(t)


def _one(*sources: str, **options: object) -> StreamsSubtopology:
    return StreamsSubtopology("0", list(sources), **options)


def _topologies(name: str, other: str) -> dict[str, StreamsTopology]:
    """Topologies over a topic of two partitions and one of three."""
    repartitioned = StreamsTopicInfo("r")
    return {
        "a topic that is not there": topology(_one("no-such-topic")),
        "no topics": topology(_one()),
        "a topic twice": topology(_one(name, name)),
        "a topic without a name": topology(_one("")),
        "an internal topic": topology(_one("__consumer_offsets")),
        "a name that is none": topology(_one("a/b")),
        "a pattern": topology(_one(source_topic_regex=["a.*"])),
        "a pattern that is none": topology(_one(source_topic_regex=["("])),
        "a subtopology without a name": topology(StreamsSubtopology("", [name])),
        "a subtopology twice": topology(_one(name), _one(other)),
        "two subtopologies": topology(_one(name), StreamsSubtopology("1", [other])),
        "topics of unlike numbers of partitions": topology(_one(name, other)),
        "topics to be partitioned alike that are not": topology(
            _one(name, other, copartition_groups=[StreamsCopartitionGroup([0, 1])])
        ),
        "a group of topics that is out of range": topology(
            _one(name, copartition_groups=[StreamsCopartitionGroup([0, 5])])
        ),
        "a negative index of a topic": topology(_one(name, copartition_groups=[StreamsCopartitionGroup([-1])])),
        "a sink that no one reads": topology(_one(name, repartition_sink_topics=["r"])),
        "a repartition topic that no one writes": topology(_one(repartition_source_topics=[repartitioned])),
        "a repartition topic that is its own source": topology(
            _one(repartition_source_topics=[repartitioned], repartition_sink_topics=["r"])
        ),
        "a negative number of partitions": topology(
            _one(name, repartition_sink_topics=["r"]),
            StreamsSubtopology("1", [], repartition_source_topics=[StreamsTopicInfo("r", -1)]),
        ),
        "a changelog with partitions of its own": topology(
            _one(name, state_changelog_topics=[StreamsTopicInfo("c", 9)])
        ),
    }


for _what in _topologies("", ""):

    @case(f"a topology with {_what}", StreamsGroupHeartbeatRequest)
    def _(t: Talk, what: str = _what) -> None:
        name, other = t.topic("a", 2).name, settled(t, "b", 3).name
        wanted = _topologies(name, other)[what]
        t.ask(streams_join(t, topology=wanted))
        look(t)


@case("a topology with topics to be created", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    name = settled(t, "a", 2).name
    changelog, repartition = t.name("changelog"), t.name("repartition")
    wanted = topology(
        _one(name, repartition_sink_topics=[repartition]),
        StreamsSubtopology(
            "1",
            [],
            repartition_source_topics=[StreamsTopicInfo(repartition, 4)],
            state_changelog_topics=[
                StreamsTopicInfo(changelog, topic_configs=[StreamsKeyValue("cleanup.policy", "compact")])
            ],
        ),
    )
    answer = t.ask(streams_join(t, topology=wanted))
    t.await_topic(changelog, 4)
    t.await_topic(repartition, 4)
    t.fence()
    with_tasks(t, MEMBER, answer.member_epoch)
    (group,) = t.quiet(StreamsGroupDescribeRequest([t.name("g")])).groups
    t.note("state", [group.group_state, len(group.members[0].assignment.active_tasks)])


for _what, _member, _step in (
    ("the epoch before", MEMBER, -1),
    ("an epoch to come", MEMBER, 1),
    ("another member", OTHER, 0),
):

    @case(f"a member with {_what}", StreamsGroupHeartbeatRequest)
    def _(t: Talk, member: str = _member, step: int = _step) -> None:
        epoch = joined(t, settled(t, "a", 2))
        t.ask(streams_beat(t, member, epoch + step))


@case("a member that joins again", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 2)
    joined(t, topic)
    t.ask(streams_join(t, topic.name))
    look(t)


@case("another topology of the same epoch", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    one, two = settled(t, "a", 2), settled(t, "b", 2)
    joined(t, one)
    t.ask(streams_join(t, two.name, member=OTHER))
    t.ask(streams_join(t, two.name))


for _epoch in (2, 0):

    @case(f"a topology of epoch {_epoch} beside one of epoch 1", StreamsGroupHeartbeatRequest)
    def _(t: Talk, epoch: int = _epoch) -> None:
        one, two = settled(t, "a", 2), settled(t, "b", 2)
        joined(t, one)
        t.ask(streams_join(t, member=OTHER, topology=topology(_one(two.name), epoch=epoch)))


@case("a topology later than at first", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 2)
    epoch = joined(t, topic)
    t.ask(streams_beat(t, MEMBER, epoch, topology=topology(_one(topic.name))))


@case("some of the task lists", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    epoch = joined(t, settled(t, "a", 2))
    t.ask(streams_beat(t, MEMBER, epoch, active_tasks=tasks("0", 0, 1)))
    t.ask(streams_beat(t, MEMBER, epoch, standby_tasks=[]))
    t.ask(streams_beat(t, MEMBER, epoch, active_tasks=[], standby_tasks=[], warmup_tasks=tasks("0", 1)))
    t.ask(streams_beat(t, MEMBER, epoch, active_tasks=tasks("9", 7), standby_tasks=[], warmup_tasks=[]))


@case("a shutdown of the application by a member", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    epoch = joined(t, settled(t, "a", 2))
    t.ask(streams_beat(t, MEMBER, epoch, shutdown_application=True))
    t.ask(streams_beat(t, MEMBER, epoch))


@case("two members", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 4)
    epoch = joined(t, topic)
    t.quiet(streams_beat(t, MEMBER, epoch, active_tasks=tasks("0", 0, 1, 2, 3), standby_tasks=[], warmup_tasks=[]))
    t.ask(streams_join(t, topic.name, member=OTHER, process_id="q"))
    look(t)


@case("groups of every kind", StreamsGroupDescribeRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    stable(t, "classic")
    joined(t, topic)
    t.ask(StreamsGroupDescribeRequest([t.name(one) for one in ("g", "classic", "none")], True))
    t.ask(StreamsGroupDescribeRequest([""], False))
    t.ask(StreamsGroupDescribeRequest([]))


@case("a streams group", ListGroupsRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(ListGroupsRequest())
    t.ask(ListGroupsRequest(["Stable"], ["streams"]))
    t.ask(ListGroupsRequest(["NotReady"], ["Streams"]))


@case("a streams group", DescribeGroupsRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(DescribeGroupsRequest([t.name("g")]))


@case("a group that is a streams group", JoinGroupRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(join_request(t))


@case("a group that is a streams group", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(heartbeat_request(t, OTHER, 0, rebalance_timeout_ms=5000, topic_partitions=[], subscribed_topic_names=["a"]))


@case("a group that is a share group", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    share_joined(t, topic)
    t.ask(streams_join(t, topic.name))


@case("a group that is a consumer group", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    consumer_joined(t, topic.name)
    t.ask(streams_join(t, topic.name))


@case("a group that is a classic one", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    stable(t)
    t.ask(streams_join(t, settled(t).name))


@case("a group of committed offsets", StreamsGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    t.quiet(commit_request(t, topic, 5))
    t.ask(streams_join(t, topic.name))


@case("a member of a streams group", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 2)
    epoch = joined(t, topic)
    for offset, (generation, who) in enumerate(
        ((epoch, MEMBER), (epoch - 1, MEMBER), (epoch + 1, MEMBER), (epoch, OTHER), (-1, ""))
    ):
        t.ask(commit_request(t, topic, offset, generation_id_or_member_epoch=generation, member_id=who))


@case("a streams group", OffsetFetchRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    epoch = joined(t, topic)
    t.quiet(commit_request(t, topic, 7, generation_id_or_member_epoch=epoch, member_id=MEMBER))
    t.ask(offset_fetch_request(t.name("g"), topic))


@case("a streams group", OffsetDeleteRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    epoch = joined(t, topic)
    t.quiet(commit_request(t, topic, 7, generation_id_or_member_epoch=epoch, member_id=MEMBER))
    t.ask(offset_delete_request(t.name("g"), topic.name, 0))
    t.quiet(streams_beat(t, MEMBER, -1))
    t.ask(offset_delete_request(t.name("g"), topic.name, 0))


@case("a streams group with members and without", DeleteGroupsRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(DeleteGroupsRequest([t.name("g")]))
    t.quiet(streams_beat(t, MEMBER, -1))
    t.ask(DeleteGroupsRequest([t.name("g")]))
    look(t)
