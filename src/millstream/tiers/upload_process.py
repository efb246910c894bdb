"""The upload process of a shard: segments go to the object store at idle priority, so that producers do not notice.

::

    reactor ──Upload──► three lanes ──► object store
                              └──blocks──► archive process: its warm cache (`passing`)

A shard and its writer that wake up on a busy machine wait behind any process of ordinary priority, however nice. So
uploads have a process of their own with the scheduling class and the I/O class *idle*: it runs when nothing else wants
to. Reads of archived segments stay in the archive process: threads of one process share an interpreter lock, and an
idle upload that holds it would hold up a read.

**Promises.** An upload is the same whichever process does it: the same object, checked batch by batch. The process
holds nothing that must survive. **Overload.** A machine without idle time starves the process; `upload_link` notices
that uploads fall behind, and replaces it by one of ordinary priority. **Bad input** is a `Failed`, as in the archive
process. **Crash.** The shard ends when the process ends by itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.errors import MillstreamError
from millstream.helper.channel import HelperChannel, channel_pair
from millstream.helper.serving import serve
from millstream.objects import open_store
from millstream.shard.process import become_ordinary, spawn
from millstream.telemetry.log import log as operator_log
from millstream.tiers.messages import UPLOAD_PROCESS_LANES, Stop, Upload, Uploaded, decode_command, encode
from millstream.tiers.passing import BlockSender
from millstream.tiers.process import CHANGE_PATIENCE_S, NICE, Counted, answer, close_all_but, failed, store_url
from millstream.tiers.uploading import Pace, upload

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from millstream.config.settings import Settings
    from millstream.objects import ObjectStore
    from millstream.shard.process import Child
    from millstream.storage.disk import Disk
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.messages import Command, Reply
    from millstream.tiers.passing import OnBlock

_IOPRIO_SET: Final = {"x86_64": 251, "aarch64": 30}
"""Number of the system call."""

_OF_THREAD: Final = 1
_IDLE_CLASS: Final = 3 << 13


def start_upload_process(
    shard_id: int,
    disk: Disk,
    settings: Settings,
    stats: StatsSlab,
    usable_cores: Sequence[int],
    blocks: socket.socket | None,
    *,
    idle: bool,
) -> tuple[Child, list[socket.socket]]:
    """Fork the process; returns it with the reactor's ends of its lanes. ``blocks`` leads to the archive process that
    has the warm cache, if uploads fill it.
    """
    pairs = [channel_pair() for _ in UPLOAD_PROCESS_LANES]

    def main() -> int:
        gc.freeze()
        kept = {theirs.fileno() for _, theirs in pairs}
        close_all_but(kept if blocks is None else kept | {blocks.fileno()})
        os.sched_setaffinity(0, usable_cores)
        if settings.shard_realtime:
            become_ordinary()
        operator_log.who(f"shard {shard_id} upload", stats)
        stats.started()
        os.nice(NICE)
        if idle:
            make_idle(os.getpid())
        return _serve([HelperChannel(theirs) for _, theirs in pairs], disk, settings, stats, blocks)

    child = spawn(f"upload {shard_id}", main)
    for _, theirs in pairs:
        theirs.close()
    return child, [ours for ours, _ in pairs]


class UploadWorker:
    """Carries out uploads, on one thread each lane. It knows no sockets: tests call it directly."""

    def __init__(self, store: ObjectStore, disk: Disk, bytes_per_s: float, on_block: OnBlock | None = None) -> None:
        """``on_block`` gets each block that is uploaded."""
        self._store = store
        self._disk = disk
        self._pace = Pace(bytes_per_s)
        self._on_block = on_block

    def carry_out(self, command: Command) -> Reply:
        """Upload the segment; a failure is a `Failed`."""
        assert isinstance(command, Upload)
        on_block = None if self._on_block is None else partial(self._on_block, command.owner)
        try:
            return Uploaded(command.id, upload(self._store, self._disk, command, self._pace, on_block))
        except (MillstreamError, OSError) as error:
            return failed(command, error)


def _serve(
    channels: list[HelperChannel], disk: Disk, settings: Settings, stats: StatsSlab, blocks: socket.socket | None
) -> int:
    """One thread per lane, each until the shard has ended. The store is opened by the first upload."""
    lock = threading.Lock()
    made: list[UploadWorker] = []

    def worker() -> UploadWorker:
        with lock:
            if not made:
                store = Counted(open_store(store_url(settings), CHANGE_PATIENCE_S), stats)
                rate = settings.objects_upload_max_bytes_per_second / settings.shards
                made.append(UploadWorker(store, disk, rate, None if blocks is None else BlockSender(blocks).send))
            return made[0]

    serve(channels, decode_command, Stop, lambda command: encode(answer(worker, command)))
    return 0


def make_idle(pid: int) -> None:
    """Give all threads of a process the classes *idle* for processor and disk. Needs no right; there is no way back
    without one. A thread that ends just now, and a kernel without the classes, change nothing.
    """
    libc, number = ctypes.CDLL(None, use_errno=True), _IOPRIO_SET.get(platform.machine())
    with contextlib.suppress(OSError):
        for thread in map(int, os.listdir(f"/proc/{pid}/task")):
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
            if number is not None:
                libc.syscall(number, _OF_THREAD, thread, _IDLE_CLASS)
