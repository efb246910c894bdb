"""A loop in the place of a broker: it receives, writes, syncs and answers, and does nothing else.

``python -m bench.bare`` gets a topic and a directory (see ``child``) and prints its port. Each Produce request of the
load goes whole into one file that was filled before, past the page cache; one sync is for all that one poll brought;
then each is answered with the next offset of its partition. No batch is decoded, no index is kept, nothing can be read
back, and the file is written round and round. Run beside a broker, under the same load, it says how much of a tail is
the machine's: of the disk, of what else holds the cores, and of the generator that shares them.

Its figures are no broker's, and are no peer's in the table: they stand beside ours.
"""

import json
import mmap
import os
import select
import socket
import struct
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from bench import load, raw, schedule, verify
from bench.child import Child, instructions
from bench.meter import RECEIVE_BYTES
from bench.rows import Figures, of_produce
from bench.schedule import Schedule

FILE_BYTES = 64 << 20
STAGED_BYTES = 4 << 20
BLOCK = 4096


class Log:
    """A file that is written in whole blocks, round and round."""

    def __init__(self, path: Path) -> None:
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC
        try:
            self._fd = os.open(path, flags | os.O_DIRECT, 0o600)
        except OSError:  # a file system that has no such writes, for the broker neither
            self._fd = os.open(path, flags, 0o600)
        self._staged = memoryview(mmap.mmap(-1, STAGED_BYTES))
        self._filled = self._at = 0
        for place in range(0, FILE_BYTES, STAGED_BYTES):
            os.pwrite(self._fd, self._staged, place)
        os.fsync(self._fd)

    def add(self, data: bytes) -> None:
        """Add bytes to the next sync. Raises ValueError for more than 4 MiB between two syncs, a fault of the load."""
        self._staged[self._filled : self._filled + len(data)] = data
        self._filled += len(data)

    def sync(self) -> None:
        """Sync: when this returns, everything that was added is on the disk."""
        size = -(-self._filled // BLOCK) * BLOCK
        if self._at + size > FILE_BYTES:
            self._at = 0
        os.pwrite(self._fd, self._staged[:size], self._at)
        os.fdatasync(self._fd)
        self._at += size
        self._filled = 0


def serve(listener: socket.socket, log: Log, topic: str) -> None:
    """Serve until the process is ended."""
    layout = raw.produce_answer(topic)
    partition_at = raw.produce(topic, 0x01020304, b"").rindex(b"\x01\x02\x03\x04")
    offsets: dict[int, int] = defaultdict(int)
    connections: dict[int, socket.socket] = {}
    begun: dict[int, bytes] = defaultdict(bytes)  # of a request whose rest has not come
    buffer = bytearray(RECEIVE_BYTES)
    with select.epoll() as epoll:
        epoll.register(listener, select.EPOLLIN)
        while True:
            answers: dict[socket.socket, bytes] = {}
            for fd, _ in epoll.poll():
                if fd == listener.fileno():
                    accepted, _ = listener.accept()
                    accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    connections[accepted.fileno()] = accepted
                    epoll.register(accepted, select.EPOLLIN)
                    continue
                count = connections[fd].recv_into(buffer)
                if not count:
                    connections.pop(fd).close()
                    begun.pop(fd, None)
                    continue
                data = begun[fd] + buffer[:count]
                end = 0
                answer = b""
                for start, end in requests(data):
                    log.add(data[start:end])
                    (partition,) = struct.unpack_from(">i", data, start + partition_at)
                    answer += layout.pack(layout.size - 4, 0, partition, 0, offsets[partition], -1, 0, 0)
                    offsets[partition] += 1
                begun[fd] = data[end:]
                if answer:
                    answers[connections[fd]] = answer
            if answers:
                log.sync()
                for connection, answer in answers.items():
                    connection.sendall(answer)


def requests(data: bytes) -> Iterator[tuple[int, int]]:
    """Where whole requests begin (with their size) and end."""
    start = 0
    while len(data) - start >= 4:
        end = start + 4 + int.from_bytes(data[start : start + 4])
        if end > len(data):
            return
        yield start, end
        start = end


def measure(load_of: Schedule, content: list[bytes], *, warm_s: float, measured_s: float) -> Figures:
    """A load on a loop of its own, on the file system of the brokers' data. That its offsets are dense is verified;
    there is nothing to be read back.
    """
    topic = "bare"
    acknowledged = load.fresh(load_of.partitions)
    with (
        tempfile.TemporaryDirectory(prefix="bench-bare-") as directory,
        Child("bench.bare", {"topic": topic, "directory": directory}) as loop,
    ):
        outcome = schedule.produce_open(
            f"127.0.0.1:{loop.hear()}",
            loop.pid,
            topic,
            content,
            load_of,
            warm_s=warm_s,
            measured_s=measured_s,
            acknowledged=acknowledged,
        )
    verify.check_dense(verify.Produced(topic, acknowledged, 1, frozenset()))
    return {f"bare_{name}": figure for name, figure in of_produce(outcome).items()}


def main() -> None:
    """Run in a process of its own, on the processor of a broker's first shard."""
    what = instructions()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    log = Log(Path(what["directory"], "log"))
    listener = socket.create_server(("127.0.0.1", 0))
    print(json.dumps(listener.getsockname()[1]), flush=True)
    serve(listener, log, what["topic"])


if __name__ == "__main__":
    main()
