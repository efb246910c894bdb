"""``DATA/machine.json``: what ``millstream tune bench`` measured, and the settings that it proposes.

The broker reads it at a start and says in one line what is proposed and not set; it changes nothing by itself. Nothing
that is proposed changes when a record counts as durable. **Bad input.** A file that cannot be read, or that a later
version wrote, is as if it were not there.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from millstream.config.settings import Settings

NAME: Final = "machine.json"
VERSION: Final = 1

_DIRECT: Final = "storage.direct.io"
_PACING: Final = "wal.pacing.us"
_SHARDS: Final = "shards"

_CLEAR: Final = 0.9
"""A way to write is proposed if in every round it took at most this part of the other's time."""
_PACING_MIN_US: Final = 100


class Figure(msgspec.Struct, frozen=True):
    """One measure over all rounds: the median of the rounds' medians, the lowest and the highest of them, and the 99th
    percentile of all samples.
    """

    name: str
    unit: str
    median: float
    low: float
    high: float
    p99: float


class Machine(msgspec.Struct, frozen=True):
    """The file."""

    version: int
    at: str
    """When it was measured, in UTC."""
    seconds: float
    rounds: int
    stolen_percent: float
    """Share of all cores' time that the hypervisor gave to others during the run."""
    figures: list[Figure]
    proposals: dict[str, str]


def proposals(rounds: list[dict[str, float]], settings: Settings) -> dict[str, str]:
    """Settings that the medians of each round (``rounds``, by name of the figure) speak for and that differ from
    ``settings``.
    """
    proposed: dict[str, str] = {}
    pairs = [
        (one["sync direct 4 KiB"] + one["sync direct 64 KiB"], one["sync buffered 4 KiB"] + one["sync buffered 64 KiB"])
        for one in rounds
        if "sync direct 4 KiB" in one
    ]
    if pairs and all(direct <= _CLEAR * buffered for direct, buffered in pairs) and not settings.storage_direct_io:
        proposed[_DIRECT] = "true"
    if pairs and all(buffered <= _CLEAR * direct for direct, buffered in pairs) and settings.storage_direct_io:
        proposed[_DIRECT] = "false"
    way = "direct" if proposed.get(_DIRECT, str(settings.storage_direct_io).lower()) == "true" and pairs else "buffered"
    slowest = max(one[f"sync {way} 4 KiB"] for one in rounds)
    if 2 * slowest < settings.wal_pacing_us:
        pacing = max(_PACING_MIN_US, round(2 * slowest, -1))
        if pacing < settings.wal_pacing_us:
            proposed[_PACING] = str(int(pacing))
    got = min(one["cores"] for one in rounds)
    if settings.shards > got + 0.5 and max(one["cores"] for one in rounds) < settings.shards - 0.5:
        proposed[_SHARDS] = str(max(1, round(got)))
    return proposed


def write(data_dir: str, machine: Machine) -> str:
    """Write the file in one step; returns its path. Raises OSError."""
    path = os.path.join(data_dir, NAME)
    with open(f"{path}.new", "wb") as file:
        file.write(msgspec.json.format(msgspec.json.encode(machine), indent=2) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(f"{path}.new", path)
    return path


def read(data_dir: str) -> Machine | None:
    """What was measured; None without a file that can be read."""
    try:
        with open(os.path.join(data_dir, NAME), "rb") as file:
            machine = msgspec.json.decode(file.read(), type=Machine)
    except (OSError, msgspec.DecodeError):
        return None
    return machine if machine.version == VERSION else None


def proposal_line(settings: Settings) -> str:
    """One line: what the file proposes and the settings do not have. Empty without anything."""
    machine = read(settings.data_dir)
    if machine is None:
        return ""
    now = {
        _DIRECT: str(settings.storage_direct_io).lower(),
        _PACING: str(settings.wal_pacing_us),
        _SHARDS: str(settings.shards),
    }
    differing = [
        f"{name}={value} (now {now[name]})"
        for name, value in machine.proposals.items()
        if name in now and now[name] != value
    ]
    if not differing:
        return ""
    return f"{NAME} of {machine.at} proposes {', '.join(differing)}; 'millstream tune bench' measures again"
