"""Futures as the interface has them: ``wait`` in any spelling, ``completed`` as a property that may be called."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from millstream.diaspora.errors import as_interface
from millstream.errors import MillstreamError

_T = TypeVar("_T")


class _Flag(int):
    """A truth value that may also be called: some futures of Mofka have ``completed`` as a method."""

    def __call__(self) -> bool:
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


class InterfaceFuture(Generic[_T]):
    """A result that arrives later."""

    def __init__(self, future: Future[Any], convert: Callable[[Any], _T]) -> None:
        self._future = future
        self._convert = convert

    @property
    def completed(self) -> _Flag:
        """Whether the result is there."""
        return _Flag(self._future.done())

    def wait(self, timeout_ms: int = -1) -> _T | None:
        """The result; None if it is not there after ``timeout_ms``. 0 and less wait for ever.

        Raises:
            Exception: the operation failed.
        """
        try:
            return self._convert(self._future.result(timeout_ms / 1000 if timeout_ms > 0 else None))
        except TimeoutError:
            return self._given_up()
        except MillstreamError as error:
            raise as_interface(error) from error

    def _given_up(self) -> _T | None:
        return None


class FutureEvent(InterfaceFuture[_T]):
    """An event that arrives later. A wait that is over gives the pull up: the event goes to the next pull."""

    def _given_up(self) -> _T | None:
        return None if self._future.cancel() else self._convert(self._future.result())


class FutureUint(InterfaceFuture[int]):
    """The id of an event that was pushed."""


class FutureFlushed(InterfaceFuture[None]):
    """The end of a flush. Scripts that drop it rely on the flush: it is in progress in any case."""
