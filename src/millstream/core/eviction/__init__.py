"""Which blocks a warm cache keeps. Pure: the caller gives every time, and moves the bytes.

A cache in front of an object store holds blocks (about 1 MiB of one partition's log) in slots of one size. A policy
decides which block is admitted and which one leaves for it.

=============  =====================================================================================================
``interval``   Evicts the block whose next reader arrives last (interval caching: Dan and Sitaram, 1995). The default.
``age``        Evicts the block with the oldest data.
``lru``        Evicts the block that was not used for the longest time.
=============  =====================================================================================================

Policies that find popular blocks (LFU, TinyLFU, S3-FIFO, SIEVE) do not fit, because a log has none. Each consumer group
reads each block once, in order, so a block that was just read is the one that this group needs least. ``python -m
millstream.testing.fetch_traces`` compares the policies with the offline optimum.

All policies refuse a block that is older than ``age_max_ms``: a cold scan of history would evict what the tail needs.
A block that would be the next victim itself is refused, too.
"""

from millstream.core.eviction.blocks import Block, BlockKey, PartitionKey, ReaderId
from millstream.core.eviction.policy import POLICIES, Admission, Policy, make_policy

__all__ = ["POLICIES", "Admission", "Block", "BlockKey", "PartitionKey", "Policy", "ReaderId", "make_policy"]
