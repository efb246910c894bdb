"""Tiered topics for the HTTP port: how far they are archived, and recovery of topics from the object store.

**Recovery** brings topics of a lost broker or cluster into this one, with their id, configuration, leader epochs and
archived records. It has two steps. `prepare_topics` writes, for each partition, the ``epochs`` file of a log whose
files start at the end of the archive. `recover_topics` then has the controller create the topics with their old ids,
and the partitions open such logs like any other. In a cluster every broker is prepared before that, because no broker
knows yet where the replicas will be; a majority of empty replicas could elect one another and forget the archive. Both
steps may be repeated. A crash in between leaves directories that no topic names, which a repeated recovery uses. What
was not archived is lost.
"""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.core.controller.requests import CreateTopic
from millstream.errors import MillstreamError, Rejected
from millstream.format.events.chunk import log_directory
from millstream.format.manifest import ArchiveId
from millstream.model.error_code import ErrorCode
from millstream.model.events import PartitionIndex
from millstream.objects import open_store
from millstream.partition.partition import Partition
from millstream.raft.group import GroupRole
from millstream.telemetry.table import OBJECT_OPERATION, OBJECT_TRANSFER
from millstream.tiers.inspection import stored_topics
from millstream.tiers.messages import CacheReport
from millstream.tiers.purging import forget_topic
from millstream.tiers.readers import needed_bytes
from millstream.tiers.restoring import StoreView, restore, topics_in_use

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from millstream.app.shard_queries import ShardQueries
    from millstream.cluster.client import ControllerClient
    from millstream.cluster.metadata import MetadataCache
    from millstream.config.settings import Settings
    from millstream.format.archive import TopicDescription
    from millstream.objects import ObjectStore
    from millstream.partition.table import PartitionTable
    from millstream.shard.control import ControlEnd
    from millstream.shard.reactor import Reactor
    from millstream.storage.disk import Disk
    from millstream.telemetry.metrics import StatsSlab
    from millstream.tiers.inspection import StoredTopic
    from millstream.tiers.link import ArchiveLink

TIERS: Final = "tiers"
RECREATE: Final = "recreate"
CACHE: Final = "cache"
KNOWN: Final = "known"
"""Questions on the control channel."""

_SHARE: Final = 0.1
_TIMEOUT_MS: Final = 30_000
_BY_ID: Final = "id:"
"""Before a topic id, in the place of a name."""

_STORE_PATIENCE_S: Final = 20.0


class TierStatus(msgspec.Struct, frozen=True):
    """How far one partition is archived. Offsets that end something are exclusive."""

    topic: str
    partition: int
    log_start_offset: int
    local_start_offset: int
    archived_end_offset: int
    high_watermark: int
    archived_segments: int
    archived_bytes: int
    local_bytes: int
    lag_bytes: int
    failures: int
    """Requests to the store that failed in a row."""
    shared: bool = False
    """Its batches go into common objects, and not closed segments into their own."""
    leads: bool = False
    """This broker leads it, and knows what is committed."""


def serve_tiers(
    control: ControlEnd,
    reactor: Reactor,
    table: PartitionTable,
    client: ControllerClient | None,
    link: ArchiveLink,
    metadata: MetadataCache,
) -> None:
    """Answer on a shard; ``client`` on the one that has topics created."""

    def status(topic: str | None, answer: Callable[[Any], None]) -> None:
        found: list[TierStatus] = []

        def walk() -> Generator[None, None, None]:
            for partition in list(table.by_group.values()):
                if partition.archive is not None and topic in (None, partition.name):
                    found.append(_status(partition))
                yield

        reactor.background("other", walk(), _SHARE, lambda: answer(msgspec.to_builtins(found)))

    def recreate(arguments: Any, answer: Callable[[Any], None]) -> None:
        if client is None:
            answer(None)
            return
        name, topic_id, partitions, configs, replicas = arguments
        # There may be fewer brokers than in the cluster that was lost.
        copies = min(replicas, max(1, len(metadata.state.registry.alive()))) or -1
        wanted = CreateTopic(name, partitions, copies, (), tuple(configs.items()), bytes.fromhex(topic_id))

        def created(results: Any) -> None:
            if isinstance(results, MillstreamError):
                answer(results)
            elif results[0].error:
                answer(Rejected(results[0].message or results[0].error.name, results[0].error))
            else:
                answer(None)

        client.create_topics([wanted], created, timeout_ms=_TIMEOUT_MS)

    def cache(arguments: Any, answer: Callable[[Any], None]) -> None:
        _ = arguments
        if not link.has_started:
            answer(None)
            return
        link.ask_cache(lambda found: answer(found if isinstance(found, Exception) else msgspec.to_builtins(found)))

    control.serve(TIERS, status)
    control.serve(CACHE, cache)
    control.serve(RECREATE, recreate)
    control.serve(KNOWN, lambda topic_id, answer: answer(metadata.topic_by_id(bytes.fromhex(topic_id)) is not None))


