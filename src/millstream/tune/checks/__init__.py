"""All checks, in the order in which they are shown. A file has one subject; none of them writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.checks import absent, disks, governor, interrupts, limits, memory, system
from millstream.tune.finding import Finding

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

CHECKS: Final = (
    absent.AIO,
    absent.BALLAST,
    system.CLOCK_SOURCE,
    absent.COREDUMP,
    governor.GOVERNOR,
    governor.IDLE,
    governor.SIBLINGS,
    interrupts.DISK_IRQ,
    disks.MERGES,
    disks.SCHEDULER,
    disks.CACHE,
    disks.TRIM,
    interrupts.NET_IRQ,
    interrupts.STEERING,
    memory.SWAPPING,
    memory.HUGE_PAGES,
    limits.FILES,
    limits.LOCKED,
    limits.REALTIME,
    limits.ACCEPT,
    limits.SYN,
    memory.DIRTY_PAGES,
    memory.BALANCING,
    memory.ARENAS,
    limits.MEMORY,
    limits.CORES,
    system.KERNEL,
    disks.FILE_SYSTEM,
    system.CLOCK,
    system.INTERPRETER,
    system.OPENSSL,
    system.INSTRUCTIONS,
)


def look(facts: Facts) -> list[Finding]:
    """What every check sees."""
    return [Finding(one.name, one.rpk, one.why, one.advice, one.look(facts)) for one in CHECKS]
