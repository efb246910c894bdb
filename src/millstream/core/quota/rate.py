"""A rate over sliding windows, and the time that a client over its quota waits: Kafka's formula (KIP-13, KIP-219).

The rate of now is what was recorded in the current window and the ``windows - 1`` before it, divided by the time since
the start of the oldest; a younger history counts as ``windows - 1`` full windows, so that a first burst is not
mistaken for a high rate. A rate of ``r`` over a bound of ``b`` waits ``(r - b) / b`` of that time: after that
time the same amount makes a rate of exactly ``b``.
"""

from collections import deque


class WindowedRate:
    """What was recorded in the last windows. Memory: one pair of numbers a window."""

    __slots__ = ("_samples", "total", "window_us", "windows")

    def __init__(self, window_count: int, window_us: int) -> None:
        self.windows = window_count
        self.window_us = window_us
        self._samples: deque[list[float]] = deque()  # [start in µs, amount], the oldest first
        self.total = 0.0
        """Sum of the samples, as of the last ``record``."""

    def record(self, amount: float, now_us: int) -> None:
        """Add an amount; a negative one takes back what was recorded before."""
        samples = self._samples
        self._purge(now_us)
        if not samples or now_us - samples[-1][0] >= self.window_us:
            samples.append([now_us, 0.0])
        samples[-1][1] += amount
        self.total += amount

    def _purge(self, now_us: int) -> None:
        oldest_us = now_us - self.windows * self.window_us
        samples = self._samples
        while samples and samples[0][0] <= oldest_us:
            self.total -= samples.popleft()[1]
        if not samples:
            self.total = 0.0

    def span_us(self, now_us: int) -> int:
        """The time that the rate is taken over."""
        self._purge(now_us)
        elapsed_us = now_us - int(self._samples[0][0]) if self._samples else 0
        return elapsed_us + max(0, self.windows - 1 - elapsed_us // self.window_us) * self.window_us

    def per_second(self, now_us: int) -> float:
        """The rate; 0 if nothing was recorded."""
        span_us = self.span_us(now_us)
        return self.total * 1e6 / span_us if span_us else 0.0

    def throttle_us(self, bound: float, now_us: int) -> int:
        """How long a client with this bound (per second) waits; 0 within the bound."""
        span_us = self.span_us(now_us)
        allowed = bound * span_us / 1e6
        return round((self.total / allowed - 1) * span_us) if self.total > allowed else 0

    def is_idle(self, now_us: int) -> bool:
        """Whether no window holds anything."""
        self._purge(now_us)
        return not self._samples


class TokenBucket:
    """Tokens that flow in at a rate, up to a burst; taking may leave a debt (KIP-599).

    A client may take any amount while there is no debt. Otherwise a request larger than the burst would wait for ever.
    """

    __slots__ = ("_at_us", "_burst_s", "_rate", "tokens")

    def __init__(self, rate: float, burst_s: float, now_us: int) -> None:
        """The bucket is full at first: ``rate * burst_s`` tokens."""
        self._burst_s = burst_s
        self._at_us = now_us
        self._rate = rate
        self.tokens = rate * burst_s

    def refill(self, rate: float, now_us: int) -> None:
        """Let tokens flow in until now. ``rate`` may differ from the one before."""
        self._rate = rate
        elapsed_s = max(0, now_us - self._at_us) / 1e6
        self._at_us = max(self._at_us, now_us)
        self.tokens = min(rate * self._burst_s, self.tokens + rate * elapsed_s)

    def debt_us(self, rate: float, now_us: int) -> int:
        """How long until there is no debt; 0 without debt."""
        self.refill(rate, now_us)
        return round(-self.tokens / rate * 1e6) if self.tokens < 0 else 0

    def take(self, count: float, rate: float, now_us: int) -> None:
        """Take tokens, into debt if need be."""
        self.refill(rate, now_us)
        self.tokens -= count

    def would_be_full(self, now_us: int) -> bool:
        """Whether the burst would be there again at the last rate."""
        elapsed_s = max(0, now_us - self._at_us) / 1e6
        return self.tokens + self._rate * elapsed_s >= self._rate * self._burst_s
