"""Classic groups: joining, syncing, leaving, committing, describing, step by step."""

from differential.good import commit_request, join_request, offset_fetch_request
from differential.good_admin import offset_delete_request
from differential.table import case
from differential.talk import Talk, Topic
from millstream.wire.messages.delete_groups import DeleteGroupsRequest
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.list_groups import ListGroupsRequest
from millstream.wire.messages.offset_delete import OffsetDeleteRequest
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment


def describe(t: Talk, group: str = "g") -> None:
    t.look(DescribeGroupsRequest([t.name(group)]), 5)


def member(t: Talk, group: str = "g", **options: object) -> tuple[str, int]:
    """Joins until it is a member of a generation; for groups of one."""
    answer = t.quiet(join_request(t, "", group, **options), 5)
    if answer.error_code == 79:
        answer = t.quiet(join_request(t, answer.member_id, group, **options), 5)
    assert answer.error_code == 0, answer
    return answer.member_id, answer.generation_id


def stable(t: Talk, group: str = "g", **options: object) -> tuple[str, int]:
    """A group of one member that has its assignment."""
    who, generation = member(t, group, **options)
    assigned = [SyncGroupRequestAssignment(who, b"mine")]
    answer = t.quiet(SyncGroupRequest(t.name(group), generation, who, None, None, None, assigned), 3)
    assert answer.error_code == 0, answer
    return who, generation


def offsets(t: Talk, topic: Topic | None = None, partitions: tuple[int, ...] = (0,)) -> None:
    t.look(offset_fetch_request(t.name("g"), topic, partitions), 9)


# JoinGroup


@case("the first member", JoinGroupRequest)
def _(t: Talk) -> None:
    answer = t.ask(join_request(t))
    if answer is not None and answer.error_code == 79:
        t.ask(join_request(t, answer.member_id))
    describe(t)


@case("a static member", JoinGroupRequest, range(5, 10))
def _(t: Talk) -> None:
    t.ask(join_request(t, group_instance_id="i-1"))
    t.ask(join_request(t, group_instance_id="i-1"))
    describe(t)


@case("a static member with a member id that is not its own", JoinGroupRequest, range(5, 10))
def _(t: Talk) -> None:
    t.ask(join_request(t, group_instance_id="i-1"))
    t.ask(join_request(t, "somebody-else", group_instance_id="i-1"))
    t.ask(join_request(t, "somebody-else", group_instance_id="i-2"))


@case("a member that is not known", JoinGroupRequest)
def _(t: Talk) -> None:
    t.ask(join_request(t, "nobody"))
    stable(t)
    t.ask(join_request(t, "nobody"))


@case("the same member again", JoinGroupRequest)
def _(t: Talk) -> None:
    who, _ = stable(t)
    t.ask(join_request(t, who))
    describe(t)


for _what, _options in {
    "a session timeout of 0": {"session_timeout_ms": 0},
    "a session timeout of -1": {"session_timeout_ms": -1},
    "a session timeout too short": {"session_timeout_ms": 99},
    "a session timeout too long": {"session_timeout_ms": 1_800_001},
    "a rebalance timeout of 0": {"rebalance_timeout_ms": 0},
    "a rebalance timeout of -1": {"rebalance_timeout_ms": -1},
    "no protocols": {"protocols": []},
    "a protocol without a name": {"protocols": [JoinGroupRequestProtocol("", b"")]},
    "a protocol twice": {
        "protocols": [JoinGroupRequestProtocol("range", b"1"), JoinGroupRequestProtocol("range", b"2")]
    },
    "no protocol type": {"protocol_type": ""},
    "another protocol type": {"protocol_type": "connect"},
    "a reason": {"reason": "x" * 300},
    "an empty instance id": {"group_instance_id": ""},
    "an odd instance id": {"group_instance_id": "a b"},
    "an instance id of 250 characters": {"group_instance_id": "x" * 250},
}.items():

    @case(_what, JoinGroupRequest)
    def _(t: Talk, options: dict[str, object] = _options) -> None:
        answer = t.ask(join_request(t, **options))
        if answer is not None and answer.error_code == 79:
            t.ask(join_request(t, answer.member_id, **options))


@case("a group without a name", JoinGroupRequest)
def _(t: Talk) -> None:
    request = join_request(t)
    t.ask(JoinGroupRequest("", 10_000, 10_000, "", None, "consumer", request.protocols))


