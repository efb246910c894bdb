"""Requests that wait for their answers: one large one a connection, and what all hold together is counted."""

import threading

import pytest
from connection_support import Server, frame, receive_frame

from millstream.net import stalls as stalls_module

WEIGHT = 1 << 20


class Parking(Server):
    """Lets a request that begins with `wait` wait until one says `go`; answers the others with their own bytes.

    Those that begin with `till` wait too, and can be ended; those that begin with `wait`, `till` or `large` need room.
    """

    def __init__(self):
        super().__init__(arena_bytes=16 << 20)
        self.waiting = []
        self.handled = []
        self.ended = []

    @property
    def full(self):
        """Requests that fill what there is, to the last."""
        return 1 + self.intake.parking.bytes_max // WEIGHT

    def on_frame(self, connection, frame):
        body = bytes(frame)
        if body.startswith((b"wait", b"till", b"large")) and self.intake.turns.must_wait(large=True):
            return True
        self.handled.append(body)
        self.park(connection, body)
        return False

    def on_chain(self, connection, chain):
        return self.on_frame(connection, memoryview(bytes(chain)))

    def park(self, connection, body):
        exchange = connection.exchange()
        if body.startswith((b"wait", b"till")):
            self.waiting.append((exchange, body))
            self.intake.parking.park(exchange, WEIGHT)
            if body.startswith(b"till"):
                self.intake.parking.wait(exchange, lambda: self.end(exchange, body))
            return
        if body.startswith(b"go"):
            for other, said in self.waiting:
                other.complete((frame(said),), len(said) + 4)
            self.waiting.clear()
        exchange.complete((frame(body),), len(body) + 4)

    def end(self, exchange, body):
        self.ended.append(body)
        self.waiting.remove((exchange, body))
        exchange.complete((frame(body),), len(body) + 4)


@pytest.fixture
def server():
    made = Parking()
    yield made
    made.close()
    for exchange, _ in made.waiting:
        exchange.complete(None, 0)
    parking = made.intake.parking
    assert (parking.bytes, parking.requests, parking._ends) == (0, {}, {})
    assert (made.intake.budget._others.sizes, made.intake.budget._others.bytes) == ({}, 0)
    assert made.intake.budget.stash_bytes == 0
    assert made.arena.live_fragments == 0, made.arena.leaks()


def ask(sock, body):
    sock.sendall(frame(body))
    return receive_frame(sock)


def until(sock, condition):
    """Ask for little until something is so; those who do are answered all the time.

    Once more then: it may be so before all else is that the server does in the same call.
    """
    while not condition():
        assert ask(sock, b"ordinary") == b"ordinary"
    assert ask(sock, b"ordinary") == b"ordinary"


def test_a_connection_whose_request_waits_is_read_no_further_until_it_is_answered(server):
    pipelining, other = server.connect(), server.connect()
    bodies = [b"wait 01!", b"wait 02!", b"ordinary"]

    def client():
        pipelining.sendall(b"".join(map(frame, bodies)))
        for number, body in enumerate(bodies[:2], 1):
            assert ask(other, b"ordinary") == b"ordinary", "the others do not wait"
            assert (len(server.waiting), server.intake.parking.bytes) == (1, WEIGHT), number
            other.sendall(frame(b"go on now"))
            assert receive_frame(pipelining) == body
            assert receive_frame(other) == b"go on now"
        assert receive_frame(pipelining) == bodies[2]

    server.run(client)
    assert server.handled.count(b"ordinary") == 3


def test_what_a_handler_holds_is_counted_until_it_is_done_even_when_its_client_is_gone(server):
    many = [server.connect() for _ in range(server.full)]
    other = server.connect()

    def client():
        for sock in many:
            sock.sendall(frame(b"wait here"))
        until(other, lambda: len(server.waiting) == len(many))
        assert server.intake.parking.is_full()
        for sock in many:
            sock.close()
        until(other, lambda: len(server.intake.connections) == 1)
        assert server.intake.parking.is_full(), "what the handlers hold is there all the same"
        ask(other, b"go on now")

    server.run(client)
    assert not server.intake.parking.is_full()


def test_what_waits_for_something_to_happen_ends_with_its_connection(server):
    many = [server.connect() for _ in range(server.full)]
    other = server.connect()

    def client():
        for number, sock in enumerate(many):
            sock.sendall(frame(b"till %04d" % number))
        until(other, lambda: len(server.waiting) == len(many))
        assert server.intake.parking.is_full()
        for sock in many:
            sock.close()
        until(other, lambda: len(server.intake.connections) == 1)
        assert (server.waiting, server.intake.parking.bytes) == ([], 0)

    server.run(client)
    assert sorted(server.ended) == [b"till %04d" % number for number in range(len(many))]


