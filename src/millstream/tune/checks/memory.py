"""Swapping, huge pages, unwritten pages of files, and memory nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.finding import Check, Seen, good, off, sysctl, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts


def _swapping(facts: Facts) -> Seen:
    if len((facts.text("proc/swaps") or "").splitlines()) < 2:
        return unneeded("this machine has no swap")
    return sysctl(facts, "vm.swappiness", 1, lambda value: value <= 1)


SWAPPING = Check(
    "swappiness",
    "A page of the log cache or of the interpreter that was swapped out stops the shard while it comes back.",
    _swapping,
    ("swappiness",),
)


_ONE = "this machine has one memory node"


def _balancing(facts: Facts) -> Seen:
    if len(facts.nodes) < 2:
        return unneeded(_ONE)
    return sysctl(facts, "kernel.numa_balancing", 0, lambda value: value == 0)


def _arenas(facts: Facts) -> Seen:
    if len(facts.nodes) < 2:
        return unneeded(_ONE)
    if facts.broker.pinned:
        return good("each shard's memory is bound to the node of its core")
    return off("shards.pin=false", "shards.pin=true", "without pinned shards no node is nearer than the others")


BALANCING = Check(
    "numa_balancing",
    "The kernel unmaps pages to see who uses them; shards are pinned, so it learns nothing.",
    _balancing,
)
ARENAS = Check("numa_arenas", "Memory of another node costs about twice as much to read.", _arenas)


def _huge_pages(facts: Facts) -> Seen:
    value = facts.chosen("sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return unneeded("the broker's memory does not ask for huge pages: measured, they bring too little", value or "")


HUGE_PAGES = Check(
    "transparent_hugepages", "Fewer misses when addresses are translated.", _huge_pages, ("transparent_hugepages",)
)


_DIRTY_BYTES: Final = 64 << 20


def _dirty_pages(facts: Facts) -> Seen:
    return sysctl(facts, "vm.dirty_background_bytes", _DIRTY_BYTES, lambda value: 0 < value <= 4 * _DIRTY_BYTES)


DIRTY_PAGES = Check(
    "dirty_background_bytes",
    "Segment files are written without sync. Gigabytes of them that the kernel writes in one go delay the syncs of the "
    "log; 0 means a tenth of the memory.",
    _dirty_pages,
    advice=True,
)