for _what, _options in {
    "another type": {"protocol_type": "connect"},
    "no protocol in common": {"protocols": [JoinGroupRequestProtocol("other", b"")]},
    "one protocol in common": {"protocols": [JoinGroupRequestProtocol("rr", b"")], "session_timeout_ms": 10_000},
}.items():

    @case(f"a second member with {_what}", JoinGroupRequest, [0, 3, 4, 5, 9])
    def _(t: Talk, options: dict[str, object] = _options) -> None:
        first, _ = stable(t)
        second = t.open()
        request = join_request(t, **options)
        t.send(request, line=second)
        if t.version >= 4 or "session_timeout_ms" not in options:
            answer = t.receive(request, line=second)
            if answer is None or answer.error_code != 79:
                return
            request = join_request(t, answer.member_id, **options)
            t.send(request, line=second)
        if "session_timeout_ms" in options:
            t.until(HeartbeatRequest(t.name("g"), 1, first), lambda answer: answer.error_code == 27)
            t.ask(join_request(t, first))
        t.receive(request, line=second)
        describe(t)


def two_members(t: Talk) -> None:
    """A rebalance of two, one step after the other, at the version under test of JoinGroup."""
    first, generation = stable(t)
    t.ask(HeartbeatRequest(t.name("g"), generation, first))
    second = t.open()
    request = join_request(t)
    t.send(request, line=second)
    if t.version >= 4:
        request = join_request(t, t.receive(request, line=second).member_id)
        t.send(request, line=second)
    t.until(HeartbeatRequest(t.name("g"), generation, first), lambda answer: answer.error_code == 27)
    t.ask(HeartbeatRequest(t.name("g"), generation, first))
    t.ask(
        commit_request(t, Topic(t.name("a"), bytes(16)), 5, generation_id_or_member_epoch=generation, member_id=first),
        8,
    )
    lead = t.ask(join_request(t, first))
    follow = t.receive(request, line=second)
    describe(t)
    name = t.name("g")
    waiting = SyncGroupRequest(name, follow.generation_id, follow.member_id)
    t.send(waiting, 3, line=second)
    assigned = [SyncGroupRequestAssignment(one, b"part") for one in (first, follow.member_id)]
    t.ask(SyncGroupRequest(name, lead.generation_id, first, None, None, None, assigned), 3)
    t.receive(waiting, 3, line=second)
    describe(t)
    t.ask(LeaveGroupRequest(name, follow.member_id), 1)
    t.ask(HeartbeatRequest(name, lead.generation_id, first))
    t.ask(join_request(t, first))
    describe(t)


case("a rebalance of two", JoinGroupRequest)(two_members)


@case("a member that does not come back", JoinGroupRequest, [3, 9], slow=True)
def _(t: Talk) -> None:
    stable(t, session_timeout_ms=10_000, rebalance_timeout_ms=400)
    second = t.open()
    request = join_request(t)
    t.send(request, line=second)
    if t.version >= 4:
        request = join_request(t, t.receive(request, line=second).member_id)
        t.send(request, line=second)
    t.receive(request, line=second)
    describe(t)


@case("a member whose session ends", JoinGroupRequest, [3, 9], slow=True)
def _(t: Talk) -> None:
    who, generation = stable(t, session_timeout_ms=300)
    t.until(DescribeGroupsRequest([t.name("g")]), lambda answer: not answer.groups[0].members, 5)
    t.ask(HeartbeatRequest(t.name("g"), generation, who))
    t.ask(join_request(t, who))
    describe(t)


# SyncGroup


@case("the leader alone", SyncGroupRequest)
def _(t: Talk) -> None:
    who, generation = member(t)
    assigned = [SyncGroupRequestAssignment(who, b"mine")]
    t.ask(SyncGroupRequest(t.name("g"), generation, who, None, "consumer", "range", assigned))
    t.ask(SyncGroupRequest(t.name("g"), generation, who, None, "consumer", "range", []))
    describe(t)


