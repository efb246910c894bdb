"""Read committed batches from a partition: choose the source by offset.

The tail is in the log cache and is answered at once, as shared views, without touching a file. What is older goes to
the shard's helper process, which reads the segment into fragments of this shard's arena and checks every batch; the
answer comes through the callback in a later turn. Either way the reader gets whole batches, the first of which holds
the offset it asked for (and may begin before it), and owns the ``IoBuf`` it gets: it must release it once the bytes
are sent.

An offset outside [log start, high watermark] is the caller's to refuse; ``offset_error`` says how.
"""

from collections.abc import Callable
from typing import Final, Protocol

from millstream.errors import MillstreamError, Rejected
from millstream.iobuf import IoBuf
from millstream.model.error_code import ErrorCode
from millstream.partition.list_offsets import epoch_error
from millstream.partition.partition import Partition

# (error code, high watermark, last stable offset, log start offset, batches or None)
ReadResult = tuple[int, int, int, int, IoBuf | None]

_NONE: Final = int(ErrorCode.NONE)

_COLD_SHARE: Final = 0.85
"""Of the arena: with more in use nothing is read from segments; a fetch then waits until its time is up."""


class Armed(Protocol):
    """Whoever wants to hear of the partition's next change (``partition.watch``)."""

    def arm(self, partition: Partition) -> None: ...


def read_here(
    partition: Partition,
    offset: int,
    max_bytes: int,
    leader_epoch: int,
    watch: Armed,
    done: Callable[[ReadResult], None],
    *,
    minimum_one: bool,
    gather: bool = False,
) -> int:
    """Fetch 5/8. Read for one fetch from a partition of this shard; returns how much of its room that takes, in bytes.

    ``done`` is called once, now or when the helper process has read. A read that finds nothing arms ``watch``;
    with ``gather`` one that finds something does too, as its reader may want more.
    """
    error = epoch_error(partition, leader_epoch)
    if error is ErrorCode.NONE:
        error = offset_error(partition, offset)
    start = partition.log.start_offset
    high_watermark = partition.high_watermark
    if error is not ErrorCode.NONE:
        behind = error is ErrorCode.OFFSET_OUT_OF_RANGE
        done((int(error), high_watermark if behind else -1, -1, start if behind else -1, None))
        return 0
    if offset == high_watermark:
        watch.arm(partition)
        done((_NONE, high_watermark, high_watermark, start, None))
        return 0
    if max_bytes <= 0 and not minimum_one:
        # There is something, but this answer has no room for it; the next fetch of the session looks again.
        done((_NONE, high_watermark, high_watermark, start, None))
        return 0
    if gather:
        watch.arm(partition)
    found = read_cached(partition, offset, max_bytes, minimum_one=minimum_one)
    if found is not None:
        size = len(found)
        done((_NONE, high_watermark, high_watermark, start, found))
        return size

    arena = partition.log.storage.arena
    if arena.in_use_bytes + max_bytes > _COLD_SHARE * arena.capacity_bytes:
        # Old data can wait; the memory that is left is for what is being written.
        done((_NONE, high_watermark, high_watermark, start, None))
        return 0

    def read(result: IoBuf | MillstreamError) -> None:
        if isinstance(result, MillstreamError):
            done((int(result.code), -1, -1, -1, None))
        else:
            done((_NONE, high_watermark, high_watermark, partition.log.start_offset, result))

    read_cold(partition, offset, max_bytes, read, minimum_one=minimum_one)
    return max(max_bytes, 1)


def offset_error(partition: Partition, offset: int) -> ErrorCode:
    """NONE when ``offset`` may be read (the high watermark itself is the empty read at the end)."""
    if partition.closed:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if partition.log.start_offset <= offset <= partition.high_watermark:
        return ErrorCode.NONE
    # Offsets that exist but are not committed yet are not out of range for good: Kafka says the same for both.
    return ErrorCode.OFFSET_OUT_OF_RANGE


def read_cached(partition: Partition, offset: int, max_bytes: int, *, minimum_one: bool) -> IoBuf | None:
    """Fetch 6/8. Batches from the log cache, or None when they are colder than that."""
    return partition.log.read(offset, partition.high_watermark, max_bytes, minimum_one)


def read_cold(
    partition: Partition,
    offset: int,
    max_bytes: int,
    done: Callable[[IoBuf | MillstreamError], None],
    *,
    minimum_one: bool,
) -> None:
    """Batches from a segment file, through the helper process."""
    partition.log.read_cold(offset, partition.high_watermark, max_bytes, minimum_one, done)


def read(partition: Partition, offset: int, max_bytes: int, done: Callable[[IoBuf | MillstreamError], None]) -> None:
    """Read from wherever the batches are; ``done`` may be called before this returns."""
    error = offset_error(partition, offset)
    if error is not ErrorCode.NONE:
        done(Rejected(f"offset {offset} is not in [{partition.log.start_offset}, {partition.high_watermark}]", error))
        return
    found = read_cached(partition, offset, max_bytes, minimum_one=True)
    if found is not None:
        done(found)
    else:
        read_cold(partition, offset, max_bytes, done, minimum_one=True)
