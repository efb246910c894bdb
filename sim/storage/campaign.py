"""One seed, one way, one verdict; and a tally of what was judged at which cost.

The ways: ``crash`` judges a power failure before every operation of the disk, ``fault`` plays on a disk that fails or
is full and judges some operations, ``rot`` damages what a power failure at some operations would leave, ``raft`` adds
what a replica does to its log and judges a power failure before some operations, ``events`` does
both with event topics, and ``event-rot`` damages those.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from sim.engine.local_storage import Stopped
from sim.storage.faults import FAULTY, FaultHistory
from sim.storage.history import OPERATIONS, ORDINARY, History
from sim.storage.points import Enumeration
from sim.storage.rot import Rot

if TYPE_CHECKING:
    from collections.abc import Callable

_FAULT_SHARE: Final = 0.03
_ROT_SHARE: Final = 0.1
_RAFT_SHARE: Final = 0.2
_EVENTS_SHARE: Final = 0.2

_RAFT: Final = {**OPERATIONS, "control": 25, "cut": 8, "vote": 6, "repeat": 0}
"""Operations of a replica: control entries, cuts to a Raft position, votes."""


class Tally:
    """What was judged, and the processor time that it took."""

    def __init__(self) -> None:
        self.histories = self.operations = self.points = self.recoveries = self.faults = self.stops = self.full = 0
        self.damages = self.reported = 0
        self.crash_s = self.all_s = 0.0

    def __str__(self) -> str:
        rate = self.points / self.crash_s * 60 if self.crash_s else 0.0
        return (
            f"{self.histories} histories of {self.operations // max(1, self.histories)} operations; "
            f"{self.points} crash points ({self.recoveries} recoveries) in {self.crash_s:.1f} CPU seconds, "
            f"{rate:.0f} a CPU-minute; {self.faults} faults of the disk ({self.stops} stops, {self.full} full disks); "
            f"{self.damages} damages ({self.reported} reported); {self.all_s:.1f} CPU seconds in all"
        )


def _enumerate(history: History, points: Enumeration, tally: Tally) -> None:
    """Play a history and count the crash points that were judged."""
    begun = time.process_time()
    try:
        history.play()
    finally:
        tally.crash_s += time.process_time() - begun
        tally.points += points.points
        tally.recoveries += points.recoveries


def _crash(seed: int, operations: int, tally: Tally) -> None:
    history = History(seed, ORDINARY._replace(operations=operations))
    _enumerate(history, Enumeration(history), tally)


def _raft(seed: int, operations: int, tally: Tally) -> None:
    history = History(seed, ORDINARY._replace(operations=operations, weights=_RAFT))
    _enumerate(history, Enumeration(history, share=_RAFT_SHARE), tally)


def _events(seed: int, operations: int, tally: Tally) -> None:
    """Event topics: ordinary histories and those of a replica, by turns."""
    replica = seed % 2 == 1
    shape = ORDINARY._replace(operations=operations, events=True, weights=_RAFT if replica else OPERATIONS)
    history = History(seed, shape)
    _enumerate(history, Enumeration(history, share=_EVENTS_SHARE), tally)


def _fault(seed: int, operations: int, tally: Tally) -> None:
    history = FaultHistory(seed, FAULTY._replace(operations=operations))
    Enumeration(history, share=_FAULT_SHARE)
    try:
        history.play()
    finally:
        tally.faults += history.faults
        tally.stops += history.stops
        tally.full += history.full_disks


def _rot(seed: int, operations: int, tally: Tally, *, events: bool = False) -> None:
    history = History(seed, ORDINARY._replace(operations=operations, events=events))
    rot = Rot(history, share=_ROT_SHARE)
    try:
        history.play()
    finally:
        tally.damages += rot.points
        tally.reported += rot.reported


WAYS: Final[dict[str, Callable[[int, int, Tally], None]]] = {
    "crash": _crash,
    "fault": _fault,
    "rot": _rot,
    "raft": _raft,
    "events": _events,
    "event-rot": partial(_rot, events=True),
}


def play(way: str, seed: int, operations: int, tally: Tally) -> str:
    """Play one seed one way; what was wrong, empty if nothing was."""
    begun = time.process_time()
    try:
        WAYS[way](seed, operations, tally)
    except (Exception, Stopped) as error:  # noqa: BLE001  # whatever it is, nobody expected it of a storage
        return f"seed {seed}, {way}: {type(error).__name__}: {error}"
    finally:
        tally.histories += 1
        tally.operations += operations
        tally.all_s += time.process_time() - begun
    return ""
