"""What a hop between two shards costs: CPU of both processes per call and answer, and the time a lone call takes.

    .venv/bin/python -m bench.micro_ring [--json] [calls]

Two real processes, pinned to two cores, talk through the mailbox as a broker's shards do. "In flight" is how many
calls the caller keeps open: with one, every call wakes a sleeper; with more, messages of one turn travel together.
The payload is the size of a produce descriptor; where a row says so, each call also lends a 128 KiB fragment, which
the other side looks at (one byte) and gives back: no payload byte is copied.
"""

from __future__ import annotations

import json
import os
import sys
import time

from millstream.iobuf import Arena
from millstream.shard.mailbox import Mailbox
from millstream.shard.mesh import Mesh
from millstream.shard.process import cores, pin, spawn
from millstream.shard.reactor import Reactor
from millstream.telemetry.metrics import StatsSlab

METHOD = 1
DESCRIPTOR_BYTES = 64


class Load:
    """Keeps `depth` calls open until `calls` were answered."""

    def __init__(self, reactor: Reactor, mailbox: Mailbox, arena: Arena, depth: int, calls: int, *, lend: bool) -> None:
        self.reactor = reactor
        self.mailbox = mailbox
        self.arena = arena
        self.to_send = calls
        self.to_come = calls
        self.lend = lend
        self.latencies_ns: list[int] = []
        self.depth = depth
        reactor.call_later(20_000, self.begin)

    def begin(self) -> None:
        self.wall = time.perf_counter()
        self.cpu = time.process_time()
        for _ in range(self.depth):
            self.one()

    def one(self) -> None:
        self.to_send -= 1
        self.sent_ns = time.perf_counter_ns()
        if self.lend:
            fragment = self.arena.allocate(131072)
            token = self.mailbox.loans.lend(fragment)
            payload = fragment.offset.to_bytes(8, "little") + token.to_bytes(8, "little") + bytes(DESCRIPTOR_BYTES - 16)
            self.mailbox.call(1, METHOD, payload, self.answered, 5_000_000, (token,))
        else:
            self.mailbox.call(1, METHOD, bytes(DESCRIPTOR_BYTES), self.answered, 5_000_000)

    def answered(self, answer: object) -> None:
        assert isinstance(answer, bytes), answer
        if self.depth == 1:
            self.latencies_ns.append(time.perf_counter_ns() - self.sent_ns)
        self.to_come -= 1
        if self.to_send:
            self.one()
        elif not self.to_come:
            self.wall = time.perf_counter() - self.wall
            self.cpu = time.process_time() - self.cpu
            self.mailbox.call(1, METHOD + 1, b"", self.other_cpu, 5_000_000)

    def other_cpu(self, answer: object) -> None:
        assert isinstance(answer, bytes)
        self.cpu_there = float(answer)
        self.reactor.stop()


def answer_calls(mesh: Mesh, arenas: list[Arena], core: int, *, lend: bool) -> int:
    pin(core)
    reactor = Reactor(1, StatsSlab(1, "shard"))
    mailbox = Mailbox(1, mesh, reactor, arenas)
    cpu = 0.0

    def serve(_: int, payload: bytes, reply: object) -> None:
        nonlocal cpu
        if not cpu:
            cpu = time.process_time()
        if lend:
            offset = int.from_bytes(payload[:8], "little")
            borrowed = mailbox.loans.borrow(0, offset, 131072, int.from_bytes(payload[8:16], "little"))
            borrowed.view[0]
            borrowed.release()
        reply.send(payload[:16])

    mailbox.serve(METHOD, serve)
    mailbox.serve(METHOD + 1, lambda _, __, reply: reply.send(str(time.process_time() - cpu).encode()))
    return reactor.run()


def measure(depth: int, calls: int, *, lend: bool = False) -> tuple[float, str]:
    """CPU of both processes a call in µs, and the row that is shown."""
    here, there = (cores() * 2)[:2]
    mesh = Mesh(2)
    arenas = [Arena.create(0, 256 << 20), Arena.create(1, 1 << 20)]
    child = spawn("shard 1", lambda: answer_calls(mesh, arenas, there, lend=lend))
    pin(here)
    stats = StatsSlab(0, "shard")
    reactor = Reactor(0, stats)
    load = Load(reactor, Mailbox(0, mesh, reactor, arenas), arenas[0], depth, calls, lend=lend)
    reactor.run()
    child.kill()
    child.wait()
    cpu_us = (load.cpu + load.cpu_there) / calls * 1e6
    line = f"{depth:>9} {'yes' if lend else 'no':>5} {cpu_us:>13.2f} {load.wall / calls * 1e6:>14.2f}"
    if load.latencies_ns:
        load.latencies_ns.sort()
        at = load.latencies_ns
        line += f"   p50 {at[len(at) // 2] / 1000:.0f} µs, p99 {at[len(at) * 99 // 100] / 1000:.0f} µs"
    wakes = stats.counter("ring_wakes").value
    return cpu_us, f"{line}   bells/call {wakes / calls:.3f}"


def main() -> None:
    arguments = [argument for argument in sys.argv[1:] if argument != "--json"]
    calls = int(arguments[0]) if arguments else 100_000
    affinity = set(cores())
    if "--json" in sys.argv:
        found: dict[str, float] = {}
        for name, depth, lend in (("alone", 1, False), ("64", 64, False), ("lent", 64, True)):
            os.sched_setaffinity(0, affinity)
            found[name] = measure(depth, calls if depth > 1 else calls // 10, lend=lend)[0]
        print(json.dumps(found))
        return
    print("in flight  lend  CPU µs a call  wall µs a call")
    for depth, lend in ((1, False), (8, False), (64, False), (512, False), (64, True), (512, True)):
        os.sched_setaffinity(0, affinity)
        print(measure(depth, calls if depth > 1 else calls // 10, lend=lend)[1])


if __name__ == "__main__":
    main()
