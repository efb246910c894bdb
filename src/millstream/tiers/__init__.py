"""Tiers: history in an object store, and what a broker keeps of it.

``manifest`` is the state of one partition's archive: which segments are in the store, where an offset or a time is,
what retention frees. It is pure and small enough for a million segments on a broker.

What is absent: the store itself (``objects``), partitions (``partition``). No broker uses the room yet.
"""

from millstream.tiers.manifest import Archive, Freed, Spill

__all__ = ["Archive", "Freed", "Spill"]
