"""The backups of this cluster as the HTTP port shows them.

A place of backups is an object store with documents that may be large, and the supervisor has neither its libraries nor
the memory for them: ``millstream backup list`` reads it, in a process of its own that ends with the answer.
"""

import subprocess
import sys
import threading
from typing import Final

import msgspec

from millstream.admin.backups import Backups, BackupView
from millstream.errors import Rejected, Unavailable

_LIST_S: Final = 50.0
"""Less than the patience of the HTTP port."""
_WORDS_MAX: Final = 2000


class _Listed(msgspec.Struct, frozen=True):
    """What the command prints."""

    backups: list[BackupView]
    damaged: list[str]


_decode = msgspec.json.Decoder(_Listed).decode


class BackupPlace:
    """Where backups are. Any thread; one at a time reads the place."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._lock = threading.Lock()

    def read(self) -> Backups:
        """All backups.

        Raises:
            Rejected: no place is set.
            Unavailable: the place cannot be read, or not in time.
        """
        if not self._url:
            raise Rejected("backup.url is not set: it names where the backups of this cluster are")
        command = [sys.executable, "-m", "millstream.cli", "backup", "list", "--from", self._url, "--json"]
        if not self._lock.acquire(timeout=_LIST_S):
            raise Unavailable(f"{self._url} is being read for others, and takes long")
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIST_S, check=False)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{self._url} does not answer within {_LIST_S:g} s") from None
        finally:
            self._lock.release()
        try:
            found = _decode(done.stdout)
        except msgspec.DecodeError:
            words = done.stderr[-_WORDS_MAX:].decode(errors="replace").strip().removeprefix("error: ")
            raise Unavailable(words or f"{self._url} cannot be read") from None
        return Backups(self._url, found.backups, found.damaged)
