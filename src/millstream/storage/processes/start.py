"""Forks the helper processes of a shard (writer, worker, cleaner), before its reactor exists and before it is pinned.

``start_processes`` creates the shared memory and descriptors for their communication, and forks them; ``ShardStorage``
takes over the result. With ``shards.realtime`` the writer gets real-time priority like the shard, because
acknowledgements wait for it; the others do not. Helper processes die with the shard (``shard.process.spawn``), and the
shard stops when one of them ends without a request.
"""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import TYPE_CHECKING

from millstream.format.names import wal_directory
from millstream.helper.channel import HelperChannel, channel_pair
from millstream.helper.lanes import Lanes
from millstream.model.quantities import ShardId
from millstream.shard.process import become_realtime, spawn
from millstream.storage.messages.commands import CLEANER_LANE, LANES, LANES_OF, Stop, encode
from millstream.storage.processes.cleaner_process import CleanerProcess
from millstream.storage.processes.worker import Worker, run_worker
from millstream.storage.processes.writer import TickWriter, run_writer
from millstream.storage.segments.bulk_writes import DIRECT_BYTES_MIN
from millstream.storage.segments.read_faults import ReadFaults
from millstream.storage.wal.ticks import TickSlots
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from millstream.config.settings import Settings
    from millstream.iobuf import Arena
    from millstream.shard.process import Child, ExitStatus
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.storage.messages.commands import Command
    from millstream.telemetry.metrics import StatsSlab


class StorageProcesses:
    """The connection of a shard to its helper processes: forked before its reactor exists, attached after."""

    def __init__(
        self, slots: TickSlots, go_fd: int, done_fd: int, ends: list[socket.socket], children: list[Child]
    ) -> None:
        self.slots = slots
        self.children = children
        self._go_fd = go_fd
        self._done_fd = done_fd
        self._ends = ends
        self._reactor: Reactor | None = None
        self._lanes: Lanes[Command] = Lanes(LANES_OF, encode)
        self.send = self._lanes.send
        """Sends a command to the worker or the cleaner. It leaves at the end of the turn."""
        self._on_landed: Callable[[], None] = _nothing

    def attach(
        self,
        reactor: Reactor,
        on_landed: Callable[[], None],
        on_message: Callable[[bytes], None],
        on_ended: Callable[[str, ExitStatus | None], None],
    ) -> None:
        """Receive on this reactor: completed ticks, messages of worker and cleaner, and ends of processes."""
        self._reactor = reactor
        self._on_landed = on_landed
        self._lanes.open(reactor, self._ends, on_message)
        reactor.add_reader(self._done_fd, self._rung)
        for child in self.children:
            reactor.add_reader(child.pidfd, partial(self._ended, child, on_ended))

    @property
    def count(self) -> int:
        """Number of helper processes."""
        return len(self.children)

    def submit(self) -> None:
        """Wake the writer for the next slot."""
        os.eventfd_write(self._go_fd, 1)

    def stop_worker(self) -> None:
        """Let worker and cleaner execute what they were sent, then end."""
        self._lanes.send_to_all(Stop())

    def _rung(self) -> None:
        os.eventfd_read(self._done_fd)
        self._on_landed()

    def _ended(self, child: Child, on_ended: Callable[[str, ExitStatus | None], None]) -> None:
        if self._reactor is not None:
            self._reactor.remove_reader(child.pidfd)
        self._lanes.receive_all()
        on_ended(child.name, child.poll())

    def detach(self) -> None:
        """All have ended: stop receiving."""
        if self._reactor is not None:
            self._reactor.remove_reader(self._done_fd)
            self._lanes.close()


def _nothing() -> None:
    """Default callback before ``attach``."""


def start_processes(
    shard_id: ShardId, arena: Arena, disk: Disk, settings: Settings, stats: Mapping[str, StatsSlab]
) -> StorageProcesses:
    """Fork writer, worker and cleaner. Called in the shard's process, before its reactor is created and before ``pin``.

    ``stats`` has a slab for each of them, by role.
    """
    slots = TickSlots()
    data_dir = settings.data_dir
    go_fd, done_fd = os.eventfd(0, os.EFD_CLOEXEC), os.eventfd(0, os.EFD_CLOEXEC)
    cleans = settings.log_cleaner_enable
    pairs = [channel_pair() for _ in range(LANES + cleans)]
    ours, theirs = [pair[0] for pair in pairs], [pair[1] for pair in pairs]

    def begin(role: str) -> None:
        operator_log.who(f"shard {shard_id} {role}", stats[role])
        stats[role].started()

    def writer_main() -> int:
        for end in ours + theirs:
            end.close()
        begin("writer")
        if settings.shard_realtime:
            become_realtime()
        # It makes no reference cycles, and a collection would delay the sync of a frame.
        gc.disable()
        directory = wal_directory(data_dir, shard_id)
        writer = TickWriter(disk, directory, shard_id, arena.view, direct=settings.storage_direct_io)
        return run_writer(writer, slots, go_fd, done_fd, stats["writer"])

    def worker_main() -> int:
        for end in ours:
            end.close()
        begin("worker")
        gc.freeze()
        direct_bytes_min = DIRECT_BYTES_MIN if settings.storage_direct_io else None
        worker = Worker(
            disk, data_dir, arena.view, direct_bytes_min, ReadFaults(stats["worker"]), stats=stats["worker"]
        )
        return run_worker(worker, [HelperChannel(end) for end in theirs[:LANES]])

    def cleaner_main() -> int:
        for end in ours + theirs[:CLEANER_LANE]:
            end.close()
        begin("cleaner")
        gc.freeze()
        end = theirs[CLEANER_LANE]
        return CleanerProcess(disk, end, HelperChannel(end)).run()

    children = [spawn(f"writer {shard_id}", writer_main), spawn(f"worker {shard_id}", worker_main)]
    if cleans:
        children.append(spawn(f"cleaner {shard_id}", cleaner_main))
    for end in theirs:
        end.close()
    return StorageProcesses(slots, go_fd, done_fd, ours, children)