for _what, _change in {
    "a generation too old": {"generation_id": -1},
    "a generation too new": {"generation_id": 9},
    "another member": {"member_id": "nobody"},
    "no member": {"member_id": ""},
    "an instance id that is not there": {"group_instance_id": "i-9"},
    "another protocol": {"protocol_name": "other"},
    "another protocol type": {"protocol_type": "connect"},
    "no protocol": {"protocol_name": None, "protocol_type": None},
    "no group": {"group_id": ""},
    "a group that is not there": {"group_id": "no-such-group"},
    "an assignment for somebody else": {"assignments": [SyncGroupRequestAssignment("nobody", b"x")]},
    "an assignment twice": {
        "assignments": [SyncGroupRequestAssignment("m", b"1"), SyncGroupRequestAssignment("m", b"2")]
    },
}.items():

    @case(_what, SyncGroupRequest)
    def _(t: Talk, change: dict[str, object] = _change) -> None:
        who, generation = member(t)
        fields = {
            "group_id": t.name("g"),
            "generation_id": generation,
            "member_id": who,
            "protocol_type": "consumer",
            "protocol_name": "range",
            **change,
        }
        t.ask(SyncGroupRequest(**fields))


@case("of a group that is empty", SyncGroupRequest)
def _(t: Talk) -> None:
    t.quiet(commit_request(t, t.topic(), 1))
    t.ask(SyncGroupRequest(t.name("g"), -1, ""))
    t.ask(SyncGroupRequest(t.name("g"), 0, "m"))


# Heartbeat

for _what, _change in {
    "as it should be": {},
    "a generation too old": {"generation_id": 0},
    "a generation too new": {"generation_id": 9},
    "another member": {"member_id": "nobody"},
    "no member": {"member_id": ""},
    "an instance id that is not there": {"group_instance_id": "i-9"},
    "no group": {"group_id": ""},
    "a group that is not there": {"group_id": "no-such-group"},
}.items():

    @case(_what, HeartbeatRequest)
    def _(t: Talk, change: dict[str, object] = _change) -> None:
        who, generation = stable(t)
        fields = {"group_id": t.name("g"), "generation_id": generation, "member_id": who, **change}
        t.ask(HeartbeatRequest(**fields))


@case("before the assignment", HeartbeatRequest)
def _(t: Talk) -> None:
    who, generation = member(t)
    t.ask(HeartbeatRequest(t.name("g"), generation, who))


@case("a static member that was replaced", HeartbeatRequest, [3, 4])
def _(t: Talk) -> None:
    who, generation = stable(t, group_instance_id="i-1")
    t.quiet(join_request(t, group_instance_id="i-1"), 5)
    t.ask(HeartbeatRequest(t.name("g"), generation, who, "i-1"))
    t.ask(HeartbeatRequest(t.name("g"), generation, who))


# LeaveGroup


def leave(t: Talk, *members: MemberIdentity, group: str = "g") -> None:
    t.ask(LeaveGroupRequest(t.name(group), members[0].member_id if members else "", list(members)))


@case("the only member", LeaveGroupRequest)
def _(t: Talk) -> None:
    who, generation = stable(t)
    leave(t, MemberIdentity(who))
    t.ask(HeartbeatRequest(t.name("g"), generation, who))
    leave(t, MemberIdentity(who))
    describe(t)


@case("nobody", LeaveGroupRequest)
def _(t: Talk) -> None:
    stable(t)
    leave(t)
    leave(t, MemberIdentity("nobody"))
    leave(t, MemberIdentity(""))
    describe(t)


@case("a group that is not there", LeaveGroupRequest)
def _(t: Talk) -> None:
    leave(t, MemberIdentity("m"), group="none")
    t.ask(LeaveGroupRequest("", "m", [MemberIdentity("m")]))


@case("by instance id", LeaveGroupRequest, range(3, 6))
def _(t: Talk) -> None:
    who, _ = stable(t, group_instance_id="i-1")
    leave(t, MemberIdentity("", "i-9"), MemberIdentity("other", "i-1"), MemberIdentity(who, "i-2"))
    leave(t, MemberIdentity("", "i-1", "bye"))
    describe(t)


@case("twice in one request", LeaveGroupRequest, range(3, 6))
def _(t: Talk) -> None:
    who, _ = stable(t)
    leave(t, MemberIdentity(who), MemberIdentity(who))


# Looking at groups


@case("groups in every state", DescribeGroupsRequest)
def _(t: Talk) -> None:
    stable(t, "stable")
    member(t, "completing")
    t.quiet(commit_request(t, t.topic(), 5, group="empty"))
    names = [t.name(one) for one in ("stable", "completing", "empty", "none")]
    t.ask(DescribeGroupsRequest([*names, names[0]], True))
    t.ask(DescribeGroupsRequest([]))


