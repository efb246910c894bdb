"""A connection that one shard accepts is served by another."""

import os
import socket

import pytest

from millstream.shard.handover import Arrival, Handover
from millstream.shard.process import spawn
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab


@pytest.fixture
def handover():
    handover = Handover()
    yield handover
    handover.close()


def test_a_connection_arrives_in_the_other_process_and_works_there(handover):
    listener = socket.create_server(("127.0.0.1", 0))

    def shard():
        handover.keep_receiver()
        reactor = Reactor(0, StatsSlab(0, "shard"))

        def each(sock, arrival):
            assert sock.recv(5) == b"hello"
            sock.sendall(f"{arrival.peer_host}:{arrival.peer_port} {arrival.listener}".encode())
            sock.close()
            reactor.stop(0)

        reactor.add_reader(handover.fd, lambda: handover.take(each))
        return reactor.run()

    child = spawn("shard 0", shard)
    handover.keep_sender()
    client = socket.create_connection(listener.getsockname())
    accepted, peer = listener.accept()
    client.sendall(b"hello")
    fd = accepted.detach()
    assert handover.send(fd, Arrival(*peer, *listener.getsockname(), "PLAINTEXT"))
    assert client.recv(100) == f"127.0.0.1:{peer[1]} PLAINTEXT".encode()
    assert client.recv(1) == b"", "no copy of the descriptor stayed in this process"
    assert child.wait(60).code == 0
    assert handover.pending == 0
    client.close()
    listener.close()


def test_what_a_shard_has_not_taken_is_counted_and_order_is_kept(handover):
    pairs = [socket.socketpair() for _ in range(100)]
    for number, (here, _) in enumerate(pairs):
        assert handover.send(os.dup(here.fileno()), Arrival("host", number, "here", 9092, "L"))
    assert handover.pending == 100
    taken = []

    def each(sock, arrival):
        taken.append(arrival.peer_port)
        sock.close()

    assert handover.take(each)
    assert handover.pending == 36, "64 a turn"
    assert handover.take(each)
    assert taken == list(range(100))
    for pair in pairs:
        for sock in pair:
            sock.close()


def test_a_shard_that_takes_nothing_does_not_block_the_supervisor(handover):
    here, there = socket.socketpair()
    sent = 0
    while sent < 100_000:
        copy = os.dup(here.fileno())
        if not handover.send(copy, Arrival("host", sent, "here", 9092, "L")):
            os.close(copy)  # still ours
            break
        sent += 1
    assert 0 < sent < 100_000
    assert handover.pending == sent
    while handover.pending:
        handover.take(lambda sock, _: sock.close())
    here.close()
    there.close()


def test_a_shard_that_is_gone_is_noticed(handover):
    handover._receiver.close()
    here, there = socket.socketpair()
    assert not handover.send(here.fileno(), Arrival("host", 1, "here", 2, "L"))
    here.close()
    there.close()


def test_a_supervisor_that_is_gone_is_noticed(handover):
    handover.keep_receiver()
    assert not handover.take(lambda *_: None)


def test_a_shard_without_free_descriptors_loses_the_connection_and_says_so(handover, capfd):
    import resource

    here, there = socket.socketpair()
    handover.send(os.dup(here.fileno()), Arrival("host", 1, "here", 2, "L"))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        assert handover.take(lambda *arrival: taken.append(arrival))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert taken == []
    assert "ulimit -n" in capfd.readouterr().err
    here.close()
    assert there.recv(1) == b""
    there.close()
