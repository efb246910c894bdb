"""Bugs planted in uploads, joins and sweeps of shared topics, each found within a number of histories.

A bug replaces a function while it is planted; production code knows nothing of it.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from millstream.core.shared import Uploads
from millstream.errors import MillstreamError, OutcomeUnknown
from millstream.format.archive import Archived
from millstream.format.shared_object import shared_key
from millstream.objects import ObjectKey
from millstream.tiers import joining, packing, process, replacing, shared_sweeps, sweeping
from millstream.tiers.archiver import Archiver
from millstream.tiers.messages import Joined, SharedStart
from millstream.tiers.shared_sweeps import SharedSweeps
from millstream.tiers.shared_uploads import SharedUploads
from sim.archive import planted
from sim.archive.history import setting_of
from sim.engine import histories
from sim.engine.planting import Hunt, PlantedBug
from sim.shared.history import play

if TYPE_CHECKING:
    from millstream.format.shared_object import EncodedObject
    from millstream.model.shared import SharedPartition
    from millstream.objects import ObjectStore
    from millstream.tiers.partition_archive import PartitionArchive
    from sim.brokers.settings import Setting


def hunt(bug: PlantedBug, first_seed: int = 0) -> Hunt:
    """Play histories with the bug planted until one finds it or the budget is used up."""
    return histories.hunt(bug, play, first_seed, draw=setting_of)


# The bugs

_store_object = packing.store_object
_join = joining.join
_range_ends = sweeping._range_ends


def _at_once(self: Uploads, upload: Any) -> bool:
    """An object is written without waiting for those before it."""
    _ = self, upload
    return True


def _as_they_come(self: SharedUploads) -> None:
    """Ranges are proposed when their object is verified."""
    for one in list(self._objects):
        if one.upload is None or not one.upload.verified:
            continue
        for part in one.parts:
            if part.term is None and not part.settled and part.segment is not None:
                with suppress(MillstreamError):
                    part.archive.propose(Archived(part.segment, part.archive.log.start_offset))
                    part.term = part.archive.group.term
        self._objects.remove(one)
        self._uploads._queue.remove(one.upload)
        one.packing.objects -= 1
        self._settle_pack(one.packing)
    self._advance()


def _stored_perhaps(store: ObjectStore, encoded: EncodedObject) -> None:
    """A write without an answer counts as done."""
    with suppress(OutcomeUnknown):
        _store_object(store, encoded)


def _unread(store: ObjectStore, encoded: EncodedObject) -> None:
    """The object is not read back."""
    _ = store, encoded


def _stored_over(store: ObjectStore, encoded: EncodedObject) -> None:
    """An object is written over the one that is there."""
    store.put(ObjectKey(shared_key(encoded.index.object_id)), encoded.parts)


def _without_wait(self: SharedSweeps, found: list[SharedStart]) -> None:
    """Objects are deleted although earlier readers still read them."""
    self._starts += found
    self._missing -= 1
    if not self._missing:
        self._sweep("")


def _all_small(index: Any) -> tuple[sweeping.RangeEnd, ...]:
    """A large range goes with the small ones, although it stays where it is."""
    return tuple(one._replace(is_large=False) for one in _range_ends(index))


def _before_the_manifest(key: SharedPartition, archive: PartitionArchive) -> SharedStart:
    """What was joined needs no shared objects, whether the manifest object names what it was joined into or not."""
    start = archive.log.start_offset
    return SharedStart(*key, start, max(start, archive.small_ranges.joined_end()))


def _without_the_last(store: Any, reader: Any, command: Any, pace: Any) -> Joined:
    """A join leaves out the last of its ranges."""
    if len(command.before) < 2:
        return _join(store, reader, command, pace)
    made = _join(store, reader, msgspec.structs.replace(command, before=command.before[:-1]), pace)
    return msgspec.structs.replace(made, before=command.before)


def _any_form(wanted: Any) -> None:
    """The offsets of a replacement are not checked."""
    _ = wanted


def _several(setting: Setting) -> Setting:
    return msgspec.structs.replace(setting, nodes=3, transfers=True)


def _trimming(setting: Setting) -> Setting:
    return msgspec.structs.replace(setting, trims=True)


_EAGER = (Uploads, "may_store", _at_once)

PLANTED = (
    PlantedBug("an object is stored before the one that it follows", (_EAGER,), 40),
    PlantedBug("ranges are committed as their uploads end", (_EAGER, (SharedUploads, "_commit", _as_they_come)), 60),
    PlantedBug(
        "an object counts before it is verified",
        ((packing, "store_object", _stored_perhaps), (packing, "verify_object", _unread)),
        40,
    ),
    PlantedBug("an object is written over another one", ((packing, "store_object", _stored_over),), 60, _several),
    PlantedBug("objects go under their readers", ((SharedSweeps, "_got_starts", _without_wait),), 60, _trimming),
    PlantedBug("large ranges are swept with small ones", ((sweeping, "_range_ends", _all_small),), 60),
    PlantedBug(
        "objects go before the manifest names what replaces them",
        ((shared_sweeps, "_start_of", _before_the_manifest),),
        60,
    ),
    PlantedBug(
        "a join drops a range",
        ((process, "join", _without_the_last), (replacing, "check_form", _any_form)),
        20,
    ),
    PlantedBug(
        "local batches go before they are archived", ((Archiver, "_drop_local", planted._dropped_before_commit),), 20
    ),
)
