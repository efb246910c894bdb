"""Helpers that can be stopped in the middle: each lane of the writer, the worker and the cleaner is a thread that
rests before the operations of the disk, and only one thread of all runs at a time.

A command of the worker is a row of writes, syncs and renames. Run in one piece it would hide what happens when
another lane, or the reactor, does something in between, and when an operation hangs. So `Lanes.start` starts a job in
the lane's thread, `rest` (called by the disk before an operation) stops it there, and `resume` lets it continue; who is
next is the caller's choice, made with a seeded generator, so that an interleaving repeats from its seed. Nothing is
left to the operating system's scheduler: the threads hand on one baton.

A lane that waits for a lock which another one holds while it rests would hold up everybody: `lend_locks` puts a lock
in the place of each that an object has, which hands the baton on instead. `close` ends every thread, in the middle of
its work: that is how a process dies.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Final

from sim.engine.disk import PowerFailure

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

_LOCKS: Final = (type(threading.Lock()), type(threading.RLock()))


class _Lane:
    """One thread and what it is at."""

    def __init__(self, name: str, run: Callable[[_Lane], None]) -> None:
        self.name = name
        self.go = threading.Semaphore(0)
        self.job: Callable[[], None] | None = None
        self.error: BaseException | None = None
        self.wants: TurnLock | None = None
        self.thread = threading.Thread(target=run, args=(self,), daemon=True, name=name)
        self.thread.start()


class TurnLock:
    """A lock between lanes, which its holder may take again: who finds it taken hands the baton on."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._holder: object = None
        self._depth = 0

    @property
    def taken(self) -> bool:
        """Whether a lane has it that is not the running one."""
        return self._depth > 0 and self._holder is not self._lanes.running

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        while self.taken:
            self._lanes.wait_for(self)
        self._holder = self._lanes.running
        self._depth += 1

    def release(self) -> None:
        self._depth -= 1


class Lanes:
    """Threads that take turns at disk operations. `rest_share` of the operations are places to stop at."""

    def __init__(self, rng: random.Random, rest_share: float) -> None:
        self._rng = rng
        self._share = rest_share
        self._lanes: dict[str, _Lane] = {}
        self._back = threading.Semaphore(0)
        self._running: _Lane | None = None
        self._closed = False
        self.at_work: set[str] = set()
        """Lanes in which a job rests."""

    @property
    def running(self) -> object:
        """The lane that has the baton; None while the reactor has it."""
        return self._running

    def start(self, name: str, job: Callable[[], None]) -> None:
        """Start a job; this returns when it rests or is done, and raises what it raised."""
        lane = self._lanes.get(name)
        if lane is None:
            lane = self._lanes[name] = _Lane(name, self._run)
        lane.job = job
        self.at_work.add(name)
        self._hand_over(lane)

    def resume(self, name: str) -> None:
        """Let a resting job continue."""
        self._hand_over(self._lanes[name])

    def blocked(self, name: str) -> bool:
        """Whether it waits for a lock that is taken."""
        wants = self._lanes[name].wants
        return wants is not None and wants.taken

    def rest(self, kind: str, path: str) -> None:
        """An operation of the disk comes: stop here, if this is a lane and the dice say so."""
        del kind, path
        lane = self._running
        if lane is not None and self._rng.random() < self._share:
            self._stop(lane)

    def wait_for(self, lock: TurnLock) -> None:
        """Stop until the lock is free."""
        lane = self._running
        assert lane is not None, "the reactor waits for a lane that rests"
        lane.wants = lock
        self._stop(lane)
        lane.wants = None

    def lend_locks(self, *owners: object) -> None:
        """Put locks of ours in the place of those that these objects have as attributes."""
        for owner in owners:
            held: dict[str, Any] = vars(owner)
            for name, value in list(held.items()):
                if type(value) in _LOCKS:
                    held[name] = TurnLock(self)

    def close(self) -> None:
        """End every thread where it is."""
        self._closed = True
        for lane in self._lanes.values():
            lane.go.release()
            lane.thread.join()

    def _hand_over(self, lane: _Lane) -> None:
        self._running = lane
        lane.go.release()
        self._back.acquire()
        self._running = None
        error, lane.error = lane.error, None
        if error is not None:
            raise error

    def _stop(self, lane: _Lane) -> None:
        if self._closed:
            raise PowerFailure
        self._back.release()
        lane.go.acquire()
        if self._closed:
            raise PowerFailure

    def _run(self, lane: _Lane) -> None:
        while True:
            lane.go.acquire()
            if self._closed:
                return
            job = lane.job
            assert job is not None
            try:
                job()
            except BaseException as error:  # noqa: BLE001  # it belongs to the lane that handed the baton over
                if self._closed:
                    return
                lane.error = error
            lane.job = None
            self.at_work.discard(lane.name)
            self._back.release()
