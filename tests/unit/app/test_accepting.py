"""Connections that come faster than busy shards take them."""

import socket

from millstream.app.accepting import Acceptor
from millstream.app.address_limits import ConnectionLimits
from millstream.shard.handover import Handover
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab

CROWD = 600


class BusyShard:
    """A shard with no connections but those that it has not taken yet."""

    def __init__(self, handover):
        self.handover = handover

    @property
    def connections(self):
        return self.handover.pending


def test_connections_that_no_shard_takes_yet_wait_and_are_all_handed_over_in_the_end():
    reactor = Reactor(0, StatsSlab(0, "supervisor"))
    handover = Handover()
    acceptor = Acceptor(reactor, [BusyShard(handover)], StatsSlab(0, "supervisor"), ConnectionLimits(2 * CROWD), [])
    listener = socket.create_server(("127.0.0.1", 0), backlog=CROWD)
    listener.setblocking(False)
    clients = [socket.create_connection(listener.getsockname()) for _ in range(CROWD)]
    acceptor.open({"PLAINTEXT": listener})
    taken = []

    def take(sock, arrival):
        taken.append(arrival.peer_port)
        sock.close()
        if len(taken) == CROWD:
            reactor.stop()

    def now_that_the_shard_has_time():
        if not handover.pending:  # nothing has come yet
            reactor.call_later(50_000, now_that_the_shard_has_time)
            return
        assert handover.pending < CROWD  # it holds fewer than came
        reactor.add_reader(handover.fd, lambda: handover.take(take))

    reactor.call_later(50_000, now_that_the_shard_has_time)
    reactor.call_later(120_000_000, reactor.stop)
    assert reactor.run() == 0
    assert taken == [client.getsockname()[1] for client in clients]
    for client in clients:
        client.close()
    listener.close()
    handover.close()
