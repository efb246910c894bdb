"""Unwritten pages of files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.finding import Check, Seen, sysctl

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

_BYTES: Final = 64 << 20


def _look(facts: Facts) -> Seen:
    return sysctl(facts, "vm.dirty_background_bytes", _BYTES, lambda value: 0 < value <= 4 * _BYTES)


CHECK = Check(
    "dirty_background_bytes",
    "Segment files are written without sync. Gigabytes of them that the kernel writes in one go delay the syncs of the "
    "log; 0 means a tenth of the memory.",
    _look,
    advice=True,
)
