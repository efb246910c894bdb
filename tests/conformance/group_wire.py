"""A client of the group protocol that does exactly what a test says, over the wire, against any broker.

``Line`` is one connection: requests go out as they are told, in any version, and answers come back in order. ``Member``
is somebody in a group: it remembers its member id and generation from the answers it got, and sends what a test asks
for, right or wrong.
"""

import selectors
import socket
import struct

from millstream.model.error_code import ErrorCode
from millstream.wire.codec import decode_response, encode_request, encode_request_header
from millstream.wire.headers import response_header_version
from millstream.wire.messages.describe_groups import DescribeGroupsRequest
from millstream.wire.messages.find_coordinator import FindCoordinatorRequest
from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from millstream.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from millstream.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from millstream.wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

COMMIT_BY_ID_FROM = 10
FETCH_GROUPS_FROM = 8
ANSWER_S = 120


def subscription(*topics, data=b""):
    """A consumer's metadata, in version 0. Kafka fails on bytes that are none."""
    names = b"".join(struct.pack(f">h{len(topic)}s", len(topic), topic.encode()) for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", len(data)) + data


def assignment(topic, *indexes):
    """What a consumer is to read, in version 0."""
    name = struct.pack(f">h{len(topic)}s", len(topic), topic.encode())
    return struct.pack(">hi", 0, 1) + name + struct.pack(f">i{len(indexes)}ii", len(indexes), *indexes, -1)


PLAIN, CHANGED = subscription("t"), subscription("t", data=b"changed")


class Line:
    """One connection."""

    def __init__(self, bootstrap, client_id="wire"):
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=ANSWER_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.client_id = client_id
        self.sent = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def close(self):
        self.socket.close()

    def send(self, request, version):
        header = encode_request_header(request.API_KEY, version, len(self.sent), self.client_id)
        frame = bytes(header) + bytes(encode_request(request, version))
        self.sent.append((request.API_KEY, version))
        self.socket.sendall(struct.pack(">i", len(frame)) + frame)

    def receive(self):
        """The answer to the oldest request that has none yet."""
        size = struct.unpack(">i", self._take(4))[0]
        answer = self._take(size)
        api, version = self.sent.pop(0)
        return decode_response(api, version, answer, 4 + response_header_version(api, version), size)

    def ask(self, request, version):
        assert not self.sent, "an answer is still to come"
        self.send(request, version)
        return self.receive()

    def waits(self, seconds=0.3):
        """No answer comes for that long."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.socket, selectors.EVENT_READ)
            return not selector.select(seconds)

    def _take(self, size):
        data = bytearray()
        while len(data) < size:
            piece = self.socket.recv(size - len(data))
            if not piece:
                raise ConnectionError("the broker closed the connection")
            data += piece
        return bytes(data)


class Member:
    """A member of a group, to be. ``error`` is the code of the last answer, ``answer`` the answer."""

    def __init__(
        self, bootstrap, group, instance=None, *, protocols=None, kind="consumer", session_ms=60_000, **options
    ):
        self.line = Line(bootstrap, options.pop("client_id", "wire"))
        self.group = group
        self.instance = instance
        self.protocols = {"range": PLAIN} if protocols is None else protocols
        self.kind = kind
        self.session_ms = session_ms
        self.rebalance_ms = options.pop("rebalance_ms", 60_000)
        self.id = ""
        self.generation = -1
        self.answer = None
        assert not options

    def close(self):
        self.line.close()

    @property
    def error(self):
        return ErrorCode(self.answer.error_code)

    @property
    def leads(self):
        return self.answer.leader == self.id

    # Joining

    def send_join(self, version=9, **changes):
        fields = {
            "group_id": self.group,
            "session_timeout_ms": self.session_ms,
            "rebalance_timeout_ms": self.rebalance_ms,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": self.kind,
            "protocols": [JoinGroupRequestProtocol(name=n, metadata=m) for n, m in self.protocols.items()],
            "reason": "because the test says so",
        }
        self.line.send(JoinGroupRequest(**{**fields, **changes}), version)

    def joined(self):
        self.answer = self.line.receive()
        if self.error is ErrorCode.NONE:
            self.id, self.generation = self.answer.member_id, self.answer.generation_id
        elif self.error is ErrorCode.MEMBER_ID_REQUIRED:
            self.id = self.answer.member_id
        return self.error

    def join(self, version=9, **changes):
        self.send_join(version, **changes)
        return self.joined()

    def come_in(self, version=9):
        """Join up to where the answer waits for others: a promised id is taken up."""
        self.send_join(version)
        if version >= 4 and self.instance is None and not self.id:
            assert self.joined() is ErrorCode.MEMBER_ID_REQUIRED
            self.send_join(version)

    # The assignment

    def send_sync(self, assignments=None, version=5, **changes):
        fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
            "protocol_type": self.kind,
            "protocol_name": next(iter(self.protocols)),
            "assignments": [
                SyncGroupRequestAssignment(member_id=m, assignment=a) for m, a in (assignments or {}).items()
            ],
        }
        self.line.send(SyncGroupRequest(**{**fields, **changes}), version)

    def synced(self):
        self.answer = self.line.receive()
        return self.error

    def sync(self, assignments=None, version=5, **changes):
        self.send_sync(assignments, version, **changes)
        return self.synced()

    # At work

    def beat(self, version=4, **changes):
        fields = {
            "group_id": self.group,
            "generation_id": self.generation,
            "member_id": self.id,
            "group_instance_id": self.instance,
        }
        return ErrorCode(self.line.ask(HeartbeatRequest(**{**fields, **changes}), version).error_code)

    def leave(self, version=5, **changes):
        """The error of the group, or of this member."""
        who = MemberIdentity(member_id=self.id, group_instance_id=self.instance, reason="enough")
        request = LeaveGroupRequest(**{"group_id": self.group, "member_id": self.id, "members": [who], **changes})
        answer = self.line.ask(request, version)
        return ErrorCode(answer.error_code or (answer.members[0].error_code if version >= 3 else 0))

    def commit(self, offsets, version=9, **changes):
        options = {"generation": self.generation, "member_id": self.id, "instance": self.instance, **changes}
        return commit(self.line, self.group, offsets, version, **options)


def gather(*members):
    """Bring members into their group, the first one leading, until all have been told of one generation."""
    first, *others = members
    first.come_in()
    assert first.joined() is ErrorCode.NONE, first.error
    for member in others:
        member.come_in()
    if others:
        while len(describe(first.line, first.group).members) < len(members):
            pass  # their joins are on the way
        first.send_join()
        for member in members:
            assert member.joined() is ErrorCode.NONE, member.error
    assert first.leads
    assert {member.generation for member in members} == {first.generation}


def stable(*members, assigned=None):
    """Bring members into their group, the first one leading; each is assigned its own id, or ``assigned``."""
    gather(*members)
    first, *others = members
    for member in others:
        member.send_sync()
    assignments = {member.id: member.id.encode() if assigned is None else assigned for member in members}
    first.send_sync(assignments)
    for member in members:
        assert member.synced() is ErrorCode.NONE, member.error
        assert member.answer.assignment == assignments[member.id]


def pair(people, *instances, **options):
    """A stable group of two: the leader and the other."""
    members = [people(instance, **options) for instance in instances or (None, None)]
    stable(*members)
    return members


def asked_to_rejoin(member):
    """Returns when the member's heartbeat says so."""
    while member.beat() is ErrorCode.NONE:
        pass
    assert member.beat() is ErrorCode.REBALANCE_IN_PROGRESS


def leave(line, group, *who, version=5):
    """The error of the group, or one of each (member id, instance id)."""
    members = [MemberIdentity(member_id=m, group_instance_id=i) for m, i in who]
    answer = line.ask(LeaveGroupRequest(group_id=group, member_id=who[0][0], members=members), version)
    return ErrorCode(answer.error_code) if answer.error_code else [ErrorCode(m.error_code) for m in answer.members]


def commit(
    line,
    group,
    offsets,
    version=9,
    *,
    generation=-1,
    member_id="",
    instance=None,
    metadata="",
    retention_ms=-1,
    ids=None,
):
    """Commit {(topic, partition): offset}; the error of each, or of all if it is the same."""
    topics = {}
    for (topic, index), offset in offsets.items():
        topics.setdefault(topic, []).append(
            OffsetCommitRequestPartition(
                partition_index=index, committed_offset=offset, committed_metadata=metadata, committed_leader_epoch=0
            )
        )
    by_id = version >= COMMIT_BY_ID_FROM
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        group_instance_id=instance,
        retention_time_ms=retention_ms,
        topics=[
            OffsetCommitRequestTopic(name="" if by_id else t, topic_id=ids[t] if by_id else bytes(16), partitions=p)
            for t, p in topics.items()
        ],
    )
    answer = line.ask(request, version)
    names = {value: name for name, value in ids.items()} if by_id else {}
    errors = {
        (names[t.topic_id] if by_id else t.name, p.partition_index): ErrorCode(p.error_code)
        for t in answer.topics
        for p in t.partitions
    }
    assert errors.keys() == offsets.keys()
    return next(iter(errors.values())) if len(set(errors.values())) == 1 else errors


