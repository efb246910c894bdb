"""A group of thousands: it comes together, works, and is whole after ``kill -9``; nobody else is held up meanwhile.

Only for our broker: many joins wait on each connection here, and Apache Kafka takes one request of a connection at a
time.
"""

import pytest
from group_wire import PLAIN, Line, describe, wait_for_coordinator

from millstream.wire.messages.heartbeat import HeartbeatRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from worked import Worked

pytestmark = [pytest.mark.process, pytest.mark.slow]

MEMBERS, LINES = 5_000, 50
GROUP, TIMEOUT_MS = "large", 60_000
OLD = 3
"""The newest version in which a member joins with one request, so that many may follow each other on a connection."""


def everybody(lines, requests, version=OLD):
    """Sends a request for each member, spread over the connections; then all their answers, in order."""
    for number, request in enumerate(requests):
        lines[number % LINES].send(request, version)
    return lambda: [lines[number % LINES].receive() for number in range(len(requests))]


def beats(members, generation):
    return [HeartbeatRequest(group_id=GROUP, generation_id=generation, member_id=member) for member in members]


def test_a_group_of_thousands_gathers_works_and_survives_a_kill(start_broker):
    broker = start_broker(
        topics={"t": 1}, settings={"group.initial.rebalance.delay.ms": 2_000, "offsets.topic.num.partitions": 1}
    )
    wait_for_coordinator(broker.bootstrap)
    lines = [Line(broker.bootstrap, f"client-{number}") for number in range(LINES)]
    join = JoinGroupRequest(
        group_id=GROUP,
        session_timeout_ms=TIMEOUT_MS,
        rebalance_timeout_ms=TIMEOUT_MS,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=PLAIN)],
    )
    joined = everybody(lines, [join] * MEMBERS)()
    assert {(answer.error_code, answer.generation_id) for answer in joined} == {(0, 1)}
    members = [answer.member_id for answer in joined]
    (leader,) = {answer.leader for answer in joined}
    (told,) = [answer.members for answer in joined if answer.members]
    assert {member.member_id for member in told} == set(members)

    followers = [member for member in members if member != leader]
    synced = everybody(
        lines, [SyncGroupRequest(group_id=GROUP, generation_id=1, member_id=member) for member in followers]
    )
    assignments = [SyncGroupRequestAssignment(member_id=member, assignment=member.encode()) for member in members]
    with Line(broker.bootstrap) as line:
        # Somebody else's heartbeats, while thousands are told their assignment.
        line.send(SyncGroupRequest(group_id=GROUP, generation_id=1, member_id=leader, assignments=assignments), OLD)
        with Line(broker.bootstrap) as other:
            worked, most_s = Worked(broker.pid), 0.0
            while line.waits(0):
                before = worked.each_ns()
                other.ask(HeartbeatRequest(group_id="other", generation_id=1, member_id="x"), OLD)
                most_s = max(most_s, worked.most_s(before))
            worked.close()
        assert line.receive().assignment == leader.encode()
    assert most_s < 1
    assert [answer.assignment for answer in synced()] == [member.encode() for member in followers]
    assert {answer.error_code for answer in everybody(lines, beats(members, 1))()} == {0}

    for line in lines:
        line.close()
    broker.kill()
    broker.restart()
    wait_for_coordinator(broker.bootstrap)
    lines = [Line(broker.bootstrap) for _ in range(LINES)]
    assert {answer.error_code for answer in everybody(lines, beats(members, 1))()} == {0}
    about = describe(lines[0], GROUP)
    assert about.group_state == "Stable"
    assert {member.member_id: member.member_assignment for member in about.members} == {
        member: member.encode() for member in members
    }
    for line in lines:
        line.close()
