"""A partition without files, of an archived topic and of one replica: whether its disk has lost them.

::

    a start finds no files ──► the object store is asked ─┬─ it has nothing of the partition ──► opened, empty
                                                          └─ it has records of it ─────────────► not served

A partition that never had a record has no files either. Opened empty, one that has lost them would give its offsets out
again, and its archiver would write a manifest without them. ``millstream topic repair`` takes up what the store has.

To clients the broker has no replica until then. **The store or the disk is away.** It is asked again each second.
**Crash.** The next start asks again, or finds the log fenced. **Bad input.** If the manifest object cannot be read, the
partition is not served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import Corruption, MillstreamError
from millstream.format.epochs import LogState, decode_log_state
from millstream.partition.opening import try_again
from millstream.storage.log.opening import fence

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.manifest import ArchiveId
    from millstream.partition.table import Waiting
    from millstream.shard.reactor import Reactor
    from millstream.storage.shard_storage import ShardStorage
    from millstream.tiers.link import ArchiveLink
    from millstream.tiers.messages import Newest


def ask_store(
    reactor: Reactor,
    storage: ShardStorage,
    link: ArchiveLink,
    owner: ArchiveId,
    entry: Waiting,
    is_wanted: Callable[[], bool],
    proceed: Callable[[], None],
) -> None:
    """Call ``proceed`` when the store has answered, unless the partition is no longer wanted. The log is fenced before,
    if the store has records of it.

    Args:
        reactor: of the shard.
        storage: of the shard.
        link: to its archive process.
        owner: the partition.
        entry: in the table until ``proceed``.
        is_wanted: asked before each question, and when it is answered.
        proceed: opens the partition.
    """
    name = f"{entry.name}/{entry.index}"

    def ask() -> None:
        if is_wanted() and not storage.stopping:
            link.ask_newest(owner, LogState(), answered, shared=entry.config.is_shared)

    def answered(result: Newest | MillstreamError) -> None:
        if not is_wanted() or storage.stopping:
            return
        try:
            reason = _reason(result)
            if reason:
                fence(storage.disk, entry.directory, f"{entry.directory} has no files, and {reason}")
        except OSError as error:
            again(error.strerror or str(error))
        except MillstreamError as error:
            again(error.message)
        else:
            proceed()

    def again(why: str) -> None:
        try_again(reactor, name, f"not opened, the object store is asked again: {why}", ask)

    ask()


def _reason(result: Newest | MillstreamError) -> str:
    """Why the log of a partition without files is not served; empty if it may be. Raises what says nothing of it."""
    if isinstance(result, Corruption):
        return result.message
    if isinstance(result, MillstreamError):
        raise result
    end = decode_log_state(result.state).files_start
    return f"the object store has its log up to offset {end}" if end else ""
