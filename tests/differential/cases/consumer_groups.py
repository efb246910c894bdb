"""ConsumerGroupHeartbeat and ConsumerGroupDescribe (KIP-848), beside classic groups of the same name."""

from differential.cases.groups import describe, stable
from differential.good import commit_request, join_request
from differential.good_admin import heartbeat_request
from differential.table import case
from differential.talk import Talk, Topic
from millstream.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, OwnedTopicPartitions
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_commit import OffsetCommitRequest

UUID_1, UUID_2 = "AAAAAAAAAAAAAAAAAAAAAQ", "AAAAAAAAAAAAAAAAAAAAAg"
JOIN = {"rebalance_timeout_ms": 5000, "topic_partitions": []}


def settled(t: Talk, label: str = "a", partitions: int = 1) -> Topic:
    """A topic that the coordinator knows, too."""
    topic = t.topic(label, partitions)
    t.fence()
    return topic


def look(t: Talk) -> None:
    t.look(ConsumerGroupDescribeRequest([t.name("g")], True), 1)


def joined(t: Talk, *topics: str, member: str = UUID_1, **options: object) -> int:
    """A member that has its assignment; its epoch."""
    fields = {**JOIN, "subscribed_topic_names": list(topics), **options}
    answer = t.quiet(heartbeat_request(t, member, 0, **fields), 1)
    assert answer.error_code == 0, answer
    return answer.member_epoch


@case("a member alone", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 3)
    first = t.ask(heartbeat_request(t, UUID_1, 0, subscribed_topic_names=[topic.name], **JOIN))
    look(t)
    if first is None or first.error_code:
        return
    owned = [OwnedTopicPartitions(topic.id, [0, 1, 2])]
    t.ask(heartbeat_request(t, UUID_1, first.member_epoch, topic_partitions=owned))
    t.ask(heartbeat_request(t, UUID_1, first.member_epoch))
    look(t)
    t.ask(heartbeat_request(t, UUID_1, -1))
    look(t)


