"""Swapping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.tune.finding import Check, Seen, sysctl, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts


def _look(facts: Facts) -> Seen:
    if len((facts.text("proc/swaps") or "").splitlines()) < 2:
        return unneeded("this machine has no swap")
    return sysctl(facts, "vm.swappiness", 1, lambda value: value <= 1)


CHECK = Check(
    "swappiness",
    "A page of the log cache or of the interpreter that was swapped out stops the shard while it comes back.",
    _look,
    ("swappiness",),
)
