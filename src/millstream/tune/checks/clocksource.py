"""The clock that time is read from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.finding import HOST, Check, Seen, Write, good, impossible, off

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

_AT: Final = "sys/devices/system/clocksource/clocksource0"
_CHEAP: Final = ("tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page")
"""Read in user space (vDSO), without a system call."""


def _look(facts: Facts) -> Seen:
    current = facts.text(f"{_AT}/current_clocksource")
    if current is None:
        return impossible("this kernel does not say which clock it uses")
    if current in _CHEAP:
        return good(current)
    better = [one for one in _CHEAP if one in facts.choices(f"{_AT}/available_clocksource")]
    if not better:
        return impossible(f"{current} is used, and no clock that is read in user space is offered")
    if facts.in_container:
        return impossible(f"{current} is used; {HOST}")
    return off(current, better[0], "", Write(f"{_AT}/current_clocksource", f"{better[0]}\n"))


CHECK = Check(
    "clocksource",
    "The reactor reads the clock at each callback; a clock that needs a system call costs it several per cent.",
    _look,
    ("clocksource",),
)
