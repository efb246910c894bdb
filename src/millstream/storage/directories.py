"""Directories whose names outlast a power failure."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from millstream.storage.disk import make_directories

if TYPE_CHECKING:
    from millstream.storage.disk import Disk


def make_directories_durably(disk: Disk, path: str, level_count: int) -> None:
    """Make a directory and its missing parents, and sync the names of the last ``level_count`` directories of ``path``.

    Names are synced whether they are new or not: a directory that exists may be that of an earlier attempt, whose sync
    failed or never came. ``level_count`` says how many directories such an attempt may have made. Raises OSError.
    """
    names = make_directories(disk, path)
    above = path
    for _ in range(level_count):
        above = os.path.dirname(above)
        if above not in names:
            names.append(above)
    for name in sorted(names, key=len):
        disk.sync_directory(name or ".")
