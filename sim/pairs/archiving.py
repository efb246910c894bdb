"""What archives a simulated broker's topics, put together as `app.archiving` does, over the archive process of
`sim.archive`.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.core.shared import BacklogLimits, JoinLimits
from millstream.tiers.archiver import Archiver
from millstream.tiers.shared_joins import SharedJoins
from millstream.tiers.shared_sweeps import SharedSweeps
from millstream.tiers.shared_uploads import SharedUploads
from millstream.tiers.shared_wal import SharedWal
from sim.archive.broker import WorldLink
from sim.engine.mailbox import LocalMailbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.archive import TopicDescription

CHECK_MS: Final = 20_000
"""``log.retention.check.interval.ms`` of the simulated brokers: an hour has enough rounds."""
_ENTRY_BYTES: Final = 4_000


class Archiving(NamedTuple):
    """The parts of one life of a broker."""

    archiver: Archiver
    sweeps: SharedSweeps
    link: WorldLink
    wal: SharedWal | None
    """Set if acknowledgements wait for the store."""


def make_archiving(
    broker: Any,
    interval_us: int,
    topic_ids: Callable[[], list[bytes]],
    describe: Callable[[bytes], TopicDescription | None],
    on_sealed: Callable[[str], None],
    *,
    calls: Any = None,
    held: bool = False,
) -> Archiving:
    """``interval_us`` is that of entries of the log in the store; the rest is as in `app.archiving.make_archiver`."""
    shard = broker.shard
    loop: Any = shard.reactor
    link = WorldLink(broker, shard)
    near: Any = SimpleNamespace(
        id=0, count=1, reactor=loop, stats=shard.stats, mailbox=LocalMailbox(loop), arena=shard.arena
    )
    limits = BacklogLimits(1 << 20, 4_000, 1_000)
    wal = None
    if broker.writer is not None:
        wal = SharedWal(loop, link, shard.stats, interval_us, _ENTRY_BYTES, describe, on_sealed, held=held)
    uploads = SharedUploads(loop, shard.storage.now_ms, link, shard.stats, limits, 20_000, describe, wal)
    sweeps = SharedSweeps(near, uploads, link, topic_ids, CHECK_MS * 1000, calls)
    archiver = Archiver(loop, shard.storage, link, shard.stats, CHECK_MS, describe, uploads)
    joins = JoinLimits(8_000, 3_000)
    SharedJoins(near, shard.storage.now_ms, uploads.archives, link, archiver.replacing, joins, lambda: True).start()
    return Archiving(archiver, sweeps, link, wal)
