"""What archives tiered and shared topics on a shard, put together: the archiver, uploads, joins, sweeps, and the log in
the store if acknowledgements wait for it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from millstream.core.controller.commands import REPLACING_SEGMENTS
from millstream.core.shared import BacklogLimits, JoinLimits
from millstream.shard.process import EXIT_CHILD
from millstream.tiers.archiver import Archiver
from millstream.tiers.link import ArchiveLink
from millstream.tiers.shared_joins import SharedJoins
from millstream.tiers.shared_sweeps import SharedSweeps
from millstream.tiers.shared_uploads import SharedUploads
from millstream.tiers.shared_wal import SharedWal

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.app.shared import Shared
    from millstream.cluster.metadata import MetadataCache
    from millstream.format.archive import TopicDescription
    from millstream.peers.calls import Calls
    from millstream.shard.context import Shard
    from millstream.storage.shard_storage import ShardStorage
    from millstream.tiers.process import ArchiveProcess

    Describe = Callable[[bytes], TopicDescription | None]


def make_archiver(
    shared: Shared,
    shard: Shard,
    storage: ShardStorage,
    metadata: MetadataCache,
    describe: Describe,
    start_process: Callable[[], ArchiveProcess],
    calls: Calls | None,
    on_sealed: Callable[[str], None],
) -> tuple[Archiver, SharedSweeps]:
    """The archiver of a shard, over a process that is forked for its first topic; and what removes shared objects.
    ``calls`` reach the other brokers; ``on_sealed`` is called when this broker was taken over.
    """
    settings = shared.settings
    link = ArchiveLink(
        shard.reactor, shard.arena, shard.stats, start_process, lambda why: shard.reactor.stop(EXIT_CHILD, why)
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
    return list(metadata.state.topics_by_id)


def _knows_replacements(metadata: MetadataCache) -> bool:
    """Whether every broker understands that archived segments are replaced."""
    state = metadata.state
    return not state.registry.brokers or state.feature_level >= REPLACING_SEGMENTS
