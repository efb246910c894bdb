"""Bugs planted in shared storage, each found within a number of histories.

A bug replaces a function while it is planted; production code knows nothing of it.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from millstream.core.shared import catalogue, uploads
from millstream.core.shared.catalogue import Catalogue
from millstream.errors import Rejected
from millstream.tiers import object_wal, shared_objects
from sim.engine.histories import PlantedBug
from sim.shared import logs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.core.shared import Upload
    from millstream.core.shared.catalogue import Writer
    from millstream.format.shared_object import EncodedObject
    from millstream.model.quantities import TimestampMs
    from millstream.model.shared import ObjectId
    from millstream.objects import ObjectKey, ObjectStore


def _put_unconditionally(store: ObjectStore, key: ObjectKey, data: bytes) -> None:
    for _ in range(5):
        try:
            store.put(key, [data])
        except Exception:  # noqa: BLE001, S112
            continue
        return


def _any_verified(self: uploads.Uploads) -> Upload | None:
    return next((one for one in reversed(self.all) if one.verified), None)


def _committed_anyhow(self: uploads.Uploads, upload: Upload) -> None:
    self._queue.remove(upload)


def _entries_before_the_seal(store: ObjectStore, writer: Writer) -> list[bytes]:
    """Reads the log and leaves it open."""
    folder = object_wal.wal_folder(writer)
    entries = [object_wal._read(store, info.key) for info in store.list(folder)]
    return [one for one in entries if one is not None]


def _attached_twice(self: logs.Disk) -> list[logs.Entry]:
    return list(self.entries)


_removable = Catalogue.removable


def _removable_at_once(self: Catalogue, _now_ms: TimestampMs) -> list[ObjectId]:
    return sorted(one for one, it in self._objects.items() if it.freed_ms is not None and one not in self._leases)


def _removable_in_spite_of_leases(self: Catalogue, now_ms: TimestampMs) -> list[ObjectId]:
    with patch.object(self, "_leases", {}):
        return _removable(self, now_ms)


def _believed(_store: ObjectStore, _encoded: EncodedObject) -> None:
    """Nothing is read back."""


def _nothing(*_: object) -> None:
    """Nothing is checked."""


def _replaced_without_looking(
    _self: Catalogue, found: Any, _partition: Any, _commit: Any, leaving: set[ObjectId]
) -> Any:
    return [one for one in found.placed if one.object_id not in leaving]


def _ends_where_it_says(one: Any, _end: Any) -> None:
    if one.end_offset <= one.base_offset:
        raise Rejected("an empty range")


PLANTED: Final[Sequence[PlantedBug]] = (
    PlantedBug("the log in the store is written unconditionally", ((object_wal, "_put_once", _put_unconditionally),)),
    PlantedBug(
        "objects are committed out of order",
        (
            (uploads.Uploads, "next_commit", _any_verified),
            (uploads.Uploads, "committed", _committed_anyhow),
            (Catalogue, "_check_order", _nothing),
            (catalogue, "_check_follows", _ends_where_it_says),
        ),
    ),
    PlantedBug("a log in the store is read and not sealed", ((logs, "seal", _entries_before_the_seal),)),
    PlantedBug("a disk is read before it is detached", ((logs.Disk, "take_over", _attached_twice),)),
    PlantedBug("a partition is taken from a broker that is not fenced", ((Catalogue, "_check_free", _nothing),)),
    PlantedBug(
        "an object is removed while a reader leases it", ((Catalogue, "removable", _removable_in_spite_of_leases),)
    ),
    PlantedBug("an object is removed without a grace period", ((Catalogue, "removable", _removable_at_once),), 400),
    PlantedBug("an upload counts before it is verified", ((shared_objects, "verify_object", _believed),)),
    PlantedBug(
        "a compaction forgets the offsets that it replaces", ((Catalogue, "_replaced", _replaced_without_looking),)
    ),
)
