"""The lock of a broker's data directory, seen from outside (``app/lock.py`` takes it)."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


def lock_holder(data: Path) -> int | None:
    """The process that holds a data directory's lock; None if none does, 0 if the lock file does not say which."""
    import fcntl

    with _opened(data / "lock") as descriptor:
        if descriptor is None:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            return int(text) if text.isdecimal() else 0
    return None


@contextmanager
def _opened(path: Path) -> Generator[int | None]:
    """A descriptor for reading; None if there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)
