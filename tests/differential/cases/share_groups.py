"""Share groups (KIP-932): membership, descriptions, offsets, and what other kinds of groups make of them."""

from differential.cases.consumer_groups import joined as consumer_joined
from differential.cases.consumer_groups import settled
from differential.cases.groups import stable
from differential.good import alter_request, commit_request, join_request, offset_fetch_request
from differential.good_admin import heartbeat_request, offset_delete_request
from differential.good_share import (
    MEMBER,
    OTHER,
    WAIT_MS,
    Sharer,
    acknowledged,
    share_beat,
    share_offsets,
    share_start,
    started,
    streams_join,
)
from differential.table import case
from differential.talk import Talk, Topic
from millstream.wire.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareOffsetsPartition,
    AlterShareOffsetsTopic,
)
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareOffsetsTopic,
)
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsGroup,
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsTopic,
)
from millstream.wire.messages.incremental_alter_configs import IncrementalAlterConfigsRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.offset_fetch import OffsetFetchRequest
from millstream.wire.messages.share_group_describe import ShareGroupDescribeRequest
from millstream.wire.messages.share_group_heartbeat import ShareGroupHeartbeatRequest

GROUP = 32


def look(t: Talk) -> None:
    t.look(ShareGroupDescribeRequest([t.name("g")], True))


def joined(t: Talk, *topics: Topic, member: str = MEMBER) -> int:
    """A member that has its partitions; its epoch."""
    answer = t.quiet(share_beat(t, member, subscribed_topic_names=[topic.name for topic in topics]))
    assert answer.error_code == 0, answer
    return assigned(t, member, answer.member_epoch)


def assigned(t: Talk, member: str, epoch: int) -> int:
    """Heartbeats of a member until it has partitions; its epoch then."""
    while True:
        answer = t.quiet(share_beat(t, member, epoch))
        assert answer.error_code == 0, answer
        epoch = answer.member_epoch
        if _has_partitions(t, member):
            return epoch


def _has_partitions(t: Talk, member: str) -> bool:
    (group,) = t.quiet(ShareGroupDescribeRequest([t.name("g")])).groups
    return any(one.member_id == member and one.assignment.topic_partitions for one in group.members)


def counted(t: Talk, label: str) -> None:
    """Who has how many partitions; which they are is the assignor's matter."""
    (group,) = t.quiet(ShareGroupDescribeRequest([t.name("g")])).groups
    held = {
        one.member_id: sum(len(topic.partitions) for topic in one.assignment.topic_partitions) for one in group.members
    }
    t.note(label, [group.group_state, dict(sorted(held.items()))])


@case("a member alone", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 3)
    first = t.ask(share_beat(t, subscribed_topic_names=[topic.name]), note=False)
    t.note("joined", [first.error_code, first.member_id, first.member_epoch > 0, first.heartbeat_interval_ms])
    epoch = assigned(t, MEMBER, first.member_epoch)
    counted(t, "assigned")
    t.ask(share_beat(t, MEMBER, epoch), note=False)
    t.ask(share_beat(t, MEMBER, -1))
    look_at_state(t)


def look_at_state(t: Talk) -> None:
    """The state of the group; its epochs count steps that each broker takes in its own way."""
    (group,) = t.quiet(ShareGroupDescribeRequest([t.name("g")])).groups
    t.note("state", [group.error_code, group.group_state, group.assignor_name, len(group.members)])


for _what, _change in {
    "no member id": {"member_id": ""},
    "an odd member id": {"member_id": "m"},
    "a member id of 36 characters": {"member_id": "m" * 36},
    "a member id of 37 characters": {"member_id": "m" * 37},
    "no group": {"group_id": ""},
    "a blank group": {"group_id": " "},
    "epoch 5": {"member_epoch": 5},
    "epoch -1": {"member_epoch": -1},
    "epoch -2": {"member_epoch": -2},
    "epoch -3": {"member_epoch": -3},
    "no subscription": {"subscribed_topic_names": None},
    "an empty subscription": {"subscribed_topic_names": []},
    "a topic without a name": {"subscribed_topic_names": [""]},
    "a topic that is not there": {"subscribed_topic_names": ["no-such-topic-here"]},
    "an internal topic": {"subscribed_topic_names": ["__consumer_offsets_2"]},
    "an empty rack": {"rack_id": ""},
    "a rack": {"rack_id": "r"},
}.items():

    @case(_what, ShareGroupHeartbeatRequest)
    def _(t: Talk, change: dict[str, object] = _change) -> None:
        fields = {"group_id": t.name("g"), "member_id": MEMBER, "member_epoch": 0, **change}
        fields.setdefault("subscribed_topic_names", [settled(t).name])
        t.ask(ShareGroupHeartbeatRequest(**fields))
        look_at_state(t)


