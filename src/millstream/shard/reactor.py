"""The only thread of a shard: sockets, timers, turns, and a probe for callbacks that take too long.

A thin shell around uvloop. A *turn* is what the shard does between two waits::

    poll ──► callbacks of all descriptors that are ready ──► call_soon callbacks ──► end_of_turn callbacks ──► poll
             due timers

- ``end_of_turn`` callbacks run once, after everything that this poll made ready. Group commit and doorbells depend on
  it: the appends of all sockets that were readable in one poll become one disk write. (uvloop runs handles that were
  queued during a poll only after the poll's last descriptor callback. The reactor queues one such handle per turn and
  keeps its own list behind it, so a turn costs one handle.) An ``end_of_turn`` callback that is registered while these
  run belongs to the same turn, up to eight rounds.
- Timers are one heap over one timerfd, with µs deadlines on the clock of ``now_us``.
- ``background`` runs generators in slices, limited to a share of the core.

Every entry point is measured. Its start time is in shared memory while it runs (0 while the shard waits), its duration
goes into a histogram. Above 500 µs it counts as a stall, above 50 ms as a long stall. The supervisor's ``StallWatch``
reads the start time and makes a stalled process write its stack.

**Failure.** A callback that raises is a broken invariant: the reactor logs it, stops the process with ``EXIT_SOFTWARE``
and runs nothing further. Expected failures are values, or are caught where they are expected. The first ``stop``
decides exit code and reason.

Lifecycle: construct after the fork, ``run`` once, on the process's only thread. An idle reactor has no periodic timer.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import uvloop

from millstream.model.quantities import ShardId
from millstream.shard import collector
from millstream.shard.background import Background
from millstream.shard.process import EXIT_OK, EXIT_SOFTWARE
from millstream.shard.timerfd import TimerFd
from millstream.shard.timers import Timer as Timer
from millstream.shard.timers import TimerHeap
from millstream.telemetry.log import log
from millstream.telemetry.metrics import BUCKETS, ENTERED_CELL, StatsSlab

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.shard.background import BackgroundTask

STALL_US: Final = 500
"""Duration from which a callback counts as a stall, in µs (Seastar's task quota and Redpanda's blocking limit)."""
LONG_STALL_US: Final = 50_000
"""Duration from which a callback counts as a long stall, in µs: clients notice it."""
_END_ROUNDS: Final = 8

_clock_ns = time.perf_counter_ns


class _Stalls:
    """Counts the callbacks that took too long."""

    __slots__ = ("_callbacks", "_long", "_stalls")

    def __init__(self, stats: StatsSlab) -> None:
        self._callbacks = stats.histogram("reactor_callback")
        self._stalls = stats.counter("reactor_stalls")
        self._long = stats.counter("reactor_long_stalls")

    def note(self, took_us: int) -> None:
        """A callback took more than ``STALL_US``."""
        self._callbacks.observe(took_us)
        self._stalls.inc()
        if took_us > LONG_STALL_US:
            self._long.inc()


class Reactor:
    """The event loop of one shard process. ``stats`` is the process's slab of metrics."""

    def __init__(self, shard_id: ShardId, stats: StatsSlab) -> None:
        self.shard_id = shard_id
        self.stats = stats
        self.exit_code = EXIT_OK
        self.stop_reason = ""
        self.stopping = False
        self._loop = uvloop.new_event_loop()
        self._loop_call_soon = self._loop.call_soon
        self._cells = stats.cells
        callbacks = stats.histogram("reactor_callback")
        self._count_at = callbacks.base
        self._sum_at = callbacks.base + BUCKETS
        self._stalls = _Stalls(stats)
        self._ready: deque[tuple[Callable[..., None], tuple[object, ...]]] = deque()
        self._enders: list[Callable[[], None]] = []
        self._turn_queued = False
        self._timer_fd = TimerFd()
        self._timers = TimerHeap(self._timer_fd.arm, self._timer_fd.disarm)
        self._loop.add_reader(self._timer_fd.fd, self._fire_timers)
        self._background = Background(self)
        self.turns = 0
        self.entries = 0  # callbacks other than background slices; shows whether the shard had other work

    # -- time

    def now_us(self) -> int:
        """Monotonic time in µs. All processes of the machine share this clock."""
        return _clock_ns() // 1000

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for timestamps that leave the process. Never used to decide an order."""
        return time.time_ns() // 1_000_000

    # -- what runs when

    def call_soon(self, callback: Callable[..., None], *args: object) -> None:
        """Run ``callback(*args)`` after the descriptor callbacks of this turn, in the order of the calls."""
        self._ready.append((callback, args))
        if not self._turn_queued:
            self._turn_queued = True
            self._loop_call_soon(self._turn)

    def end_of_turn(self, callback: Callable[[], None]) -> None:
        """Run ``callback`` once, after everything that is ready in this turn."""
        self._enders.append(callback)
        if not self._turn_queued:
            self._turn_queued = True
            self._loop_call_soon(self._turn)

    def call_at(self, deadline_us: int, callback: Callable[[], None]) -> Timer:
        """Run ``callback`` at or shortly after ``deadline_us`` (of ``now_us``); in the next turn if that has passed."""
        return self._timers.set(deadline_us, callback)

    def call_later(self, delay_us: int, callback: Callable[[], None]) -> Timer:
        return self._timers.set(_clock_ns() // 1000 + delay_us, callback)

    def background(
        self, work: str, generator: Generator[None, None, None], share: float, done: Callable[[], None] | None = None
    ) -> BackgroundTask:
        """Advance ``generator`` in slices, limited to ``share`` (0–1] of the core. ``done`` is called when it ends by
        itself.

        Each step up to the next ``yield`` should take well under 500 µs. ``work`` is a label value of
        ``background_time``; tasks of the same kind have one share together. The share does not apply while the shard
        has nothing else to do.
        """
        return self._background.start(work, generator, share, done)

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` in every turn in which ``fd`` is readable (level-triggered). Remove it before closing
        ``fd``.
        """
        self._loop.add_reader(fd, self._enter, callback)

    def remove_reader(self, fd: int) -> None:
        self._loop.remove_reader(fd)

    def add_writer(self, fd: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` in every turn in which ``fd`` is writable."""
        self._loop.add_writer(fd, self._enter, callback)

    def remove_writer(self, fd: int) -> None:
        self._loop.remove_writer(fd)

    def resolve(self, host: str, port: int, done: Callable[[tuple[int, tuple[object, ...]] | OSError], None]) -> None:
        """Look up the first address of ``host`` and pass (family, socket address) or the error to ``done`` in a later
        turn. The look-up of a name runs in a thread of libuv's, outside Python. For connections to other brokers.
        """
        for family in (socket.AF_INET, socket.AF_INET6):
            try:
                socket.inet_pton(family, host)
            except OSError:
                continue
            address = (host, port) if family == socket.AF_INET else (host, port, 0, 0)
            self.call_soon(done, (int(family), address))
            return

        def resolved(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if isinstance(error, OSError):
                self.call_soon(done, error)
            elif error is not None or task.cancelled() or not task.result():
                self.call_soon(done, OSError(f"the host {host} cannot be looked up"))
            else:
                family, _, _, _, address = task.result()[0]
                self.call_soon(done, (int(family), address))

        self._loop.create_task(self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)).add_done_callback(resolved)

    # -- running

    def run(self) -> int:
        """Run until ``stop``, and return the exit code. Long-lived objects should exist by now (see ``settle``)."""
        self.stats.started()
        collector.tune()
        collector.measure(self.stats)
        collector.collect_when_quiet(self)
        try:
            if not self.stopping:
                self._loop.run_forever()
        finally:
            collector.stop_measuring()
            self._cells[ENTERED_CELL] = 0
            self.close()
        return self.exit_code

    def close(self) -> None:
        """Close the loop and its descriptors. ``run`` does so at its end."""
        if not self._loop.is_closed():
            self._loop.remove_reader(self._timer_fd.fd)
            self._timer_fd.close()
            self._loop.close()

    def settle(self) -> None:
        """Exempt all existing objects from garbage collection. Called once, after long-lived data have been loaded."""
        collector.settle()

    def stop(self, exit_code: int = EXIT_OK, reason: str = "") -> None:
        """End ``run`` with ``exit_code``. No further callback runs. The first call decides; its reason is logged."""
        if self.stopping:
            return
        self.stopping = True
        self.exit_code = exit_code
        self.stop_reason = reason
        if exit_code != EXIT_OK:
            log.error("stopping: %s", reason or f"exit code {exit_code}")
        elif reason:
            log.info("stopping: %s", reason)
        self._loop.stop()

    # -- entry points, each measured (written out three times: one more call would cost as much as the measurement)

    def _enter(self, callback: Callable[[], None]) -> None:
        """A descriptor is ready."""
        if self.stopping:
            return
        cells = self._cells
        self.entries += 1
        begun_ns = cells[ENTERED_CELL] = _clock_ns()
        try:
            callback()
        except BaseException:  # noqa: BLE001  # the shard's state can no longer be trusted
            self._crashed(callback)
        took_us = (_clock_ns() - begun_ns) // 1000
        cells[ENTERED_CELL] = 0
        if took_us > STALL_US:
            self._stalls.note(took_us)
        else:
            cells[self._count_at + took_us.bit_length()] += 1
            cells[self._sum_at] += took_us

    def _turn(self) -> None:
        """Everything after the descriptor callbacks: ``call_soon`` callbacks, then the end of the turn."""
        self.turns += 1
        cells = self._cells
        count_at = self._count_at
        ready = self._ready
        todo = len(ready)
        rounds = 0
        enders: list[Callable[[], None]] = []
        callback: Callable[..., None] = self._turn
        begun_ns = cells[ENTERED_CELL] = _clock_ns()
        try:
            while not self.stopping:
                if todo:
                    todo -= 1
                    self.entries += 1
                    callback, args = ready.popleft()
                    callback(*args)
                elif enders:
                    callback = enders.pop()
                    callback()
                elif self._enders and rounds < _END_ROUNDS:
                    rounds += 1
                    enders = self._enders
                    enders.reverse()
                    self._enders = []
                    continue
                else:
                    break
                now_ns = cells[ENTERED_CELL] = _clock_ns()
                took_us = (now_ns - begun_ns) // 1000
                begun_ns = now_ns
                if took_us > STALL_US:
                    self._stalls.note(took_us)
                else:
                    cells[count_at + took_us.bit_length()] += 1
                    cells[self._sum_at] += took_us
        except BaseException:  # noqa: BLE001  # as above
            self._crashed(callback)
        cells[ENTERED_CELL] = 0
        if ready or self._enders:
            self._loop_call_soon(self._turn)
        else:
            self._turn_queued = False

    def _fire_timers(self) -> None:
        cells = self._cells
        timers = self._timers
        mark = timers.start_pass()
        begun_ns = cells[ENTERED_CELL] = _clock_ns()
        due_us = begun_ns // 1000
        callback: Callable[[], None] | None = None
        try:
            while not self.stopping and (callback := timers.pop_due(due_us, mark)) is not None:
                self.entries += 1
                callback()
                now_ns = cells[ENTERED_CELL] = _clock_ns()
                took_us = (now_ns - begun_ns) // 1000
                begun_ns = now_ns
                if took_us > STALL_US:
                    self._stalls.note(took_us)
                else:
                    cells[self._count_at + took_us.bit_length()] += 1
                    cells[self._sum_at] += took_us
        except BaseException:  # noqa: BLE001  # as above
            self._crashed(callback or self._fire_timers)
        timers.rearm()
        cells[ENTERED_CELL] = 0

    def _crashed(self, callback: Callable[..., None]) -> None:
        name = getattr(callback, "__qualname__", repr(callback))
        log.exception("%s failed, which should not happen; the shard stops", name)
        self.stop(EXIT_SOFTWARE, f"{name} failed")
