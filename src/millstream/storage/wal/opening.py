"""Opens the write-ahead log of a shard at its start. Recovery has made all earlier frames void before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.format.names import TEMPORARY_SUFFIX, parse_wal_name
from millstream.format.wal import WalState
from millstream.storage.directories import make_directories_durably
from millstream.storage.wal.files import WalFiles
from millstream.storage.wal.state import look_at_wal_state, write_wal_state

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.storage.disk import Disk
    from millstream.storage.messages.commands import Command


def open_state(disk: Disk, directory: str) -> WalState:
    """Read the state of the log in ``directory``. Creates the directory and the state if they are missing."""
    make_directories_durably(disk, directory, 2)
    state = look_at_wal_state(disk, directory).state
    if state is None:
        # Durable before the first frame, so that a missing state beside frames is always damage.
        state = WalState()
        write_wal_state(disk, directory, state)
    return state


def open_files(
    disk: Disk, directory: str, state: WalState, wal_bytes: int, file_bytes: int, send: Callable[[Command], None]
) -> WalFiles:
    """Open the files of the log in ``directory``. Files whose size is not ``file_bytes``, and temporary files, are
    removed.
    """
    files: list[int] = []
    for name in disk.list(directory):
        number = parse_wal_name(name)
        if name.endswith(TEMPORARY_SUFFIX) or (number is not None and disk.size(f"{directory}/{name}") != file_bytes):
            disk.unlink(f"{directory}/{name}")
        elif number is not None:
            files.append(number)
    return WalFiles(
        directory,
        file_bytes,
        wal_bytes // file_bytes,
        next_generation=state.next_generation,
        files=files,
        send=send,
    )
