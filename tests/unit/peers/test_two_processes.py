"""Two real processes: what a broker sees of a peer that is killed, stopped or continued."""

import os
import signal

import pytest
from peer_nodes import World
from raft_messages_support import append, beat, vote

from millstream.peers.dial import QUEUE_BYTES_MAX


class Child:
    """Broker 2 in a process of its own. It sends every vote request back to its sender."""

    def __init__(self, world, port=0):
        read, write = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                self._serve(world.addresses[1], port, write)
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        self.port = int(os.read(read, 16))
        os.close(read)

    @staticmethod
    def _serve(address, port, write):
        world = World()
        world.addresses[1] = address
        node = world.node(2, port=port)

        owed = []

        def look():
            owed.extend(got.item for got in node.raft() if not got.body)
            node.got.clear()
            while owed and node.network.send(1, owed[0]):  # its own connection may come later than the other's
                owed.pop(0)
            world.reactor.call_later(500, look)

        node.network.connect(1)
        look()
        os.write(write, str(node.port).encode())
        world.reactor._loop.run_forever()

    def signal(self, number):
        os.kill(self.pid, number)

    def end(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@pytest.fixture
def children():
    made = []
    yield made
    for child in made:
        child.end()


def test_a_killed_peer_is_noticed_and_its_successor_found(world, children):
    from millstream.peers.hello import Seed

    a = world.node(1)
    children.append(Child(world))
    world.addresses[2] = Seed("127.0.0.1", children[0].port)
    world.run(lambda: a.network.send(2, vote(1)))
    world.run(lambda: a.raft(1))
    port = children[0].port
    children.pop().end()
    world.run(lambda: not a.network.is_connected(2))
    children.append(Child(world, port))
    world.run(lambda: a.network.send(2, vote(2)))
    world.run(lambda: a.raft(2))


def test_a_stopped_peer_costs_a_bounded_queue_and_goes_on_where_it_was(world, children):
    from millstream.peers.hello import Seed

    a = world.node(1)
    children.append(Child(world))
    world.addresses[2] = Seed("127.0.0.1", children[0].port)
    world.run(lambda: a.network.send(2, vote(1)))
    world.run(lambda: a.raft(1))
    children[0].signal(signal.SIGSTOP)
    sent = []

    def push():
        sent.append(a.network.send(2, append(1, len(sent)), a.chain(bytes(200_000))))
        a.network.beats(2, [beat(1, len(sent))], reply=False)
        return not sent[-1]

    world.run(push)
    assert a.network._dials[2, 0].link.queued_bytes <= QUEUE_BYTES_MAX + 400_000
    children[0].signal(signal.SIGCONT)
    world.run(lambda: a.network.send(2, vote(9)) and len(sent))
    world.run(lambda: a.raft(9))
