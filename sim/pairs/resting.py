"""What must come to rest when no fault is left and no client asks for anything: appends, transactions, uploads, local
copies, retention, what is parked, and memory.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from millstream.iobuf.arena import MemoryClass
from millstream.partition.events.partition import EventsPartition
from millstream.partition.partition import Gate, Partition
from millstream.storage.messages.commands import DataFetched, EventsFed, Found, Inspected, ReadDone
from sim.engine.objects import Faults
from sim.engine.violation import Violation
from sim.pairs.world import MINUTE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sim.pairs.truth import Truth
    from sim.pairs.world import World

_LOCAL_BYTES: Final = 4_000
"""What an archived partition may keep on the disk at rest: a segment, and what is added for its index."""


def rest(world: World) -> None:
    """Every fault ends, and what waits is done."""
    world.heal()
    world.set_store(Faults())
    world.slow_us = 2_000
    world.sharing.leave()
    waited = 0
    while True:
        world.wait(world.look_us)
        waited += world.look_us
        busy = list(_busy(world))
        if not busy:
            break
        if waited > world.rest_us:
            raise Violation(f"after {waited // MINUTE} minutes: {'; '.join(busy)}")


def _busy(world: World) -> Iterator[str]:
    """What is not at rest."""
    for topic in world.controller.topics.values():
        for index in range(len(topic.partitions)):
            partition = world.serving(topic.name, index)
            reasons = (
                _waits(partition),
                _archiving(world, partition),
                _late_retention(world, partition),
                world.lag(topic.name, index),
            )
            yield from (f"{topic.name}/{index} {reason}" for reason in reasons if reason)
    if waiting := world.waiting_reads():
        yield f"{waiting} reads are not answered"
    for broker in world.lives():
        yield from _held(broker)


def _waits(partition: Partition) -> str:
    """What is parked at a partition; empty if nothing is."""
    parked = {
        "appends": partition.waiters.acks or partition.waiters.own_acks or partition.gate & Gate.ORDER,
        "trims": partition.waiters.trims,
        "readers": partition.waiters.readers,
        "requests": partition.waiters.requests,
    }
    return ", ".join(f"{what} wait" for what, waiting in parked.items() if waiting)


def _archiving(world: World, partition: Partition) -> str:
    """What is open, to be archived, or kept though it is archived; empty if nothing is."""
    if partition.last_stable_offset < partition.high_watermark:
        return f"has an open transaction: {partition.last_stable_offset}"
    archive = partition.archive
    if partition.config.storage_mode == "local":
        return ""
    if archive is None:
        return "has no archive"
    if archive.archive.end_offset < partition.log.first_local_offset:
        return "has a hole between archive and files"
    if archive.start.saved < partition.log.start_offset:
        return f"starts at {partition.log.start_offset}, and in the store at {archive.start.saved}"
    shared = partition.config.is_shared
    if not shared and (archive.attempts.busy or archive.next_upload() is not None):
        return f"is not archived: {archive.archive.end_offset} of {partition.high_watermark}"
    if shared and archive.archive.end_offset < partition.high_watermark:
        return f"is not uploaded: {archive.archive.end_offset} of {partition.high_watermark}"
    # The age of a copy is a wall time: a clock that was set back adds to it.
    kept = partition.config.retention_local_target_ms <= 1_000 and not world.clock_is_back
    if kept and partition.log.size_bytes > _LOCAL_BYTES and not partition.config.has_events:
        return f"keeps {partition.log.size_bytes} bytes on the disk that are archived"
    return ""


def _late_retention(world: World, partition: Partition) -> str:
    """What retention by time should have removed; empty if nothing."""
    config, truth = partition.config, _truth(world, partition)
    if config.retention_ms < 0 or "delete" not in config.cleanup_policy or config.has_events:
        return ""
    limit = world.node_of(partition.name, partition.index).shard.reactor.wall_ms() - config.retention_ms
    left = [offset for offset in truth.acknowledged if offset >= partition.log.start_offset]
    first = partition.log.files.segments.active.base_offset
    kept = [truth.acknowledged[offset].timestamp for offset in truth.acknowledged]
    if any(at is None or at > limit for at in kept):
        return ""
    old = [offset for offset in left if offset < first]
    return f"has retention.ms={config.retention_ms}, and the offsets {old[:3]}" if old else ""


def _truth(world: World, partition: Partition) -> Truth:
    return world.truths[partition.topic_id, partition.index]


def _held(broker: Any) -> Iterator[str]:
    """What a broker holds for requests that are over. The log cache keeps what it has room for."""
    shard, storage, admission = broker.shard, broker.shard.storage, broker.admission
    arena, cache = shard.arena, storage.memory
    if not admission.is_idle:
        yield "appends are delayed"
    awaited = {kind for kind, _, _ in storage.worker.calls.values()}
    for kind in (ReadDone, EventsFed, DataFetched, Found, Inspected):
        if kind in awaited:
            yield f"the worker has yet to send {kind.__name__}"
    for partition in broker.table.by_group.values():
        if isinstance(partition, EventsPartition) and not partition.pools.at_rest:
            yield f"{partition.log.name} holds buffers of its pools for requests that are over"
    if arena.live_fragments != cache._live:
        yield f"the arena has {arena.live_fragments} fragments, the log cache {cache._live}: {arena.live_by_size()}"
    for each in MemoryClass:
        if each is not MemoryClass.CACHE and (reserved := arena.reserved_bytes(each)):
            yield f"{reserved} bytes of {each.name} are reserved"
