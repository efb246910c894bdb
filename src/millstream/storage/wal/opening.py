"""Opening the write-ahead log of a shard at its start, after recovery has made its frames void."""

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
    """The state of the log in `directory`, which is made if it is missing."""
    make_directories_durably(disk, directory, 2)
    state = look_at_wal_state(disk, directory).state
    if state is None:
        # From the first frame on, a missing state file has to mean something.
        state = WalState()
        write_wal_state(disk, directory, state)
    return state


def open_files(
    disk: Disk, directory: str, state: WalState, wal_bytes: int, file_bytes: int, send: Callable[[Command], None]
) -> WalFiles:
    """The files of the log in `directory`; those of another size than `file_bytes` are removed."""
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
