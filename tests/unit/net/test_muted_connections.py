"""A muted connection is answered at once and read again when its time has passed; others are not affected."""

import struct

from connection_support import Server, frame, receive_frame

from millstream.net.muting import Muting

MUTE_US = 30_000


class Muter:
    """Mutes the connection of every request that says so, and notes when the next one is handled."""

    def __init__(self):
        self.server = Server(respond=self.respond)
        self.muting = Muting(self.server.reactor, self.server.stats.gauge("quota_muted_connections"))
        self.until_us = {}
        self.early = 0
        self.handled = []

    def respond(self, connection, body):
        now_us = self.server.reactor.now_us()
        self.early += now_us < self.until_us.get(connection, 0)
        self.handled.append(body)
        connection.exchange().complete((struct.pack(">i", len(body)) + body,), len(body) + 4)
        if body.startswith(b"mute"):
            for length_us in (MUTE_US // 2, MUTE_US, MUTE_US // 3):
                self.muting.mute(connection, now_us + length_us)
            self.until_us[connection] = now_us + MUTE_US


def test_a_muted_connection_is_answered_and_not_read_until_its_time_has_passed():
    muter = Muter()
    server = muter.server
    muted, other = server.connect(), server.connect()

    def client():
        muted.sendall(b"".join(map(frame, (b"mute me 1", b"request 2", b"mute me 3", b"x" * 300_000))))
        assert receive_frame(muted) == b"mute me 1"
        assert muter.handled[-1] == b"mute me 1"
        other.sendall(frame(b"not muted"))
        assert receive_frame(other) == b"not muted"
        for body in (b"request 2", b"mute me 3", b"x" * 300_000):
            assert receive_frame(muted) == body
        muted.sendall(frame(b"idle before the mute's end"))
        assert receive_frame(muted) == b"idle before the mute's end"

    server.run(client)
    assert muter.early == 0
    assert len(muter.muting) == 0
    assert server.intake.budget.stash_bytes == 0
    assert not any(connection.responses.held for connection in server.intake.connections)
    server.close()
    assert server.arena.live_fragments == 0


def test_closed_connections_are_forgotten():
    muter = Muter()
    server = muter.server
    socks = [server.connect() for _ in range(300)]

    def client():
        for n, sock in enumerate(socks):
            sock.sendall(frame(b"mute %6d" % n))
            assert receive_frame(sock) == b"mute %6d" % n
            muter.until_us.clear()
            sock.close()

    later = server.reactor.now_us() + 3_600_000_000
    mute = muter.muting.mute
    muter.muting = Longer(mute, later)
    server.run(client)
    assert len(mute.__self__) < 300
    assert len(mute.__self__._queue) <= 300
    server.close()


class Longer:
    """Mutes for an hour."""

    def __init__(self, mute, until_us):
        self.inner = mute
        self.until_us = until_us

    def mute(self, connection, until_us):
        self.inner(connection, self.until_us)
