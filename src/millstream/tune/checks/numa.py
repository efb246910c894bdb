"""Memory nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.tune.finding import Check, Seen, good, off, sysctl, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

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
