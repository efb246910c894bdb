"""Connections over real sockets: a client thread on one end, a reactor on the other."""

import random
import socket
import struct
import threading

import pytest
from connection_support import Server, frame, receive_frame

from millstream.iobuf import MemoryClass
from millstream.iobuf import receive as receive_module
from millstream.net import stalls as stalls_module
from millstream.net.responses import MAX_IN_FLIGHT
from waits import until


@pytest.mark.parametrize("seed", range(6))
def test_frames_survive_any_splitting_and_answers_keep_their_order(seed):
    rng = random.Random(seed)
    server = Server()
    sizes = [rng.choice([8, 100, 5_000, 131_072, 131_073, 400_000, 1_500_000]) for _ in range(40)]
    bodies = [rng.randbytes(size) for size in sizes]
    sock = server.connect()

    def client():
        stream = b"".join(map(frame, bodies))

        def send():
            position = 0
            while position < len(stream):
                step = rng.choice([1, 3, 700, 65_536, 300_000])
                sock.sendall(stream[position : position + step])
                position += step

        sender = threading.Thread(target=send)
        sender.start()
        for body in bodies:
            assert receive_frame(sock) == body
        sender.join()
        sock.close()

    server.run(client)
    server.close()
    assert server.arena.live_fragments == 0, server.arena.leaks()
    assert server.intake.budget.stash_bytes == 0


def test_answers_leave_in_request_order_whatever_order_they_are_completed_in():
    waiting = []

    def respond(connection, body):
        waiting.append((connection.exchange(), body))
        if len(waiting) == 5:
            for exchange, data in reversed(waiting):
                exchange.complete((frame(data),), len(data) + 4)

    server = Server(respond=respond)
    sock = server.connect()

    def client():
        for n in range(5):
            sock.sendall(frame(b"request%d" % n))
        assert [receive_frame(sock) for _ in range(5)] == [b"request%d" % n for n in range(5)]

    server.run(client)
    server.close()


@pytest.mark.parametrize("size", [-1, 0, 7, (4 << 20) + 1, 0x7FFFFFFF])
def test_a_length_that_no_client_sends_closes_only_that_connection(size):
    server = Server()
    bad, good = server.connect(), server.connect()

    def client():
        bad.sendall(struct.pack(">i", size) + b"x" * 100)
        assert bad.recv(1) == b""
        good.sendall(frame(b"still here"))
        assert receive_frame(good) == b"still here"

    server.run(client)
    server.close()


def test_a_pipeline_deeper_than_the_limit_is_paused_and_finished():
    held = []

    def respond(connection, body):
        exchange = connection.exchange()
        held.append((exchange, body))
        assert len(connection.responses.exchanges) <= MAX_IN_FLIGHT
        if len(held) == MAX_IN_FLIGHT or body == b"the last":
            for exchange, data in held:
                exchange.complete((frame(data),), len(data) + 4)
            held.clear()

    server = Server(respond=respond)
    sock = server.connect()
    bodies = [b"request %04d" % n for n in range(3 * MAX_IN_FLIGHT)] + [b"the last"]

    def client():
        threading.Thread(target=sock.sendall, args=(b"".join(map(frame, bodies)),), daemon=True).start()
        assert [receive_frame(sock) for _ in bodies] == bodies

    server.run(client)
    server.close()


def test_a_stalled_half_frame_gives_way_to_those_that_wait(monkeypatch):
    monkeypatch.setattr(stalls_module, "SWEEP_MS", 20)
    server = Server(arena_bytes=8 << 20)  # room for two frames of a MiB
    stalled = [server.connect() for _ in range(4)]
    live = server.connect()
    body = random.Random(1).randbytes(1 << 20)

    def client():
        for sock in stalled:
            sock.sendall(struct.pack(">i", 1 << 20) + b"x" * 300_000)
        live.sendall(frame(body))
        assert receive_frame(live) == body

    server.run(client)
    assert sum(1 for c in server.intake.connections if not c.closed) < 5
    server.close()
    assert server.arena.live_fragments == 0, server.arena.leaks()
    assert server.intake.budget.stash_bytes == 0


