"""Clients that mean harm, each in its way, beside one that must not notice: its answers stay right and come in time.

Memory is the proportional set size of all processes of the broker; it stays under the budget plus a constant
(``hostile_support``). Claims that nothing backs close the connection that made them (``test_hostile_bytes``); here it
is numbers, patience, and requests that are valid.
"""

import socket
import struct

import pytest
from bench import raw
from crc32c import crc32c
from hostile_support import BUDGET_BYTES, clients_go_on, connect, nobody_notices, sound, within_budget

from millstream.testing import Broker
from millstream.wire.codec import decode_response
from millstream.wire.compression import compress
from millstream.wire.frames import request_frame
from millstream.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from millstream.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic
from millstream.wire.messages.init_producer_id import InitProducerIdRequest
from millstream.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from millstream.wire.messages.metadata import MetadataRequest
from millstream.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from millstream.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from millstream.wire.records import HEADER, HEADER_BYTES, build_batch
from millstream.wire.varint import uvarint

pytestmark = pytest.mark.process

CROWD = 2000


@pytest.fixture(scope="module")
def running():
    settings = {"group.initial.rebalance.delay.ms": 0, "socket.frame.timeout.ms": 10_000}
    with Broker(topics={"steady": 2, "beside": 1}, settings=settings, shards=2, memory=str(BUDGET_BYTES)) as started:
        clients_go_on(started, "before")
        yield started


@pytest.fixture
def broker(running):
    """One broker for all of them: what one leaves behind is another's burden too."""
    with sound(running):
        yield running


@pytest.fixture
def beside(broker):
    with nobody_notices(broker, "beside"):
        yield


def pipelined(broker, requests, at_once=100):
    """Send requests over one connection and count the answers."""
    with raw.Caller(broker.bootstrap) as caller:
        return [
            answer for start in range(0, len(requests), at_once) for answer in _asked(caller, requests, start, at_once)
        ]


def _asked(caller, requests, start, at_once):
    part = requests[start : start + at_once]
    first, *rest = part
    answers = [caller.call(b"".join([first, *rest]))]
    return answers + [caller.call(b"") for _ in rest]


def closed(connection, timeout_s=60):
    """Whether the broker ends the connection."""
    connection.settimeout(timeout_s)
    try:
        while connection.recv(65536):
            pass
    except TimeoutError:
        return False
    except ConnectionError:
        return True
    return True


def test_two_thousand_idle_connections_are_no_burden(broker, beside, many_descriptors, connections):
    for _ in range(CROWD):
        connections.enter_context(connect(broker))
    within_budget(broker)
    clients_go_on(broker, "beside-the-idle")


@pytest.mark.slow
def test_requests_that_come_byte_by_byte_are_dropped_and_hold_nothing(broker, beside, many_descriptors, connections):
    whole = raw.produce("steady", 0, raw.batch([b"x" * (1 << 20)]))
    slow = [connections.enter_context(connect(broker, blocking=True)) for _ in range(60)]
    for size in (3, 1, 9, 40):
        for connection in slow:
            connection.sendall(whole[:size])
            whole = whole[size:] if connection is slow[-1] else whole
    clients_go_on(broker, "beside-the-slow")
    assert all(closed(connection) for connection in slow)


def test_two_thousand_clients_with_ids_of_32_kilobytes_take_little_memory(
    broker, beside, many_descriptors, connections
):
    for number in range(CROWD):
        client_id = f"{number:05d}" * 6500
        request = request_frame(MetadataRequest(topics=[]), 1, 7, client_id)
        connections.enter_context(connect(broker, blocking=True)).sendall(request)
    within_budget(broker)
    clients_go_on(broker, "beside-long-names")


