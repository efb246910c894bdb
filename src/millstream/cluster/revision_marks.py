"""Two revisions of the controller's log that a broker notes on its disk.

::

    <data>/controller/committed      the commands below it are committed
    <data>/controller/received       the snapshot with it, or with a later one, has everything that this broker ever
                                     knew

**Committed.** A broker of a cluster starts from its snapshot, and learns of later commands when a leader says that they
are committed. Deletions must not wait for that: the broker would open partitions without files. So before the files of
a deletion are removed the mark is moved past it, durably, and a start applies the log up to the mark. The mark also
follows other changes after a few seconds: a partition that it covers, and that has no files, has lost them. Without a
readable mark the broker starts from its snapshot, and a replica whose files are missing does not vote or acknowledge
until a leader has filled it (`storage.log.lost`).

**Received.** The broker was sent another broker's snapshot, so its own files may be outdated. It makes files for a
topic or a partition only when the command for them is committed. So once its state is at this revision or later, a
directory that the state does not name is outdated. The note is written before the snapshot, and removed when what is
outdated is deleted; without such a snapshot it says nothing.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

from millstream.errors import Corruption
from millstream.format.sealed import seal, unseal
from millstream.storage.directories import make_directories_durably
from millstream.storage.disk import read_file, replace_file
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from millstream.storage.disk import Disk

COMMITTED_PATH: Final = "controller/committed"
RECEIVED_PATH: Final = "controller/received"

_COMMITTED: Final = b"MSCM"
_RECEIVED: Final = b"MSCR"
_VERSION: Final = 1
_REVISION: Final = struct.Struct("<Q")


def read_mark(disk: Disk, data_dir: str) -> int:
    """The committed revision, 0 without a mark. Raises OSError."""
    path = f"{data_dir}/{COMMITTED_PATH}"
    try:
        return _read(disk, path, _COMMITTED)
    except FileNotFoundError:
        return 0
    except Corruption as error:
        operator_log.error("%s: %s; what is committed is learnt from the other brokers", path, error.message)
        return 0


def write_mark(disk: Disk, data_dir: str, revision: int) -> None:
    """Move the mark, durably. Raises OSError; the old mark is there then."""
    _write(disk, f"{data_dir}/{COMMITTED_PATH}", _COMMITTED, revision)


def read_note(disk: Disk, data_dir: str) -> int | None:
    """The received revision; None without a note, or with one that is damaged. Raises OSError."""
    try:
        return _read(disk, f"{data_dir}/{RECEIVED_PATH}", _RECEIVED)
    except (FileNotFoundError, Corruption):
        return None


def write_note(disk: Disk, data_dir: str, revision: int) -> None:
    """Write the note durably. Raises OSError."""
    _write(disk, f"{data_dir}/{RECEIVED_PATH}", _RECEIVED, revision)


def remove_note(disk: Disk, data_dir: str) -> None:
    """Remove the note, because outdated files were removed. Raises OSError."""
    path = f"{data_dir}/{RECEIVED_PATH}"
    disk.unlink(path)
    disk.sync_directory(os.path.dirname(path))


def _read(disk: Disk, path: str, magic: bytes) -> int:
    return int(_REVISION.unpack(unseal(magic, _VERSION, read_file(disk, path)))[0])


def _write(disk: Disk, path: str, magic: bytes, revision: int) -> None:
    make_directories_durably(disk, os.path.dirname(path), 1)
    replace_file(disk, path, seal(magic, _VERSION, _REVISION.pack(revision)))
