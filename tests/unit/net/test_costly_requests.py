"""Requests that cost much and ask other shards: however many clients send them, few are under way at once."""

import time
from types import SimpleNamespace

import pytest
from connection_support import Server, frame, receive_frame

from millstream.errors import OutcomeUnknown
from millstream.kafka.cost import COSTLY_NS
from millstream.kafka.dispatch import Dispatcher
from millstream.net.turns import UNDER_WAY_MAX
from millstream.wire.frames import request_frame
from millstream.wire.messages.describe_log_dirs import DescribeLogDirsRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

CLIENTS = 40


class SlowShards:
    """The other shards: what they are asked costs this one a while, and they answer all together, later."""

    def __init__(self, reactor):
        self.reactor = reactor
        self.cost_ns = COSTLY_NS
        self.waiting = []
        self.most = 0

    def log_sizes(self, done):
        began_ns = time.thread_time_ns()
        while time.thread_time_ns() - began_ns <= self.cost_ns:
            pass
        if not self.waiting:
            self.reactor.call_later(100_000, self.answer)
        self.waiting.append(done)
        self.most = max(self.most, len(self.waiting))

    def answer(self):
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            done(OutcomeUnknown("none of them answered"))


class Edge(Server):
    def __init__(self):
        super().__init__()
        self.others = SlowShards(self.reactor)
        self.dispatcher = Dispatcher(
            SimpleNamespace(
                shard=SimpleNamespace(stats=self.stats, reactor=self.reactor),
                settings=SimpleNamespace(data_dir="/data"),
                admin_home=self.others,
                access=None,
            )
        )

    def on_frame(self, connection, frame):
        return self.dispatcher.on_frame(connection, frame)

    def on_chain(self, connection, chain):
        return self.dispatcher.on_chain(connection, chain)


@pytest.fixture
def server():
    made = Edge()
    yield made
    made.close()
    assert made.intake.turns.under_way == 0


def test_of_short_requests_about_everything_few_are_under_way_at_once(server):
    socks = [server.connect() for _ in range(CLIENTS)]
    request = bytes(request_frame(DescribeLogDirsRequest(topics=None), 4, 7, "crowd"))

    def client():
        for sock in socks:
            sock.sendall(request)
        for sock in socks:
            assert receive_frame(sock)[:4] == (7).to_bytes(4, "big")

    server.run(client)
    assert UNDER_WAY_MAX <= server.others.most <= UNDER_WAY_MAX + 1, "the first was not known to cost much"


def test_those_that_cost_much_only_together_are_few_at_once_too(server):
    server.others.cost_ns = COSTLY_NS * 2 // 3
    request = bytes(request_frame(DescribeLogDirsRequest(topics=None), 4, 7, "crowd"))
    socks = [server.connect() for _ in range(4)]

    def client():
        for sock in socks:
            sock.sendall(request * 50)
        for sock in socks * 50:
            assert receive_frame(sock)[:4] == (7).to_bytes(4, "big")

    server.run(client)
    assert server.others.most <= UNDER_WAY_MAX + len(socks)


def test_who_asks_for_little_is_answered_while_all_that_may_be_are_under_way(server):
    socks = [server.connect() for _ in range(CLIENTS)]
    request = bytes(request_frame(DescribeLogDirsRequest(topics=None), 4, 7, "crowd"))
    unknown = frame((18).to_bytes(2, "big") + (99).to_bytes(2, "big") + (8).to_bytes(4, "big") + b"\xff\xff\0")
    other = server.connect()

    def client():
        for sock in socks:
            sock.sendall(request)
        answered_beside = 0
        for sock in socks:
            other.sendall(unknown)
            assert receive_frame(other)[:4] == (8).to_bytes(4, "big")
            answered_beside += bool(server.others.waiting)
            receive_frame(sock)
        assert answered_beside

    server.run(client)


def test_members_that_wait_for_the_others_let_their_connection_be_read_on(server):
    """However long it took to let them in: what their group waits for may come by the same connection."""
    joins = server.dispatcher.apis[11]
    joins.costly = True
    waiting = []

    def join(_node, context, request):
        waiting.append((request.member_id, context.respond))
        if len(waiting) == 3:
            for member, answer in waiting:
                answer(JoinGroupResponse(error_code=0, member_id=member))

    joins.handle = join
    sock = server.connect()

    def client():
        for number in range(3):
            request = JoinGroupRequest(group_id="g", member_id=f"m{number}", protocol_type="consumer")
            sock.sendall(bytes(request_frame(request, 3, number, "crowd")))
        for number in range(3):
            assert receive_frame(sock)[:4] == number.to_bytes(4, "big")

    server.run(client)
    assert [member for member, _ in waiting] == ["m0", "m1", "m2"]
