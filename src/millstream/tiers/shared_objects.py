"""Shared objects in a store: written once, read back before they count, read in checked blocks.

`store_object` is done when the store has exactly these bytes: it writes on the condition that nothing is there. What an
attempt before has left, or a write without an answer, is compared, never replaced. `verify_object` then reads back
length, index and every block, since after the commit the write-ahead log forgets what the object has.

An error of the store may be followed by the same call again. Another object under the key is `Corruption`: two writers
have one number, and neither may continue.
"""

from __future__ import annotations

import secrets
from functools import partial
from typing import TYPE_CHECKING, Final

from millstream.core.shared import Stretch
from millstream.errors import Corruption, OutcomeUnknown, Rejected
from millstream.format.shared_object import (
    check_block,
    read_object_index,
    shared_key,
)
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import FilePosition, TimestampMs
from millstream.model.shared import NO_OBJECT, ObjectId
from millstream.objects import ABSENT, ObjectKey
from millstream.objects.errors import Conflict

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.manifest import ArchivedSegment
    from millstream.format.shared_object import EncodedObject, SharedBlock, SharedIndex
    from millstream.objects import ObjectStore


RANDOM_BITS: Final = 20
"""The low bits of an object's number; those above are the time in ms at which it was chosen."""


class ObjectNumbers:
    """Chooses the numbers of objects, each larger than the last. No other broker chooses the same: were it chosen, the
    conditional write would say so.
    """

    __slots__ = ("_last", "_now_ms")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """``now_ms`` is the wall clock."""
        self._now_ms = now_ms
        self._last = NO_OBJECT

    def next(self) -> ObjectId:
        """The number of the next object."""
        chosen = (self._now_ms() << RANDOM_BITS) + secrets.randbits(RANDOM_BITS)
        self._last = ObjectId(max(self._last + 1, chosen))
        return self._last


def store_object(store: ObjectStore, encoded: EncodedObject) -> None:
    """Write the object unless it is there. It counts after `verify_object`.

    Raises:
        Unavailable, OutcomeUnknown: the store; call again.
    """
    try:
        store.put(ObjectKey(shared_key(encoded.index.object_id)), encoded.parts, ABSENT)
    except Conflict as conflict:
        if store.head(ObjectKey(shared_key(encoded.index.object_id))) is None:
            raise OutcomeUnknown("the store refused a write to a key that has no object") from conflict


def verify_object(store: ObjectStore, encoded: EncodedObject) -> None:
    """Read the object back. Raises Corruption if it is not this one, and the store's errors."""
    object_id = encoded.index.object_id
    found = read_index(store, object_id)
    if found != encoded.index:
        raise Corruption(f"{store.url}: the shared object {object_id} is another one than was written")
    for block in found.blocks:
        read_block(store, object_id, block)


def read_index(store: ObjectStore, object_id: ObjectId) -> SharedIndex:
    """The index of an object. Raises Corruption, Rejected if there is no such object, and the store's errors."""
    key = ObjectKey(shared_key(object_id))
    info = store.head(key)
    if info is None:
        raise Rejected(f"{store.url} has no shared object {object_id}", ErrorCode.KAFKA_STORAGE_ERROR)
    return read_object_index(object_id, info.size_bytes, partial(store.get, key))


def read_block(store: ObjectStore, object_id: ObjectId, block: SharedBlock) -> memoryview:
    """The bytes of a block, checked. Raises Corruption, and the store's errors."""
    end = FilePosition(block.position + block.size_bytes)
    data = store.get(ObjectKey(shared_key(object_id)), block.position, end)
    check_block(block, data)
    return data


def written_ms(segment: ArchivedSegment) -> TimestampMs | None:
    """When the shared object of an archived range was made; None for an object of the partition's own."""
    return TimestampMs(segment.object_id >> RANDOM_BITS) if segment.object_id != NO_OBJECT else None


def stretch_of(segment: ArchivedSegment) -> Stretch:
    """What a join needs to know of an entry of an archive."""
    return Stretch(segment.size_bytes, written_ms(segment))