def test_a_small_frame_that_comes_in_pieces_goes_before_large_ones_that_wait(monkeypatch):
    monkeypatch.setattr(stalls_module, "PRESSED_STALL_MS", 10_000)
    server = Server(arena_bytes=8 << 20)  # room for two frames of a MiB
    stalled = [server.connect() for _ in range(6)]
    live = server.connect()
    body = random.Random(1).randbytes(100_000)
    left = []

    def client():
        for sock in stalled:
            sock.sendall(struct.pack(">i", 1 << 20) + b"x" * 10_000)
        until(lambda: len(server.intake.budget._is_waiting) >= 4)
        live.sendall(frame(body)[:5_000])
        live.sendall(frame(body)[5_000:])
        assert receive_frame(live) == body
        left.append(len(server.intake.connections))
        monkeypatch.setattr(stalls_module, "PRESSED_STALL_MS", 50)
        monkeypatch.setattr(stalls_module, "SWEEP_MS", 20)
        while server.intake.budget._is_waiting:  # those that stall are dropped for those that wait
            live.sendall(frame(b"ordinary"))
            assert receive_frame(live) == b"ordinary"

    server.run(client)
    assert left[0] > 3, "the small one waited for others to be dropped"
    server.close()
    assert server.arena.live_fragments == 0, server.arena.leaks()


def test_a_reader_that_stops_gets_the_right_bytes_when_it_goes_on():
    """Answers hold fragments of the arena; poisoned ones would show as wrong bytes."""
    server = None

    def respond(connection, body):
        count = int(body.decode())
        for n in range(count):
            fragment = server.arena.allocate(100_000)
            fragment.view[:100_000] = bytes([n % 251]) * 100_000
            connection.exchange().complete((struct.pack(">i", 100_000), fragment.view[:100_000]), 100_004, fragment)

    server = Server(respond=respond, arena_bytes=32 << 20)
    sock = server.connect()

    def client():
        sock.sendall(frame(b"00000100"))
        for n in range(100):
            assert receive_frame(sock) == bytes([n % 251]) * 100_000

    server.run(client)
    server.close()
    assert server.arena.live_fragments == 0, server.arena.leaks()


def test_a_client_that_vanishes_leaves_nothing_behind():
    held = []

    def respond(connection, body):
        fragment = server.arena.allocate(1000)
        held.append((connection.exchange(), fragment))

    server = Server(respond=respond)
    sock = server.connect()

    def client():
        sock.sendall(frame(b"request one") + struct.pack(">i", 500_000) + b"half a frame")
        sock.close()

    server.run(client)

    def late():
        for exchange, fragment in held:
            exchange.complete((fragment.view[:1000],), 1000, fragment)

    server.close()
    late()
    assert server.arena.live_fragments == 0, server.arena.leaks()


