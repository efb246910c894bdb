"""Disks of simulated brokers that fail and fill up, and what may follow.

A disk fails at an operation some way ahead, once or several times, with EIO. The broker stops by itself and says why,
as a disk demands that can't be trusted, and comes up again on one that is in order; what was reported as durable is
there (A10). A full disk stops no broker: producers get a retriable error, and once there is space the broker lets
them in by itself. An uncaught OSError, and a stop for any other reason, is a finding.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Final

from millstream.shard.process import EXIT_STORAGE
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from sim.brokers.world import Broker, Cluster
    from sim.engine.local_storage import Stopped

SPACE_US: Final = 30_000_000
"""A broker lets producers in again so soon after there is space."""

_KINDS: Final = ("write", "sync", "rename", "create", "unlink", "truncate", "sync_directory", "sync_all")
"""A failed read is no fault of the broker's, and the checks read, too."""


class FailingDisks:
    """The disks of one cluster.

    Lifecycle: made with the history; `mend` before a broker starts, and at each heal.
    """

    def __init__(self, cluster: Cluster, faults: Counter[str], down: Callable[[Broker], None]) -> None:
        """``down`` lets a broker crash and come up later."""
        self._cluster = cluster
        self._chance = cluster.chance("disks")
        self._faults = faults
        self._down = down
        self._failed: set[Broker] = set()
        """Brokers whose disk has failed since they started."""
        cluster.on_stopped = self.on_stopped

    def fail(self, broker: Broker) -> None:
        """Let an operation of its disk fail, maybe several."""
        chance = self._chance
        kinds = chance.choice(_KINDS) if chance.random() < 0.7 else None
        due, times = chance.randint(1, 12), chance.choice((1, 1, 4))

        def fails(kind: str, path: str) -> int:
            nonlocal due, times
            _ = path
            if kind not in _KINDS or (kinds is not None and kind != kinds) or not times:
                return 0
            due -= 1
            if due > 0:
                return 0
            times -= 1
            self._failed.add(broker)
            self._faults["failed disk operation"] += 1
            return errno.EIO

        broker.disk.fail = fails

    def fill(self, broker: Broker, duration_us: int) -> None:
        """Leave no room, or nearly none, for a while."""
        disk, life = broker.disk, broker.life
        if disk.capacity_bytes is not None:
            return
        self._faults["full disk"] += 1
        disk.copies = self._chance.random() < 0.5
        used = _ROOMY - disk.free_bytes("")
        disk.capacity_bytes = used + self._chance.choice((0, 2_000, 20_000))
        self._cluster.after(duration_us, lambda: self.mend(broker) if broker.life == life else None)

    def mend(self, *brokers: Broker) -> None:
        """These disks, or all of them, are in order and have space."""
        for broker in brokers or tuple(self._cluster.brokers.values()):
            broker.disk.fail = _never
            broker.disk.capacity_bytes = None
            if not broker.is_up:
                self._failed.discard(broker)

    def on_stopped(self, broker: Broker, stopped: Stopped) -> None:
        """A broker has stopped by itself."""
        if broker not in self._failed or stopped.code != EXIT_STORAGE or not stopped.reason:
            raise Violation(f"{broker.replica} stops, and its disk did not fail: {stopped}") from stopped
        self._faults["stop after a failed disk operation"] += 1
        self._down(broker)


_ROOMY: Final = 1 << 40
"""What a disk without a bound says is free."""


def _never(_kind: str, _path: str) -> int:
    return 0
