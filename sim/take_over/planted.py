"""Bugs planted into take-overs, to show that the histories find them."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import msgspec

from millstream.app.log_in_store import LogInStore
from millstream.cluster.take_overs import TakeOvers
from millstream.model.quantities import Offset
from millstream.tiers import log_worker, object_wal
from millstream.tiers.shared_wal import SharedWal, _Part
from millstream.tiers.stored_entries import StoredEntries
from millstream.tiers.wal_gate import Gate
from sim.engine import histories
from sim.engine.planting import Hunt, PlantedBug
from sim.take_over.world import play

if TYPE_CHECKING:
    from millstream.core.controller.state import ControllerState
    from millstream.model.cluster import NodeId
    from millstream.tiers.messages import LogPart
    from sim.take_over.world import World


def hunt(bug: PlantedBug) -> Hunt:
    """Play histories with the bug planted until one finds it or the budget is used up."""
    return histories.hunt(bug, play)


def _nothing(_store: Any, _node: Any) -> None:
    """The logs stay open."""


def _never_forgotten(take_overs: TakeOvers, state: ControllerState, now_us: int) -> None:
    """A broker whose logs were sealed once counts as sealed for ever."""
    before = dict(take_overs._dead)
    submit: Any = take_overs._submit
    sealed = _sealed.setdefault(submit.__self__, set())  # of this history
    _note_dead(take_overs, state, now_us)
    for node, dead in take_overs._dead.items():
        if node in sealed:
            dead.sealed = True
    sealed.update(node for node, dead in before.items() if dead.sealed)


_note_dead = TakeOvers._note_dead
_sealed: WeakKeyDictionary[World, set[NodeId]] = WeakKeyDictionary()


def _never_held(wal: SharedWal) -> None:
    """An entry may be written before the broker is registered."""
    wal._held = False
    _wake(wal)


_wake = SharedWal._wake


def _put_over(store: Any, key: Any, data: bytes) -> None:
    """An entry is written over what is there."""
    store.put(key, [data])


def _limit(gate: Gate) -> Any:
    """The disk is enough."""
    return gate.archive.log.durable_offset


def _unmoved(_: LogInStore) -> None:
    """A broker continues as if nothing had been taken."""


def _covered(_stored: Any, _gate: Any, _end_offset: Any, _start_offset: Any) -> bool:
    """Every entry counts as superfluous."""
    return True


def _covered_by_start(stored: StoredEntries, gate: Gate, end_offset: Offset, start_offset: Offset) -> bool:
    """The start of a log counts as the end of its archive before the store knows it."""
    now = stored._gates.get(gate.key)
    if now is None:
        return _is_covered(stored, gate, end_offset, start_offset)
    return now.archive.archive.end_offset >= end_offset and now.archive.start.saved >= start_offset


_is_covered = StoredEntries._is_covered


def _without_start(part: _Part) -> LogPart:
    """An entry does not say where the log starts."""
    return msgspec.structs.replace(_message(part), start_offset=Offset(0))


_message = _Part.message


PLANTED: Final = (
    PlantedBug("partitions are given away before the log is sealed", ((log_worker, "end_lives", _nothing),), 20),
    PlantedBug("a later life is not sealed", ((TakeOvers, "_note_dead", _never_forgotten),), 100),
    PlantedBug("entries are written before the broker is registered", ((SharedWal, "_wake", _never_held),), 200),
    PlantedBug("entries are written over what is there", ((object_wal, "_put_once", _put_over),), 100),
    PlantedBug("a record is acknowledged before the store has it", ((Gate, "limit", property(_limit)),), 20),
    PlantedBug(
        "a broker says that the store has everything when it starts",
        ((SharedWal, "is_complete", property(lambda _: True)),),
        400,
    ),
    PlantedBug("entries go before an object has them", ((StoredEntries, "_is_covered", _covered),), 20),
    PlantedBug("entries go before the store knows a start", ((StoredEntries, "_is_covered", _covered_by_start),), 1000),
    PlantedBug("entries do not say where logs start", ((_Part, "message", _without_start),), 20),
    PlantedBug("a broker that was taken over goes on", ((LogInStore, "_taken", _unmoved),), 200),
)
