"""Requests to the archive process that wait for their answer. A caller that asks for the same gets the same answer.

A thread of the archive process waits for each request that the store does not answer, and clients repeat requests that
were not answered in time. Without this, their repetitions would take every thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

R = TypeVar("R")


class JoinedCalls(Generic[R]):
    """The requests of one kind of one shard, by what they ask for. ``R`` is an answer.

    Invariant: a request has an entry from `join` to `take`, even if all its callers have left.
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, list[Callable[[R], None]]] = {}

    def join(self, key: Hashable, done: Callable[[R], None]) -> bool:
        """Wait for the answer to a request. Whether the caller has to send it."""
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [done]
            return True
        waiting.append(done)
        return False

    def leave(self, key: Hashable, done: Callable[[R], None]) -> None:
        """Stop waiting: ``done`` is not called. No effect after the answer."""
        waiting = self._waiting.get(key, [])
        if done in waiting:
            waiting.remove(done)

    def take(self, key: Hashable) -> list[Callable[[R], None]]:
        """The request was answered. Returns the callbacks of its callers."""
        return self._waiting.pop(key)
