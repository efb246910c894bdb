"""The driver's view of a tiered topic: which segments are in the object store, by the partitions' manifest objects.

A broker says that a partition is archived, and in which store. Its segments are listed in the manifest object and, for
a long history, in part objects, of which only those with wanted offsets are read. The manifest object may be a minute
behind the broker; what it lacks is read from segment files or from the leader, so a list is kept and read again at most
every ``KEPT_S``. Of a shared topic the broker's answer has the manifest itself; its ranges are in objects of many
partitions, or joined in objects of their own.

Segments here are hints like all others. A store that this machine cannot reach, or has no credentials for, costs speed
and nothing else; with ``read.path=segments`` it is an error.
"""

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from millstream.errors import Corruption, MillstreamError, Unavailable
from millstream.format.archive import manifest_key, part_key
from millstream.format.manifest import (
    ArchivedSegment,
    ArchiveId,
    Manifest,
    ManifestPart,
    decode_manifest,
    decode_part,
    unpack_run,
)
from millstream.model.quantities import FilePosition
from millstream.objects import ObjectKey, ObjectStore, open_store, parse_url
from millstream.spark.planner import Segment, Span

KEPT_S: Final = 30.0
"""Time for which a manifest is used that does not reach as far as the broker says."""
_PARTS_MAX: Final = 64
_LOG: Final = logging.getLogger("millstream.spark")


class Archived(msgspec.Struct, frozen=True):
    """What a broker says of an archived partition: everything below ``end_offset`` is in the store at ``url``."""

    url: str
    end_offset: int
    shared_manifest: bytes = b""
    """The manifest of a shared partition; of others it is in the store."""


def reachable_store(url: str, patience_s: float) -> ObjectStore:
    """The store of a URL; a directory has to exist on this machine.

    Raises:
        Unavailable: the directory does not exist here.
        Rejected: a package is missing.
    """
    parsed = parse_url(url)
    if parsed.scheme == "file" and not os.path.isdir(parsed.path):
        raise Unavailable(f"the object store {url} is a directory that this machine does not have")
    return open_store(url, patience_s)


class Archives:
    """Lists archived segments for one query. It caches stores and manifests."""

    def __init__(self, patience_s: float, *, required: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._required = required
        self._clock = clock
        self._stores: dict[str, ObjectStore] = {}
        self._manifests: dict[ArchiveId, tuple[float, Manifest]] = {}
        self._parts: dict[tuple[ArchiveId, ManifestPart], list[ArchivedSegment]] = {}
        self._warned: set[str] = set()

    def close(self) -> None:
        for store in self._stores.values():
            store.close()
        self._stores.clear()

    def segments(self, archived: Archived, span: Span) -> tuple[Segment, ...]:
        """The archived segments that overlap a span, in order; none if the store cannot be read.

        Raises:
            Unavailable: the store cannot be read, and ``read.path`` is ``segments``.
        """
        owner = ArchiveId(uuid.UUID(span.topic_id), span.partition)
        try:
            found = list(self._overlapping(archived, owner, span))
        except (MillstreamError, OSError) as error:
            if self._required:
                raise Unavailable(
                    f"read.path=segments, but the archive of {span.topic} cannot be read: {error}"
                ) from error
            if span.topic not in self._warned:
                self._warned.add(span.topic)
                _LOG.info("reading the archived part of %s through brokers: %s", span.topic, error)
            return ()
        return tuple(
            Segment(
                one.base_offset,
                one.end_offset,
                one.size_bytes,
                "",
                one.min_timestamp,
                one.max_timestamp,
                one,
                archived.url,
            )
            for one in found
        )

    def _overlapping(self, archived: Archived, owner: ArchiveId, span: Span) -> Iterable[ArchivedSegment]:
        store = self._store(archived.url)
        manifest = self._manifest(store, owner, archived)
        for part in manifest.parts:
            if part.end_offset > span.start and part.base_offset < span.end:
                yield from (one for one in self._part(store, owner, part) if _overlaps(one, span))
        for run in manifest.runs:
            if run.base_offset < span.end:
                yield from (one for one in unpack_run(run) if _overlaps(one, span))

    def _store(self, url: str) -> ObjectStore:
        if url not in self._stores:
            self._stores[url] = reachable_store(url, self._patience_s)
        return self._stores[url]

    def _manifest(self, store: ObjectStore, owner: ArchiveId, archived: Archived) -> Manifest:
        read_at, manifest = self._manifests.get(owner, (0.0, None))
        if archived.shared_manifest:
            manifest = decode_manifest(archived.shared_manifest)
        elif manifest is not None and (_end(manifest) >= archived.end_offset or self._clock() - read_at < KEPT_S):
            return manifest
        else:
            manifest = decode_manifest(_whole(store, manifest_key(owner)))
        if manifest.owner != owner:
            raise Corruption(f"{store.url}: the object {manifest_key(owner)} is the manifest of another partition")
        self._manifests[owner] = (self._clock(), manifest)
        return manifest

    def _part(self, store: ObjectStore, owner: ArchiveId, part: ManifestPart) -> Sequence[ArchivedSegment]:
        found = self._parts.pop((owner, part), None)
        if found is None:
            runs = decode_part(owner, part, _whole(store, part_key(owner, part)))
            found = [one for run in runs for one in unpack_run(run)]
        self._parts[owner, part] = found
        while len(self._parts) > _PARTS_MAX:
            del self._parts[next(iter(self._parts))]
        return found


def _end(manifest: Manifest) -> int:
    """Everything below is in the manifest."""
    if manifest.runs:
        return unpack_run(manifest.runs[-1])[-1].end_offset
    return manifest.parts[-1].end_offset if manifest.parts else manifest.start_offset


def _overlaps(segment: ArchivedSegment, span: Span) -> bool:
    return segment.end_offset > span.start and segment.base_offset < span.end


def _whole(store: ObjectStore, key: str) -> memoryview:
    info = store.head(ObjectKey(key))
    if info is None:
        raise Unavailable(f"{store.url} has no object {key} so far")
    return store.get(ObjectKey(key), FilePosition(0), FilePosition(info.size_bytes))