@case("groups in every state", ListGroupsRequest)
def _(t: Talk) -> None:
    stable(t, "stable")
    member(t, "completing")
    stable(t, "connect", protocol_type="connect")
    t.quiet(commit_request(t, t.topic(), 5, group="empty"))
    t.ask(ListGroupsRequest())


for _states in (["Stable"], ["stable"], ["Empty", "Dead"], ["NoSuchState"], [""], ["Assigning", "Reconciling"]):

    @case(f"groups that are {' or '.join(_states)!r}", ListGroupsRequest, [4, 5])
    def _(t: Talk, states: list[str] = _states) -> None:
        stable(t, "stable")
        t.quiet(commit_request(t, t.topic(), 5, group="empty"))
        t.ask(ListGroupsRequest(states))


for _types in (["classic"], ["Classic"], ["consumer"], ["share"], ["no-such-type"], [""], ["classic", "consumer"]):

    @case(f"groups of type {' or '.join(_types)!r}", ListGroupsRequest, [5])
    def _(t: Talk, types: list[str] = _types) -> None:
        stable(t, "stable")
        t.quiet(commit_request(t, t.topic(), 5, group="empty"))
        t.ask(ListGroupsRequest([], types))


for _kind in (0, 1, 2, 3, -1):

    @case(f"a key of type {_kind}", FindCoordinatorRequest)
    def _(t: Talk, kind: int = _kind) -> None:
        t.ask(FindCoordinatorRequest(t.name("g"), kind, [t.name("g"), t.name("h")]))


@case("odd keys", FindCoordinatorRequest)
def _(t: Talk) -> None:
    t.ask(FindCoordinatorRequest("", 0, ["", t.name("g"), t.name("g")]))
    t.ask(FindCoordinatorRequest("x" * 300, 0, []))


# DeleteGroups, OffsetDelete


@case("groups in every state", DeleteGroupsRequest)
def _(t: Talk) -> None:
    stable(t, "stable")
    t.quiet(commit_request(t, t.topic(), 5, group="empty"))
    names = [t.name(one) for one in ("stable", "empty", "none", "empty")]
    t.ask(DeleteGroupsRequest(names))
    t.ask(DeleteGroupsRequest(names))
    t.ask(DeleteGroupsRequest([]))
    for one in ("stable", "empty"):
        describe(t, one)
    t.look(offset_fetch_request(t.name("empty")), 9)


@case("offsets of an empty group", OffsetDeleteRequest)
def _(t: Talk) -> None:
    topic = t.topic("a", 3)
    t.quiet(commit_request(t, topic, 5, 7))
    t.ask(offset_delete_request(t.name("g"), topic.name, 0, 2, 9))
    t.ask(offset_delete_request(t.name("g"), t.name("none"), 0))
    offsets(t)
    t.ask(offset_delete_request(t.name("g"), topic.name, 1))
    describe(t)


@case("offsets of a group with members", OffsetDeleteRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    who, generation = stable(t)
    t.quiet(commit_request(t, topic, 5, generation_id_or_member_epoch=generation, member_id=who))
    t.ask(offset_delete_request(t.name("g"), topic.name, 0))
    offsets(t)


@case("offsets of a group that is not there", OffsetDeleteRequest)
def _(t: Talk) -> None:
    topic = t.topic()
    t.ask(offset_delete_request(t.name("none"), topic.name, 0))
    t.ask(OffsetDeleteRequest(t.name("none")))


# InitProducerId

for _what, _fields in {
    "an id and an epoch": {"producer_id": 5, "producer_epoch": 3},
    "an id alone": {"producer_id": 5},
    "an epoch alone": {"producer_epoch": 5},
    "an empty transactional id": {"transactional_id": ""},
    "a timeout of 0": {"transaction_timeout_ms": 0},
    "a timeout of -1": {"transaction_timeout_ms": -1},
}.items():

    @case(_what, InitProducerIdRequest)
    def _(t: Talk, fields: dict[str, object] = _fields) -> None:
        t.ask(InitProducerIdRequest(**{"transactional_id": None, "transaction_timeout_ms": 1000, **fields}))
