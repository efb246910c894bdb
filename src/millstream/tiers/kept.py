"""What is kept in memory of what was read from the store: the newest used values, up to a total weight."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Kept(Generic[_Key, _Value]):
    """The newest used values, up to a total weight. Safe for threads."""

    def __init__(self, weight_max: int, weight: Callable[[_Value], int]) -> None:
        self._weight_max = weight_max
        self._weigh = weight
        self._weight = 0
        self._values: OrderedDict[_Key, _Value] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: _Key) -> _Value | None:
        """The value, which counts as used."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def put(self, key: _Key, value: _Value) -> None:
        """Keep a value; the longest unused ones may leave."""
        with self._lock:
            before = self._values.pop(key, None)
            self._weight += self._weigh(value) - (0 if before is None else self._weigh(before))
            self._values[key] = value
            while self._weight > self._weight_max and len(self._values) > 1:
                self._weight -= self._weigh(self._values.popitem(last=False)[1])

    def drop(self, key: _Key) -> None:
        """Forget a value."""
        with self._lock:
            before = self._values.pop(key, None)
            self._weight -= 0 if before is None else self._weigh(before)