def test_where_those_under_way_hold_all_they_may_the_next_wait_in_line_and_small_ones_do_not(server):
    many = [server.connect() for _ in range(server.full)]
    line = [server.connect() for _ in range(20)]
    other = server.connect()
    bodies = [b"large %04d" % number for number in range(len(line))]

    def client():
        for sock in many:
            sock.sendall(frame(b"wait here"))
        until(other, server.intake.parking.is_full)
        for place, (sock, body) in enumerate(zip(line, bodies, strict=True), 1):
            sock.sendall(frame(body))
            until(other, lambda place=place: len(server.intake.parking._line) == place)
        ask(other, b"go on now")
        for sock, body in zip(line, bodies, strict=True):
            assert receive_frame(sock) == body
        for sock in many:
            assert receive_frame(sock) == b"wait here"

    server.run(client)
    assert [body for body in server.handled if body.startswith(b"large")] == bodies, "first come, first served"
    assert len(server.intake.connections) == len(many) + len(line) + 1, "nobody was closed"


def test_for_those_in_line_the_oldest_waits_end_and_no_more_than_must(server):
    many = [server.connect() for _ in range(server.full)]
    line = [server.connect() for _ in range(5)]
    other = server.connect()

    def client():
        for number, sock in enumerate(many):
            sock.sendall(frame(b"till %04d" % number))
            until(other, lambda number=number: len(server.waiting) == number + 1)
        for number, sock in enumerate(line):
            sock.sendall(frame(b"till then %d" % number))
            assert receive_frame(many[number]) == b"till %04d" % number

    server.run(client)
    assert server.ended == [b"till %04d" % number for number in range(len(line))]
    assert len(server.waiting) == len(many)


def test_a_wait_that_begins_when_others_are_in_line_already_is_ended_for_them(server):
    many = [server.connect() for _ in range(server.full)]
    late, other = server.connect(), server.connect()

    def client():
        for sock in many:
            sock.sendall(frame(b"wait here"))
        until(other, server.intake.parking.is_full)
        late.sendall(frame(b"large one"))
        until(other, server.intake.parking.has_line)
        exchange, body = server.waiting[0]
        server.reactor._loop.call_soon_threadsafe(
            server.intake.parking.wait, exchange, lambda: server.end(exchange, body)
        )
        assert receive_frame(late) == b"large one"
        assert receive_frame(many[0]) == body

    server.run(client)
    assert len(server.waiting) == len(many) - 1


def test_who_goes_away_leaves_the_line(server):
    many = [server.connect() for _ in range(server.full)]
    gone, next_one, other = server.connect(), server.connect(), server.connect()

    def client():
        for sock in many:
            sock.sendall(frame(b"wait here"))
        until(other, server.intake.parking.is_full)
        for place, sock in enumerate((gone, next_one), 1):
            sock.sendall(frame(b"large %04d" % place))
            until(other, lambda place=place: len(server.intake.parking._line) == place)
        (first, _) = server.intake.parking._line
        server.reactor._loop.call_soon_threadsafe(first.close)
        until(other, lambda: len(server.intake.parking._line) == 1)
        ask(other, b"go on now")
        assert receive_frame(next_one) == b"large 0002"

    server.run(client)
    assert b"large 0001" not in server.handled


def test_those_in_line_leave_half_of_the_receive_share_to_records(server, monkeypatch):
    """Frames beyond the scratch buffer lie in the arena, where records come in as well; those without records wait."""
    monkeypatch.setattr(stalls_module, "PRESSED_STALL_MS", 60_000)
    many = [server.connect() for _ in range(server.full)]
    body = b"large".ljust(1 << 20, b".")
    line = [server.connect() for _ in range(2 * server.intake.parking.bytes_max // len(body))]
    other = server.connect()
    answers = []

    def ask_for_much(sock):  # each takes its answer at once: others are not answered as long as somebody does not
        answers.append(ask(sock, body))

    def client():
        for sock in many:
            sock.sendall(frame(b"wait here"))
        until(other, server.intake.parking.is_full)
        senders = [threading.Thread(target=ask_for_much, args=(sock,)) for sock in line]
        for sender in senders:
            sender.start()
        until(other, lambda: server.intake.budget._others.waiting)
        records = bytes(4).ljust(2 << 20, b".")
        assert ask(other, records) == records
        assert server.intake.budget._others.bytes <= server.intake.parking.bytes_max // 2
        ask(other, b"go on now")
        for sender in senders:
            sender.join()

    server.run(client)
    assert answers == [body] * len(line)
    assert len(server.intake.connections) == len(many) + len(line) + 1, "nobody was closed"


def test_answers_in_slices_for_clients_that_are_gone_are_not_begun(server):
    holding, second, other = server.connect(), server.connect(), server.connect()
    done, begun = [], []

    def steps(exchange, name):
        begun.append(name)
        while not done:
            yield
        exchange.complete(None, 0)

    def park(connection, body):
        exchange = connection.exchange()
        if not body.startswith(b"slices"):
            exchange.complete((frame(body),), len(body) + 4)
            return
        server.intake.parking.park(exchange, WEIGHT)
        server.intake.turns.work_off(exchange, steps(exchange, body))

    server.park = park

    def client():
        holding.sendall(frame(b"slices 1"))
        until(other, lambda: begun)
        second.sendall(frame(b"slices 2"))
        until(other, lambda: len(server.intake.turns._long) == 2)
        second.close()
        until(other, lambda: len(server.intake.connections) == 2)
        assert server.intake.parking.bytes == WEIGHT
        done.append(True)
        until(other, lambda: not server.intake.turns._long)

    server.run(client)
    assert begun == [b"slices 1"]