@case("a member id that the coordinator gives", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    answer = t.ask(heartbeat_request(t, "", 0, subscribed_topic_names=[settled(t).name], **JOIN), note=False)
    t.note("first", {"error_code": answer.error_code, "given": bool(answer.member_id), "epoch": answer.member_epoch})


for _what, _change in {
    "no member id": {"member_id": ""},
    "an odd member id": {"member_id": "m"},
    "a member id of 40 characters": {"member_id": "m" * 40},
    "no group": {"group_id": ""},
    "epoch 5": {"member_epoch": 5},
    "epoch -1": {"member_epoch": -1},
    "epoch -2": {"member_epoch": -2},
    "epoch -3": {"member_epoch": -3},
    "no rebalance timeout": {"rebalance_timeout_ms": -1},
    "a rebalance timeout of 0": {"rebalance_timeout_ms": 0},
    "no subscription": {"subscribed_topic_names": None},
    "an empty subscription": {"subscribed_topic_names": []},
    "a topic twice": {"subscribed_topic_names": ["x", "x"]},
    "a topic that is not there": {"subscribed_topic_names": ["no-such-topic-here"]},
    "an assignor that is not there": {"server_assignor": "no-such"},
    "the assignor range": {"server_assignor": "range"},
    "the assignor uniform": {"server_assignor": "uniform"},
    "an empty assignor": {"server_assignor": ""},
    "an empty instance id": {"instance_id": ""},
    "an instance id": {"instance_id": "i-1"},
    "an empty rack": {"rack_id": ""},
    "a rack": {"rack_id": "r"},
    "no owned partitions": {"topic_partitions": None},
    "owned partitions at first": {"topic_partitions": [OwnedTopicPartitions(b"\7" * 16, [0])]},
    "a pattern that is none": {"subscribed_topic_names": None, "subscribed_topic_regex": "("},
    "an empty pattern": {"subscribed_topic_names": None, "subscribed_topic_regex": ""},
    "a pattern of nothing": {"subscribed_topic_names": None, "subscribed_topic_regex": "no-such-topic.*"},
}.items():

    @case(_what, ConsumerGroupHeartbeatRequest)
    def _(t: Talk, change: dict[str, object] = _change) -> None:
        fields = {
            "group_id": t.name("g"),
            "member_id": UUID_1,
            "member_epoch": 0,
            "subscribed_topic_names": [settled(t).name],
            **JOIN,
            **change,
        }
        t.ask(ConsumerGroupHeartbeatRequest(**fields))
        look(t)


for _what, _member, _step in (
    ("the epoch before", UUID_1, -1),
    ("an epoch to come", UUID_1, 1),
    ("another member", UUID_2, 0),
    ("itself again", UUID_1, 0),
):

    @case(f"a member with {_what}", ConsumerGroupHeartbeatRequest)
    def _(t: Talk, member: str = _member, step: int = _step) -> None:
        epoch = joined(t, settled(t, "a", 2).name)
        t.ask(heartbeat_request(t, member, epoch + step))


@case("a member that joins again", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    name = settled(t, "a", 2).name
    joined(t, name)
    t.ask(heartbeat_request(t, UUID_1, 0, subscribed_topic_names=[name], **JOIN))
    look(t)


@case("a member that changes what it reads", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    one, two = settled(t, "a", 2), settled(t, "b", 1)
    epoch = joined(t, one.name)
    answer = t.ask(heartbeat_request(t, UUID_1, epoch, subscribed_topic_names=[one.name, two.name]))
    if answer is not None and not answer.error_code:
        look(t)
        t.ask(heartbeat_request(t, UUID_1, answer.member_epoch, subscribed_topic_names=[two.name]))
        look(t)


@case("two members that share a topic", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 4)
    epoch = joined(t, topic.name)
    owned = [OwnedTopicPartitions(topic.id, [0, 1, 2, 3])]
    t.ask(heartbeat_request(t, UUID_1, epoch, topic_partitions=owned))
    second = t.ask(heartbeat_request(t, UUID_2, 0, subscribed_topic_names=[topic.name], **JOIN))
    look(t)
    revoking = t.ask(heartbeat_request(t, UUID_1, epoch))
    if second is None or revoking is None or second.error_code or revoking.error_code or not revoking.assignment:
        return
    kept = [OwnedTopicPartitions(one.topic_id, one.partitions) for one in revoking.assignment.topic_partitions]
    t.ask(heartbeat_request(t, UUID_1, revoking.member_epoch, topic_partitions=kept))
    t.ask(heartbeat_request(t, UUID_2, second.member_epoch))
    look(t)
    t.ask(heartbeat_request(t, UUID_2, -1))
    t.ask(heartbeat_request(t, UUID_1, second.member_epoch))
    look(t)


@case("a static member that comes back", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    name = settled(t, "a", 2).name
    epoch = joined(t, name, instance_id="i-1")
    t.ask(heartbeat_request(t, UUID_2, 0, instance_id="i-1", subscribed_topic_names=[name], **JOIN))
    t.ask(heartbeat_request(t, UUID_1, -2, instance_id="i-1"))
    look(t)
    t.ask(heartbeat_request(t, UUID_2, 0, instance_id="i-1", subscribed_topic_names=[name], **JOIN))
    t.ask(heartbeat_request(t, UUID_1, epoch, instance_id="i-1"))
    look(t)


@case("a pattern", ConsumerGroupHeartbeatRequest, [1])
def _(t: Talk) -> None:
    settled(t, "a", 2)
    settled(t, "ab", 1)
    answer = t.ask(heartbeat_request(t, UUID_1, 0, subscribed_topic_regex=f"a.*{t.names.tag}", **JOIN))
    if answer is None or answer.error_code:
        return
    request = heartbeat_request(t, UUID_1, answer.member_epoch)
    got = t.until(request, lambda seen: bool(seen.error_code or seen.assignment), 1)
    t.note("assigned", [got.error_code, sorted(len(one.partitions) for one in got.assignment.topic_partitions)])
    look(t)


@case("a group that is a classic one", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    stable(t)
    t.ask(heartbeat_request(t, UUID_1, 0, subscribed_topic_names=[settled(t).name], **JOIN))
    describe(t)


@case("a group of committed offsets", ConsumerGroupHeartbeatRequest)
def _(t: Talk) -> None:
    topic = settled(t)
    t.quiet(commit_request(t, topic, 5))
    t.ask(heartbeat_request(t, UUID_1, 0, subscribed_topic_names=[topic.name], **JOIN))
    look(t)


@case("a consumer group", JoinGroupRequest)
def _(t: Talk) -> None:
    joined(t, settled(t).name)
    t.ask(join_request(t))
    t.look(HeartbeatRequest(t.name("g"), 1, UUID_1))
    describe(t)


@case("groups of either kind", ConsumerGroupDescribeRequest)
def _(t: Talk) -> None:
    stable(t, "classic")
    joined(t, settled(t, "a", 2).name)
    names = [t.name(one) for one in ("g", "classic", "none", "g")]
    t.ask(ConsumerGroupDescribeRequest(names, True))
    t.ask(ConsumerGroupDescribeRequest(names, False))
    t.ask(ConsumerGroupDescribeRequest([]))


@case("a consumer group", ListGroupsRequest)
def _(t: Talk) -> None:
    joined(t, settled(t).name)
    t.ask(ListGroupsRequest())
    t.ask(ListGroupsRequest(["Stable"], ["consumer"]))
    t.ask(ListGroupsRequest(["Assigning", "Reconciling", "Empty"], ["classic"]))


@case("a member of a consumer group", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = settled(t, "a", 2)
    epoch = joined(t, topic.name)
    for offset, (generation, who) in enumerate(
        ((epoch, UUID_1), (epoch - 1, UUID_1), (epoch + 1, UUID_1), (epoch, UUID_2), (-1, ""))
    ):
        t.ask(commit_request(t, topic, offset, generation_id_or_member_epoch=generation, member_id=who))
