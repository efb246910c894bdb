"""The files that the groups of one shard send and receive: counters, a rate limit, and progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from millstream.raft.throttle import Throttle

if TYPE_CHECKING:
    from millstream.model.quantities import RaftGroupId
    from millstream.telemetry.metrics import StatsSlab


RECEIVING_MAX: Final = 4
"""Maximum number of groups of one shard that receive files at the same time. The others are offered their files again.
"""


class InstallProgress(msgspec.Struct, frozen=True):
    """One log that is being received, by offsets; ends are exclusive."""

    group: int
    log: str
    source: int
    """The broker that sends it."""
    first_offset: int
    next_offset: int
    end_offset: int


class Installs:
    """Bytes that the groups of one shard have sent and received as files, and the rate at which they may receive."""

    def __init__(self, stats: StatsSlab, bytes_per_s: float) -> None:
        self.adopted = stats.counter("replica_installs")
        self.received_bytes = stats.counter("replica_install_received_bytes")
        self.sent_bytes = stats.counter("replica_install_sent_bytes")
        self._shown = stats.gauge("replica_installing")
        self._left = stats.gauge("replica_install_left")
        self.throttle = Throttle(stats.counter("replica_throttled").inc)
        """Limits of an operator for replicas that catch up, files included."""
        self._bytes_per_s = bytes_per_s
        self._next_us = 0
        self._progress: dict[int, InstallProgress] = {}
        self._receiving: set[RaftGroupId] = set()

    def may_receive(self, group: RaftGroupId) -> bool:
        """Whether ``group`` may start to receive files: not if `RECEIVING_MAX` others do. If so, it is counted until
        `receives_no_more`.
        """
        if len(self._receiving) >= RECEIVING_MAX and group not in self._receiving:
            return False
        self._receiving.add(group)
        return True

    def receives_no_more(self, group: RaftGroupId) -> None:
        """``group`` has stopped receiving files. No effect if it received none."""
        self._receiving.discard(group)

    @property
    def progress(self) -> list[InstallProgress]:
        """The logs that are being received now."""
        return list(self._progress.values())

    def received(self, progress: InstallProgress) -> None:
        """Note the progress of a log."""
        self._progress[progress.group] = progress
        self._show()

    def ended(self, group: RaftGroupId) -> None:
        """The log of a group is no longer being received."""
        if self._progress.pop(group, None) is not None:
            self._show()

    def _show(self) -> None:
        self._shown.set(len(self._progress))
        self._left.set(sum(one.end_offset - one.next_offset for one in self._progress.values()))

    def wait_us(self, group: RaftGroupId, now_us: int, size_bytes: int) -> int:
        """How long a group waits after a part of this size before it asks for the next."""
        self._next_us = max(self._next_us, now_us) + int(size_bytes * 1_000_000 / self._bytes_per_s)
        return max(self._next_us - now_us, self.throttle.wait_us(group, now_us, size_bytes))