def test_who_sends_a_request_byte_by_byte_holds_its_memory_for_so_long_and_no_longer():
    server = Server()
    sock = server.connect()
    (connection,) = server.intake.connections
    now_us = server.reactor.now_us()
    server.reactor.now_us = lambda: now_us
    sock.sendall(struct.pack(">i", 4 << 20) + b"begun")
    connection.on_readable()
    for _ in range(server.intake.stalls.stall_ms // 1000):
        assert not connection.closed
        sock.sendall(b"x")
        connection.on_readable()
        now_us += 1_000_000
        server.intake.stalls.sweep()
    assert connection.closed
    assert server.arena.live_fragments == server.arena.reserved_bytes(MemoryClass.RECEIVE) == 0
    server.close()


def test_who_does_not_take_its_answers_leaves_the_line_for_room(monkeypatch):
    monkeypatch.setattr(stalls_module, "PRESSED_STALL_MS", 60_000)
    later = []

    def respond(connection, body):
        if body == b"answer me later":
            later.append(connection.exchange())
            return
        if body == b"answer it now":
            later.pop().complete((frame(bytes(700_000)),), 700_004)
        server.echo(connection, body)

    server = Server(arena_bytes=16 << 20, respond=respond)  # room for four frames of a MiB
    stalled = [server.connect() for _ in range(4)]
    first, second = server.connect(), server.connect()
    body = b"\0\0" + random.Random(1).randbytes((1 << 20) - 2)  # records, as far as the intake looks

    def client():
        for sock in stalled:
            sock.sendall(struct.pack(">i", 1 << 20) + b"\0\0" + b"x" * 10_000)
        until(lambda: server.arena.reserved_bytes(MemoryClass.RECEIVE) >= 4 << 20)
        first.sendall(frame(b"answer me later") + frame(body)[:10_000])
        until(lambda: server.intake.budget._is_waiting)
        second.sendall(frame(b"answer it now") + frame(body)[:10_000])
        assert receive_frame(second) == b"answer it now"
        until(lambda: len(server.intake.budget._is_waiting) >= 2)
        for sock in stalled:
            sock.close()
        second.sendall(frame(body)[10_000:])
        assert receive_frame(second) == body
        assert receive_frame(first) == bytes(700_000)
        first.sendall(frame(body)[10_000:])
        assert receive_frame(first) == body

    server.run(client)
    server.close()
    assert server.arena.live_fragments == 0, server.arena.leaks()
    assert server.intake.budget.stash_bytes == 0


def test_who_goes_away_is_no_longer_counted_among_those_that_wait_for_room():
    server = Server(arena_bytes=8 << 20)  # room for two frames of a MiB
    crowd = [server.connect() for _ in range(4)]
    gauge = server.stats.gauge("net_waiting_frames")

    def client():
        for sock in crowd:
            sock.sendall(struct.pack(">i", 1 << 20) + b"x" * 10_000)
        until(lambda: len(server.intake.budget._is_waiting) >= 2)
        for sock in crowd:
            sock.close()
        until(lambda: not server.intake.connections)

    server.run(client)
    assert gauge.cells[gauge.index] == 0


def test_a_frame_of_more_fragments_than_the_kernel_takes_at_once_arrives(monkeypatch):
    monkeypatch.setattr(receive_module, "MAX_FRAGMENT_BYTES", 512)
    server = Server()
    sock = server.connect()
    body = random.Random(1).randbytes(1 << 20)

    def client():
        sender = threading.Thread(target=sock.sendall, args=(frame(body),))
        sender.start()
        assert receive_frame(sock) == body
        sender.join()

    server.run(client)
    server.close()


def test_a_connection_without_requests_is_closed_when_its_time_is_over_and_not_twice_as_late():
    server = Server()
    sock = server.connect()
    (connection,) = server.intake.connections
    begun_us = now_us = server.reactor.now_us()
    server.reactor.now_us = lambda: now_us
    sock.sendall(frame(b"a request"))
    connection.on_readable()
    connection.flush()
    while not connection.closed:
        sweep = server.intake.idle.timer
        now_us = sweep.deadline_us
        sweep.callback()
    idle_us = server.intake.idle.idle_ms * 1000
    assert idle_us <= now_us - begun_us <= 1.5 * idle_us
    server.close()


@pytest.mark.parametrize("holds", [False, True])
def test_what_waits_ends_with_its_connection(holds):
    """Also requests that do not stop the connection from being read: a client pipelines many, and goes."""
    ended = []

    def respond(connection, body):
        exchange = connection.exchange()
        if holds:
            exchange.hold()

        def end():
            ended.append(body)
            exchange.complete(None, 0)

        connection.intake.parking.wait(exchange, end)

    server = Server(respond=respond)
    try:
        client = server.connect()
        bodies = [b"request %d" % number for number in range(1 if holds else 256)]

        def work():
            client.sendall(b"".join(frame(body) for body in bodies))
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b"", "it was not closed"

        server.run(work)
        assert ended == bodies
        assert not server.intake.parking._ends
    finally:
        server.close()
