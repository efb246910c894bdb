"""Handshakes beside the work of a shard: their share of the core, their bound, their end."""

import socket

import pytest

import certificates
from millstream.iobuf import Arena
from millstream.net import handshakes as module
from millstream.net.handshakes import Handshakes
from millstream.net.intake import Intake
from millstream.secure.authority import issue
from millstream.secure.endpoint import Credentials
from millstream.secure.material import Material
from millstream.secure.options import TlsOptions
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab

HELLO = b"\x16\x03\x01\x02\x00\x01\x00"


class Shard:
    def __init__(self):
        self.stats = StatsSlab(0, "shard")
        self.reactor = Reactor(0, self.stats)
        arena = Arena.create(0, 16 << 20, poison=True)
        handle = lambda connection, frame: None  # noqa: E731
        self.intake = Intake(self.reactor, arena, self.stats, 1 << 20, 600_000, 30_000, handle, handle)
        pair = issue(certificates.authority(), "broker", ["localhost"])
        tls = Credentials(TlsOptions(), Material(pair.key, "", pair.certificate)).server()
        self.handshakes = Handshakes(self.intake, {"SSL": tls}, self.stats)
        self.clients = []

    def connect(self, start=HELLO):
        ours, theirs = socket.socketpair()
        self.clients.append(theirs)
        theirs.setblocking(False)
        if start:
            theirs.send(start)
        self.handshakes.begin(ours, ("127.0.0.1", 1), ("127.0.0.1", 2), "SSL")

    def run_until(self, holds, more_us=0):
        """Run until something holds, and for a time then; the turns of that time."""
        turns = 0

        def look():
            nonlocal turns
            if holds():
                turns = self.reactor.turns
                self.reactor.call_later(more_us, self.reactor.stop)
            else:
                self.reactor.call_later(1000, look)

        look()
        self.reactor.run()
        return self.reactor.turns - turns

    def is_closed(self, client):
        try:
            return client.recv(1) == b""
        except BlockingIOError:
            return False
        except ConnectionResetError:
            return True


@pytest.fixture
def shard():
    made = Shard()
    yield made
    made.handshakes.close_all()
    made.intake.close_all()
    made.reactor.close()
    for client in made.clients:
        client.close()


def test_the_oldest_half_handshake_goes_when_there_are_too_many(shard, monkeypatch):
    monkeypatch.setattr(module, "HALF_MAX", 3)
    monkeypatch.setattr(module, "SHARE", 100.0)
    for _ in range(5):
        shard.connect()
    shard.run_until(lambda: all(map(shard.is_closed, shard.clients[:2])), more_us=20_000)
    assert [shard.is_closed(client) for client in shard.clients] == [True, True, False, False, False]
    assert shard.stats.gauge("net_connections").value == 3


def test_a_silent_client_costs_no_state_and_is_closed_in_time(shard, monkeypatch):
    monkeypatch.setattr(module, "HANDSHAKE_US", 50_000)
    seen = []
    shard.connect(b"")
    shard.reactor.call_later(20_000, lambda: seen.append(len(shard.handshakes._with_state)))
    shard.run_until(lambda: shard.stats.counter("tls_failed_handshakes").value == 1)
    assert seen == [0]
    assert shard.is_closed(shard.clients[0])
    assert shard.stats.counter("tls_failed_handshakes").value == 1
    assert shard.stats.gauge("tls_half_handshakes").value == 0


def test_handshakes_wait_when_they_have_had_their_share(shard, monkeypatch):
    """With a share so small that no credit comes back, those after the burst wait, and no reader spins meanwhile."""
    monkeypatch.setattr(module, "SHARE", 1e-9)
    shard.handshakes._credit_us = 1
    for _ in range(4):
        shard.connect()
    turns = shard.run_until(
        lambda: (len(shard.handshakes._with_state), len(shard.handshakes._ready)) == (1, 3), more_us=20_000
    )
    assert len(shard.handshakes._with_state) == 1
    assert len(shard.handshakes._ready) == 3
    assert turns < 50
