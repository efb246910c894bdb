"""Connections that are not logged in: half a frame of each never takes memory from the others."""

from connection_support import Server, frame, receive_frame

from millstream.iobuf import MemoryClass
from millstream.net.budget import STRANGERS_PART
from waits import until

LOGIN_BYTES = 64 << 10
HALF = frame(bytes(60 << 10))[: 30 << 10]


class Gated(Server):
    """The first ``strangers`` connections are not logged in."""

    def __init__(self, strangers):
        super().__init__(arena_bytes=64 << 20)
        self.left = strangers
        self.intake.on_change = self.changed
        self.most = 0

    def changed(self, connection):
        if self.left and not connection.closed:
            self.left -= 1
            connection.frame_bytes_max = LOGIN_BYTES

    def on_frame(self, connection, body):
        self.note()
        super().on_frame(connection, body)

    def note(self):
        strangers = self.intake.budget._strangers
        self.most = max(self.most, strangers.bytes)
        assert strangers.bytes == sum(strangers.sizes.values())


def test_strangers_with_half_frames_have_a_twentieth_together_and_others_do_not_wait_for_them():
    server = Gated(strangers=48)
    share = server.arena.limit_bytes(MemoryClass.RECEIVE)
    strangers = [server.connect() for _ in range(48)]
    client_socket = server.connect()

    def client():
        for stranger in strangers:
            stranger.sendall(HALF)
        for size in (100, 100_000, 3_000_000):
            body = bytes(size)
            client_socket.sendall(frame(body))
            assert receive_frame(client_socket) == body
        closed = 0
        for stranger in strangers:  # those that have room stall, so that they are closed for those that wait
            try:
                stranger.sendall(frame(bytes(60 << 10))[30 << 10 :])
                assert receive_frame(stranger) == bytes(60 << 10)
            except (EOFError, ConnectionError):
                closed += 1
        assert closed < 48

    server.run(client)
    assert 0 < server.most <= share // STRANGERS_PART
    assert not server.intake.budget._strangers.sizes
    server.close()
    assert server.arena.reserved_bytes(MemoryClass.RECEIVE) == 0
    assert server.arena.live_fragments == 0


def test_a_stranger_cannot_pass_for_a_producer():
    server = Gated(strangers=40)
    strangers = [server.connect() for _ in range(40)]
    other = server.connect()
    share = server.arena.limit_bytes(MemoryClass.RECEIVE)

    def client():
        for stranger in strangers:
            stranger.sendall(HALF[:4] + b"\0\0" + HALF[6:])
        other.sendall(frame(b"\0\0" + bytes(500_000)))
        assert len(receive_frame(other)) == 500_002
        server.note()
        assert not any(connection.is_stranger for connection in server.intake.budget._records.sizes)
        for stranger in strangers:
            stranger.close()
        until(lambda: len(server.intake.connections) == 1, "the others are closed")

    server.run(client)
    assert server.most <= share // STRANGERS_PART
    server.close()
