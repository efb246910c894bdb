"""When a table that is being written to is looked after, and what of it is no longer needed.

Upkeep happens between two batches, in the thread that commits, so it is never at the same time as a commit of this run;
commits of others refuse it, and the next turn does it. Small files are merged by number of commits, old
versions are expired by time. Both are commits of the table: readers see the same rows throughout, and those of an
expired version keep what they have open. A failure is logged and stops nothing, because no row depends on it.

``Unreferenced`` finds the files that expired snapshots of an Iceberg table alone have named. They are removed after the
commit that expires; a crash in between leaves them to the table's own clean-up of orphans.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from millstream.pipeline.checks import seconds
from millstream.pipeline.model import Upkeep

_DAY_S = 86_400
COMPACT_EVERY = 10
"""Commits between two looks at whether there are many small files."""


class Schedule:
    """Says after each commit what is due: to merge small files, by number, and to expire old versions, by time."""

    def __init__(self, *, compact: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """``compact``: files are merged at all. Nothing is expired before ``expire``."""
        self.keep_days = 0.0
        self._compact = compact
        self._clock = clock
        self._commits = 0
        self._every_s: float | None = None
        self._last = clock()

    def expire(self, declared: Upkeep) -> None:
        """Let versions be expired from now on."""
        self.keep_days, self._every_s = seconds(declared.keep) / _DAY_S, seconds(declared.every)

    def merge_due(self) -> bool:
        """Called after each commit: whether it is time to look for small files."""
        self._commits += 1
        return self._compact and self._commits % COMPACT_EVERY == 0

    def expire_due(self) -> bool:
        """Whether a period has passed since the last time that it had, or since the start."""
        now = self._clock()
        if self._every_s is None or now - self._last < self._every_s:
            return False
        self._last = now
        return True


class Unreferenced:
    """Files of snapshots that are about to be expired. Made before the commit that expires them, asked after it."""

    def __init__(self, table: Any, expired: Iterable[Any]) -> None:
        """``table`` is a pyiceberg table, ``expired`` are snapshots of it."""
        self._lists, self._manifests = _metadata_files(table, expired)

    def remove(self, table: Any) -> int:
        """Remove what no snapshot of ``table`` names now; returns how many data files that are."""
        lists, manifests = _metadata_files(table, table.snapshots())
        gone = {path: manifest for path, manifest in self._manifests.items() if path not in manifests}
        named = {entry.data_file.file_path for each in gone.values() for entry in _entries(table, each)}
        if named:
            for each in manifests.values():
                named -= {entry.data_file.file_path for entry in _entries(table, each, live=True)}
        for path in (*named, *gone, *(self._lists - lists)):
            with contextlib.suppress(FileNotFoundError):  # an earlier expiry removed it, and a manifest still named it
                table.io.delete(path)
        return len(named)


def _metadata_files(table: Any, snapshots: Iterable[Any]) -> tuple[set[str], dict[str, Any]]:
    """Manifest lists, and manifests by path."""
    lists: set[str] = set()
    manifests: dict[str, Any] = {}
    for snapshot in snapshots:
        lists.add(snapshot.manifest_list)
        manifests |= {each.manifest_path: each for each in snapshot.manifests(table.io)}
    return lists, manifests


def _entries(table: Any, manifest: Any, *, live: bool = False) -> list[Any]:
    return manifest.fetch_manifest_entry(table.io, discard_deleted=live)