for _what, _member, _step in (
    ("the epoch before", MEMBER, -1),
    ("two epochs before", MEMBER, -2),
    ("an epoch to come", MEMBER, 1),
    ("another member", OTHER, 0),
):

    @case(f"a member with {_what}", ShareGroupHeartbeatRequest)
    def _(t: Talk, member: str = _member, step: int = _step) -> None:
        epoch = joined(t, settled(t, "a", 2))
        answer = t.ask(share_beat(t, member, max(epoch + step, 1)), note=False)
        t.note("error", answer.error_code)


@case("a member that joins again", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 2)
    epoch = joined(t, topic)
    answer = t.ask(share_beat(t, subscribed_topic_names=[topic.name]), note=False)
    t.note("again", [answer.error_code, answer.member_epoch == epoch, answer.assignment is not None])
    counted(t, "assigned")


@case("a member that leaves twice", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(share_beat(t, MEMBER, -1))
    t.ask(share_beat(t, MEMBER, -1))


@case("a member that changes what it reads", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    one, two = settled(t, "a", 2), settled(t, "b", 1)
    epoch = joined(t, one)
    answer = t.quiet(share_beat(t, MEMBER, epoch, subscribed_topic_names=[two.name]))
    assert answer.error_code == 0

    def moved(_: object) -> bool:
        (group,) = t.quiet(ShareGroupDescribeRequest([t.name("g")])).groups
        (member,) = group.members
        return [each.topic_id for each in member.assignment.topic_partitions] == [two.id]

    epoch = answer.member_epoch
    while not moved(None):
        epoch = t.quiet(share_beat(t, MEMBER, epoch)).member_epoch
    counted(t, "moved")


@case("two members that share partitions", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 1)
    joined(t, topic)
    joined(t, topic, member=OTHER)
    t.quiet(share_beat(t, MEMBER, 0, subscribed_topic_names=[topic.name]))
    counted(t, "both")


@case("groups of every kind", ShareGroupDescribeRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    stable(t, "classic")
    joined(t, topic)
    names = [t.name(one) for one in ("g", "classic", "none")]
    answer = t.ask(ShareGroupDescribeRequest([*names, ""], False), note=False)
    t.note("seen", sorted([t.names.text(one.group_id), one.error_code, one.group_state] for one in answer.groups))
    t.ask(ShareGroupDescribeRequest(names[1:], True))
    t.ask(ShareGroupDescribeRequest([]))


@case("a share group", ListGroupsRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(ListGroupsRequest())
    t.ask(ListGroupsRequest(["Stable"], ["share"]))
    t.ask(ListGroupsRequest(["Empty"], ["Share"]))
    t.ask(ListGroupsRequest([], ["classic"]))


@case("a share group", DescribeGroupsRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(DescribeGroupsRequest([t.name("g")]))


# Kinds of groups and each other's requests


@case("a group that is a share group", JoinGroupRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(join_request(t))


@case("a group that is a share group", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    joined(t, topic)
    t.ask(heartbeat_request(t, OTHER, 0, rebalance_timeout_ms=5000, topic_partitions=[], subscribed_topic_names=["a"]))
    t.ask(heartbeat_request(t, MEMBER, 1))


@case("a group that is a classic one", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    stable(t)
    t.ask(share_beat(t, subscribed_topic_names=[settled(t).name]))


@case("a group that is a consumer group", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    consumer_joined(t, topic.name)
    t.ask(share_beat(t, subscribed_topic_names=[topic.name]))


@case("a group that is a streams group", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    assert t.quiet(streams_join(t, topic.name)).error_code == 0
    t.ask(share_beat(t, subscribed_topic_names=[topic.name]))


@case("a group of committed offsets", ShareGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    t.quiet(commit_request(t, topic, 5))
    answer = t.ask(share_beat(t, subscribed_topic_names=[topic.name]), note=False)
    t.note("error", answer.error_code)


@case("a share group", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    epoch = joined(t, topic)
    t.ask(commit_request(t, topic, 1, generation_id_or_member_epoch=epoch, member_id=MEMBER))
    t.ask(commit_request(t, topic, 1))


@case("a share group", OffsetFetchRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    joined(t, topic)
    t.ask(offset_fetch_request(t.name("g"), topic))


@case("a share group", OffsetDeleteRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    joined(t, topic)
    t.ask(offset_delete_request(t.name("g"), topic.name, 0))


@case("a share group with members and without", DeleteGroupsRequest)
def _(t: Talk) -> None:
    joined(t, settled(t))
    t.ask(DeleteGroupsRequest([t.name("g")]))
    t.quiet(share_beat(t, MEMBER, -1))
    t.ask(DeleteGroupsRequest([t.name("g")]))
    look_at_state(t)
    t.ask(DeleteGroupsRequest([t.name("g")]))


# Settings of a group

for _what, _name, _value in (
    ("share.auto.offset.reset", "share.auto.offset.reset", "earliest"),
    ("share.auto.offset.reset by duration", "share.auto.offset.reset", "by_duration:PT1H"),
    ("share.auto.offset.reset of none", "share.auto.offset.reset", "none"),
    ("share.auto.offset.reset by a wrong duration", "share.auto.offset.reset", "by_duration:1h"),
    ("share.isolation.level", "share.isolation.level", "read_committed"),
    ("share.isolation.level of none", "share.isolation.level", "serializable"),
    ("share.delivery.count.limit", "share.delivery.count.limit", "3"),
    ("share.delivery.count.limit of 1", "share.delivery.count.limit", "1"),
    ("share.delivery.count.limit of 11", "share.delivery.count.limit", "11"),
    ("share.record.lock.duration.ms", "share.record.lock.duration.ms", "20000"),
    ("share.record.lock.duration.ms of 1", "share.record.lock.duration.ms", "1"),
    ("share.partition.max.record.locks", "share.partition.max.record.locks", "500"),
    ("share.partition.max.record.locks of 10", "share.partition.max.record.locks", "10"),
    ("share.renew.acknowledge.enable", "share.renew.acknowledge.enable", "false"),
    ("share.session.timeout.ms", "share.session.timeout.ms", "50000"),
    ("share.heartbeat.interval.ms", "share.heartbeat.interval.ms", "6000"),
    ("share.heartbeat.interval.ms above the session", "share.heartbeat.interval.ms", "60000"),
    ("streams.num.standby.replicas", "streams.num.standby.replicas", "1"),
    ("streams.num.standby.replicas of 9", "streams.num.standby.replicas", "9"),
    ("streams.session.timeout.ms", "streams.session.timeout.ms", "50000"),
    ("streams.initial.rebalance.delay.ms", "streams.initial.rebalance.delay.ms", "0"),
    ("streams.heartbeat.interval.ms of 0", "streams.heartbeat.interval.ms", "0"),
):

    @case(f"a group with {_what}", IncrementalAlterConfigsRequest)
    def _(t: Talk, name: str = _name, value: str = _value) -> None:
        t.ask(alter_request(t.name("g"), (name, value), kind=GROUP))


# Offsets


@case("a group that is not there", DescribeShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    t.ask(share_offsets(t))
    t.ask(share_offsets(t, topic))
    t.ask(DescribeShareGroupOffsetsRequest([]))


@case("groups of other kinds", DescribeShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    stable(t, "classic")
    consumer_joined(t, topic.name)
    for group in ("g", "classic"):
        t.ask(share_offsets(t, group=group))
        t.ask(share_offsets(t, topic, group=group))


@case("topics and partitions that are not there", DescribeShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    started(t, topic, 0)
    t.ask(share_offsets(t, topic, partitions=2))
    t.ask(share_offsets(t, Topic("no-such-topic", b""), topic))
    named = [DescribeShareGroupOffsetsTopic(topic.name, [0, 0]), DescribeShareGroupOffsetsTopic(topic.name, [0])]
    t.ask(DescribeShareGroupOffsetsRequest([DescribeShareGroupOffsetsGroup(t.name("g"), named)]))


@case("a group before and after it has acknowledged", DescribeShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = t.filled(5, partitions=2)
    member = started(t, topic, 1, 0)
    t.ask(share_offsets(t))
    place = (topic, 0)
    member.fetch(place, note=False)
    member.acknowledge({place: [acknowledged(1, 2, 1)]}, note=False)
    t.ask(share_offsets(t, topic, partitions=2))
    member.acknowledge({place: [acknowledged(3, 4, 1)]}, note=False)
    t.ask(share_offsets(t))


@case("a group that is not there", AlterShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = t.filled(5)
    t.fence()
    t.ask(share_start(t, topic, 3))
    t.look(share_offsets(t, topic))
    look_at_state(t)


@case("a group with members", AlterShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = t.filled(5)
    joined(t, topic)
    t.ask(share_start(t, topic, 3))


@case("a group whose members have left", AlterShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = t.filled(5)
    joined(t, topic)
    t.quiet(share_beat(t, MEMBER, -1))
    t.ask(share_start(t, topic, 3))
    t.look(share_offsets(t, topic))


for _what, _kind in (("a classic group", "classic"), ("a consumer group", "consumer"), ("a streams group", "streams")):

    @case(_what, AlterShareGroupOffsetsRequest)
    def _(t: Talk, kind: str = _kind) -> None:
        topic = settled(t)
        if kind == "classic":
            stable(t)
        elif kind == "consumer":
            consumer_joined(t, topic.name)
        else:
            assert t.quiet(streams_join(t, topic.name)).error_code == 0
        t.ask(share_start(t, topic, 0))
        t.look(DeleteShareGroupOffsetsRequest(t.name("g"), [DeleteShareOffsetsTopic(topic.name)]))


for _what, _offset in (("-1", -1), ("-2", -2), ("2^62", 1 << 62)):

    @case(f"a start of {_what}", AlterShareGroupOffsetsRequest)
    def _(t: Talk, offset: int = _offset) -> None:
        topic = t.filled(5)
        t.fence()
        t.ask(share_start(t, topic, offset))
        t.look(share_offsets(t, topic))


@case("topics and partitions that are not there", AlterShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    t.ask(share_start(t, topic, 0, 0))
    t.ask(share_start(t, Topic("no-such-topic", b""), 0))
    t.ask(AlterShareGroupOffsetsRequest(t.name("g"), []))
    t.ask(AlterShareGroupOffsetsRequest("", [AlterShareOffsetsTopic(topic.name, [AlterShareOffsetsPartition(0, 0)])]))
    t.look(share_offsets(t))


@case("a partition twice", AlterShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = t.filled(5)
    t.fence()
    t.ask(share_start(t, topic, 1))
    parts = [AlterShareOffsetsPartition(0, 2), AlterShareOffsetsPartition(0, 3)]
    t.ask(AlterShareGroupOffsetsRequest(t.name("g"), [AlterShareOffsetsTopic(topic.name, parts)]))


@case("a group that is not there", DeleteShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    t.ask(DeleteShareGroupOffsetsRequest(t.name("g"), [DeleteShareOffsetsTopic(settled(t).name)]))
    t.ask(DeleteShareGroupOffsetsRequest("", [DeleteShareOffsetsTopic("x")]))
    t.ask(DeleteShareGroupOffsetsRequest(t.name("g"), []))


@case("a group with members", DeleteShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = t.filled(5)
    joined(t, topic)
    t.ask(DeleteShareGroupOffsetsRequest(t.name("g"), [DeleteShareOffsetsTopic(topic.name)]))


@case("topics with and without offsets", DeleteShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic, other = t.filled(5), t.topic("b")
    started(t, topic, 2)
    names = [topic.name, other.name, "no-such-topic"]
    t.ask(DeleteShareGroupOffsetsRequest(t.name("g"), [DeleteShareOffsetsTopic(name) for name in names]))
    t.look(share_offsets(t, topic))
    t.ask(DeleteShareGroupOffsetsRequest(t.name("g"), [DeleteShareOffsetsTopic(topic.name)]))
    t.ask(DeleteShareGroupOffsetsRequest(t.name("g"), []))


@case("a session that goes on behind it", AlterShareGroupOffsetsRequest)
def _(t: Talk) -> None:
    topic = t.filled(5)
    member = started(t, topic, 0)
    place = (topic, 0)
    member.fetch(place, note=False)
    t.ask(share_start(t, topic, 4))
    member.acknowledge({place: [acknowledged(0, 0, 1)]})
    fresh = Sharer(t, OTHER)
    fresh.fetch(place, note=False, max_wait_ms=WAIT_MS)
    t.look(share_offsets(t, topic))
