"""Archived segments for tests."""

import uuid

from millstream.format.manifest import ArchivedSegment, ArchiveId

OWNER = ArchiveId(uuid.UUID(int=1), 0)


def numbered(count):
    """Segments of ten offsets each."""
    return [
        ArchivedSegment(10 * at, 10 * at + 10, 1000 + at, at, 100 * at, 100 * at + 50, 1, 80) for at in range(count)
    ]
