"""A note on disk: this broker received another broker's snapshot of the controller, and its files may be outdated.

::

    <data>/controller/received      a revision: the snapshot with it, or with a later one, has everything that this
                                    broker ever knew

A broker makes files for a topic or a partition only when the command for them is committed. So once its state is at the
note's revision or later, a directory that the state does not name is outdated. The note is written before the snapshot,
and removed when what is outdated is deleted; without such a snapshot it says nothing.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import read_file, replace_file

if TYPE_CHECKING:
    from millstream.storage.disk import Disk

PATH: Final = "controller/received"

_MAGIC: Final = b"MSCR"
_VERSION: Final = 1
_REVISION: Final = struct.Struct("<Q")


def read_note(disk: Disk, data_dir: str) -> int | None:
    """The revision; None without a note, or with one that is damaged. Raises OSError."""
    try:
        return int(_REVISION.unpack(unseal(_MAGIC, _VERSION, read_file(disk, f"{data_dir}/{PATH}")))[0])
    except (FileNotFoundError, Corruption):
        return None


def write_note(disk: Disk, data_dir: str, revision: int) -> None:
    """Write the note durably. Raises OSError."""
    path = f"{data_dir}/{PATH}"
    make_directories_durably(disk, os.path.dirname(path), 1)
    replace_file(disk, path, seal(_MAGIC, _VERSION, _REVISION.pack(revision)))


def remove_note(disk: Disk, data_dir: str) -> None:
    """Remove the note, because outdated files were removed. Raises OSError."""
    disk.unlink(f"{data_dir}/{PATH}")
    disk.sync_directory(os.path.dirname(f"{data_dir}/{PATH}"))
