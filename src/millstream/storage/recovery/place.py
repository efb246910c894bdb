"""Recovery's record of a log: its directory, its name, and its segment limits."""

from __future__ import annotations

import msgspec

from millstream.format.events.chunk import ChunkLimits


class LogPlace(msgspec.Struct, frozen=True):
    """Directory and name of a group's log."""

    directory: str
    name: str
    segment_bytes: int
    replicated: bool = False
    """Its group has several voters, or had."""
    chunk_limits: ChunkLimits | None = None
    """When a segment of an event topic is full; None for other logs."""
    archived: bool = False
    """An object store has what its files lack."""
