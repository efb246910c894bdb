"""What must hold of the archives of all replicas, after each step and at each heal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millstream.errors import MillstreamError
from millstream.format.archive import manifest_key, part_key
from millstream.format.manifest import ArchivedSegment, decode_manifest
from millstream.format.segment import parse_batch
from millstream.format.shared_object import object_key
from millstream.model.quantities import Offset
from millstream.model.shared import SharedPartition
from millstream.objects import ObjectKey
from millstream.tiers.inspection import read_whole, segments_of
from millstream.tiers.sweeping import longest_chain, own_ranges, stored_ranges
from sim.archive.store import data_of, is_right
from sim.engine.violation import Violation

if TYPE_CHECKING:
    from millstream.format.manifest import ArchiveId, Manifest
    from millstream.tiers.partition_archive import PartitionArchive
    from millstream.tiers.sweeping import StoredRange
    from sim.archive.store import JudgedStore, Truth
    from sim.brokers.judge import History


class ArchiveJudge:
    """Of one partition."""

    def __init__(self, store: JudgedStore, truth: Truth) -> None:
        self.store = store
        self.truth = truth
        self._ends: dict[int, tuple[PartitionArchive, int, int, int]] = {}

    def look(self, replica: int, archive: PartitionArchive) -> None:
        """After a step of a broker (F1, F2, F3, F5)."""
        log, packed, truth = archive.log, archive.archive, self.truth
        truth.start = max(truth.start, log.start_offset)
        known = self._ends.get(replica)
        now = (archive, packed.end_offset, len(packed.parts), packed.version)
        if known != now:
            self._ends[replica] = now
            same = known is not None and known[0] is archive and known[3] == packed.version
            if packed.version > truth.version:
                self._take_version(replica, archive)
            self._look_at_segments(replica, archive, known[1] if known is not None and same else packed.start_offset)
            if packed.version == truth.version:
                truth.parts.update(part_key(archive.owner, one) for one in packed.parts)
        truth.end = max(truth.end, packed.end_offset)
        # A replica that has just come up learns again what is committed, before it serves.
        if log.first_local_offset > max(packed.end_offset if archive.group.is_serving else truth.end, log.start_offset):
            raise Violation(
                f"F2: the files of {replica} start at {log.first_local_offset}, the log at {log.start_offset}, and the "
                f"archive ends at {packed.end_offset} there, at {truth.end} anywhere"
            )

    def _take_version(self, replica: int, archive: PartitionArchive) -> None:
        """A replica is the first with a version of the manifest: that is what all others have to have."""
        packed, truth = archive.archive, self.truth
        manifest = packed.manifest(archive.owner)
        try:
            found = list(segments_of(self.store, manifest))
        except MillstreamError as error:
            raise Violation(f"F1: a part of the manifest of {replica} can't be read: {error.message}") from error
        later = {base: one for base, one in truth.segments.items() if base >= packed.end_offset}
        before, truth.segments = truth.segments, later
        truth.version = packed.version
        truth.parts = {part_key(archive.owner, one) for one in packed.parts}
        truth.note("segments replaced")
        if any(one.revision for part in manifest.parts for one in found if one.end_offset <= part.end_offset):
            truth.note("segments of a part replaced")
        end = found[0].base_offset if found else packed.end_offset
        for one in found:
            if one.base_offset != end:
                raise Violation(f"F3: the archive of {replica} has nothing from {end} to {one.base_offset}")
            end = one.end_offset
            if before.get(one.base_offset) == one:
                truth.segments[one.base_offset] = one
            else:
                self._committed(replica, archive, one)

    def _look_at_segments(self, replica: int, archive: PartitionArchive, begin: int) -> None:
        offset = Offset(max(begin, archive.archive.start_offset))
        while offset < archive.archive.end_offset:
            found = archive.archive.find_offset(offset)
            if found is None:
                raise Violation(f"F3: the archive of {replica} ends at {archive.archive.end_offset} and lacks {offset}")
            if isinstance(found, ArchivedSegment):
                self._committed(replica, archive, found)
            offset = found.end_offset

    def _committed(self, replica: int, archive: PartitionArchive, segment: ArchivedSegment) -> None:
        truth = self.truth
        known = truth.segments.get(segment.base_offset)
        if known == segment:
            return
        if archive.archive.version < truth.version and segment in truth.known.values():
            return  # this replica does not know the newest replacement
        if known is not None:
            raise Violation(f"F3: {replica} has {segment} in its archive, another replica {known}")
        overlaps = [
            one
            for one in truth.segments.values()
            if one.base_offset < segment.end_offset and segment.base_offset < one.end_offset
        ]
        if overlaps:
            raise Violation(f"F5: {replica} has {segment} in its archive, which overlaps {overlaps[0]}")
        truth.segments[segment.base_offset] = segment
        key = object_key(archive.owner, segment)
        truth.known[key] = segment
        truth.note("segment committed")
        if segment.end_offset > truth.start and not is_right(self.store, archive.owner, segment):
            raise Violation(f"F1: {replica} has committed {segment}, and the object {key} is not what it should be")

    def check_store(self, archive: PartitionArchive, manifest_data: bytes, history: History) -> None:
        """The store alone gives back all that is archived (F8). ``archive`` is the leader's, and has nothing to do."""
        manifest = decode_manifest(manifest_data)
        try:
            found = list(self._whole(manifest))
        except MillstreamError as error:
            raise Violation(f"F8: {error.message}") from error
        end = self.truth.start
        for segment in found:
            if segment.end_offset <= self.truth.start:
                continue
            if segment.base_offset > end:
                raise Violation(f"F8: the manifest has nothing from {end} to {segment.base_offset}")
            self._compare(manifest.owner, segment, history)
            end = segment.end_offset
        if found and end < archive.archive.end_offset:
            raise Violation(f"F8: the manifest ends at {end}, the archive at {archive.archive.end_offset}")

    def _compare(self, owner: ArchiveId, segment: ArchivedSegment, history: History) -> None:
        if not is_right(self.store, owner, segment):
            raise Violation(f"F8: {segment} is named in the store, and {object_key(owner, segment)} is not right")
        data, at = data_of(self.store, owner, segment), 0
        while at < len(data):
            batch = parse_batch(data, at, at, len(data))
            if batch.last_offset >= self.truth.start:
                history.on_read("the store alone", batch)
            at += batch.size

    def check_recovery(self, owner: ArchiveId, history: History | None = None) -> None:
        """A recovery of a shared partition from the store alone would find all that is archived (F8). With ``history``
        its batches are compared, too.
        """
        truth = self.truth
        if truth.end <= truth.start:
            return
        ranges = stored_ranges(self.store).get(SharedPartition(owner.topic_id.bytes, owner.partition_index), [])
        found = self.store.objects.get(ObjectKey(manifest_key(owner)))
        own: list[StoredRange] = []
        if found is not None:
            manifest = decode_manifest(found[0])
            try:
                own = list(own_ranges(segments_of(self.store, manifest), manifest.epochs))
            except MillstreamError as error:
                raise Violation(f"F8: a part of the manifest can't be read: {error.message}") from error
        chain = [one.segment for one in longest_chain([*ranges, *own])]
        if not chain or chain[0].base_offset > truth.start or chain[-1].end_offset < truth.end:
            there = f"{chain[0].base_offset}–{chain[-1].end_offset}" if chain else "nothing"
            raise Violation(f"F8: a recovery finds {there}, {truth.start}–{truth.end} are archived")
        for segment in chain:
            if segment.end_offset <= truth.start:
                continue
            if history is not None:
                self._compare(owner, segment, history)
            elif not is_right(self.store, owner, segment):
                raise Violation(f"F8: a recovery finds {segment}, whose object is not right")
        truth.note("recovery checked")

    def _whole(self, manifest: Manifest) -> list[ArchivedSegment]:
        for part in manifest.parts:
            if part.end_offset > self.truth.start:
                read_whole(self.store, part_key(manifest.owner, part))
        live = tuple(one for one in manifest.parts if one.end_offset > self.truth.start)
        return list(segments_of(self.store, type(manifest)(manifest.owner, manifest.start_offset, live, manifest.runs)))
