"""What the object store has of a partition, for a replica that an unclean cut has named (`partition.replica.cutting`).

::

    its own files: what its log names ─┐
    manifest object, shared objects ───┴──► `newest_state`: state of a log of which all that is archived, and no more

The others may have archived, joined, replaced and deleted without this replica. Objects that its log names are removed
then, and the manifest object names others with the same records: it is written before anything that it no longer names
is removed. What the store has was committed. So no record below the end of the replica's log is lost, and those beyond
it come back as far as the store has them.

**Bad input.** If no object has a part of what the replica's log names, its own archive stays as it is, and the offsets
are said (`Newest.missing`): reading them is an error. **The store is away.** Nothing is known; call again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from millstream.core.raft.messages import LogStart, Opaque
from millstream.format.archive import ARCHIVE_ENTRY, decode_entry, part_key, segment_key
from millstream.format.manifest import ArchivedSegment, decode_manifest
from millstream.model.quantities import ManifestVersion, Offset
from millstream.model.shared import NO_OBJECT
from millstream.objects import ObjectKey
from millstream.raft.stored import decode_control, decode_folded
from millstream.tiers.inspection import segments_in, segments_of
from millstream.tiers.manifest import Archive
from millstream.tiers.restoring import archive_of, state_of, stored_manifest
from millstream.tiers.sweeping import longest_chain, own_ranges, ranges_with

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from millstream.format.epochs import Epochs, LogState
    from millstream.format.manifest import ArchiveId, Manifest
    from millstream.objects import ObjectStore
    from millstream.tiers.restoring import StoreView


class Newest(NamedTuple):
    """What is archived of a partition."""

    state: LogState
    """Of a log that ends where its archive does."""

    missing: tuple[Offset, Offset] | None
    """First offset, and end (exclusive), of what no object has; None if the store has all."""


def newest_state(view: StoreView, owner: ArchiveId, known: LogState, *, shared: bool) -> Newest:
    """What the store has of a partition, and what a replica with the state ``known`` may have beside it. ``shared``:
    its batches are in shared objects.

    Raises:
        Corruption: the state, or the manifest object, cannot be read.
        Unavailable: the store; call again.
    """
    own, start = known_archive(known)
    if shared:
        view.refresh_objects()
    manifest = stored_manifest(view.store, owner)
    if manifest is not None:
        start = max(start, manifest.start_offset)
    if shared:
        return _newest_shared(view, owner, own, start, manifest, known.epochs)
    found, epochs = own, known.epochs
    if manifest is not None:
        stored = Archive.of(manifest)
        if _is_newer(stored, manifest.epochs, own, known.epochs):
            found, epochs = stored, manifest.epochs
    return Newest(state_of(owner, found, epochs, start), None)


def _is_newer(stored: Archive, stored_epochs: Epochs, own: Archive, epochs: Epochs) -> bool:
    """Whether a manifest object knows more than an archive, and nothing that the log with these epochs has given up."""
    last = stored_epochs[-1][0] if stored_epochs else -1
    if any(epoch > last and offset < stored.end_offset for epoch, offset in epochs):
        return False
    return stored.end_offset > own.end_offset or stored.version > own.version


def _newest_shared(
    view: StoreView, owner: ArchiveId, own: Archive, start: Offset, manifest: Manifest | None, epochs: Epochs
) -> Newest:
    """Shared objects say themselves what they have; the manifest object says what was joined."""
    mine = [one for one in _segments(view.store, owner, own) if _is_there(view, owner, one)]
    joined = () if manifest is None else own_ranges(segments_of(view.store, manifest), manifest.epochs)
    ranges = [*view.ranges(owner), *ranges_with(mine, epochs), *joined]
    chain = longest_chain(ranges, epochs)
    due = max(start, own.start_offset)
    reached = bool(chain) and chain[0].segment.base_offset <= due and chain[-1].segment.end_offset >= own.end_offset
    if reached:
        found, of_chain = archive_of(chain)
        found.version = max(own.version, ManifestVersion(0) if manifest is None else manifest.version)
        return Newest(state_of(owner, found, of_chain, start), None)
    missing = _missing([one.segment for one in ranges], due, own.end_offset)
    return Newest(state_of(owner, own, epochs, start), missing)


def known_archive(known: LogState) -> tuple[Archive, Offset]:
    """What the files of a replica say of its archive, entries included that it did not know to be committed, and where
    its log starts. Raises Corruption.
    """
    folded = decode_folded(known.base.payload).owner_state if known.base.payload else b""
    archive = Archive.of(decode_manifest(folded)) if folded else Archive(Offset(0))
    start = known.start_offset
    for one in known.controls:
        control = decode_control(one.payload)
        if isinstance(control, LogStart):
            start = max(start, Offset(control.offset))
        elif isinstance(control, Opaque) and control.kind == ARCHIVE_ENTRY:
            archive.take_up(decode_entry(control.payload))
    return archive, start


def _segments(store: ObjectStore, owner: ArchiveId, archive: Archive) -> Iterator[ArchivedSegment]:
    """The segments of an archive, but for those in a part whose object was removed."""
    for one in archive.entries():
        if isinstance(one, ArchivedSegment):
            yield one
        elif store.head(ObjectKey(part_key(owner, one))) is not None:
            yield from segments_in(store, owner, one)


def _is_there(view: StoreView, owner: ArchiveId, segment: ArchivedSegment) -> bool:
    """Whether the store has the object of a segment."""
    if segment.object_id != NO_OBJECT:
        return segment.object_id in view.listed
    return view.store.head(ObjectKey(segment_key(owner, segment))) is not None


def _missing(there: Sequence[ArchivedSegment], start: Offset, end: Offset) -> tuple[Offset, Offset] | None:
    """The first offsets in [``start``, ``end``) that no segment has; None if each has one."""
    at = start
    for one in sorted(there, key=lambda one: one.base_offset):
        if one.base_offset > at:
            break
        at = max(at, one.end_offset)
    if at >= end:
        return None
    return at, min((one.base_offset for one in there if one.base_offset > at), default=end)
