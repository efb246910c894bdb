"""Removes the directories of deleted partitions in the worker, with retries.

A full or failing disk may end a removal in the middle. That is logged, and the removal is repeated up to ``_ATTEMPTS``
times, each after twice the time. If one is ``pending`` when the shard stops, the stop is not clean: the next start then
removes what deletions left, which it does not do after a clean stop. After ``stop`` nothing is sent.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from millstream.format.names import DAMAGED_SUFFIX
from millstream.storage.disk import exists
from millstream.storage.messages.commands import Removed, RemoveDirectory
from millstream.storage.segments.read_faults import raise_fault
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.helper.link import HelperLink
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk

_ATTEMPTS: Final = 10
_AGAIN_US: Final = 1_000_000


class _Removal:
    """One directory."""

    __slots__ = ("attempts", "directory", "done")

    def __init__(self, directory: str, done: Callable[[], None]) -> None:
        self.directory = directory
        self.done = done
        self.attempts = 0


class Removals:
    """The pending removals of one shard."""

    def __init__(self, reactor: Reactor, worker: HelperLink[Any, Any]) -> None:
        self._reactor = reactor
        self._worker = worker
        self._removals: set[_Removal] = set()
        self._stopped = False

    @property
    def pending(self) -> bool:
        """Whether a removal is pending."""
        return bool(self._removals)

    def remove(self, directory: str, done: Callable[[], None]) -> None:
        """Remove a partition's directory. ``done`` is called when it is removed, or after the last attempt."""
        removal = _Removal(directory, done)
        self._removals.add(removal)
        self._attempt(removal)

    def remove_aside(self, disk: Disk, directory: str) -> None:
        """Remove files of a partition that were put aside (``storage.log.lost``). No effect without such files."""
        if exists(disk, directory + DAMAGED_SUFFIX):
            self.remove(directory + DAMAGED_SUFFIX, lambda: None)

    def stop(self) -> None:
        """Send nothing more, because the worker is about to end."""
        self._stopped = True

    def _attempt(self, removal: _Removal) -> None:
        if not self._stopped:
            command = RemoveDirectory(self._worker.next_id(), removal.directory)
            self._worker.ask(command, Removed, partial(self._attempted, removal), raise_fault)

    def _attempted(self, removal: _Removal, reply: Removed) -> None:
        """The worker's reply."""
        if not reply.errno:
            self._removals.discard(removal)
            removal.done()
            return
        removal.attempts += 1
        why = os.strerror(reply.errno)
        if removal.attempts == 1:
            operator_log.warning("a deleted topic's files could not be removed: %s; that is tried again", why)
        if removal.attempts < _ATTEMPTS:
            self._reactor.call_later(_AGAIN_US << (removal.attempts - 1), lambda: self._attempt(removal))
        else:
            operator_log.warning("%s is deleted by the next start, it could not be now: %s", removal.directory, why)
            removal.done()
