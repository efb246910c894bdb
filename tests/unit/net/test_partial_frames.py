"""A frame that arrives in parts is received into its fragments, whatever the parts are."""

import socket

import pytest

from millstream.iobuf import Arena, receive_buffer
from millstream.net.partial_frame import PartialFrame


@pytest.mark.parametrize("parts", [1, 1_000, 70_000, 300_000])
def test_the_parts_are_received_one_behind_the_other(parts):
    body = bytes(index * 7 % 251 for index in range(600_000))
    arena = Arena.create(0, 16 << 20)
    chain = receive_buffer(arena, len(body))
    frame = PartialFrame(chain, len(body), memoryview(body[:100_000]))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        position = 100_000
        while frame.missing:
            assert frame.missing == len(body) - position
            size = parts if position < 100_000 + 500 * parts else len(body)  # then the rest at once
            position += theirs.send(body[position : position + size], socket.MSG_DONTWAIT)
            while frame.missing > len(body) - position:
                assert frame.receive(ours) > 0
        theirs.shutdown(socket.SHUT_WR)
    assert bytes(chain) == body
    chain.release()


def test_the_end_of_the_stream_is_no_bytes():
    arena = Arena.create(0, 16 << 20)
    chain = receive_buffer(arena, 100)
    frame = PartialFrame(chain, 100, memoryview(b"ab"))
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        assert frame.receive(ours) == 0
    assert frame.missing == 98
    chain.release()
