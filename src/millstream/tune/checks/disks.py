"""Schedulers, merging, write caches and trimming of disks, and the file system of the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.finding import HOST, Check, Seen, Write, good, impossible, off, unneeded

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

_NONE = "this machine shows no disk"


def _scheduler(facts: Facts) -> Seen:
    wrong, writes, seen = list[str](), list[Write](), list[str]()
    for disk in facts.disks:
        at = f"sys/block/{disk}/queue/scheduler"
        current, choices = facts.chosen(at), facts.choices(at)
        if current is None:
            continue
        seen.append(f"{disk} {current}")
        wanted = "none" if disk.startswith("nvme") or facts.number(f"sys/block/{disk}/queue/rotational") == 0 else ""
        wanted = wanted or "mq-deadline"
        if current != wanted and current not in ("none", "mq-deadline") and wanted in choices:
            wrong.append(f"{disk} {current}")
            writes.append(Write(at, f"{wanted}\n"))
    if not seen:
        return impossible(_NONE)
    if not wrong:
        return good(", ".join(seen))
    if facts.in_container:
        return impossible(f"{', '.join(wrong)}; {HOST}")
    return off(", ".join(wrong), "none, or mq-deadline for a disk that turns", "", *writes)


def _merges(facts: Facts) -> Seen:
    _ = facts
    return unneeded("the log is written by one write a turn, so there is next to nothing to merge")


def _cache(facts: Facts) -> Seen:
    found = {disk: facts.text(f"sys/block/{disk}/queue/write_cache") for disk in facts.disks}
    if not any(found.values()):
        return impossible(_NONE)
    volatile = [disk for disk, value in found.items() if value == "write back"]
    if volatile:
        return good(f"{', '.join(volatile)}: a volatile cache, which each sync of the log flushes")
    return good("no volatile cache, as far as the disks say")


def _trim(facts: Facts) -> Seen:
    trimmed = [disk for disk in facts.disks if facts.number(f"sys/block/{disk}/queue/discard_max_bytes")]
    if not trimmed:
        return unneeded("no disk takes trims")
    mount = facts.mount_of(facts.broker.data_dir)
    if mount is not None and "discard" in mount[1].split(","):
        return good("mounted with discard")
    if facts.exists("etc/systemd/system/timers.target.wants/fstrim.timer"):
        return good("fstrim.timer")
    if facts.in_container:
        return impossible(HOST)
    return off("none", "fstrim.timer", "systemctl enable --now fstrim.timer")


SCHEDULER = Check(
    "disk_scheduler", "A scheduler that groups writes delays the log's.", _scheduler, ("disk_scheduler",), True
)
MERGES = Check("disk_nomerges", "Looking for writes to merge costs CPU.", _merges, ("disk_nomerges",))
CACHE = Check(
    "disk_write_cache",
    "A sync is durable only if the disk's own cache is flushed, or survives a power loss.",
    _cache,
    ("disk_write_cache",),
)
TRIM = Check("fstrim", "A disk that does not learn what was deleted becomes slow.", _trim, ("fstrim",))


_FORGETS: Final = ("tmpfs", "ramfs")
_KNOWN: Final = ("ext4", "xfs")
_UNSAFE: Final = ("nobarrier", "barrier=0")


def _file_system(facts: Facts) -> Seen:
    mount = facts.mount_of(facts.broker.data_dir)
    if mount is None:
        return impossible("the mounts cannot be read")
    kind, options = mount[0], mount[1].split(",")
    unsafe = [one for one in options if one in _UNSAFE]
    if unsafe:
        return off(f"{kind} with {unsafe[0]}", "write barriers", "a power loss takes acknowledged records: remount")
    if "strictatime" in options:
        return off(f"{kind} with strictatime", "relatime or noatime", "each read writes: change /etc/fstab")
    if kind in _FORGETS:
        return off(kind, "ext4 or xfs", "it is memory: nothing survives a restart of the machine")
    if kind not in _KNOWN:
        return off(
            kind, "ext4 or xfs", "not measured here: run 'millstream tune bench', and move data.dir if it is slow"
        )
    return good(kind)


FILE_SYSTEM = Check("file_system", "Each acknowledged record waits for a sync of this file system.", _file_system)
