"""Tuners of rpk for what this program does not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.tune.finding import Check, Seen, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts


def _aio(facts: Facts) -> Seen:
    _ = facts
    return unneeded("the broker uses no Linux AIO")


def _ballast(facts: Facts) -> Seen:
    _ = facts
    return unneeded("storage.reserve.bytes keeps space for the broker's own writes")


def _coredump(facts: Facts) -> Seen:
    return unneeded(
        "LimitCORE=0 in the unit: a dump would hold records; the stack of a crash is in the log",
        facts.text("proc/sys/kernel/core_pattern") or "",
    )


AIO = Check("aio_events", "Events of asynchronous I/O.", _aio, ("aio_events",))
BALLAST = Check("ballast_file", "A file to delete when the disk is full.", _ballast, ("ballast_file",))
COREDUMP = Check("coredump", "Where the kernel writes a dump.", _coredump, ("coredump",))
