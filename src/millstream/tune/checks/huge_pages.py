"""Huge pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.tune.finding import Check, Seen, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts


def _look(facts: Facts) -> Seen:
    value = facts.chosen("sys/kernel/mm/transparent_hugepage/shmem_enabled")
    return unneeded("the broker's memory does not ask for huge pages: measured, they bring too little", value or "")


CHECK = Check("transparent_hugepages", "Fewer misses when addresses are translated.", _look, ("transparent_hugepages",))
