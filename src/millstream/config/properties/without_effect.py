"""Settings of Apache Kafka for machinery that Millstream does not have: accepted and shown, without effect.

A configuration that was written for Kafka, or a tool that sizes Kafka's thread pools, so meets no error. Each says why
it has no effect; the broker logs those that are set at its start.
"""

from __future__ import annotations

from millstream.config.forms import INT32_MAX, INT64_MAX, Integer
from millstream.config.property import Property

_SHARDS = "shards are processes with one thread each; `shards` sets their number."
_WAITING = "a request that waits is answered by the event that it waits for, and is removed then."


def _threads(name: str, default: int) -> Property[int]:
    return Property(name, Integer(1, INT32_MAX), default, doc=f"No effect: {_SHARDS}", live=True, effect=False)


class WithoutEffectProperties:
    """Settings of Apache Kafka that are accepted and have no effect."""

    background_threads = _threads("background.threads", 10)
    num_io_threads = _threads("num.io.threads", 8)
    num_network_threads = _threads("num.network.threads", 3)
    num_recovery_threads_per_data_dir = _threads("num.recovery.threads.per.data.dir", 2)
    num_replica_fetchers = Property(
        "num.replica.fetchers",
        Integer(1, INT32_MAX),
        1,
        doc="No effect: leaders send to their followers, over one connection for each pair of shards.",
        live=True,
        effect=False,
    )
    log_cleaner_threads = Property(
        "log.cleaner.threads",
        Integer(0, INT32_MAX),
        1,
        doc="No effect: each shard has one cleaner, which `log.cleaner.cpu.percent` bounds.",
        live=True,
        effect=False,
    )
    log_cleaner_io_buffer_size = Property(
        "log.cleaner.io.buffer.size",
        Integer(0, INT32_MAX, unit="bytes"),
        524_288,
        doc="No effect: the cleaner reads and writes a mebibyte at a time.",
        live=True,
        effect=False,
    )
    group_coordinator_cached_buffer_max_bytes = Property(
        "group.coordinator.cached.buffer.max.bytes",
        Integer(524_288, INT32_MAX, unit="bytes"),
        1_048_588,
        doc="No effect: the coordinator's records are written like those of any topic.",
        live=True,
        effect=False,
    )
    group_coordinator_threads = Property(
        "group.coordinator.threads", Integer(1, INT32_MAX), 4, doc=f"No effect: {_SHARDS}", effect=False
    )
    group_coordinator_background_threads = Property(
        "group.coordinator.background.threads", Integer(1, INT32_MAX), 2, doc=f"No effect: {_SHARDS}", effect=False
    )
    queued_max_requests = Property(
        "queued.max.requests",
        Integer(1, INT32_MAX),
        500,
        doc="No effect: a shard reads a request when it has memory for it, and executes it at once.",
        effect=False,
    )
    queued_max_request_bytes = Property(
        "queued.max.request.bytes",
        Integer(-1, INT64_MAX, unit="bytes"),
        -1,
        doc="No effect: `memory.bytes` bounds what requests take.",
        effect=False,
    )
    socket_send_buffer_bytes = Property(
        "socket.send.buffer.bytes",
        Integer(-1, INT32_MAX, unit="bytes"),
        102_400,
        doc="No effect: the kernel sizes the buffers of sockets.",
        effect=False,
    )
    socket_receive_buffer_bytes = Property(
        "socket.receive.buffer.bytes",
        Integer(-1, INT32_MAX, unit="bytes"),
        102_400,
        doc="No effect: the kernel sizes the buffers of sockets.",
        effect=False,
    )
    fetch_purgatory_purge_interval_requests = Property(
        "fetch.purgatory.purge.interval.requests",
        Integer(-(1 << 31), INT32_MAX),
        1000,
        doc=f"No effect: {_WAITING}",
        effect=False,
    )
    producer_purgatory_purge_interval_requests = Property(
        "producer.purgatory.purge.interval.requests",
        Integer(-(1 << 31), INT32_MAX),
        1000,
        doc=f"No effect: {_WAITING}",
        effect=False,
    )
