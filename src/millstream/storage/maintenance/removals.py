"""Removes the directories of deleted partitions in the worker, with retries.

A full or failing disk may end a removal in the middle. That is logged, and the removal is repeated up to ``_ATTEMPTS``
times, each after twice the time. If one is ``pending`` when the shard stops, the stop is not clean: the next start then
removes what deletions left, which it does not do after a clean stop. After ``stop`` nothing is sent.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from millstream.format.names import DAMAGED_SUFFIX
from millstream.storage.disk import exists
from millstream.storage.messages.commands import RemoveDirectory
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.storage.messages.commands import Command, Removed

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

    def __init__(self, reactor: Reactor, send: Callable[[Command], None]) -> None:
        self._reactor = reactor
        self._send = send
        self._removals: dict[int, _Removal] = {}
        self._next_id = 1
        self._stopped = False

    @property
    def pending(self) -> bool:
        """Whether a removal is pending."""
        return bool(self._removals)

    def remove(self, directory: str, done: Callable[[], None]) -> None:
        """Remove a partition's directory. ``done`` is called when it is gone, or after the last attempt."""
        number = self._next_id
        self._next_id += 1
        self._removals[number] = _Removal(directory, done)
        self._attempt(number)

    def remove_aside(self, disk: Disk, directory: str) -> None:
        """Remove files of a partition that were put aside (``storage.log.lost``). No effect without such files."""
        if exists(disk, directory + DAMAGED_SUFFIX):
            self.remove(directory + DAMAGED_SUFFIX, lambda: None)

    def stop(self) -> None:
        """Send nothing more, because the worker is about to end."""
        self._stopped = True

    def _attempt(self, number: int) -> None:
        if not self._stopped:
            self._send(RemoveDirectory(number, self._removals[number].directory))

    def finished(self, reply: Removed) -> None:
        """The worker's answer."""
        removal = self._removals[reply.id]
        if not reply.errno:
            del self._removals[reply.id]
            removal.done()
            return
        removal.attempts += 1
        why = os.strerror(reply.errno)
        if removal.attempts == 1:
            operator_log.warning("a deleted topic's files could not be removed: %s; that is tried again", why)
        if removal.attempts < _ATTEMPTS:
            self._reactor.call_later(_AGAIN_US << (removal.attempts - 1), lambda: self._attempt(reply.id))
        else:
            operator_log.warning("%s is deleted by the next start, it could not be now: %s", removal.directory, why)
            removal.done()
