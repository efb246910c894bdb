"""All checks, in the order in which they are shown. A file has one subject; none of them writes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.checks import (
    absent,
    backlog,
    clocksource,
    control_group,
    dirty_pages,
    disks,
    file_system,
    governor,
    huge_pages,
    interrupts,
    limits,
    numa,
    swappiness,
    system,
)
from millstream.tune.finding import Finding

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

CHECKS: Final = (
    absent.AIO,
    absent.BALLAST,
    clocksource.CHECK,
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
    swappiness.CHECK,
    huge_pages.CHECK,
    limits.FILES,
    limits.LOCKED,
    limits.REALTIME,
    backlog.ACCEPT,
    backlog.SYN,
    dirty_pages.CHECK,
    numa.BALANCING,
    numa.ARENAS,
    control_group.MEMORY,
    control_group.CORES,
    system.KERNEL,
    file_system.CHECK,
    system.CLOCK,
    system.INTERPRETER,
    system.OPENSSL,
    system.INSTRUCTIONS,
)


def look(facts: Facts) -> list[Finding]:
    """What every check sees."""
    return [Finding(one.name, one.rpk, one.why, one.advice, one.look(facts)) for one in CHECKS]
