"""The kernel, the interpreter, the processor's instructions, the clock, and the source of time."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from millstream.tune.finding import HOST, Check, Seen, Write, good, impossible, off

if TYPE_CHECKING:
    from millstream.tune.facts import Facts


def _kernel(facts: Facts) -> Seen:
    release = facts.text("proc/sys/kernel/osrelease") or ""
    found = re.match(r"(\d+)\.(\d+)", release)
    if found is None:
        return impossible("the kernel does not say its release")
    if (int(found[1]), int(found[2])) >= (5, 15):
        return good(release)
    return off(release, "5.15 or later", "older kernels are not tested")


def _interpreter(facts: Facts) -> Seen:
    if facts.broker.optimised:
        return good("built with profile-guided optimisation")
    return off("built without profile-guided optimisation", "--enable-optimizations", "take the distribution's Python")


def _openssl(facts: Facts) -> Seen:
    version = ".".join(map(str, facts.broker.openssl))
    return (
        good(version) if facts.broker.openssl >= (3, 2) else off(version, "3.2 or later", "handshakes are slow before")
    )


def _instructions(facts: Facts) -> Seen:
    flags = facts.cpu_flags
    if not flags:
        return impossible("the processor's flags cannot be read")
    missing = [
        what for what, names in (("AES", {"aes"}), ("CRC-32C", {"sse4_2", "crc32"})) if not flags.intersection(names)
    ]
    if missing:
        return off(f"no {' and no '.join(missing)}", "both", "checksums or TLS run in software, several times slower")
    return good("AES and CRC-32C")


def _clock(facts: Facts) -> Seen:
    if facts.exists("run/systemd/timesync/synchronized") or facts.exists("run/chrony"):
        return good("kept by a daemon")
    if facts.in_container:
        return impossible("the host keeps the clock")
    return off("no time daemon found", "systemd-timesyncd or chrony", "systemctl enable --now systemd-timesyncd")


KERNEL = Check("kernel", "The broker uses system calls of recent kernels.", _kernel)
INTERPRETER = Check("interpreter", "Profile-guided optimisation is worth about a tenth of the CPU.", _interpreter)
OPENSSL = Check("openssl", "OpenSSL 3.0 and 3.1 verify certificates slowly.", _openssl)
INSTRUCTIONS = Check("instructions", "Each batch is summed, and TLS encrypts each byte.", _instructions)
CLOCK = Check("clock", "Timestamps of records, certificates and tokens rely on the time of day.", _clock)


_CLOCKS: Final = "sys/devices/system/clocksource/clocksource0"
_CHEAP: Final = ("tsc", "arch_sys_counter", "kvm-clock", "hyperv_clocksource_tsc_page")
"""Read in user space (vDSO), without a system call."""


def _clock_source(facts: Facts) -> Seen:
    current = facts.text(f"{_CLOCKS}/current_clocksource")
    if current is None:
        return impossible("this kernel does not say which clock it uses")
    if current in _CHEAP:
        return good(current)
    better = [one for one in _CHEAP if one in facts.choices(f"{_CLOCKS}/available_clocksource")]
    if not better:
        return impossible(f"{current} is used, and no clock that is read in user space is offered")
    if facts.in_container:
        return impossible(f"{current} is used; {HOST}")
    return off(current, better[0], "", Write(f"{_CLOCKS}/current_clocksource", f"{better[0]}\n"))


CLOCK_SOURCE = Check(
    "clocksource",
    "The reactor reads the clock at each callback; a clock that needs a system call costs it several per cent.",
    _clock_source,
    ("clocksource",),
)
