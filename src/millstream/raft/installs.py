"""Files that the groups of one shard send and receive: counted, and bounded in their pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream.telemetry.metrics import StatsSlab


class Installs:
    """What the groups of one shard have sent and received as files, and how fast they may receive."""

    def __init__(self, stats: StatsSlab, bytes_per_s: float) -> None:
        self.adopted = stats.counter("replica_installs")
        self.received_bytes = stats.counter("replica_install_received_bytes")
        self.sent_bytes = stats.counter("replica_install_sent_bytes")
        self._bytes_per_s = bytes_per_s
        self._next_us = 0

    def wait_us(self, now_us: int, size_bytes: int) -> int:
        """How long to wait after a part of this size before the next is asked for."""
        self._next_us = max(self._next_us, now_us) + int(size_bytes * 1_000_000 / self._bytes_per_s)
        return self._next_us - now_us
