"""What clients have used of their rates on this broker, as one shard knows it.

A quota is the broker's, as in Kafka, and clients of one user are on several shards. Each shard records what its own
connections use, at once, and learns what the others have recorded some time later::

    own ──record──► rate ──► throttle time
                └─► unsent ──take_unsent──► the other shards ──heard──► their rates

**Error.** A rate lacks what other shards have recorded and not yet sent. Nothing is lost: what comes late makes a
later throttle time longer. So the rate over any window exceeds the bound by what the other shards serve between two
messages, and by one request for each connection, as in Kafka.

**Memory.** ``ENTRIES_MAX`` sharers at most. An entry whose windows are over is dropped. Above the limit, new sharers of
a kind use one common entry until old ones are dropped: clients that invent client ids are limited together.
"""

from typing import Final, NamedTuple

from millstream.core.quota.limits import Bound, Sharers
from millstream.core.quota.rate import WindowedRate

ENTRIES_MAX: Final = 10_000
COMMON: Final = Sharers(None, None)
"""Sharers for which there is no entry of their own."""


class Used(NamedTuple):
    """An amount that sharers have used, of a quota of this kind."""

    kind: str
    user: str | None
    client_id: str | None
    amount: float


class Usage:
    """The rates of one shard. Invariant: ``_unsent`` has own amounts only, of entries that exist or existed."""

    __slots__ = ("_entries_max", "_rates", "_unsent", "_window_us", "_windows")

    def __init__(self, window_count: int, window_us: int, entries_max: int = ENTRIES_MAX) -> None:
        self._windows = window_count
        self._window_us = window_us
        self._entries_max = entries_max
        self._rates: dict[tuple[str, Sharers], WindowedRate] = {}
        self._unsent: dict[tuple[str, Sharers], float] = {}

    def __len__(self) -> int:
        return len(self._rates)

    def record(self, kind: str, bound: Bound, amount: float, now_us: int) -> int:
        """Add an own amount; returns how long the client waits, in µs."""
        key, rate = self._rate(kind, bound.sharers, now_us)
        rate.record(amount, now_us)
        self._unsent[key] = self._unsent.get(key, 0.0) + amount
        return rate.throttle_us(bound.value, now_us)

    def would_wait(self, kind: str, bound: Bound, amount: float, now_us: int) -> int:
        """How long the client would wait after this amount, in µs. 0 if it has used nothing: one answer that is larger
        than the bound allows in all windows must pass, or its client would wait for ever.
        """
        rate = self._rate(kind, bound.sharers, now_us)[1]
        if rate.is_idle(now_us) or rate.total <= 0:
            return 0
        rate.record(amount, now_us)
        wait_us = rate.throttle_us(bound.value, now_us)
        rate.record(-amount, now_us)
        return wait_us

    def waits(self, kind: str, bound: Bound, now_us: int) -> int:
        """How long the client waits by what it has used so far, in µs."""
        return self._rate(kind, bound.sharers, now_us)[1].throttle_us(bound.value, now_us)

    def heard(self, used: Used, now_us: int) -> None:
        """Add an amount that another shard has recorded."""
        self._rate(used.kind, Sharers(used.user, used.client_id), now_us)[1].record(used.amount, now_us)

    def take_unsent(self, entries_max: int) -> list[Used]:
        """Own amounts that other shards do not know yet, the oldest first."""
        taken: list[Used] = []
        for key in list(self._unsent)[:entries_max]:
            kind, sharers = key
            taken.append(Used(kind, sharers.user, sharers.client_id, self._unsent.pop(key)))
        return taken

    def drop_unsent(self) -> None:
        """There is no other shard."""
        self._unsent.clear()

    def expire(self, now_us: int) -> None:
        """Drop the entries whose windows are over."""
        for key in [key for key, rate in self._rates.items() if rate.is_idle(now_us)]:
            del self._rates[key]

    def clear(self) -> None:
        """Forget everything: there are no quotas any longer."""
        self._rates.clear()
        self._unsent.clear()

    def _rate(self, kind: str, sharers: Sharers, now_us: int) -> tuple[tuple[str, Sharers], WindowedRate]:
        key = (kind, sharers)
        rate = self._rates.get(key)
        if rate is None:
            if len(self._rates) >= self._entries_max and sharers is not COMMON:
                return self._rate(kind, COMMON, now_us)
            rate = self._rates[key] = WindowedRate(self._windows, self._window_us)
        return key, rate
