"""What happened to the records of share partitions, counted for metrics. Nothing is decided by it."""

import msgspec


class Tally(msgspec.Struct):
    """Counts of records, since the start of a shard; all its share partitions count in one."""

    acquired: int = 0
    """Deliveries."""
    acknowledged: list[int] = msgspec.field(default_factory=lambda: [0] * 5)
    """By type of the acknowledgement, when it is taken; a write that fails takes none back."""
    released: int = 0
    """Given back because a session ended."""
    timed_out: int = 0
    """Given back because a deadline passed."""
    exhausted: int = 0
    """Archived because they were delivered as often as the limit allows."""
