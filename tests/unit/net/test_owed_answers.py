"""Answers that nobody takes: bounded over all connections of a shard, never at the cost of those that take theirs."""

import threading
from functools import partial

import pytest
from connection_support import Server, frame, receive_frame

from millstream.net import owed as owed_module
from millstream.net import stalls as stalls_module
from millstream.net.responses import MAX_UNSENT_BYTES
from waits import PATIENCE_S

ANSWER_BYTES = 256 << 10
REQUESTS = 30
CROWD = 16


class Answering(Server):
    """Answers each request with a quarter of a MiB from the heap that begins with the request."""

    def __init__(self):
        super().__init__(arena_bytes=32 << 20, respond=self.large)
        self.owed_most = 0

    def large(self, connection, body):
        answer = body.ljust(ANSWER_BYTES, b".")
        connection.exchange().complete((frame(answer),), ANSWER_BYTES + 4)
        self.owed_most = max(self.owed_most, sum(one.responses.unsent for one in self.intake.connections))

    def bound(self):
        """What is allowed before nobody is read, and what one connection may have queued before it is counted."""
        return owed_module.OWED_HARD * self.intake.owed.bytes_max + MAX_UNSENT_BYTES + ANSWER_BYTES


def requests(name):
    return [b"%s request %03d" % (name, number) for number in range(REQUESTS)]


def ask(sock, name):
    sock.sendall(b"".join(map(frame, requests(name))))


def take(sock, name):
    for body in requests(name):
        answer = receive_frame(sock)
        assert len(answer) == ANSWER_BYTES
        assert answer.startswith(body)


@pytest.fixture
def server():
    made = Answering()
    yield made
    made.close()
    assert made.intake.owed.bytes == 0


def test_a_crowd_that_asks_and_does_not_read_is_owed_little_and_others_are_served(server, monkeypatch):
    monkeypatch.setattr(stalls_module, "PRESSED_STALL_MS", 60_000)
    crowd = [server.connect() for _ in range(CROWD)]
    live = server.connect()

    def client():
        for sock in crowd:
            ask(sock, b"crowd")
        ask(live, b"live")
        take(live, b"live")

    server.run(client)
    assert server.owed_most < server.bound()
    assert server.intake.owed.bytes > 0


def test_who_reads_again_gets_every_answer_in_order(server, monkeypatch):
    monkeypatch.setattr(stalls_module, "PRESSED_STALL_MS", 60_000)
    crowd = [server.connect() for _ in range(CROWD)]

    def client():
        for number, sock in enumerate(crowd):
            ask(sock, b"%d" % number)
        readers = [threading.Thread(target=take, args=(sock, b"%d" % n)) for n, sock in enumerate(crowd)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()

    server.run(client)
    assert server.owed_most < server.bound()
    assert not any(one.responses.unsent for one in server.intake.connections)


def test_who_takes_nothing_while_there_is_no_room_is_closed(server, monkeypatch):
    monkeypatch.setattr(stalls_module, "PRESSED_STALL_MS", 50)
    monkeypatch.setattr(stalls_module, "SWEEP_MS", 20)
    for _ in range(CROWD):
        ask(server.connect(), b"crowd")
    # It fails below when it comes to that.
    server.reactor.call_at(server.reactor.now_us() + PATIENCE_S * 1_000_000, server.reactor.stop)
    watch(server)
    server.reactor.run()
    assert server.intake.owed.bytes <= server.intake.owed.bytes_max
    assert 0 < len(server.intake.connections) < CROWD


def watch(server):
    """Stop the reactor when the crowd was thinned out."""
    if (
        server.owed_most
        and server.intake.owed.bytes <= server.intake.owed.bytes_max
        and len(server.intake.connections) < CROWD
    ):
        server.reactor.stop()
    else:
        server.reactor.call_at(server.reactor.now_us() + 10_000, partial(watch, server))


class Lent:
    def __init__(self):
        self.released = False

    def release(self):
        self.released = True


def test_what_is_lent_to_one_answer_makes_no_room_for_others(server):
    lent = Lent()

    def respond(connection, body):
        connection.exchange().complete((bytes(1 << 20),), 1 << 20, lent)

    server.respond = respond
    sock = server.connect()

    def client():
        sock.sendall(frame(b"in the arena"))
        sock.recv(1000)

    server.run(client)
    assert not lent.released
    assert server.intake.owed.bytes == 0
