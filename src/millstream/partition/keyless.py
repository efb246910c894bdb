"""Records without a key in a batch for a compacted topic: which they are, and what the producer is told.

Nobody could ever replace such a record, so a compacted topic refuses it, and the whole batch with it, as Kafka does:
INVALID_RECORD, the index of each, and a sentence. Only batches for compacted topics are looked into, before they are
appended. A batch whose records are not what its header claims is refused, too (compaction could not read it later),
unless there is something wrong with it that appending tells better: a checksum, a length.

The producer's bytes are decompressed here, to no more than ``DECOMPRESSED_MAX``.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from millstream.format.compacted import keyless_records
from millstream.wire.errors import BatchError
from millstream.wire.records import HEADER_BYTES, checksum, parse_header

DECOMPRESSED_MAX: Final = 16 << 20
"""More than that from one batch would hold up everybody else on the shard."""

_SHOWN: Final = 3


class Refusal(NamedTuple):
    """Why a batch is refused: a sentence, and the records that are to blame."""

    message: str | None
    records: tuple[tuple[int, str], ...]
    """Index in the batch, and what is wrong with it."""


def refusal(views: Sequence[memoryview], topic: str, partition: int, max_bytes: int) -> Refusal | None:
    """Why a compacted topic refuses this batch; None if it does not, or if appending it will say what is wrong."""
    batch = views[0] if len(views) == 1 else memoryview(b"".join(views))
    if len(batch) < HEADER_BYTES or len(batch) > max_bytes:
        return None
    try:
        header = parse_header(batch)
        if header.size != len(batch):
            return None
        found = keyless_records(header, batch, DECOMPRESSED_MAX)
    except BatchError:
        return Refusal(None, ()) if _is_whole(batch) else None
    if not found or checksum([batch]) != header.crc:
        return None
    what = f"{topic}-{partition} is compacted and takes no record without a key."
    shown = ", ".join(map(str, found[:_SHOWN])) + (", …" if len(found) > _SHOWN else "")
    message = f"The batch is refused for {len(found)} of its records ({shown}): {what}"
    return Refusal(message, tuple((index, what) for index in found))


def _is_whole(batch: memoryview) -> bool:
    """Whether what is wrong with a batch is not found by looking at its header and its checksum."""
    try:
        header = parse_header(batch)
    except BatchError:
        return False
    return header.size == len(batch) and checksum([batch]) == header.crc
