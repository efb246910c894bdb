"""A shard hook (``internal.shard.hook``) under which every read of the archive asks the warm cache: blocks are not kept
in memory in front of it, and it is switched off for a second where it would be for a minute.
"""

from millstream.tiers.hot_tier import guard
from millstream.tiers.reading import ArchiveReader


def ask_always(node):
    _ = node
    memory_bytes_max, *others = ArchiveReader.__init__.__defaults__
    assert memory_bytes_max > 1 << 20
    ArchiveReader.__init__.__defaults__ = (1, *others)
    guard._OFF_S = 1.0
