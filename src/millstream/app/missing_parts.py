"""Detects a part of the data directory that is missing, since an unmounted file system looks like an empty directory.

``wal``, ``topics`` and ``controller`` may be on their own file systems. A start without one of them would find nothing
there and treat the broker as new: the write-ahead log would not be replayed and its offsets used again, or topics would
be gone, with new ones written beneath the mount point. Each part is therefore compared with what the others say, before
anything is changed:

=============  ======================================================================================
empty          but there was something, because
=============  ======================================================================================
``wal``        there is a controller's log: its first record went through a write-ahead log
``controller`` the write-ahead log of its shard was emptied into segments, its own first of all
``topics``     the last stop was an orderly one and noted segments
=============  ======================================================================================

After a crash nothing says what was in ``topics``. A single partition is compared with the same note when it is opened
(``storage.log.lost``). To remove a part on purpose, leave any file in the directory.
"""

import os

from millstream.cluster.messages import CONTROLLER_SHARD
from millstream.errors import Corruption
from millstream.format.names import TOPICS_DIRECTORY, WAL_DIRECTORY, controller_directory
from millstream.format.wal import WalState
from millstream.storage.disk import Disk
from millstream.storage.recovery.summary import decode_summaries
from millstream.storage.wal.state import look_at_wal_state


def check_parts(disk: Disk, data_dir: str) -> None:
    """Raises Corruption if a part of the data directory is missing, OSError if the disk fails."""
    wal, topics = f"{data_dir}/{WAL_DIRECTORY}", f"{data_dir}/{TOPICS_DIRECTORY}"
    controller = os.path.dirname(controller_directory(data_dir))
    shards = [name for name in _names(disk, wal) if name.isdecimal()]
    if _names(disk, controller):
        if not _names(disk, wal):
            raise _missing(wal, "there is a controller's log")
    elif str(CONTROLLER_SHARD) in shards:
        first = _state(disk, f"{wal}/{CONTROLLER_SHARD}")
        if first.next_sequence > WalState().next_sequence:
            raise _missing(controller, "there is a write-ahead log that was used")
    if not _names(disk, topics) and any(_has_segments(_state(disk, f"{wal}/{name}")) for name in shards):
        raise _missing(topics, "the last stop noted segments of topics")


def _state(disk: Disk, directory: str) -> WalState:
    return look_at_wal_state(disk, directory).state or WalState()


def _names(disk: Disk, directory: str) -> list[str]:
    try:
        return disk.list(directory)
    except FileNotFoundError:
        return []


def _has_segments(state: WalState) -> bool:
    """Whether an orderly stop noted segments of a log other than the controller's."""
    return any(one.segments for one in decode_summaries(state.logs if state.clean else b"") if one.group)


def _missing(directory: str, why: str) -> Corruption:
    return Corruption(f"{directory} is empty, but {why}: is its file system mounted?")
