"""Two real shards, this process and a forked one, for the tests of the mailbox.

`pair(there, here)` forks shard 1, which runs `there(side)` and then its reactor; this process is shard 0 and runs
`here(side)`. `here` must arrange for `side.finish()`, which waits until every loan is home on both sides and stops
both. What either side leaks, raises or takes too long over fails the test.
"""

import os

from millstream.iobuf import Arena
from millstream.shard.mailbox import Mailbox
from millstream.shard.mesh import Mesh
from millstream.shard.process import spawn
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab

LOANS_OUT, STOP = 250, 251
TIMEOUT_US = 120_000_000


class Side:
    def __init__(self, shard, mesh, arenas):
        self.shard = shard
        self.other = 1 - shard
        self.arenas = arenas
        self.arena = arenas[shard]
        self.stats = StatsSlab(shard, "shard")
        self.reactor = Reactor(shard, self.stats)
        self.mailbox = Mailbox(shard, mesh, self.reactor, arenas)
        self.call_later = self.reactor.call_later
        self.mailbox.serve(LOANS_OUT, self._serve_loans_out)
        self.mailbox.serve(STOP, self._serve_stop)
        self.reactor.call_later(TIMEOUT_US, lambda: self.reactor.stop(99, "the test took too long"))

    def call(self, method, payload, on_reply, timeout_us=TIMEOUT_US, loans=()):
        return self.mailbox.call(self.other, method, payload, on_reply, timeout_us, loans)

    def lend(self, data):
        """Lend a fragment holding `data`; returns (offset, length, token)."""
        fragment = self.arena.allocate(len(data))
        fragment.view[: len(data)] = data
        return fragment.offset, len(data), self.mailbox.loans.lend(fragment)

    def borrow(self, loan):
        return self.mailbox.loans.borrow(self.other, *loan)

    def finish(self):
        self.call(LOANS_OUT, b"", self._other_loans)

    def _other_loans(self, answer):
        if answer == b"0 0" and not self.mailbox.loans and not self.mailbox.outstanding_calls:
            self.call(STOP, b"", lambda _: self.reactor.stop(0))
        else:
            self.reactor.call_later(1000, self.finish)

    def _serve_loans_out(self, _, payload, reply):
        reply.send(f"{len(self.mailbox.loans)} {self.mailbox.outstanding_calls}".encode())

    def _serve_stop(self, _, payload, reply):
        reply.send(b"")
        self.reactor.call_later(1000, lambda: self.reactor.stop(0))

    def run(self):
        code = self.reactor.run()
        assert self.arena.live_fragments == 0, self.arena.leaks()
        return code


def pair(there, here, ring_capacity_bytes=64 * 1024):
    mesh = Mesh(2, ring_capacity_bytes)
    arenas = [Arena.create(shard, 8 << 20, poison=True) for shard in range(2)]

    def other_process():
        side = Side(1, mesh, arenas)
        there(side)
        return side.run()

    child = spawn("shard 1", other_process)
    try:
        side = Side(0, mesh, arenas)
        try:
            here(side)
            assert side.run() == 0, side.reactor.stop_reason
        finally:
            side.reactor.close()
        status = child.wait(60)
        assert status is not None
        assert status.code == 0, f"the other shard {status}"
    finally:
        child.kill()
        child.wait()
        hush(mesh)
    return side


def hush(mesh):
    """Close the bells of a mesh whose shards have ended."""
    for bell in mesh.bells:
        os.close(bell.fd)
