"""The thread that talks to brokers: an event loop of its own, one per process, started on first use.

Producers and consumers of all clients of a process share it. Callers on any thread hand work over (``start``) and get
futures; no callback of a program runs on it. A fork leaves the thread behind in the parent: the child starts its own,
and an object that was made before the fork says so when it is used (``check``).

At exit, producers send what was pushed (``at_exit``) and consumers leave their groups (``leave_at_exit``), for
``EXIT_SECONDS`` at most; nothing waits for the thread.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from millstream.errors import Rejected

_T = TypeVar("_T")

EXIT_SECONDS: Final = 10.0
_END_SECONDS: Final = 1.0


class _Flushes(Protocol):
    def flush(self) -> Future[None]: ...


class _Stops(Protocol):
    def stop(self) -> Future[None] | None: ...


class Engine:
    """An event loop in a daemon thread. Made by ``engine``."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._unsent: weakref.WeakSet[_Flushes] = weakref.WeakSet()
        self._consumers: weakref.WeakSet[_Stops] = weakref.WeakSet()
        self._thread = threading.Thread(target=self.loop.run_forever, name="millstream-events", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Refuse to continue in a process that this engine's thread is not in.

        Raises:
            Rejected: the process was forked since.
        """
        if os.getpid() != self.pid:
            raise Rejected("this client was made before a fork: make another one in the child process")

    def start(self, work: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine on the loop."""
        self.check()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop soon."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def at_exit(self, producer: _Flushes) -> None:
        """Have a producer flushed when the interpreter ends, if it still exists."""
        self._unsent.add(producer)

    def leave_at_exit(self, consumer: _Stops) -> None:
        """Have a consumer stopped when the interpreter ends, if it still exists."""
        self._consumers.add(consumer)

    def finish(self) -> None:
        """Flush and stop what is left, within ``EXIT_SECONDS``."""
        if os.getpid() != self.pid:
            return
        deadline = time.monotonic() + EXIT_SECONDS
        ends = [producer.flush() for producer in list(self._unsent)]
        ends += [one for consumer in list(self._consumers) if (one := consumer.stop()) is not None]
        for one in ends:
            with suppress(Exception):
                one.result(max(0.0, deadline - time.monotonic()))
        asyncio.run_coroutine_threadsafe(self._end(), self.loop)
        self._thread.join(max(_END_SECONDS, deadline - time.monotonic()))

    def abandon(self) -> None:
        """In the child of a fork: the tasks are the parent's, their end here means nothing."""
        self.loop.set_exception_handler(_ignore)

    async def _end(self) -> None:
        """Cancel what runs and leave the loop."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.loop.stop()


def _ignore(_loop: asyncio.AbstractEventLoop, _context: dict[str, Any]) -> None:
    """Say nothing."""


_current: list[Engine] = []
_lock = threading.Lock()


def engine() -> Engine:
    """The engine of this process."""
    with _lock:
        if not _current or _current[0].pid != os.getpid():
            _current[:] = [Engine()]
        return _current[0]


def _finish() -> None:
    for one in _current:
        one.finish()


def _after_fork() -> None:
    """The child's lock is new: another thread may have held it."""
    global _lock  # noqa: PLW0603 (a fork copies a held lock, which no thread of the child releases)
    _lock = threading.Lock()
    for one in _current:
        one.abandon()


atexit.register(_finish)
os.register_at_fork(after_in_child=_after_fork)
