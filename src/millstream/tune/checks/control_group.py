"""The control group of the process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.config.forms import human_size
from millstream.config.machine import memory_limit_bytes
from millstream.tune.finding import Check, Seen, good, off, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

_MIB = 2**20


def _memory(facts: Facts) -> Seen:
    limit = memory_limit_bytes(facts.root)
    wanted = facts.broker.memory_bytes * 3 // 2 + 256 * _MIB
    if limit is None:
        return unneeded("no limit of memory")
    if limit >= wanted:
        return good(human_size(limit))
    return off(
        human_size(limit),
        human_size(wanted),
        "raise the group's limit, or lower memory.bytes: the kernel kills above it",
    )


def _cores(facts: Facts) -> Seen:
    cpuset = facts.text("sys/fs/cgroup/cpuset.cpus.effective")
    if facts.broker.shards < len(facts.cores):
        return good(f"{facts.broker.shards} shards on {len(facts.cores)} cores; the others are left for the rest")
    if facts.broker.pinned and cpuset:
        return unneeded("every core has a shard: keep other programs off this machine, or give fewer shards", cpuset)
    return unneeded("every core has a shard")


MEMORY = Check("cgroup_memory", "A control group's limit counts the interpreter and the page cache as well.", _memory)
CORES = Check("cpuset", "Work of others on a shard's core delays what waits there.", _cores)
