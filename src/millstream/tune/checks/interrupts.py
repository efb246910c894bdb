"""Interrupts of disks and network interfaces, and the cores that handle received packets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.finding import HOST, Check, Seen, Write, good, impossible, off, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

_FLOWS: Final = 32_768


def _spread(facts: Facts, devices: list[str], kind: str) -> Seen:
    """Interrupts of one device that all go to one core are spread over the cores, those without a shard first. A virtio
    device has them one directory above.
    """
    if len(facts.cores) < 2:
        return unneeded("there is one core")
    spread, writes, crowded = 0, list[Write](), list[str]()
    free = facts.cores[facts.broker.shards :] or facts.cores
    for device in devices:
        affinities = {
            irq: value
            for irq in facts.names(f"{device}/msi_irqs") or facts.names(f"{device}/../msi_irqs")
            if irq.isdecimal() and (value := facts.text(f"proc/irq/{irq}/smp_affinity_list")) is not None
        }
        if len(affinities) > 1 and len(set(affinities.values())) == 1 and next(iter(affinities.values())).isdecimal():
            crowded.append(device)
            writes += [
                Write(f"proc/irq/{irq}/smp_affinity_list", f"{free[place % len(free)]}\n")
                for place, irq in enumerate(sorted(affinities, key=int))
            ]
        spread += len(affinities) > 0
    if not spread:
        return impossible(f"no {kind} of this machine lists its interrupts")
    if not crowded:
        return good(f"several cores may handle the interrupts of {spread} {kind}{'s' if spread > 1 else ''}")
    if facts.in_container:
        return impossible(f"interrupts of a {kind} go to one core; {HOST}")
    return off(f"all interrupts of {len(crowded)} {kind}s go to one core", "spread", _irqbalance(facts), *writes)


def _irqbalance(facts: Facts) -> str:
    return "irqbalance moves them again: stop it, or ban them there" if facts.exists("run/irqbalance") else ""


def _disks(facts: Facts) -> Seen:
    if facts.disks and all(disk.startswith("nvme") for disk in facts.disks):
        return unneeded("the kernel gives each core its own queue and interrupt of an NVMe disk")
    return _spread(facts, [f"sys/block/{disk}/device" for disk in facts.disks], "disk")


def _nics(facts: Facts) -> Seen:
    return _spread(facts, [f"sys/class/net/{nic}/device" for nic in facts.nics], "interface")


def _steering(facts: Facts) -> Seen:
    """RPS and RFS for interfaces with one receive queue."""
    if len(facts.cores) < 2:
        return unneeded("there is one core")
    if not facts.nics:
        return impossible("no interface has a device")
    mask = f"{sum(1 << core for core in facts.cores):x}"
    single = {
        nic: queues[0]
        for nic in facts.nics
        if len(queues := [one for one in facts.names(f"sys/class/net/{nic}/queues") if one.startswith("rx-")]) == 1
    }
    if not single:
        return unneeded("each interface has several receive queues")
    writes: list[Write] = []
    for nic, queue in single.items():
        at = f"sys/class/net/{nic}/queues/{queue}"
        if not (facts.text(f"{at}/rps_cpus") or "").strip("0,"):
            writes.append(Write(f"{at}/rps_cpus", f"{mask}\n"))
            writes.append(Write(f"{at}/rps_flow_cnt", f"{_FLOWS // len(single)}\n"))
    if not writes:
        return good("packets of interfaces with one queue are handled on several cores")
    if facts.in_container:
        return impossible(f"packets are handled on one core; {HOST}")
    writes.append(Write("proc/sys/net/core/rps_sock_flow_entries", f"{_FLOWS}\n"))
    return off("packets are handled on one core", "on the core that reads them (RPS, RFS)", "", *writes)


DISK_IRQ = Check(
    "disk_irq", "One core that handles all interrupts serves its partitions late.", _disks, ("disk_irq",), True
)
NET_IRQ = Check("net_irq", "One core that handles all packets serves its partitions late.", _nics, ("net",), True)
STEERING = Check(
    "net_steering", "An interface with one queue has one core handle every packet.", _steering, ("net",), True
)