def _status(partition: Partition) -> TierStatus:
    archive, log = partition.archive, partition.log
    assert archive is not None
    return TierStatus(
        partition.name,
        partition.index,
        log.start_offset,
        max(log.start_offset, log.first_local_offset),
        archive.archive.end_offset,
        partition.high_watermark,
        archive.archive.segment_count,
        archive.archive.size_bytes,
        log.size_bytes,
        archive.lag_bytes,
        archive.attempts.failures,
        partition.config.is_shared,
        archive.group.role is GroupRole.LEADING and archive.group.is_serving,
    )


def tier_status(queries: ShardQueries, url: str, topic: str | None, stats: list[StatsSlab]) -> dict[str, Any]:
    """Every tiered partition of the broker, or those of one topic; and what the broker asked of the store since its
    start. ``stats`` are those of the archive processes.
    """
    found = [one for answer in queries.ask_all(TIERS, topic) for one in answer]
    requests = [
        {
            "operation": operation,
            "count": sum(one.histogram("object_request_latency", operation=operation).count for one in stats),
            "failures": sum(one.counter("object_request_failures", operation=operation).value for one in stats),
            "bytes": sum(one.counter("object_bytes", operation=operation).value for one in stats)
            if operation in OBJECT_TRANSFER.values
            else 0,
        }
        for operation in OBJECT_OPERATION.values
    ]
    return {
        "objects_url": url,
        "requests": requests,
        "partitions": sorted(found, key=lambda one: (one["topic"], one["partition"])),
    }


def cache_status(queries: ShardQueries, settings: Settings, stats: list[StatsSlab]) -> dict[str, Any]:
    """What the caches of a broker have, who read from which, and how large the warm cache must be. ``stats`` are those
    of the shards.
    """
    reports = [msgspec.convert(one, CacheReport) for one in queries.ask_all(CACHE, None) if one is not None]
    blocks: dict[str, int] = {}
    evicted: dict[str, int] = {}
    for report in reports:
        for source, count in report.served.items():
            blocks[source] = blocks.get(source, 0) + count
        for reason, count in report.evicted.items():
            evicted[reason] = evicted.get(reason, 0) + count

    def total(name: str) -> int:
        return sum(one.counter(name).value for one in stats)

    reads = [
        ("log cache", "reads", total("cache_hits")),
        ("local segments", "reads", total("cache_misses")),
        ("archive", "reads", total("archive_reads")),
        ("blocks in memory", "blocks", blocks.get("memory", 0)),
        ("warm cache", "blocks", blocks.get("hot_tier", 0)),
        ("object store", "blocks", blocks.get("store", 0)),
    ]
    size_bytes_max = settings.cache_max_size_bytes if settings.cache_type != "none" else 0
    needed = needed_bytes([gap for report in reports for gap in report.gaps])
    return {
        "type": settings.cache_type,
        "policy": settings.cache_eviction_policy,
        "fill": settings.cache_fill if settings.cache_warmup else "write",
        "is_on": all(one.is_on for one in reports),
        "size_bytes_max": size_bytes_max,
        "size_bytes": sum(one.size_bytes for one in reports),
        "blocks": sum(one.blocks for one in reports),
        "evicted": evicted,
        "dropped_fills": sum(one.dropped_fills for one in reports),
        "served": [{"by": by, "unit": unit, "count": count} for by, unit, count in reads],
        "groups": [
            {"group": number, "needed_bytes": size, "fits": size <= size_bytes_max}
            for number, size in enumerate(needed, start=2)
        ],
    }


