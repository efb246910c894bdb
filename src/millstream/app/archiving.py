"""What archives tiered and shared topics on a shard, put together: the archiver, uploads, joins, sweeps, and the log in
the store if acknowledgements wait for it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from millstream.core.controller.commands import REPLACING_SEGMENTS
from millstream.core.shared import BacklogLimits, JoinLimits
from millstream.shard.process import EXIT_CHILD
from millstream.tiers.archiver import Archiver
from millstream.tiers.hot_tier.filling import fills_on_write
from millstream.tiers.link import ArchiveLink
from millstream.tiers.passing import block_pair
from millstream.tiers.process import start_archive_process
from millstream.tiers.shared_joins import SharedJoins
from millstream.tiers.shared_sweeps import SharedSweeps
from millstream.tiers.shared_uploads import SharedUploads
from millstream.tiers.shared_wal import SharedWal
from millstream.tiers.upload_process import start_upload_process

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Sequence

    from millstream.app.shared import Shared
    from millstream.cluster.metadata import MetadataCache
    from millstream.format.archive import TopicDescription
    from millstream.peers.calls import Calls
    from millstream.shard.context import Shard
    from millstream.shard.process import Child
    from millstream.storage.shard_storage import ShardStorage
    from millstream.tiers.process import ArchiveProcess
    from millstream.tiers.upload_link import StartUploads

    Describe = Callable[[bytes], TopicDescription | None]


class Starts(NamedTuple):
    """What forks the processes of a shard that speak to the object store."""

    archive: Callable[[], ArchiveProcess]
    uploads: StartUploads


def starts_of(shared: Shared, shard_id: int, usable_cores: Sequence[int]) -> Starts:
    """For a shard. Blocks of uploads go from one process to the other if they fill the warm cache (``cache.fill``)."""
    own, settings, disk = shared.shards[shard_id], shared.settings, shared.disk
    fills = settings.cache_type != "none" and fills_on_write(settings)
    sends, receives = block_pair() if fills else (None, None)

    def archive() -> ArchiveProcess:
        return start_archive_process(
            shard_id, own.arena, disk, settings, own.stats["archive"], usable_cores, shared.life, receives
        )

    def uploads(idle: bool) -> tuple[Child, list[socket.socket]]:
        return start_upload_process(shard_id, disk, settings, own.stats["upload"], usable_cores, sends, idle=idle)

    return Starts(archive, uploads)


def make_archiver(
    shared: Shared,
    shard: Shard,
    storage: ShardStorage,
    metadata: MetadataCache,
    describe: Describe,
    starts: Starts,
    calls: Calls | None,
    on_sealed: Callable[[str], None],
) -> tuple[Archiver, SharedSweeps]:
    """The archiver of a shard, over processes that are forked for its first topic; and what removes shared objects.
    ``calls`` reach the other brokers; ``on_sealed`` is called when this broker was taken over.
    """
    settings = shared.settings
    link = ArchiveLink(
        shard.reactor,
        shard.arena,
        shard.stats,
        starts.archive,
        lambda why: shard.reactor.stop(EXIT_CHILD, why),
        starts.uploads,
    )
    interval_ms = settings.log_retention_check_interval_ms
    limits = BacklogLimits(
        settings.shared_uncommitted_max_bytes // shard.count,
        settings.shared_upload_bytes // shard.count,
        settings.shared_upload_interval_ms,
    )
    object_bytes = min(settings.shared_upload_bytes, shard.arena.capacity_bytes // 16)
    wal = None if shared.life is None else _log_in_the_store(shared, shard, link, describe, on_sealed)
    uploads = SharedUploads(shard.reactor, storage.now_ms, link, shard.stats, limits, object_bytes, describe, wal)
    sweeps = SharedSweeps(
        shard,
        uploads,
        link,
        partial(_topic_ids, metadata),
        interval_ms * 1000,
        calls,
    )
    archiver = Archiver(shard.reactor, storage, link, shard.stats, interval_ms, describe, uploads)
    joins = JoinLimits(settings.shared_join_bytes, settings.shared_join_interval_ms)
    knows = partial(_knows_replacements, metadata)
    SharedJoins(shard, storage.now_ms, uploads.archives, link, archiver.replacing, joins, knows).start()
    return archiver, sweeps


def _log_in_the_store(
    shared: Shared, shard: Shard, link: ArchiveLink, describe: Describe, on_sealed: Callable[[str], None]
) -> SharedWal:
    settings = shared.settings
    return SharedWal(
        shard.reactor,
        link,
        shard.stats,
        settings.shared_wal_interval_ms * 1000,
        min(settings.shared_wal_bytes, shard.arena.capacity_bytes // 16),
        describe,
        lambda why: on_sealed(f"this broker was taken over: {why}"),
        held=shared.identity is not None,
    )


def _topic_ids(metadata: MetadataCache) -> list[bytes]:
    return list(metadata.state.topics.by_id)


def _knows_replacements(metadata: MetadataCache) -> bool:
    """Whether every broker understands that archived segments are replaced."""
    state = metadata.state
    return not state.registry.brokers or state.feature_level >= REPLACING_SEGMENTS
