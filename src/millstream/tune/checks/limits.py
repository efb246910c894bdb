"""Limits of the process and of its control group, and of connections that are not yet accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.config.forms import human_size
from millstream.config.machine import memory_limit_bytes
from millstream.tune.finding import Check, Seen, good, impossible, off, sysctl, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts


def _least(facts: Facts, words: str, least: int, how: str) -> Seen:
    value = facts.limit(words)
    if value is None:
        return impossible("the limits of this process cannot be read")
    if value < 0 or value >= least:
        return good("unlimited" if value < 0 else value)
    return off(value, least, how)


def _files(facts: Facts) -> Seen:
    return _least(facts, "Max open files", 65_536, "LimitNOFILE=65536 in the unit, or 'ulimit -Hn 65536'")


def _locked(facts: Facts) -> Seen:
    if not facts.broker.locks_memory:
        return unneeded("memory.lock is false")
    return _least(facts, "Max locked memory", facts.broker.memory_bytes, "LimitMEMLOCK=infinity in the unit")


def _realtime(facts: Facts) -> Seen:
    if not facts.broker.realtime:
        return unneeded("shards.realtime is false")
    return _least(facts, "Max realtime priority", 1, "LimitRTPRIO=1 in the unit, without RestrictRealtime")


FILES = Check("nofile", "Each connection and each open segment takes a descriptor.", _files)
LOCKED = Check("memlock", "memory.lock keeps the whole budget in RAM.", _locked)
REALTIME = Check("rtprio", "shards.realtime needs the right to it.", _realtime)


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


def _accepted(facts: Facts) -> Seen:
    return sysctl(facts, "net.core.somaxconn", 4096, lambda value: value >= 4096, of_host=False)


def _half_open(facts: Facts) -> Seen:
    return sysctl(facts, "net.ipv4.tcp_max_syn_backlog", 4096, lambda value: value >= 4096, of_host=False)


ACCEPT = Check(
    "somaxconn", "Clients that return at once after a restart are refused when the accept queue is full.", _accepted
)
SYN = Check("syn_backlog", "The same holds for connections whose handshake is not complete.", _half_open)
