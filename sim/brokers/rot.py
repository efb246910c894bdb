"""Files that go bad on the disk of one simulated broker, and what must follow.

A byte of a closed segment of the topic, or of the index of one, is another one from some moment on: while the broker
runs, or while it is down. A reader never gets it, and no replica is filled with it: each batch that is read is compared
with what was committed (C4, A5). The replica that finds the damage, by a read or by its look at the files, is filled
again by the others; that has happened some time after a heal (B2), which is all that is waited for.

The promise covers one replica: as long as damage is there, and until the replica has everything again, no other
replica's files are touched. What is damaged is committed, so that no truncation takes it.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.partition.replica.repairing import AGAIN_US, LOOK_BEGIN_US, written_end
from millstream.storage.segments.index import index_path
from sim.brokers.served import ServedBroker
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from sim.brokers.world import Broker, Cluster
    from sim.engine.disk import SimDisk

FOUND_US = LOOK_BEGIN_US + 3 * AGAIN_US
"""A look at the files starts so late; the replica is emptied once there is a leader."""


def node_of(disk: SimDisk, path: str) -> Any:
    """The file of that name, which stays the same object through renames and crashes; None if there is none."""
    try:
        return disk._file(path)
    except OSError:
        return None


def content_of(disk: SimDisk, path: str) -> bytearray:
    """What a file holds; nothing if there is no such file."""
    node = node_of(disk, path)
    return bytearray() if node is None else node.content


class Rot(NamedTuple):
    """A byte of a segment that went bad."""

    broker: ServedBroker
    path: str
    file: object
    position: int
    bad: int

    @property
    def is_there(self) -> bool:
        """Whether the file is there and still has it."""
        disk = self.broker.disk
        if node_of(disk, self.path) is not self.file:
            return False
        data = content_of(disk, self.path)
        return self.position < len(data) and data[self.position] == self.bad


class Rots:
    """What went bad in one cluster.

    Lifecycle: made with the history; `finish` at each heal.
    """

    def __init__(self, cluster: Cluster, faults: Counter[str], down: Callable[[Broker], None]) -> None:
        """``down`` lets a broker crash and come up later."""
        self._cluster = cluster
        self._chance = cluster.chance("rot")
        self._faults = faults
        self._down = down
        self._rot: Rot | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is bad and every replica is whole."""
        if self._rot is not None and self._rot.is_there:
            return False
        self._rot = None
        brokers = self._cluster.brokers.values()
        return all(isinstance(one, ServedBroker) and one.is_up and one.is_whole for one in brokers)

    def begin(self, up: list[Broker]) -> None:
        """Let a byte of one broker's files go bad, if that is allowed now."""
        broker = self._chance.choice(up or [None])
        if not isinstance(broker, ServedBroker) or not self.is_over:
            return
        path = self._sealed_segment(broker)
        if path is None:
            return
        is_index = self._chance.random() < 0.2
        if is_index:
            path = index_path(path)
        size = len(content_of(broker.disk, path))
        if self._chance.random() < 0.4:
            self._down(broker)
        if not size or len(content_of(broker.disk, path)) != size:
            return  # the crash took some of it
        position = self._chance.randrange(size)
        broker.disk.flip(path, position)
        bad = content_of(broker.disk, path)[position]
        if is_index:
            self._faults["byte of an index gone bad"] += 1
        else:
            self._faults["byte of a segment gone bad"] += 1
            self._rot = broker.rot = Rot(broker, path, node_of(broker.disk, path), position, bad)

    def _sealed_segment(self, broker: ServedBroker) -> str | None:
        log = broker.partition.log
        end = min(written_end(log), broker.group.committed_offset)
        paths = [one.path for one in log.segments() if one.base_offset >= log.start_offset and one.end_offset <= end]
        return self._chance.choice(paths) if paths else None

    def finish(self, limit_us: int) -> None:
        """After a heal: what is bad is found by a look at the files, and made up for."""
        if self.is_over:
            return
        if self._rot is not None:
            self._rot.broker.look()
        limit_us += FOUND_US
        if not self._cluster.run(lambda: self.is_over, limit_us):
            what = "a replica is not whole" if self._rot is None else f"{self._rot.path} is bad"
            raise Violation(f"B2: {what} {limit_us} us after the heal")
        self._cluster.history.seen["damage made up for"] += 1
