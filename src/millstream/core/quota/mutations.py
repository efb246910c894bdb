"""Quotas of changes that clients make through the controller: partitions created and deleted (KIP-599).

The controller that decides keeps one bucket of tokens for those who share a quota, so these quotas are exact and the
cluster's. A *strict* client knows THROTTLING_QUOTA_EXCEEDED: what it asks for without tokens is refused. An older one
is let through, into debt, and its connection is muted. A bucket that would be full is dropped; with ``BUCKETS_MAX`` of
them, new sharers use a common one. A new controller has full buckets.
"""

from typing import Final

import msgspec

from millstream.core.quota.limits import CONTROLLER_MUTATION_RATE, Bound, Limits, Sharers
from millstream.core.quota.rate import TokenBucket
from millstream.core.quota.usage import COMMON
from millstream.errors import Rejected
from millstream.model.error_code import ErrorCode

BUCKETS_MAX: Final = 10_000
_LOOK_US: Final = 1_000_000
"""Least time between two looks for full buckets."""
EXCEEDED: Final = "The throttling quota has been exceeded."


class MutationClient(msgspec.Struct, frozen=True, array_like=True):
    """Who asks for changes, and whether it is refused without tokens."""

    user: str
    client_id: str
    strict: bool


class MutationQuotas:
    """The buckets of one controller."""

    __slots__ = ("_buckets", "_looked_us", "burst_s")

    def __init__(self, burst_s: float) -> None:
        self.burst_s = burst_s
        self._buckets: dict[Sharers, TokenBucket] = {}
        self._looked_us = -_LOOK_US

    def __len__(self) -> int:
        return len(self._buckets)

    def spender(self, client: MutationClient | None, limits: Limits, now_us: int) -> "Spender":
        """The account of one request."""
        bound = None
        if client is not None:
            bound = limits.bound(CONTROLLER_MUTATION_RATE, client.user, client.client_id)
        if client is None or bound is None:
            return UNLIMITED
        return Spender(self._bucket(bound, now_us), bound.value, client.strict, now_us)

    def _bucket(self, bound: Bound, now_us: int) -> TokenBucket:
        bucket = self._buckets.get(bound.sharers)
        if bucket is not None:
            return bucket
        if len(self._buckets) >= BUCKETS_MAX and now_us - self._looked_us >= _LOOK_US:
            self._looked_us = now_us
            self._drop_full(now_us)
        sharers = bound.sharers if len(self._buckets) < BUCKETS_MAX else COMMON
        return self._buckets.setdefault(sharers, TokenBucket(bound.value, self.burst_s, now_us))

    def _drop_full(self, now_us: int) -> None:
        full = [sharers for sharers, bucket in self._buckets.items() if bucket.would_be_full(now_us)]
        for sharers in full:
            del self._buckets[sharers]


class Spender:
    """Takes tokens for the parts of one request. ``throttle_us``: how long its client waits afterwards."""

    __slots__ = ("_bucket", "_now_us", "_rate", "_strict", "throttle_us")

    def __init__(self, bucket: TokenBucket | None, rate: float, strict: bool, now_us: int) -> None:
        self._bucket = bucket
        self._rate = rate
        self._strict = strict
        self._now_us = now_us
        self.throttle_us = 0

    def take(self, count: int) -> None:
        """Take tokens for so many partitions. Raises Rejected if the client has to wait first."""
        bucket = self._bucket
        if bucket is None:
            return
        debt_us = bucket.debt_us(self._rate, self._now_us)
        if debt_us and self._strict:
            self.throttle_us = max(self.throttle_us, debt_us)
            raise Rejected(EXCEEDED, ErrorCode.THROTTLING_QUOTA_EXCEEDED)
        bucket.take(count, self._rate, self._now_us)
        if not self._strict:
            self.throttle_us = bucket.debt_us(self._rate, self._now_us)


UNLIMITED: Final = Spender(None, 0.0, False, 0)
"""The account of a request that is not limited."""
