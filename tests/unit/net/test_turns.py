"""Connections that ask for much take turns; one that asks for little does not wait for all of them."""

import random
import threading

import pytest
from connection_support import Server, frame, receive_frame

from millstream.net import stalls as stalls_module
from millstream.net import turns as turns_module
from millstream.net.shared import Shared
from waits import moment, until

CROWD = 30
REQUESTS = 8
LITTLE = 20
COST_S = 0.002


class Turns(Server):
    """Requests that begin with ``costly`` cost 2 ms; those with ``large`` are answered with 256 KiB."""

    def __init__(self):
        super().__init__(arena_bytes=64 << 20)
        self.handled = []
        self.after = lambda body: None
        """Called in the server's thread after each request."""

    def on_frame(self, connection, frame):
        body = bytes(frame)
        if body.startswith(b"costly"):
            if self.intake.turns.must_wait():
                return True
            moment(COST_S)
        self.handled.append(body)
        answer = body.ljust(1 << 18, b".") if body.startswith(b"large") else body
        self.echo(connection, answer)
        self.after(body)
        return False

    def on_chain(self, connection, chain):
        return self.on_frame(connection, memoryview(bytes(chain)))


@pytest.fixture
def server():
    made = Turns()
    yield made
    made.close()
    assert made.intake.owed.bytes == 0
    assert made.intake.budget.stash_bytes == 0
    assert made.arena.live_fragments == 0, made.arena.leaks()


@pytest.mark.parametrize("kind", [b"costly", b"large "])
def test_a_connection_that_asks_for_little_waits_for_few_of_those_that_ask_for_much(server, kind, monkeypatch):
    monkeypatch.setattr(stalls_module, "PRESSED_STALL_MS", 60_000)
    crowd = [server.connect() for _ in range(CROWD)]
    light = server.connect()
    asked = [[b"%s %03d %03d" % (kind, one, number) for number in range(REQUESTS)] for one in range(CROWD)]
    for sock, bodies in zip(crowd, asked, strict=True):
        sock.sendall(b"".join(map(frame, bodies)))
    sent_at, waited = [], []

    def ask_for_little(body):
        """Each little one is sent when the one before it was handled, at a known place among the others."""
        if body.startswith(b"little"):
            waited.append(len(server.handled) - 1 - sent_at.pop())
        if not sent_at and len(waited) < LITTLE:
            sent_at.append(len(server.handled))
            light.sendall(frame(b"little %03d" % len(waited)))

    server.after = ask_for_little

    def client():
        for number in range(LITTLE):
            assert receive_frame(light) == b"little %03d" % number
        for bodies, sock in zip(asked, crowd, strict=True):
            for body in bodies:
                assert receive_frame(sock).startswith(body)

    server.run(client)
    assert max(waited) <= 2 * CROWD, "it waits for the rest of a round and for those before it in the next"
    assert sum(waited) < CROWD * REQUESTS // 2
    assert len(server.handled) == CROWD * REQUESTS + LITTLE


def test_those_that_ask_for_much_take_turns(server):
    crowd = [server.connect() for _ in range(CROWD)]
    for one, sock in enumerate(crowd):
        sock.sendall(b"".join(frame(b"costly %03d %03d" % (one, number)) for number in range(REQUESTS)))

    def client():
        for one, sock in enumerate(crowd):
            for number in range(REQUESTS):
                assert receive_frame(sock) == b"costly %03d %03d" % (one, number)

    server.run(client)
    seen = dict.fromkeys(range(CROWD), 0)
    for body in server.handled:
        one, number = int(body[7:10]), int(body[11:14])
        assert number == seen[one]
        seen[one] += 1
        assert max(seen.values()) <= min(seen.values()) + 3 or min(seen.values()) == 0


@pytest.mark.parametrize("seed", range(4))
def test_frames_that_are_handed_over_again_are_whole_and_in_order(server, seed):
    """Of any size, in any splitting, and put off any number of times."""
    rng = random.Random(seed)
    bodies = [rng.randbytes(rng.choice([8, 100, 5_000, 131_073, 400_000, 1_500_000])) for _ in range(40)]
    sock = server.connect()
    handle = server.on_frame

    def now_or_later(connection, body):
        return rng.random() < 0.5 or handle(connection, body)

    server.intake.on_frame = now_or_later
    server.intake.on_chain = lambda connection, chain: now_or_later(connection, memoryview(bytes(chain)))

    def client():
        stream = b"".join(map(frame, bodies))

        def send():
            position = 0
            while position < len(stream):
                step = rng.choice([1, 700, 65_536, 300_000])
                sock.sendall(stream[position : position + step])
                position += step

        sender = threading.Thread(target=send)
        sender.start()
        for body in bodies:
            assert receive_frame(sock) == body
        sender.join()

    server.run(client)
    assert server.handled == bodies


def test_a_crowd_that_sends_much_ahead_is_left_waiting_and_not_closed(server, monkeypatch):
    monkeypatch.setattr(server.intake.budget, "stash_max", 1 << 20)
    crowd = [server.connect() for _ in range(CROWD)]
    bodies = [b"costly".ljust(40_000, b"%d" % (number % 10)) for number in range(REQUESTS)]

    def client():
        stream = b"".join(map(frame, bodies))
        senders = [threading.Thread(target=sock.sendall, args=(stream,)) for sock in crowd]
        for sender in senders:
            sender.start()
        for sock in crowd:
            for body in bodies:
                assert receive_frame(sock) == body
        for sender in senders:
            sender.join()

    server.run(client)
    assert len(server.intake.connections) == CROWD


def test_what_many_answers_share_is_owed_once(server):
    shared = Shared(server.intake, bytes(1 << 20))
    for _ in range(3):
        shared.lend()
    assert server.intake.owed.bytes == 1 << 20
    for left in (1 << 20, 1 << 20, 0):
        shared.release()
        assert server.intake.owed.bytes == left


def test_who_is_closed_before_its_turn_to_send_is_owed_nothing(server, monkeypatch):
    monkeypatch.setattr(server.intake.turns, "has_time", lambda: False)  # the turn has no time left for large answers
    sock = server.connect()

    def client():
        sock.sendall(frame(b"large and then garbage") + b"\xff\xff\xff\xff")
        assert sock.recv(1) == b""

    server.run(client)
    assert server.handled
    assert server.intake.owed.bytes == 0


def test_who_has_much_to_send_does_not_wait_while_costly_requests_rest(server, monkeypatch):
    intake = server.intake
    monkeypatch.setattr(intake.turns, "flush", intake.turns.wait_to_send)  # this turn's time was over
    intake.turns.under_way = turns_module.UNDER_WAY_MAX
    intake.turns._plan.rest_until_us = server.reactor.now_us() + 60_000_000
    costly, large = server.connect(), server.connect()

    def client():
        costly.sendall(frame(b"costly one"))
        until(lambda: intake.turns._to_do)
        large.sendall(frame(b"large answer"))
        assert len(receive_frame(large)) == 1 << 18

    server.run(client)
    assert intake.turns._to_do