def prepare_topics(
    queries: ShardQueries, disk: Disk, data_dir: str, url: str, names: list[str]
) -> list[dict[str, Any]]:
    """Write the logs of topics that the store describes, with what is archived of them; of all of them without
    ``names``. Of several topics of one name the newest counts, and the result names the others; a name that is ``id:``
    and a topic id chooses one. The result says of each topic how many records it has, or why it is not prepared.
    Called on a thread that may block.

    Raises:
        Rejected: the store does not describe a topic that was named.
        Unavailable: the store.
    """
    store = open_store(url, _STORE_PATIENCE_S)
    view = StoreView(store)
    try:
        in_use = topics_in_use(view)
        results: list[dict[str, Any]] = []
        for topic, others in _described(store, names):
            result: dict[str, Any] = {"topic": topic.name, "topic_id": topic.topic_id, "partitions": topic.partitions}
            result["others"] = [{"topic_id": one.topic.topic_id, "written_ms": one.written_ms} for one in others]
            try:
                if any(queries.ask_all(KNOWN, topic.topic_id)):
                    raise Rejected(f"the topic {topic.name} is here already", ErrorCode.TOPIC_ALREADY_EXISTS)
                if (node := in_use.get(bytes.fromhex(topic.topic_id))) is not None:
                    raise Rejected(
                        f"the write-ahead log of broker {node} in the store has records of {topic.name} and may still "
                        f"be written: restart broker {node}, or start another one with this id, and recover again"
                    )
                forget_topic(disk, data_dir, uuid.UUID(topic.topic_id))
                result["records"] = _write_logs(view, disk, data_dir, topic)
            except MillstreamError as error:
                result["error"] = error.message
            results.append(result)
        return results
    finally:
        store.close()


def recover_topics(queries: ShardQueries, url: str, names: list[str]) -> list[dict[str, Any]]:
    """Create topics that every broker has prepared. The result says of each what went wrong, if anything did. Raises as
    `prepare_topics`.
    """
    store = open_store(url, _STORE_PATIENCE_S)
    try:
        described = _described(store, names)
    finally:
        store.close()
    results: list[dict[str, Any]] = []
    for topic, _ in described:
        result: dict[str, Any] = {"topic": topic.name, "topic_id": topic.topic_id}
        wanted = (topic.name, topic.topic_id, topic.partitions, topic.configs, topic.replicas)
        try:
            queries.ask_all(RECREATE, wanted, _TIMEOUT_MS * 1000)
        except MillstreamError as error:
            result["error"] = error.message
        results.append(result)
    return results


def _described(store: ObjectStore, names: list[str]) -> list[tuple[TopicDescription, list[StoredTopic]]]:
    """The topics of those names, or of all that the store describes, each with the others of its name."""
    stored = stored_topics(store)
    described = {one.topic.name: one for one in stored}  # of one name the newest
    chosen = described | {_BY_ID + one.topic.topic_id: one for one in stored}
    missing = [name for name in names if name not in chosen]
    if missing:
        known = ", ".join(sorted(described)) or "no topic"
        raise Rejected(
            f"{store.url} has nothing of the topic {missing[0]}; it has {known}", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
    found = [chosen[name] for name in names or sorted(described)]
    return [
        (one.topic, [other for other in stored if other.topic.name == one.topic.name and other is not one])
        for one in found
    ]


def _write_logs(view: StoreView, disk: Disk, data_dir: str, topic: TopicDescription) -> int:
    """Make the log of each partition of a topic that is not here; the number of records that they have."""
    topic_id = bytes.fromhex(topic.topic_id)
    records = 0
    for index in range(topic.partitions):
        owner = ArchiveId(uuid.UUID(topic.topic_id), index)
        events = topic.configs.get("topic.kind") == "events"
        directory = log_directory(data_dir, topic_id, topic.name, PartitionIndex(index), events=events)
        restored = restore(view, disk, owner, directory, time.time_ns() // 1_000_000)
        if restored is not None:
            records += restored.records
    return records
