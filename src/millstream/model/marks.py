"""Offsets of a group that mark what a writer has stored, and are no position of a reader.

The Spark sink commits the number of its last write as an offset of the topic that it writes to, with ``WRITE_MARK`` in
its metadata. The records after such an offset are no lag.
"""

from typing import Final

WRITE_MARK: Final = "millstream-mark"


def is_mark(metadata: str | None) -> bool:
    """Whether a committed offset with this metadata is a writer's mark."""
    return metadata is not None and WRITE_MARK in metadata
