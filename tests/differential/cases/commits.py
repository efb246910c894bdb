"""OffsetCommit and OffsetFetch: simple consumers, members, epochs, what is not there."""

from differential.cases.groups import describe, member, offsets, stable
from differential.good import commit_request, delete_request, offset_fetch_request
from differential.table import case
from differential.talk import Talk, Topic
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup


@case("a simple consumer", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = t.topic("a", 2)
    t.ask(commit_request(t, topic, 5, 7))
    offsets(t)
    describe(t)
    t.ask(commit_request(t, topic, 3))
    offsets(t, topic, (0, 1))


@case("a member", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    who, generation = stable(t)
    for epoch, name in ((generation, who), (generation + 1, who), (generation, "nobody"), (-1, ""), (generation, "")):
        t.ask(commit_request(t, topic, 5, generation_id_or_member_epoch=epoch, member_id=name))
    offsets(t)


@case("a member without an assignment", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    who, generation = member(t)
    t.ask(commit_request(t, topic, 5, generation_id_or_member_epoch=generation, member_id=who))


@case("a generation where there is no group", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(commit_request(t, topic, 5, generation_id_or_member_epoch=1, member_id="m"))
    t.ask(commit_request(t, topic, 5, generation_id_or_member_epoch=0, member_id=""))
    t.ask(commit_request(t, topic, 5, generation_id_or_member_epoch=-1, member_id="m"))


for _offset in (0, -1, -2, 2**62):

    @case(f"offset {_offset}", OffsetCommitRequest)
    def _(t: Talk, offset: int = _offset) -> None:
        topic = t.topic()
        t.ask(commit_request(t, topic, offset))
        offsets(t, topic)


@case("what is not there", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(commit_request(t, topic, 1, 2))
    t.ask(commit_request(t, Topic(t.name("none"), b"\7" * 16), 1))
    offsets(t)


@case("no topics", OffsetCommitRequest)
def _(t: Talk) -> None:
    t.ask(OffsetCommitRequest(t.name("g")))
    describe(t)


@case("a group without a name", OffsetCommitRequest)
def _(t: Talk) -> None:
    request = commit_request(t, t.topic(), 1)
    t.ask(OffsetCommitRequest("", topics=request.topics))


@case("metadata that is too long", OffsetCommitRequest)
def _(t: Talk) -> None:
    topic = t.topic("a", 3)
    texts = ("x" * 4096, "x" * 4097, None)
    parts = [OffsetCommitRequestPartition(at, 1, 0, text) for at, text in enumerate(texts)]
    t.ask(OffsetCommitRequest(t.name("g"), topics=[OffsetCommitRequestTopic(topic.name, topic.id, parts)]))
    offsets(t, topic, (0, 1, 2))


@case("a leader epoch", OffsetCommitRequest, range(6, 11))
def _(t: Talk) -> None:
    topic = t.topic("a", 3)
    parts = [OffsetCommitRequestPartition(at, 1, epoch, "") for at, epoch in enumerate((0, 99, -2))]
    t.ask(OffsetCommitRequest(t.name("g"), topics=[OffsetCommitRequestTopic(topic.name, topic.id, parts)]))
    offsets(t, topic, (0, 1, 2))


@case("an instance id", OffsetCommitRequest, range(7, 11))
def _(t: Talk) -> None:
    topic = t.topic()
    who, generation = stable(t, group_instance_id="i-1")
    for name in ("i-1", "i-9", None):
        options = {"generation_id_or_member_epoch": generation, "member_id": who, "group_instance_id": name}
        t.ask(commit_request(t, topic, 5, **options))
    options = {"generation_id_or_member_epoch": generation, "member_id": "other", "group_instance_id": "i-1"}
    t.ask(commit_request(t, topic, 5, **options))


@case("what was committed and not", OffsetFetchRequest)
def _(t: Talk) -> None:
    topic, other = t.topic("a", 3), t.topic("b")
    t.quiet(commit_request(t, topic, 5, 7))
    t.ask(offset_fetch_request(t.name("g"), topic, (0, 1, 2, 9)))
    t.ask(offset_fetch_request(t.name("g"), other))
    t.ask(offset_fetch_request(t.name("g"), Topic(t.name("none"), b"\7" * 16)))


@case("everything", OffsetFetchRequest, range(2, 11))
def _(t: Talk) -> None:
    t.quiet(commit_request(t, t.topic("a", 2), 5, 7))
    t.quiet(commit_request(t, t.topic("b"), 1))
    t.ask(offset_fetch_request(t.name("g")))


@case("a group that is not there", OffsetFetchRequest)
def _(t: Talk) -> None:
    t.ask(offset_fetch_request(t.name("none"), t.topic()))
    t.ask(offset_fetch_request("", t.topic("b")))


@case("no topics", OffsetFetchRequest)
def _(t: Talk) -> None:
    t.ask(OffsetFetchRequest(t.name("g"), [], [OffsetFetchRequestGroup(t.name("g"), topics=[])]))


@case("a partition twice", OffsetFetchRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    t.quiet(commit_request(t, topic, 5))
    t.ask(offset_fetch_request(t.name("g"), topic, (0, 0)))


@case("several groups", OffsetFetchRequest, range(8, 11))
def _(t: Talk) -> None:
    t.quiet(commit_request(t, t.topic(), 5))
    groups = [OffsetFetchRequestGroup(t.name(name), topics=None) for name in ("g", "none", "g")]
    t.ask(OffsetFetchRequest(groups=groups))
    t.ask(OffsetFetchRequest(groups=[]))


@case("a member and its epoch", OffsetFetchRequest, [9, 10])
def _(t: Talk) -> None:
    who, generation = stable(t)
    for name, epoch in ((who, generation), (who, 99), ("nobody", 1), (None, 1), ("", -1)):
        t.ask(OffsetFetchRequest(groups=[OffsetFetchRequestGroup(t.name("g"), name, epoch, None)]))


@case("stable offsets only", OffsetFetchRequest, range(7, 11))
def _(t: Talk) -> None:
    topic = t.topic()
    t.quiet(commit_request(t, topic, 5))
    request = offset_fetch_request(t.name("g"), topic)
    t.ask(OffsetFetchRequest(request.group_id, request.topics, request.groups, True))


@case("of a topic that was deleted", OffsetFetchRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    t.quiet(commit_request(t, topic, 5))
    t.quiet(delete_request(topic.name))
    t.fence()
    t.ask(offset_fetch_request(t.name("g"), topic))
