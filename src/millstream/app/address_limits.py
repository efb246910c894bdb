"""Limits of new connections: how many an address may have open, how fast it and all addresses may open them.

The supervisor accepts connections and does not learn when a shard closes one. So it counts what it has accepted, which
is never less than what is open, and asks the shards for the true counts once an address has reached its limit: at most
every ``ASK_US``, and only when no connection is on its way to a shard. An address at its limit may thus be refused for
``ASK_US`` after it has closed a connection, and never has more connections than its limit.

Rates are Kafka's: windows and throttle time of ``core.quota.rate``. A connection over the rate of its address is
closed after the throttle time (a window at most), so that a client that opens the next one at once gains nothing; above
``DELAYED_MAX`` of them, at once. Over ``max.connection.creation.rate`` nothing is accepted for the throttle time.

Memory: one number per address that has connected since the shards were asked, which is done when these are too many;
one rate per address that came within the windows, ``RATES_MAX`` at most; further addresses share one rate. The socket
file has no limits.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from millstream.config.settings import Settings
from millstream.core.quota.limits import Limits
from millstream.core.quota.rate import WindowedRate
from millstream.errors import MillstreamError
from millstream.shard.control import ControlEnd
from millstream.shard.reactor import Reactor

OPEN_BY_ADDRESS: Final = "open_by_address"
"""Question to a shard: its open connections by address."""
ASK_US: Final = 200_000
DELAYED_MAX: Final = 1_000
RATES_MAX: Final = 10_000
_TIMEOUT_US: Final = 10_000_000
_UNLIMITED: Final = 2**31 - 1


class ConnectionLimits(msgspec.Struct, frozen=True):
    """What holds for new connections. ``rates`` are by address, the default under the empty one."""

    total: int
    per_address: int = _UNLIMITED
    overrides: dict[str, int] = {}
    creation_rate: int = _UNLIMITED
    rates: dict[str, float] = {}
    windows: int = 11
    window_us: int = 1_000_000


def connection_limits(settings: Settings, quotas: Limits) -> ConnectionLimits:
    """What settings and quotas say."""
    return ConnectionLimits(
        settings.connections_max,
        settings.connections_max_per_ip,
        dict(settings.connections_max_per_ip_overrides),
        settings.connection_creation_rate_max,
        quotas.addresses(),
        settings.quota_window_num,
        settings.quota_window_size_seconds * 1_000_000,
    )


class AddressLimits:
    """The limits, and what is known of each address. Lifecycle: as the supervisor's acceptor."""

    def __init__(
        self, reactor: Reactor, limits: ConnectionLimits, controls: list[ControlEnd], pending: Callable[[], int]
    ) -> None:
        """``pending`` says how many connections are on their way to the shards."""
        self.limits = limits
        self._reactor = reactor
        self._controls = controls
        self._pending = pending
        self._open: Counter[str] = Counter()  # accepted, and perhaps closed since the shards were asked
        self._since: Counter[str] = Counter()  # accepted since then
        self._asks = False
        self._rates: dict[str, WindowedRate] = {}
        self._all = WindowedRate(limits.windows, limits.window_us)
        self._delayed = 0

    def refusal(self, address: str) -> str:
        """Why an address gets no further connection; empty if it does."""
        limit = self.limits.overrides.get(address, self.limits.per_address)
        if limit < _UNLIMITED and self._open[address] >= limit:
            self._ask()
            return f"max.connections.per.ip={limit} are open from there"
        return ""

    def accepted(self, address: str) -> None:
        """Count a connection that goes to a shard."""
        self._open[address] += 1
        if len(self._open) > self.limits.total + RATES_MAX:
            self._ask()
        if self._asks:
            self._since[address] += 1

    def throttle_us(self, address: str) -> int:
        """Count a new connection against the rate of its address; how long it is over it, and not counted then."""
        bound = self.limits.rates.get(address, self.limits.rates.get(""))
        if bound is None:
            return 0
        now_us = self._reactor.now_us()
        if address not in self._rates and len(self._rates) >= RATES_MAX:
            self._rates = {each: rate for each, rate in self._rates.items() if not rate.is_idle(now_us)}
            if len(self._rates) >= RATES_MAX:
                address = ""
        rate = self._rates.get(address)
        if rate is None:
            rate = self._rates[address] = WindowedRate(self.limits.windows, self.limits.window_us)
        rate.record(1, now_us)
        wait_us = rate.throttle_us(bound, now_us)
        if wait_us:
            rate.record(-1, now_us)
        return min(wait_us, self.limits.window_us)

    def pause_us(self) -> int:
        """Count a new connection of any address; how long no further one may be accepted."""
        if self.limits.creation_rate >= _UNLIMITED:
            return 0
        now_us = self._reactor.now_us()
        self._all.record(1, now_us)
        return self._all.throttle_us(self.limits.creation_rate, now_us)

    def close_later(self, close: Callable[[], None], wait_us: int) -> None:
        """Close a connection over its rate."""
        if self._delayed >= DELAYED_MAX:
            close()
            return
        self._delayed += 1

        def end() -> None:
            self._delayed -= 1
            close()

        self._reactor.call_later(wait_us, end)

    def _ask(self) -> None:
        """Learn from all shards what is open."""
        if self._asks or not self._controls or self._pending():
            return
        self._asks = True
        self._since.clear()
        counted: Counter[str] = Counter()
        missing = len(self._controls)
        failed = False

        def heard(answer: Any) -> None:
            nonlocal missing, failed
            missing -= 1
            if isinstance(answer, MillstreamError):
                failed = True
            else:
                counted.update(answer)
            if not missing:
                if not failed:
                    self._open = counted + self._since
                self._reactor.call_later(ASK_US, self._may_ask)

        for control in self._controls:
            control.ask(OPEN_BY_ADDRESS, None, heard, _TIMEOUT_US)

    def _may_ask(self) -> None:
        self._asks = False
