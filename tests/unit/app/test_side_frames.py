"""The frames between supervisor and side process: whole, in order, with descriptors, and nothing too long."""

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from millstream.app.side_frames import FRAME_BYTES_MAX, Answer, Kind, Receiver, encode, send

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_frames_arrive_whole_and_in_order(pair: Pair) -> None:
    ours, theirs = pair
    bodies = [b"", b"x", os.urandom(1 << 20), b"last"]
    sender = threading.Thread(target=lambda: [send(ours, Kind.PART, n, body) for n, body in enumerate(bodies)])
    sender.start()
    receiver = Receiver(theirs)
    found = [receiver.receive() for _ in bodies]
    sender.join()
    assert found == [(number, Kind.PART, body) for number, body in enumerate(bodies)]
    ours.close()
    assert receiver.receive() is None


def test_each_descriptor_belongs_to_its_answer(pair: Pair) -> None:
    ours, theirs = pair
    receiver = Receiver(theirs)
    names: list[int] = []
    for number in range(20):
        mine, other = socket.socketpair()
        with mine, other:
            mine.send(b"%d" % number)
            send(ours, Kind.PART, number, b"between")
            send(ours, Kind.ANSWER, number, encode(Answer(200, b"", 1)), other.fileno())
    for number in range(20):
        assert receiver.receive() == (number, Kind.PART, b"between")
        assert receiver.receive() == (number, Kind.ANSWER, encode(Answer(200, b"", 1)))
        with socket.socket(fileno=receiver.fds.popleft()) as got:
            names.append(int(got.recv(10)))
    assert names == list(range(20))
    assert not receiver.fds


@pytest.mark.parametrize("head", [(FRAME_BYTES_MAX + 1).to_bytes(4, "little") + bytes(5), bytes(8) + b"\xff"])
def test_a_frame_that_cannot_be_ends_the_channel(pair: Pair, head: bytes) -> None:
    ours, theirs = pair
    ours.send(head)
    with pytest.raises(OSError, match="a frame of"):
        Receiver(theirs).receive()


def test_an_end_in_the_midst_of_a_frame_is_told(pair: Pair) -> None:
    ours, theirs = pair
    ours.send((100).to_bytes(4, "little") + bytes(5) + b"half")
    ours.close()
    with pytest.raises(ConnectionResetError):
        Receiver(theirs).receive()