@pytest.mark.slow
def test_requests_without_end_whose_answers_nobody_reads_take_no_memory(broker, beside, many_descriptors, connections):
    with raw.Caller(broker.bootstrap) as caller:
        caller.create_topics({f"topic-{number:02d}-{'x' * 180}": 2 for number in range(60)})
        flood = request_frame(MetadataRequest(topics=None), 1, 7, "flood")
        assert len(caller.call(flood)) > 10_000
    for _ in range(400):
        connection = connections.enter_context(connect(broker, blocking=True))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.setblocking(False)
        connection.send(flood * 1000)
    for _ in range(3):
        within_budget(broker)
        clients_go_on(broker, "beside-the-flood")


def joining(group, metadata=b"\0\1" + bytes(8), version=5):
    request = JoinGroupRequest(
        group_id=group,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol("range", metadata)],
    )
    return bytes(request_frame(request, version, 7, "crowd"))


@pytest.mark.slow
def test_thousands_of_groups_members_and_transactional_names_are_held_in_the_budget(broker, beside):
    answers = pipelined(broker, [joining(f"group-{number}") for number in range(10_000)])
    assert {struct.unpack_from(">h", answer, 8)[0] for answer in answers} == {79}  # member id required
    pipelined(broker, [joining("crowd") for _ in range(3000)])
    asked = [
        bytes(request_frame(InitProducerIdRequest(f"transaction-{number}", 1000), 4, 7, "crowd"))
        for number in range(5000)
    ]
    pipelined(broker, asked)
    within_budget(broker)
    clients_go_on(broker, "beside-the-crowd")


@pytest.mark.slow
def test_more_fetch_sessions_than_there_are_slots_are_held_in_the_budget(broker, beside):
    topics = [FetchTopic(topic="steady", partitions=[FetchPartition(partition=n % 2) for n in range(50)])]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, session_epoch=0, topics=topics)
    pipelined(broker, [bytes(request_frame(request, 12, 7, "crowd"))] * 3000)
    within_budget(broker)
    clients_go_on(broker, "beside-the-sessions")


def patient(max_wait_ms):
    """A fetch that waits for more than there is, and is itself 400 KB long."""
    topics = [FetchTopic(topic="steady", partitions=[FetchPartition(partition=n) for n in range(2)])]
    many = [ForgottenTopic(topic=f"forgotten-{n}") for n in range(20_000)]
    request = FetchRequest(max_wait_ms=max_wait_ms, min_bytes=1 << 30, topics=topics, forgotten_topics_data=many)
    return bytes(request_frame(request, 12, 7, "crowd"))


def answered(connection):
    """The broker answers the next request of the connection."""
    connection.settimeout(60)
    size = int.from_bytes(received(connection, 4), "big")
    return len(received(connection, size)) > 8


def received(connection, size):
    """So many bytes, and not one more: another answer may be behind them."""
    data = b""
    while len(data) < size and (part := connection.recv(size - len(data))):
        data += part
    assert len(data) == size
    return data


@pytest.mark.parametrize("gone", [True, False], ids=["of clients that are gone", "that are waited for"])
def test_large_requests_that_wait_make_room_for_those_of_others(broker, connections, gone):
    crowd = [connections.enter_context(connect(broker, blocking=True)) for _ in range(60)]
    long_poll, other_request = patient(60_000), patient(0)
    for connection in crowd:
        connection.sendall(long_poll)
    if gone:
        for connection in crowd:
            connection.close()
    for _ in range(4):  # on both shards
        with connect(broker, blocking=True) as other:
            other.sendall(other_request)
            assert answered(other)
    within_budget(broker)


@pytest.mark.slow
def test_of_large_requests_without_end_every_one_is_answered_in_time(broker, beside, connections):
    crowd = [connections.enter_context(connect(broker, blocking=True)) for _ in range(60)]
    two = patient(8_000) * 2
    for connection in crowd:
        connection.sendall(two)
    within_budget(broker)
    clients_go_on(broker, "beside-those-that-wait")
    for _ in range(2):
        assert all(answered(connection) for connection in crowd)


