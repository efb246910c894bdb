"""How often a store is asked: a budget for retries, and a rate that yields when the store throttles. Pure.

**Retry budget** (as in Amazon's clients, standard mode): a retry costs tokens, a success gives some back. When a store
is down, the budget ends soon, and each call then fails after its first attempt instead of multiplying the load.

**Rate** (additive increase, multiplicative decrease): unlimited until the store throttles for the first time. Then the
rate is cut to 70 % of what was measured in the last second, grows by a tenth of that each second without throttling,
and is unlimited again after a minute without.
"""

from __future__ import annotations

from typing import Final

BUDGET_MAX: Final = 500
RETRY_COUNT_COST: Final = 5
"""A hundred retries in a row empty the budget."""

_REFUND: Final = 1
_CUT: Final = 0.7
_GROWTH: Final = 0.1
_RATE_MIN: Final = 2.0
"""Requests a second that remain in any case: progress is slow, and still progress."""

_CALM_S: Final = 60.0
_WINDOW_S: Final = 1.0


class RetryBudget:
    """Tokens for retries. Invariant: between 0 and ``BUDGET_MAX``."""

    def __init__(self) -> None:
        self.tokens = BUDGET_MAX

    def take(self) -> bool:
        """Pay for one retry. False: there is nothing left to pay with."""
        if self.tokens < RETRY_COUNT_COST:
            return False
        self.tokens -= RETRY_COUNT_COST
        return True

    def succeeded(self) -> None:
        self.tokens = min(BUDGET_MAX, self.tokens + _REFUND)


class Rate:
    """The rate of requests to one store. Times are seconds of any clock that does not go back."""

    def __init__(self) -> None:
        self.limit: float | None = None
        """Requests a second; None: no limit."""

        self._step = 0.0  # growth of the limit, in requests a second, each second
        self._throttled_at = 0.0
        self._grown_at = 0.0
        self._next_at = 0.0  # when the next request may start, while there is a limit
        self._window_at = 0.0
        self._window_count = 0
        self._measured = 0.0  # requests a second in the last whole window

    def wait_s(self, now_s: float) -> float:
        """Reserve a request. Returns how long the caller waits before it starts."""
        self._measure(now_s)
        limit = self.limit = self._grown(now_s)
        if limit is None:
            return 0.0
        begin = max(now_s, self._next_at)
        self._next_at = begin + 1.0 / limit
        return begin - now_s

    def throttled(self, now_s: float) -> None:
        """The store asked for fewer requests. Cuts the limit at most once a second: one overload has many answers."""
        if self.limit is not None and now_s - self._throttled_at < _WINDOW_S:
            return
        measured = max(self._measured, float(self._window_count))
        present = measured if self.limit is None else min(self.limit, measured)
        self.limit = max(_RATE_MIN, present * _CUT)
        self._step = max(1.0, self.limit * _GROWTH)
        self._throttled_at = self._grown_at = now_s
        self._next_at = max(self._next_at, now_s + 1.0 / self.limit)

    def _measure(self, now_s: float) -> None:
        if now_s - self._window_at >= _WINDOW_S:
            elapsed_s = now_s - self._window_at
            self._measured = self._window_count / elapsed_s
            self._window_at = now_s
            self._window_count = 0
        self._window_count += 1

    def _grown(self, now_s: float) -> float | None:
        """The limit as of now."""
        if self.limit is None or now_s - self._throttled_at >= _CALM_S:
            return None
        elapsed_s = now_s - self._grown_at
        self._grown_at = now_s
        return self.limit + self._step * elapsed_s
