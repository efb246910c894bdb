"""Removing the objects of deleted topics, however long the store is away.

::

    deletion ──► mark on the disk ──► log goes ──► objects go ──► mark goes
                      └── the next start continues from here

The leader of a deleted partition makes the mark, an empty file ``purges/<topic id>-<partition>`` in the data directory,
before the directory of the log is renamed; a file system with a journal keeps that order, so nothing is synced on the
reactor. A removal that fails is repeated after a wait that doubles up to `_WAIT_MAX_US`. A broker that stops before the
end continues at its next start. A start after a crash marks whole topics (``purges/<topic id>``) whose deletion it
completes.

**Followers** mark the whole topic, and look for its objects `_FOLLOWER_WAIT_US` later, when there is usually nothing
left to do. So the objects are deleted even if no replica leads at that time, or if the leader never comes back.

A topic that is recovered from the store is deleted no more: the recovery takes its marks away first, on every broker,
and each attempt looks for its mark. Objects stay in the store only if the disks of all replicas are lost, or full.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

from millstream.format.archive import partition_folder, topic_folder, topic_key
from millstream.format.manifest import ArchiveId
from millstream.format.names import PURGES_DIRECTORY
from millstream.storage.disk import exists, make_directories
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from millstream.errors import MillstreamError
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.tiers.link import ArchiveLink

_WAIT_US: Final = 1_000_000
_WAIT_MAX_US: Final = 60_000_000
_FOLLOWER_WAIT_US: Final = 60_000_000
"""Time in which the leader usually removes everything."""

_LINES: Final = RateLimit(per_minute=10)


class Purges:
    """The removals of one shard. Lifecycle: made with the shard's archiver, `stop` with it."""

    def __init__(self, reactor: Reactor, disk: Disk, data_dir: str, link: ArchiveLink) -> None:
        self._reactor = reactor
        self._disk = disk
        self._data_dir = data_dir
        self._link = link
        self._stopped = False
        self._followed: set[uuid.UUID] = set()
        """Topics that wait for `_FOLLOWER_WAIT_US`."""

    def mark(self, owner: ArchiveId) -> None:
        """Note that the objects of a partition have to go. A disk that fails is logged: it is not noted then."""
        self._mark(_name(owner))

    def follow(self, owner: ArchiveId) -> None:
        """The topic of a partition that another broker or none leads is deleted: see later that its objects go."""
        name = owner.topic_id.hex
        if owner.topic_id in self._followed or not self._mark(name):
            return
        self._followed.add(owner.topic_id)

        def look() -> None:
            self._followed.discard(owner.topic_id)
            self._remove(name, (topic_key(owner), topic_folder(owner)), owner, _WAIT_US, is_marked=True)

        self._reactor.call_later(_FOLLOWER_WAIT_US, look)

    def _mark(self, name: str) -> bool:
        try:
            mark(self._disk, self._data_dir, name)
        except OSError as error:
            operator_log.warning(
                "%s: %s; if the broker stops before its objects are removed, they stay in the store",
                _path(self._data_dir, name),
                error.strerror,
            )
            return False
        return True

    def begin(self, owner: ArchiveId) -> None:
        """Remove the objects of a partition, which was marked. The description of the topic is deleted first, so that
        no one recovers a topic of which a part is missing.
        """
        keys = (topic_key(owner), partition_folder(owner))
        self._remove(_name(owner), keys, owner, _WAIT_US, is_marked=self._is_marked(_name(owner)))

    def resume(self) -> None:
        """Continue with what is marked. One shard does it for the broker."""
        for name in marked(self._disk, self._data_dir):
            topic, _, partition = name.partition("-")
            owner = ArchiveId(uuid.UUID(topic), int(partition or 0))
            folder = partition_folder(owner) if partition else topic_folder(owner)
            self._remove(name, (topic_key(owner), folder), owner, _WAIT_US, is_marked=True)

    def stop(self) -> None:
        """Start nothing more."""
        self._stopped = True

    def _remove(self, name: str, keys: tuple[str, ...], owner: ArchiveId, wait_us: int, *, is_marked: bool) -> None:
        if self._stopped or (is_marked and not self._is_marked(name)):
            return  # its topic was recovered

        def removed(error: MillstreamError | None) -> None:
            if error is None:
                self._unmark(name)
            elif not self._stopped:
                if _LINES.allows():
                    operator_log.warning(
                        "objects of the deleted topic %s could not be removed, that is tried again: %s",
                        owner.topic_id,
                        error.message,
                    )
                again_us = min(2 * wait_us, _WAIT_MAX_US)
                self._reactor.call_later(
                    wait_us, lambda: self._remove(name, keys, owner, again_us, is_marked=is_marked)
                )

        self._link.remove_keys(keys, owner, removed)

    def _is_marked(self, name: str) -> bool:
        try:
            return exists(self._disk, _path(self._data_dir, name))
        except OSError:
            return False

    def _unmark(self, name: str) -> None:
        try:
            unmark(self._disk, self._data_dir, name)
        except OSError as error:
            operator_log.warning("%s: %s", _path(self._data_dir, name), error.strerror)


def mark(disk: Disk, data_dir: str, name: str) -> None:
    """Make a mark, of a topic or of a partition. Raises OSError."""
    make_directories(disk, f"{data_dir}/{PURGES_DIRECTORY}")
    disk.open(_path(data_dir, name), create=True).close()


def unmark(disk: Disk, data_dir: str, name: str) -> None:
    """Take a mark away, if it is there. Raises OSError."""
    try:
        disk.unlink(_path(data_dir, name))
    except FileNotFoundError:
        return


def forget_topic(disk: Disk, data_dir: str, topic_id: uuid.UUID) -> None:
    """Take every mark of a topic away, durably: it is being recovered. Raises OSError."""
    names = [one for one in marked(disk, data_dir) if one.partition("-")[0] == topic_id.hex]
    for name in names:
        unmark(disk, data_dir, name)
    if names:
        disk.sync_directory(f"{data_dir}/{PURGES_DIRECTORY}")


def marked(disk: Disk, data_dir: str) -> list[str]:
    """The marks that are there. Other files are left out. Raises OSError."""
    try:
        names = disk.list(f"{data_dir}/{PURGES_DIRECTORY}")
    except FileNotFoundError:
        return []
    return sorted(name for name in names if _is_mark(name))


def _is_mark(name: str) -> bool:
    topic, dash, partition = name.partition("-")
    try:
        return uuid.UUID(topic).hex == topic and (not dash or str(int(partition)) == partition)
    except ValueError:
        return False


def _name(owner: ArchiveId) -> str:
    return f"{owner.topic_id.hex}-{owner.partition_index}"


def _path(data_dir: str, name: str) -> str:
    return f"{data_dir}/{PURGES_DIRECTORY}/{name}"