def fetch(line, group, places=None, version=7, *, ids=None, stable=False):
    """{(topic, partition): offset or error} of a group, or the error of all; ``places`` None asks for everything."""
    wanted = {}
    for topic, index in places or ():
        wanted.setdefault(topic, []).append(index)
    by_id = version >= COMMIT_BY_ID_FROM
    old = [OffsetFetchRequestTopic(name=t, partition_indexes=p) for t, p in wanted.items()]
    new = [
        OffsetFetchRequestTopics(name="" if by_id else t, topic_id=ids[t] if by_id else bytes(16), partition_indexes=p)
        for t, p in wanted.items()
    ]
    request = OffsetFetchRequest(
        group_id=group,
        topics=None if places is None else old,
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None if places is None else new)],
        require_stable=stable,
    )
    answer = line.ask(request, version)
    if version >= FETCH_GROUPS_FROM:
        (answer,) = answer.groups
    if answer.error_code:
        return ErrorCode(answer.error_code)
    names = {value: name for name, value in (ids or {}).items()}
    return {
        (names[t.topic_id] if by_id else t.name, p.partition_index): (
            ErrorCode(p.error_code) if p.error_code else p.committed_offset
        )
        for t in answer.topics
        for p in t.partitions
    }


def describe(line, group, version=6):
    """The description of one group."""
    (described,) = line.ask(DescribeGroupsRequest(groups=[group]), version).groups
    return described


def topic_ids(line, *names):
    """{name: topic id}; of a topic that does not exist an id that nobody has."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=n) for n in names], allow_auto_topic_creation=False)
    found = line.ask(request, 12).topics
    return {t.name: t.topic_id if any(t.topic_id) else b"?" * 16 for t in found}


def wait_for_coordinator(bootstrap):
    """Returns when groups can be used: the broker has made a place for them, and loaded it."""
    with Line(bootstrap) as line:
        while True:
            found = line.ask(FindCoordinatorRequest(key="anybody", key_type=0), 3)
            if found.error_code == 0 and isinstance(fetch(line, "anybody"), dict):
                return
