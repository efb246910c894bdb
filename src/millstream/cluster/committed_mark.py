"""The committed mark: stores on this broker's disk how far the controller's log is committed.

::

    <data>/controller/committed      a revision: the commands below it are committed

A broker of a cluster starts from its snapshot, and learns of later commands when a leader says that they are committed.
Deletions must not wait for that: the broker would open partitions without files. So before the files of a deletion are
removed the mark is moved past it, durably, and a start applies the log up to the mark. The mark also follows other
changes after a few seconds: a partition that it covers, and that has no files, has lost them.

Without a readable mark the broker starts from its snapshot, and a replica whose files are missing does not vote or
acknowledge until a leader has filled it (`storage.log.lost`).
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

PATH: Final = "controller/committed"

_MAGIC: Final = b"MSCM"
_VERSION: Final = 1
_REVISION: Final = struct.Struct("<Q")


def read_mark(disk: Disk, data_dir: str) -> int:
    """The revision, 0 without a mark. Raises OSError."""
    path = f"{data_dir}/{PATH}"
    try:
        payload = unseal(_MAGIC, _VERSION, read_file(disk, path))
    except FileNotFoundError:
        return 0
    except Corruption as error:
        operator_log.error("%s: %s; what is committed is learnt from the other brokers", path, error.message)
        return 0
    return int(_REVISION.unpack(payload)[0])


def write_mark(disk: Disk, data_dir: str, revision: int) -> None:
    """Move the mark, durably. Raises OSError; the old mark is there then."""
    path = f"{data_dir}/{PATH}"
    make_directories_durably(disk, os.path.dirname(path), 1)
    replace_file(disk, path, seal(_MAGIC, _VERSION, _REVISION.pack(revision)))
