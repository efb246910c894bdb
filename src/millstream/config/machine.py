"""What this process may use of the machine: cores and memory, by the kernel and by its control groups.

A container or a service usually sees every core of its host, and has a quota: so many microseconds of CPU in each
period. A process that starts a thread for each core that it sees is then stopped for most of each period. So a broker
has as many shards as its quota has whole cores. The quota is the least one of the process's own control group and of
the groups above it, which a container sees as one group at the root.

Both versions of control groups are read; files that are missing or not understood set no limit.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_GROUPS: Final = "sys/fs/cgroup"
_UNLIMITED: Final = 1 << 60
"""Version 1 of control groups writes no limit as a number near 2^63."""


def usable_cores(root: str = "/") -> int:
    """Number of cores that this process may use: those that it may run on (a cpuset is among the reasons), or fewer
    by a quota of CPU time. At least 1. ``root`` has ``proc`` and ``sys``.
    """
    quotas = [quota for place in _places(root, "cpu") if (quota := _quota(place)) is not None]
    return max(1, min([len(os.sched_getaffinity(0)), *map(int, quotas)]))


def owns_cores() -> bool:
    """Whether no quota makes this process share the cores that it may run on."""
    return usable_cores() == len(os.sched_getaffinity(0))


def usable_memory_bytes(root: str = "/") -> int:
    """Memory that this process may use: RAM, or the limit of a control group if that is lower."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = memory_limit_bytes(root)
    return memory if limit is None else min(memory, limit)


def memory_limit_bytes(root: str = "/") -> int | None:
    """The lowest limit of memory of this process's control groups; None without one."""
    limits: list[int] = []
    for place in _places(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            limits += [one for one in _numbers(os.path.join(place, name))[:1] if one < _UNLIMITED]
    return min(limits, default=None)


def _quota(place: str) -> float | None:
    """Cores by the quota of one control group; None without one."""
    found = _numbers(os.path.join(place, "cpu.max"))
    if not found:
        found = [
            *_numbers(os.path.join(place, "cpu.cfs_quota_us")),
            *_numbers(os.path.join(place, "cpu.cfs_period_us")),
        ]
    if len(found) != 2 or found[0] <= 0 or found[1] <= 0:
        return None
    return found[0] / found[1]


def _places(root: str, controller: str) -> Iterator[str]:
    """Directories of the process's control group for a controller, and of those above it, in both versions."""
    groups = os.path.join(root, _GROUPS)
    for line in _lines(os.path.join(root, "proc/self/cgroup")) or ["0::/"]:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = os.path.join(groups, controller) if controllers else groups
        place = os.path.normpath(top + os.path.join("/", path))
        while place.startswith(top):
            yield place
            place = os.path.dirname(place)


def _numbers(path: str) -> list[int]:
    """The whole numbers of a file of one line; empty if there is a word among them, such as ``max``."""
    lines = _lines(path)
    try:
        return [int(word) for word in lines[0].split()] if lines else []
    except ValueError:
        return []


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().splitlines()
    except (OSError, ValueError):
        return []


def nodes_of_cores(root: str = "/") -> dict[int, int]:
    """Memory node of each core; empty on a machine with one node."""
    base = os.path.join(root, "sys/devices/system/node")
    try:
        nodes = [name for name in os.listdir(base) if name.startswith("node") and name[4:].isdecimal()]
    except OSError:
        return {}
    found: dict[int, int] = {}
    for name in nodes if len(nodes) > 1 else []:
        for line in _lines(os.path.join(base, name, "cpulist")):
            for part in filter(None, line.split(",")):
                first, _, last = part.partition("-")
                if first.isdecimal() and (last or first).isdecimal():
                    found.update(dict.fromkeys(range(int(first), int(last or first) + 1), int(name[4:])))
    return found
