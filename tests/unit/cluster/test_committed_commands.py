"""Commands are delivered when they are committed and on this broker's own disk, each once, in order."""

from types import SimpleNamespace

from millstream.cluster.committed import CommittedCommands
from millstream.core.controller.commands import ProducerIdsAllocated, encode_command
from millstream.iobuf import Arena, IoBuf
from millstream.wire.records import build_batch


class Bench:
    def __init__(self):
        self.arena = Arena.create(0, 1 << 22)
        self.log = SimpleNamespace(durable_offset=0, read=self.read)
        self.group = SimpleNamespace(committed_offset=0, log=self.log)
        self.soon, self.later = [], []
        reactor = SimpleNamespace(call_soon=self.soon.append, call_later=lambda _, call: self.later.append(call))
        self.delivered = []
        self.commands = CommittedCommands(
            reactor, self.group, 0, lambda base, some: self.delivered.extend((base, one.start) for one in some)
        )

    def read(self, begin, end, limit, minimum_one):
        batches = b""
        for offset in range(begin, end):
            batch = bytearray(build_batch([(None, encode_command(ProducerIdsAllocated(offset, 1, 1)), (), 0)]))
            batch[:8] = offset.to_bytes(8, "big")
            batches += batch
        fragment = self.arena.allocate(len(batches))
        fragment.view[: len(batches)] = batches
        found = IoBuf()
        found.append(fragment, 0, len(batches))
        return found

    def run(self):
        while self.soon:
            self.soon.pop(0)()
        return self.delivered


def test_a_committed_command_waits_for_the_own_disk():
    bench = Bench()
    bench.group.committed_offset, bench.log.durable_offset = 3, 2
    bench.commands.advance()
    assert bench.run() == [(0, 0), (1, 1)]
    bench.log.durable_offset = 3
    (again,) = bench.later
    again()
    assert bench.run() == [(0, 0), (1, 1), (2, 2)]


def test_what_is_durable_here_waits_for_the_commit():
    bench = Bench()
    bench.group.committed_offset, bench.log.durable_offset = 1, 3
    bench.commands.advance()
    assert bench.run() == [(0, 0)]
    assert bench.later == []
