"""The file system of the data directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millstream.tune.finding import Check, Seen, good, impossible, off

if TYPE_CHECKING:
    from millstream.tune.facts import Facts

_FORGETS: Final = ("tmpfs", "ramfs")
_KNOWN: Final = ("ext4", "xfs")
_UNSAFE: Final = ("nobarrier", "barrier=0")


def _look(facts: Facts) -> Seen:
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


CHECK = Check("file_system", "Each acknowledged record waits for a sync of this file system.", _look)
