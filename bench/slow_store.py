"""An object store as far away as a cloud's: hook of a broker (``internal.shard.hook=bench.slow_store:install``).

Each request waits first, as long as a log-normal distribution says: 30 ms in the middle, 120 ms at the 99th percentile.
The bytes of a read or of an upload then take their time at 100 MiB a second.
"""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from millstream.tiers import process, upload_process

if TYPE_CHECKING:
    from millstream.objects import ObjectStore

MEDIAN_S = 0.030
P99_S = 0.120
BYTES_A_SECOND = 100 << 20
"""Rate of one stream, in bytes a second."""

_SIGMA = 0.596  # ln(120 / 30) / 2.326


class SlowStore:
    """A store whose requests take time."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._store, verb)
        if verb not in ("put", "put_stream", "get", "head", "delete"):
            return found

        def later(*arguments: Any) -> Any:
            time.sleep(MEDIAN_S * random.lognormvariate(0, _SIGMA))
            if verb == "put_stream":
                key, parts = arguments
                return found(key, map(_taking_time, parts))
            answer = found(*arguments)
            return _taking_time(answer) if verb == "get" else answer

        return later


def _taking_time(data: Any) -> Any:
    time.sleep(memoryview(data).nbytes / BYTES_A_SECOND)
    return data


def install(_node: object) -> None:
    """Have the archive process, which is forked later, open such a store."""
    open_store = process.open_store

    def opened(url: str, patience_s: float) -> Any:
        return SlowStore(open_store(url, patience_s))

    process.open_store = upload_process.open_store = opened