def bomb(codec, size):
    """A batch of a few kilobytes whose one record unfolds to ``size`` bytes."""
    plain = build_batch([(b"k", bytes(size), [], 1_700_000_000_000)])
    payload = compress(codec, plain[HEADER_BYTES:])
    fields = list(HEADER.unpack_from(plain))
    fields[1], fields[5] = HEADER_BYTES - 12 + len(payload), codec
    batch = bytearray(HEADER.pack(*fields) + payload)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


@pytest.mark.slow
def test_bombs_in_topics_that_are_written_anew_end_at_their_limit(broker, beside):
    with raw.Caller(broker.bootstrap) as caller:
        caller.create_topics({"squeezed": 4}, {"compression.type": "lz4"})
        for codec in (1, 2, 4):
            batch = bomb(codec, 256 << 20 if codec != 2 else 8 << 20)
            assert len(batch) < 1 << 20
            for partition in range(4):
                caller.call(raw.produce("squeezed", partition, batch))
            within_budget(broker)
        assert caller.produce_one("squeezed", 0, raw.batch([b"sound"])) >= 0
    clients_go_on(broker, "beside-the-bombs")


def test_subscriptions_that_claim_much_or_are_many_cost_nobody_else_anything(broker, beside):
    claims = [
        b"\0\1" + struct.pack(">i", 0x7FFFFFFF),
        b"\0\1" + struct.pack(">i", 1 << 19) + b"\0\0" * (1 << 19),
        b"\0\3" + struct.pack(">i", 1) + b"\x7f\xff" + b"t" * 40_000,
        b"",
        b"\0",
        b"\xff" * (1 << 20),
    ]
    for number, metadata in enumerate(claims):
        group = f"claims-{number}"
        with raw.Caller(broker.bootstrap) as caller:
            frame = caller.call(joining(group, metadata, version=3))
            joined = decode_response(11, 3, frame, 4, len(frame))
            assert joined.error_code == 0
            assigned = SyncGroupRequest(
                group_id=group,
                generation_id=joined.generation_id,
                member_id=joined.member_id,
                assignments=[SyncGroupRequestAssignment(joined.member_id, metadata)],
            )
            frame = caller.call(request_frame(assigned, 2, 7, "crowd"))
            assert decode_response(14, 2, frame, 4, len(frame)).assignment == metadata
            deleted = OffsetDeleteRequest(
                group, [OffsetDeleteRequestTopic("steady", [OffsetDeleteRequestPartition(0)])]
            )
            caller.call(request_frame(deleted, 0, 7, "crowd"))  # asks what the group subscribes to
    within_budget(broker)
    clients_go_on(broker, "beside-the-claims")


def test_regular_expressions_that_would_run_for_ever_do_not(broker, beside):
    hostile = [
        "(a+)+$",
        "(a|aa)+$",
        "(.*)*" * 50 + "x",
        "a" * 30_000,
        "(" * 2000,
        "(a{1000}){1000}",
        "[" * 3000,
        "\\pN" * 3000,
    ]
    asked = [
        ConsumerGroupHeartbeatRequest(
            group_id=f"expression-{number}",
            member_id=f"member-{number}",
            rebalance_timeout_ms=1000,
            subscribed_topic_regex=expression,
            subscribed_topic_names=[],
            topic_partitions=[],
        )
        for number, expression in enumerate(hostile)
    ]
    pipelined(broker, [bytes(request_frame(one, 1, 7, "crowd")) for one in asked])
    within_budget(broker)
    clients_go_on(broker, "beside-the-expressions")


def test_tagged_fields_without_end_close_the_connection_that_sent_them(broker, beside):
    header = struct.pack(">hhih", 3, 9, 7, 1) + b"c"
    for count in (2000, 1 << 20):
        body = header + uvarint(count) + b"\5\0" * count
        with connect(broker, blocking=True) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            assert closed(connection)
    clients_go_on(broker, "beside-the-tags")
