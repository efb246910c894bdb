"""The two processes beside a shard: forked before its reactor exists and before it is pinned.

`start_helpers` makes the shared memory and descriptors that they and the shard talk through and forks them;
`ShardStorage` takes over what it returns. Helpers die with the shard (`shard.process.spawn`), and the shard stops
when one of them ends before it was told to.
"""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import TYPE_CHECKING

from millstream.format.names import wal_directory
from millstream.shard.process import spawn
from millstream.storage.channel import ReactorChannel, WorkerChannel, channel_pair
from millstream.storage.ticks import TickSlots
from millstream.storage.worker import Worker, run_worker
from millstream.storage.writer import TickWriter, run_writer
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from millstream.iobuf import Arena
    from millstream.shard.process import Child, ExitStatus
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk


class Helpers:
    """How a shard speaks with its writer and its worker: forked before its reactor exists, attached after."""

    def __init__(
        self, slots: TickSlots, go_fd: int, done_fd: int, end: socket.socket, writer: Child, worker: Child
    ) -> None:
        self.slots = slots
        self.writer = writer
        self.worker = worker
        self._go_fd = go_fd
        self._done_fd = done_fd
        self._end = end
        self._reactor: Reactor | None = None
        self._channel: ReactorChannel | None = None
        self._on_landed: Callable[[], None] = _nothing

    def attach(
        self,
        reactor: Reactor,
        on_landed: Callable[[], None],
        on_message: Callable[[bytes], None],
        on_ended: Callable[[str, ExitStatus | None], None],
    ) -> None:
        """Hear from the helpers on this reactor: a tick landed, the worker said something, one of them ended."""
        self._reactor = reactor
        self._on_landed = on_landed
        self._channel = ReactorChannel(reactor, self._end, on_message)
        reactor.add_reader(self._done_fd, self._rung)
        for child in (self.writer, self.worker):
            reactor.add_reader(child.pidfd, partial(self._ended, child, on_ended))

    def submit(self) -> None:
        """Have the writer look at the next slot."""
        os.eventfd_write(self._go_fd, 1)

    def send(self, message: bytes) -> None:
        """Send the worker a message."""
        if self._channel is None:
            raise AssertionError("the helpers are not attached to a reactor")
        self._channel.send(message)

    def _rung(self) -> None:
        os.eventfd_read(self._done_fd)
        self._on_landed()

    def _ended(self, child: Child, on_ended: Callable[[str, ExitStatus | None], None]) -> None:
        if self._reactor is not None:
            self._reactor.remove_reader(child.pidfd)
        on_ended(child.name, child.poll())

    def detach(self) -> None:
        """Both have ended: listen no more."""
        if self._reactor is not None and self._channel is not None:
            self._reactor.remove_reader(self._done_fd)
            self._channel.close()


def _nothing() -> None:
    """Not attached yet."""


def start_helpers(shard_id: int, arena: Arena, disk: Disk, data_dir: str) -> Helpers:
    """Fork the writer and the worker, in the shard's process, before its reactor is made and before `pin`."""
    slots = TickSlots()
    go_fd, done_fd = os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_CLOEXEC)
    ours, theirs = channel_pair()

    def writer_main() -> int:
        ours.close()
        theirs.close()
        operator_log.who(f"shard {shard_id} writer")
        # It makes no cycles, and a collection would stand between a frame and its sync.
        gc.disable()
        writer = TickWriter(disk, wal_directory(data_dir, shard_id), shard_id, arena.view)
        return run_writer(writer, slots, go_fd, done_fd)

    def worker_main() -> int:
        ours.close()
        operator_log.who(f"shard {shard_id} worker")
        gc.freeze()
        return run_worker(Worker(disk, data_dir, arena.view), WorkerChannel(theirs))

    writer = spawn(f"writer {shard_id}", writer_main)
    worker = spawn(f"worker {shard_id}", worker_main)
    theirs.close()
    return Helpers(slots, go_fd, done_fd, ours, writer, worker)
