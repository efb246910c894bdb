"""Results that arrive later. One kind serves threads (``result``) and coroutines (``await``)."""

from __future__ import annotations

import asyncio
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
        """The result; TimeoutError after ``timeout`` seconds, and what is pending goes on."""
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


def settle(future: Future[_T], value: _T) -> None:
    """Set the result, unless the future was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_result(value)


def fail(future: Future[Any], error: BaseException) -> None:
    """Set the error, unless the future was cancelled."""
    if future.set_running_or_notify_cancel():
        future.set_exception(error)


def all_of(futures: list[Future[Any]]) -> Pending[None]:
    """Done when all are done, whatever became of them."""
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
