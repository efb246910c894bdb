"""A frame that arrives in parts is received into its fragments, whatever the parts are."""

import socket
import struct

import pytest
from connection_support import Server, frame, receive_frame

from millstream.iobuf import Arena, receive_buffer
from millstream.net.connection import WAKE_BYTES
from millstream.net.partial_frame import PartialFrame


@pytest.mark.parametrize("parts", [1, 1_000, 70_000, 300_000])
def test_the_parts_are_received_one_behind_the_other(parts):
    body = bytes(index * 7 % 251 for index in range(600_000))
    arena = Arena.create(0, 16 << 20)
    chain = receive_buffer(arena, len(body))
    partial = PartialFrame(chain, len(body), memoryview(body[:100_000]))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        position = 100_000
        while partial.missing:
            assert partial.missing == len(body) - position
            size = parts if position < 100_000 + 500 * parts else len(body)  # then the rest at once
            position += theirs.send(body[position : position + size], socket.MSG_DONTWAIT)
            while partial.missing > len(body) - position:
                assert partial.receive(ours) > 0
        theirs.shutdown(socket.SHUT_WR)
    assert bytes(chain) == body
    chain.release()


def test_the_end_of_the_stream_is_no_bytes():
    arena = Arena.create(0, 16 << 20)
    chain = receive_buffer(arena, 100)
    partial = PartialFrame(chain, 100, memoryview(b"ab"))
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert partial.receive(ours) == 0
    assert partial.missing == 98
    chain.release()


def tcp(server):
    """A connection of ``server`` over TCP, and its client."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        theirs = socket.create_connection(listener.getsockname())
        ours, _ = listener.accept()
    theirs.settimeout(60)
    server.clients.append(theirs)
    return server.intake.open(ours, ("127.0.0.1", 1), ("127.0.0.1", 2)), theirs


@pytest.mark.parametrize("size", [WAKE_BYTES - 1, WAKE_BYTES, WAKE_BYTES + 1, 3 * WAKE_BYTES, 3 << 20])
@pytest.mark.parametrize("part", [1_000, 70_000, 1 << 20])
def test_a_large_frame_is_answered_whatever_its_parts_are(size, part):
    server = Server()
    _, sock = tcp(server)
    body = bytes(size)

    def client():
        sock.sendall(frame(b"in front"))
        data = frame(body) + frame(b"after it")
        for at in range(0, len(data), part):
            sock.sendall(data[at : at + part])
        assert [receive_frame(sock) for _ in range(3)] == [b"in front", body, b"after it"]

    server.run(client)
    server.close()
    assert server.arena.live_fragments == 0, server.arena.leaks()


def test_what_comes_slowly_of_a_large_frame_is_progress():
    """The kernel does not wake the shard for it; whoever looks for stalled clients receives it first."""
    server = Server()
    connection, sock = tcp(server)
    sock.sendall(struct.pack(">i", 2 << 20) + bytes(600_000))
    while connection.frame is None or connection.frame.missing > (2 << 20) - 600_000:
        connection.on_readable()
    missing = connection.frame.missing
    assert missing > WAKE_BYTES
    sock.sendall(bytes(1_000))
    for _ in range(1_000):
        server.intake.stalls.sweep()
        if connection.frame.missing < missing:
            break
    assert connection.frame.missing == missing - 1_000
    assert not connection.closed
    server.close()
    assert server.arena.live_fragments == 0, server.arena.leaks()
