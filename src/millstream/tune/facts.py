"""What the checks look at: files of the kernel below a root, and what is known of the broker.

Paths are relative to the root (``sys/block/vda/queue/scheduler``). No method raises for a file: what cannot be read is
None, or an empty list.
"""

from __future__ import annotations

import os
import re
import ssl
import sysconfig
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from millstream.config.settings import Settings

_NO_DISK: Final = re.compile(r"(loop|ram|zram|dm-|md|sr|fd|nbd)\d*")
_CORES_MAX: Final = 8192
"""The kernel's own limit on x86-64."""
_NODE: Final = re.compile(r"node\d+")


class Broker(msgspec.Struct, frozen=True):
    """The broker that will run: its settings, and the interpreter that runs it."""

    data_dir: str
    memory_bytes: int
    shards: int
    pinned: bool
    locks_memory: bool = False
    realtime: bool = False
    optimised: bool = True
    """The interpreter was built with profile-guided optimisation."""
    openssl: tuple[int, ...] = (3, 5)

    @classmethod
    def here(cls, settings: Settings) -> Broker:
        """The broker of ``settings`` in this interpreter."""
        return cls(
            os.path.abspath(settings.data_dir),
            settings.memory_bytes,
            settings.shards,
            settings.shard_pinning,
            settings.memory_lock,
            settings.shard_realtime,
            "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")
            or "-fprofile-use" in (sysconfig.get_config_var("PY_CORE_CFLAGS") or ""),
            ssl.OPENSSL_VERSION_INFO[:2],
        )


class Facts:
    """The machine below ``root``. Pure reads; nothing is cached, since each file is read about once."""

    def __init__(self, root: str, broker: Broker) -> None:
        self.root = root
        self.broker = broker

    def path(self, name: str) -> str:
        """The file of a fact."""
        return os.path.join(self.root, name)

    def text(self, name: str) -> str | None:
        """Content without the blanks around it; None if it cannot be read."""
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as file:
                return file.read().strip()
        except OSError:
            return None

    def number(self, name: str) -> int | None:
        """A file with one whole number; None for anything else."""
        try:
            return int(self.text(name) or "")
        except ValueError:
            return None

    def names(self, name: str) -> list[str]:
        """What is in a directory, sorted; empty without such a directory."""
        try:
            return sorted(os.listdir(self.path(name)))
        except OSError:
            return []

    def exists(self, name: str) -> bool:
        return os.path.lexists(self.path(name))

    def chosen(self, name: str) -> str | None:
        """The choice of a file such as ``always [madvise] never``, or its only word."""
        text = self.text(name)
        if text is None:
            return None
        marked = re.search(r"\[(\S+)\]", text)
        return marked[1] if marked else text

    def choices(self, name: str) -> list[str]:
        """The choices that such a file offers."""
        return re.sub(r"[\[\]]", "", self.text(name) or "").split()

    @property
    def cores(self) -> list[int]:
        """Cores that are online; at least one."""
        found: list[int] = []
        for part in (self.text("sys/devices/system/cpu/online") or "0").split(","):
            first, _, last = part.partition("-")
            if first.isdecimal():
                found += range(int(first), min(int(last if last.isdecimal() else first), _CORES_MAX) + 1)
        return found or [0]

    @property
    def nodes(self) -> list[str]:
        """NUMA nodes, such as ``node0``."""
        return [name for name in self.names("sys/devices/system/node") if _NODE.fullmatch(name)]

    @property
    def disks(self) -> list[str]:
        """Block devices with hardware, or a host, behind them."""
        return [name for name in self.names("sys/block") if not _NO_DISK.fullmatch(name)]

    @property
    def nics(self) -> list[str]:
        """Network interfaces with a device behind them."""
        return [name for name in self.names("sys/class/net") if self.exists(f"sys/class/net/{name}/device")]

    @property
    def in_container(self) -> bool:
        """Whether this is a container, whose kernel belongs to a host."""
        return any(self.exists(name) for name in (".dockerenv", "run/.containerenv", "run/systemd/container"))

    @property
    def in_guest(self) -> bool:
        """Whether a hypervisor runs this machine."""
        return "hypervisor" in self.cpu_flags

    @property
    def cpu_flags(self) -> set[str]:
        """Flags of the first core."""
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", self.text("proc/cpuinfo") or "", re.MULTILINE)
        return set(found[1].split()) if found else set()

    def mount_of(self, directory: str) -> tuple[str, str] | None:
        """File system and options of the mount that has ``directory``; None if it is unknown."""
        best: tuple[int, str, str] | None = None
        for line in (self.text("proc/self/mountinfo") or "").splitlines():
            left, _, right = line.partition(" - ")
            fields, ends = left.split(), right.split()
            if len(fields) < 6 or len(ends) < 3:
                continue
            point = fields[4]
            inside = point == "/" or directory == point or directory.startswith(f"{point}/")
            if inside and (best is None or len(point) >= best[0]):
                best = (len(point), ends[0], f"{fields[5]},{ends[2]}")
        return None if best is None else best[1:]

    def limit(self, words: str) -> int | None:
        """The hard limit of this process named ``words`` in ``/proc/self/limits``; -1 for none, None if unknown."""
        for line in (self.text("proc/self/limits") or "").splitlines():
            if line.startswith(words):
                hard = (*line[len(words) :].split(), "", "")[1]
                return -1 if hard == "unlimited" else int(hard) if hard.isdecimal() else None
        return None
