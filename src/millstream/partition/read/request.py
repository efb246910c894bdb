"""What one read asks of a partition: one value from the fetch, or the share partition, to the log."""

from typing import Final

import msgspec

from millstream.model.quantities import LeaderEpoch, Offset

STORE_PATIENCE_US: Final = 500_000
"""How long a client's read waits for the object store at once: Kafka's ``remote.fetch.max.wait.ms``."""


class ReadRequest(msgspec.Struct, frozen=True, gc=False):
    """One read of one partition."""

    offset: Offset
    """The first batch of the result holds it."""
    max_bytes: int
    """Room for batches. Zero or less: none, but for ``minimum_one``."""
    minimum_one: bool = True
    """The first batch is read even if it is larger than ``max_bytes``."""
    committed: bool = False
    """Nothing from the last stable offset on (``isolation.level=read_committed``)."""
    leader_epoch: LeaderEpoch = -1
    """The epoch in which the reader knows the leader; -1 if it does not say."""
    last_fetched_epoch: LeaderEpoch = -1
    """The epoch of the reader's last record (KIP-595); -1 if it does not say."""
    gather: bool = False
    """A read that finds something arms its watch, too: the reader may want more."""
    near: bool = False
    """A replica that follows may serve (KIP-392)."""
    patience_us: int | None = None
    """How long the object store may take before the result is `late`. 0: it is not asked. None: as long as it takes."""
