"""Requests that wait for their answers: one large one a connection, and what all hold together is counted."""

import pytest
from test_connection import Server, frame, receive_frame

WEIGHT = 1 << 20


class Parking(Server):
    """Lets a request that begins with `wait` wait until one says `go`; answers the others with their own bytes."""

    def __init__(self):
        super().__init__(respond=self.park)
        self.waiting = []

    def park(self, connection, body):
        exchange = connection.exchange()
        if body.startswith(b"wait"):
            self.waiting.append((exchange, body))
            self.intake.park(exchange, WEIGHT)
            return
        if body.startswith(b"go"):
            for other, said in self.waiting:
                other.complete((frame(said),), len(said) + 4)
            self.waiting.clear()
        exchange.complete((frame(body),), len(body) + 4)


@pytest.fixture
def server():
    made = Parking()
    yield made
    made.close()


def test_a_connection_whose_request_waits_is_read_no_further_until_it_is_answered(server):
    pipelining, other = server.connect(), server.connect()
    bodies = [b"wait 01!", b"wait 02!", b"ordinary"]

    def client():
        pipelining.sendall(b"".join(map(frame, bodies)))
        for number, body in enumerate(bodies[:2], 1):
            other.sendall(frame(b"ordinary"))
            assert receive_frame(other) == b"ordinary", "the others do not wait"
            assert (len(server.waiting), server.intake.parked_bytes) == (1, WEIGHT), number
            other.sendall(frame(b"go on now"))
            assert receive_frame(pipelining) == body
            assert receive_frame(other) == b"go on now"
        assert receive_frame(pipelining) == bodies[2]

    server.run(client)
    assert server.frames.count(len(bodies[0])) == 5
    assert server.intake.parked_bytes == 0


def test_what_waits_is_counted_until_it_is_done_even_when_its_client_is_gone(server):
    many = [server.connect() for _ in range(1 + server.intake.parked_max // WEIGHT)]
    other = server.connect()

    def client():
        for sock in many:
            sock.sendall(frame(b"wait here"))
        while len(server.waiting) < len(many):
            other.sendall(frame(b"ordinary"))
            receive_frame(other)
        assert server.intake.is_full()
        for sock in many:
            sock.close()
        while len(server.intake.connections) > 1:
            other.sendall(frame(b"ordinary"))
            receive_frame(other)
        assert server.intake.is_full(), "what the handlers hold is there all the same"
        other.sendall(frame(b"go on now"))
        receive_frame(other)

    server.run(client)
    assert not server.intake.is_full()
    assert (server.intake.parked_bytes, server.intake.parked) == (0, {})
