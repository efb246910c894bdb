"""A bucket with archived segments, for tests of reads from the object store; works beside ``fake_manifest``."""

import uuid
from itertools import accumulate

from crc32c import crc32c

from millstream.format.archive import Block, SegmentIndex, encode_index, manifest_key, part_key, segment_key
from millstream.format.manifest import (
    ArchivedSegment,
    ArchiveId,
    Manifest,
    describe_part,
    encode_manifest,
    encode_part,
    pack_run,
)
from millstream.objects import open_store
from millstream.wire.records import iter_batches, parse_header


class Bucket:
    """Holds what ``put`` was given of one partition. ``served`` is the manifest that a broker would announce."""

    def __init__(self, root, served, topic, topic_id, partition=0):
        self.root = root
        self.store = open_store(f"file://{root}")
        self.served = served
        self.owner = ArchiveId(uuid.UUID(bytes=topic_id), partition)
        self.segments = []
        served.topic_ids[topic] = topic_id
        served.files.setdefault((topic, partition), [])
        served.objects_url = self.store.url

    def put(self, log, aborted=()):
        """Archive a segment of whole batches, each of them a block; without a list of ``aborted`` transactions (None)
        as earlier versions did.
        """
        batches = [bytes(batch) for batch in iter_batches(memoryview(log))]
        headers = [parse_header(memoryview(batch)) for batch in batches]
        starts = [0, *accumulate(map(len, batches))]
        blocks = tuple(
            Block(header.base_offset, at, header.max_timestamp, crc32c(batch))
            for header, at, batch in zip(headers, starts, batches, strict=False)
        )
        base, end = headers[0].base_offset, headers[-1].next_offset
        index = encode_index(self.owner, SegmentIndex(base, end, blocks, ((0, base),), aborted))
        low, high = min(h.base_timestamp for h in headers), max(h.max_timestamp for h in headers)
        segment = ArchivedSegment(base, end, len(log), crc32c(log), low, high, 1, len(index))
        self.store.put(segment_key(self.owner, segment), [log, index])
        self.segments.append(segment)
        return self

    def commit(self, *, in_part=0):
        """Write the manifest; the first ``in_part`` segments go to a part object."""
        parts = []
        if in_part:
            runs = [pack_run(self.segments[:in_part])]
            parts = [describe_part(runs)]
            self.store.put(part_key(self.owner, parts[0]), [encode_part(self.owner, runs)])
        runs = (pack_run(self.segments[in_part:]),) if self.segments[in_part:] else ()
        manifest = Manifest(self.owner, self.segments[0].base_offset, tuple(parts), runs)
        self.store.put(manifest_key(self.owner), [encode_manifest(manifest)])
        self.served.archived[self.owner.partition_index] = self.segments[-1].end_offset
        return self

    def path(self, number):
        """The file of a segment object."""
        return self.root / segment_key(self.owner, self.segments[number])
