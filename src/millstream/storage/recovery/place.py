"""What recovery knows of a log: where it is, what it is called, how it is cut into segments."""

from __future__ import annotations

import msgspec

from millstream.format.events.chunk import ChunkLimits


class LogPlace(msgspec.Struct, frozen=True):
    """Where a group's log lives and what it is called."""

    directory: str
    name: str
    segment_bytes: int
    replicated: bool = False
    """Its group has several voters."""
    chunk_limits: ChunkLimits | None = None
    """When a segment of an event topic is full; None for other logs."""
