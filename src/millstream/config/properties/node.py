"""Settings of the node's identity, and of its share of the machine."""

from __future__ import annotations

from millstream.config.forms import INT64_MAX, Boolean, Choice, Integer, Text
from millstream.config.machine import owns_cores, usable_cores, usable_memory_bytes
from millstream.config.property import Property

_GIB = 2**30
_MIB = 2**20


def default_memory_bytes() -> int:
    """A quarter of the memory that this process may use, at most 2 GiB. In bytes."""
    return max(min(usable_memory_bytes() // 4, 2 * _GIB) // _MIB * _MIB, 64 * _MIB)


class NodeProperties:
    """Identity, data directory, cores, memory, and their supervision."""

    data_dir = Property(
        "data.dir",
        Text("a directory", required=True),
        "millstream-data",
        doc="Data directory: write-ahead log, segments, controller log. Only one broker can use it at a time. It is "
        "created if missing.",
        aliases=("log.dirs", "log.dir"),
    )
    node_id = Property(
        "node.id", Integer(0), 0, doc="Kafka's id of this broker, unique in its cluster.", aliases=("broker.id",)
    )
    rack = Property("broker.rack", Text("a name"), "", doc="Rack of the node, shown to clients. Empty means unknown.")
    shards = Property(
        "shards",
        Integer(1, 256),
        compute=usable_cores,
        default_doc="number of cores, or of whole cores by the control group's quota; at most one for each 32 MiB of "
        "memory.bytes",
        doc="Number of processes that serve partitions, one core each. May change between two starts.",
        example="4",
    )
    shard_pinning = Property(
        "shards.pin",
        Boolean(),
        compute=owns_cores,
        default_doc="true; false with fewer cores by a quota than the process may run on",
        doc="Whether each shard's process is pinned to its core. Turn it off if several brokers share one machine, or "
        "if a container shares its cores with others.",
    )
    shard_realtime = Property(
        "shards.realtime",
        Boolean(),
        False,
        doc="Whether the shards and the writers of their logs run at real-time priority, ahead of ordinary "
        "processes and the kernel's housekeeping. For machines that do little else. Needs root, CAP_SYS_NICE or "
        "`ulimit -r 1`.",
    )
    memory_bytes = Property(
        "memory.bytes",
        Integer(64 * _MIB, INT64_MAX, unit="bytes"),
        compute=default_memory_bytes,
        default_doc="a quarter of RAM, at most 2 GiB",
        doc="Memory budget over all shards: receive buffers, log cache, responses. A page takes memory when it is "
        "first used.",
        example="512MiB",
    )
    memory_lock = Property(
        "memory.lock",
        Boolean(),
        False,
        doc="Whether memory.bytes is kept in RAM from the start on. It is taken as a whole then, and never swapped "
        "out. Needs root, CAP_IPC_LOCK or `ulimit -l` above memory.bytes; without the right the broker does not start.",
    )
    stall_limit_ms = Property(
        "stall.limit.ms",
        Integer(1, unit="ms"),
        100,
        doc="Duration of a callback after which the shard's stack is logged, at most 8 times in 10 s. A limit of 1 ms "
        "costs the supervisor some per cent of a core.",
    )
    shutdown_timeout_ms = Property(
        "shutdown.timeout.ms",
        Integer(100, unit="ms"),
        4_500,
        doc="Time limit for an orderly stop after SIGTERM (draining and the last checkpoint). Beyond it the broker "
        "stops at once, which loses no acknowledged record.",
    )
    logging_level = Property(
        "logging.level",
        Choice("debug", "info", "warning", "error"),
        "info",
        doc="Lowest level of the lines written to stderr. WARN and ERROR lines are always written.",
    )
    logging_format = Property(
        "logging.format",
        Choice("text", "json"),
        "text",
        doc="Form of the lines written to stderr: text for people, or one JSON object a line (time, level, process, "
        "place, room, message, traceback) for programs that gather logs.",
    )
    internal_arena_poison = Property(
        "internal.arena.poison",
        Boolean(),
        False,
        doc="Overwrite freed memory fragments, so that a test finds code that still reads them.",
        hidden=True,
    )
    internal_shard_hook = Property(
        "internal.shard.hook",
        Text("module:callable"),
        "",
        doc="Called with every shard's node before it serves. Tests observe or break a shard with it.",
        hidden=True,
    )
