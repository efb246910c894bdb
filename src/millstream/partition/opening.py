"""Opening a replica on a disk that may be full: at the start of a broker, and while it runs.

Opening writes: an index that is missing or damaged is completed from its segment. A full disk is waited for, and the
partition is refused until then as one that is not held here. **Any other failure** of the disk is that partition's
(``Lifecycle.opened``). **Crash.** The next start opens the partition.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.storage.disk import FULL
from millstream.telemetry.log import RateLimit
from millstream.telemetry.log import log as operator_log

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.partition.partition import Partition
    from millstream.partition.table import Faulty
    from millstream.shard.reactor import Reactor
    from millstream.storage.shard_storage import ShardStorage

_AGAIN_US: Final = 1_000_000
_LINES: Final = RateLimit(per_minute=6)


def open_with_room(
    reactor: Reactor,
    storage: ShardStorage,
    name: str,
    is_wanted: Callable[[], bool],
    opened: Callable[[], Partition | Faulty],
    done: Callable[[Partition | Faulty], None],
) -> None:
    """Call ``done`` with what ``opened`` gives, now or when there is room; never if it is no longer wanted.

    Args:
        name: topic and partition, for the log.
        is_wanted: asked before each attempt.
        opened: opens the partition; raises OSError if the disk is full, and leaves nothing behind then.
    """
    if storage.stopping or not is_wanted():
        return
    try:
        entry = opened()
    except OSError as error:
        if error.errno not in FULL:
            raise
        again = partial(open_with_room, reactor, storage, name, is_wanted, opened, done)
        try_again(reactor, name, "not opened: the disk is full; tried again each second", again)
        return
    done(entry)


def try_again(reactor: Reactor, name: str, why: str, attempt: Callable[[], None]) -> None:
    """Repeat ``attempt`` in a second, and log ``why`` of the partition ``name``, at most six times a minute in all."""
    if _LINES.allows():
        operator_log.at(name).warning("%s", why)
    reactor.call_later(_AGAIN_US, attempt)
