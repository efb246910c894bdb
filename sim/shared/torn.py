"""A store that now and then keeps only the beginning of an object and says that it has all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sim.engine.objects import MemoryStore

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from millstream.objects import ObjectKey, Version
    from millstream.objects.store import Buffer

_CHANCE: Final = 0.04
_TORN_FOLDER: Final = "shared/"


class TornStore(MemoryStore):
    """Objects of many partitions may be torn. Logs are not: nothing reads them back before the ack."""

    def __init__(self, rng: random.Random, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self._rng = rng
        self.is_torn = True

    def put(self, key: ObjectKey, parts: Sequence[Buffer], expect: Version | None = None) -> Version:
        if self.is_torn and key.startswith(_TORN_FOLDER) and self._rng.random() < _CHANCE:
            whole = b"".join(parts)
            parts = [whole[: self._rng.randrange(len(whole))]]
        return super().put(key, parts, expect)
