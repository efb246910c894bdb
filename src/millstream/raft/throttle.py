"""How fast replicas that catch up are filled, where an operator limits it (Kafka's replication quotas, KIP-73).

A leader sends what a throttled replica lacks only while its bucket has tokens: one token a byte, as many as the rate
gives in a second. Without one the core is answered as if the entries could not be read, and tries again after the next
heartbeat. A replica that receives files asks for the next part later. A voter is sent what the log cache has without
delay: a replica in sync is not throttled, and a commit does not wait.

The rates are those of one shard. **Crash.** Nothing is stored. **Bad input.** A rate of 0 stops throttled transfers
until it is raised.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from millstream.model.quantities import RaftGroupId

_SECOND_US: Final = 1_000_000
_NEVER_US: Final = 10 * _SECOND_US
"""Pause of a transfer whose rate is 0; it asks for the rate of that time after it."""


class Throttle:
    """The limits of one shard.

    Lifecycle: made with the shard; ``limit`` and ``name`` follow the cluster's configuration. Shard: one each.
    Invariant: ``_tokens`` is at most what the rate gives in a second.
    """

    def __init__(self, count: Callable[[], None]) -> None:
        """``count()`` is called for each transfer that is put off."""
        self._count = count
        self._sends_per_s = inf
        self._receives_per_s = inf
        self._sending: Collection[int] = frozenset()
        self._receiving: Collection[int] = frozenset()
        self._tokens = 0.0
        self._filled_us = 0
        self._next_us = 0

    def limit(self, sends_per_s: float, receives_per_s: float) -> None:
        """Bytes a second that this shard sends to, and receives for, throttled replicas; ``inf`` for no limit."""
        self._sends_per_s, self._receives_per_s = sends_per_s, receives_per_s
        self._tokens = min(self._tokens, sends_per_s)

    def name(self, sending: Collection[int], receiving: Collection[int]) -> None:
        """The Raft groups of which this broker sends throttled as the leader, and receives throttled as a follower."""
        self._sending, self._receiving = sending, receiving

    def may_send(self, group: RaftGroupId, now_us: int) -> bool:
        """Whether a leader may send committed entries to a replica that lacks them."""
        rate = self._sends_per_s
        if rate == inf or group not in self._sending:
            return True
        self._tokens = min(rate, self._tokens + rate * (now_us - self._filled_us) / _SECOND_US)
        self._filled_us = now_us
        if self._tokens > 0:
            return True
        self._count()
        return False

    def sent(self, group: RaftGroupId, size_bytes: int) -> None:
        """Such entries were sent. The bucket may owe a part of them."""
        if self._sends_per_s != inf and group in self._sending:
            self._tokens -= size_bytes

    def wait_us(self, group: RaftGroupId, now_us: int, size_bytes: int) -> int:
        """How long to wait after a part of this size was received before the next is asked for."""
        rate = self._receives_per_s
        if rate == inf or group not in self._receiving:
            return 0
        self._count()
        if not rate:
            return _NEVER_US
        self._next_us = max(self._next_us, now_us) + int(size_bytes * _SECOND_US / rate)
        return self._next_us - now_us
