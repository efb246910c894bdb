"""Results that arrive later. One kind serves threads (``result``) and coroutines (``await``)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class Pending(Future[_T]):
    """A result that arrives later. The first wait for it causes what it waits for (``cause``): an event in a batch
    that is not full is sent when its sender waits for it.
    """

    def __init__(self, cause: Callable[[], None] | None = None) -> None:
        super().__init__()
        self._cause = cause

    def result(self, timeout: float | None = None) -> _T:
        """The result; TimeoutError after ``timeout`` seconds, and what is pending continues."""
        self._begin()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error, or None; waits as ``result`` does."""
        self._begin()
        return super().exception(timeout)

    def __await__(self) -> Generator[Any, None, _T]:
        self._begin()
        return asyncio.wrap_future(self).__await__()

    def _begin(self) -> None:
        if self._cause is not None and not self.done():
            self._cause()


class PushedEvent(Pending[int]):
    """The id of one event of a batch: that of the batch's first event plus a number.

    Programs make millions and use few of them. So the parts of a future are made on first use; until then its batch
    answers for it.
    """

    def __init__(self, batch: Future[int], number: int, cause: Callable[[], None]) -> None:  # pyright: ignore[reportMissingSuperCall]
        self._batch = batch
        self._number = number
        self._cause = cause

    def result(self, timeout: float | None = None) -> int:
        """The id; see ``Pending.result``."""
        if "_state" in self.__dict__:
            return super().result(timeout)
        if not self._batch.done():
            self._begin()
        return self._batch.result(timeout) + self._number

    def done(self) -> bool:
        """Whether the id, or an error, is there."""
        return super().done() if "_state" in self.__dict__ else self._batch.done()

    def __getattr__(self, name: str) -> Any:
        """A part of a future that was not made yet."""
        if name not in _PARTS:
            raise AttributeError(name)
        with _making:
            made = "_state" not in self.__dict__
            if made:
                Future.__init__(self)
        if made:
            self._batch.add_done_callback(self._answered)
        return self.__dict__[name]

    def _answered(self, batch: Future[int]) -> None:
        error = batch.exception()
        if error is not None:
            fail(self, error)
        else:
            settle(self, batch.result() + self._number)


_making = threading.RLock()
_PARTS = frozenset(Future().__dict__)
"""The parts of a future."""


def settle(future: Future[_T], value: _T) -> None:
    """Set the result, unless the future was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(value)


def fail(future: Future[Any], error: BaseException) -> None:
    """Set the error, unless the future was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def all_of(futures: list[Future[Any]]) -> Pending[None]:
    """Done when all are done, failed ones included."""
    whole: Pending[None] = Pending()
    left = [len(futures)]
    if not futures:
        whole.set_result(None)

    def one_done(_: Future[Any]) -> None:
        left[0] -= 1
        if not left[0]:
            whole.set_result(None)

    for future in futures:
        future.add_done_callback(one_done)
    return whole
