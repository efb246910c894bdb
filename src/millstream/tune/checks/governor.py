"""The clock rate of cores, their sleep, and their siblings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.finding import HOST, Check, Seen, Write, good, impossible, off, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

_AT: Final = "sys/devices/system/cpu"


def _governor(facts: Facts) -> Seen:
    found = {core: facts.text(f"{_AT}/cpu{core}/cpufreq/scaling_governor") for core in facts.cores}
    others = {core: value for core, value in found.items() if value not in (None, "performance")}
    if not any(found.values()):
        return impossible(
            "the hypervisor or the firmware sets the clock rate" if facts.in_guest else "no cpufreq driver"
        )
    if not others:
        return good("performance")
    if facts.in_container:
        return impossible(f"{next(iter(others.values()))} is set; {HOST}")
    writes = [Write(f"{_AT}/cpu{core}/cpufreq/scaling_governor", "performance\n") for core in others]
    return off(", ".join(sorted({str(one) for one in others.values()})), "performance", "", *writes)


def _idle(facts: Facts) -> Seen:
    driver = facts.text(f"{_AT}/cpuidle/current_driver")
    if driver in (None, "none"):
        return unneeded("the hypervisor decides" if facts.in_guest else "no driver puts cores to sleep")
    slow = [
        state
        for state in facts.names(f"{_AT}/cpu0/cpuidle")
        if (facts.number(f"{_AT}/cpu0/cpuidle/{state}/latency") or 0) > 50
        and facts.number(f"{_AT}/cpu0/cpuidle/{state}/disable") != 1
    ]
    if not slow:
        return good(f"{driver}: no state takes longer than 50 µs to leave")
    return off(
        f"{driver}: {len(slow)} states take longer than 50 µs to leave",
        "a process that holds /dev/cpu_dma_latency at 50",
        "costs power; 'tuned-adm profile latency-performance' does it",
    )


def _siblings(facts: Facts) -> Seen:
    value = facts.text(f"{_AT}/smt/active")
    if value is None:
        return impossible("this kernel does not say whether cores have siblings")
    if value != "1":
        return good("each core stands alone")
    if facts.broker.shards <= len(facts.cores) // 2:
        return good(f"{facts.broker.shards} shards on {len(facts.cores) // 2} cores with siblings")
    return unneeded("shards on both siblings of a core share it; more throughput, longer tails. Your choice: shards")


GOVERNOR = Check(
    "cpu", "A core that was slowed down while idle answers its next request late.", _governor, ("cpu",), True
)
IDLE = Check("cpu_idle", "Waking a core from deep sleep takes longer than a request.", _idle, ("cpu",), True)
SIBLINGS = Check("smt", "Two shards on siblings of one core slow each other down.", _siblings, ("cpu",))
