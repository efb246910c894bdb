"""Who the node is and what of the machine it may use."""

from __future__ import annotations

import os

from millstream.config.forms import INT64_MAX, Boolean, Choice, Integer, Text
from millstream.config.property import Property

_GIB = 2**30
_MIB = 2**20


def default_memory_bytes() -> int:
    """A quarter of the memory that this process may use (RAM, or the control group's limit if lower), at most 2 GiB."""
    usable = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as limit:
            usable = min(usable, int(limit.read()))
    except (OSError, ValueError):
        pass  # no control group, or the word "max"
    return max(min(usable // 4, 2 * _GIB) // _MIB * _MIB, 64 * _MIB)


def default_shards() -> int:
    """The cores that this process may run on."""
    return len(os.sched_getaffinity(0))


class NodeProperties:
    """Identity, data directory, cores, memory, and the watch over them."""

    data_dir = Property(
        "data.dir",
        Text("a directory", required=True),
        "millstream-data",
        doc="Directory of everything that is kept: write-ahead log, segments, controller log. One broker at a time; "
        "created if missing.",
        aliases=("log.dirs", "log.dir"),
    )
    node_id = Property(
        "node.id", Integer(0), 0, doc="Kafka's id of this broker, unique in its cluster.", aliases=("broker.id",)
    )
    rack = Property("broker.rack", Text("a name"), "", doc="Where the node stands, shown to clients; empty is unknown.")
    shards = Property(
        "shards",
        Integer(1, 256),
        compute=default_shards,
        default_doc="number of cores",
        doc="Processes that serve partitions, one core each. May change between two starts.",
        example="4",
    )
    shard_pinning = Property(
        "shards.pin",
        Boolean(),
        True,
        doc="Pin each shard's process to its core. Turn it off where several brokers share one machine.",
    )
    shard_realtime = Property(
        "shards.realtime",
        Boolean(),
        False,
        doc="Run the shards and the writers of their logs at real-time priority, before everything else that has none, "
        "the kernel's housekeeping too. For machines that do little else; needs root, CAP_SYS_NICE or `ulimit -r 1`.",
    )
    memory_bytes = Property(
        "memory.bytes",
        Integer(64 * _MIB, INT64_MAX, unit="bytes"),
        compute=default_memory_bytes,
        default_doc="a quarter of RAM, at most 2 GiB",
        doc="Memory for everything that grows with load, over all shards: receive buffers, log cache, answers. Pages "
        "are touched when first used.",
        example="512MiB",
    )
    stall_limit_ms = Property(
        "stall.limit.ms",
        Integer(1, unit="ms"),
        100,
        doc="A shard that does not come back to its loop for this long has its stack written to the log.",
    )
    shutdown_timeout_ms = Property(
        "shutdown.timeout.ms",
        Integer(100, unit="ms"),
        4_500,
        doc="Time for draining and the last checkpoint after SIGTERM; after it the broker stops as it is, which loses "
        "nothing that was acknowledged.",
    )
    logging_level = Property(
        "logging.level",
        Choice("debug", "info", "warning", "error"),
        "info",
        doc="The least important line that is written to stderr; WARN and ERROR lines are always written.",
    )
    internal_arena_poison = Property(
        "internal.arena.poison",
        Boolean(),
        False,
        doc="Overwrite freed memory fragments, so that a test sees who still reads them.",
        hidden=True,
    )
    internal_shard_hook = Property(
        "internal.shard.hook",
        Text("module:callable"),
        "",
        doc="Called with every shard's node before it serves; tests observe or break a shard with it.",
        hidden=True,
    )
