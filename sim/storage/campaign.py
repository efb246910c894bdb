"""One seed, one way, one verdict.

The ways: ``crash`` judges a power failure before every operation of the disk, ``fault`` plays on a disk that fails or
is full and judges some operations, ``rot`` damages what a power failure at some operations would leave, ``raft`` adds
what a replica does to its log and judges a power failure before some operations, ``events`` does
both with event topics, ``event-fault`` has those on a disk that fails or is full, and ``event-rot`` damages them.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sim.engine.histories import attempt
from sim.engine.local_storage import Stopped
from sim.storage.faults import FAULTY, FaultHistory
from sim.storage.history import OPERATIONS, ORDINARY, History
from sim.storage.points import Enumeration
from sim.storage.rot import Rot

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from sim.engine.histories import Counts, Finding

_FAULT_SHARE: Final = 0.03
_ROT_SHARE: Final = 0.1
_RAFT_SHARE: Final = 0.2
_EVENTS_SHARE: Final = 0.2

_RAFT: Final = {**OPERATIONS, "control": 25, "cut": 8, "vote": 6, "repeat": 0}
"""Operations of a replica: control entries, cuts to a Raft position, votes."""


def _enumerate(history: History, points: Enumeration, seen: Counter[str]) -> None:
    """Play a history and count the crash points that were judged."""
    try:
        history.play()
    finally:
        seen["crash point"] += points.points
        seen["recovery"] += points.recoveries


def _crash(seed: int, operations: int, seen: Counter[str]) -> None:
    history = History(seed, ORDINARY._replace(operations=operations))
    _enumerate(history, Enumeration(history), seen)


def _raft(seed: int, operations: int, seen: Counter[str]) -> None:
    history = History(seed, ORDINARY._replace(operations=operations, weights=_RAFT))
    _enumerate(history, Enumeration(history, share=_RAFT_SHARE), seen)


def _events(seed: int, operations: int, seen: Counter[str]) -> None:
    """Event topics: ordinary histories and those of a replica, by turns."""
    replica = seed % 2 == 1
    shape = ORDINARY._replace(operations=operations, events=True, weights=_RAFT if replica else OPERATIONS)
    history = History(seed, shape)
    _enumerate(history, Enumeration(history, share=_EVENTS_SHARE), seen)


def _fault(seed: int, operations: int, seen: Counter[str], *, events: bool = False) -> None:
    history = FaultHistory(seed, FAULTY._replace(operations=operations, events=events))
    Enumeration(history, share=_FAULT_SHARE)
    try:
        history.play()
    finally:
        seen["fault of the disk"] += history.faults
        seen["stop"] += history.stops
        seen["full disk"] += history.full_disks
        seen["failed partition"] += history.failed_partitions


def _rot(seed: int, operations: int, seen: Counter[str], *, events: bool = False) -> None:
    history = History(seed, ORDINARY._replace(operations=operations, events=events))
    rot = Rot(history, share=_ROT_SHARE)
    try:
        history.play()
    finally:
        seen["damage"] += rot.points
        seen["damage reported"] += rot.reported


WAYS: Final[dict[str, Callable[[int, int, Counter[str]], None]]] = {
    "crash": _crash,
    "fault": _fault,
    "rot": _rot,
    "raft": _raft,
    "events": _events,
    "event-fault": partial(_fault, events=True),
    "event-rot": partial(_rot, events=True),
}


def play(way: str, seed: int, operations: int, counts: Counts) -> Finding | None:
    """Play one seed one way; any error is a finding, which is in ``counts``, too."""

    def run() -> None:
        WAYS[way](seed, operations, counts.seen)

    counts.operations += operations
    return attempt(seed, counts, run, (Exception, Stopped), f"--way {way}")
