"""A producer's batch on its way into a partition: what is submitted, what may block it, what becomes of it."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from millstream.wire.inspection import Refusal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from millstream.model.error_code import ErrorCode
    from millstream.model.quantities import SlotIndex
    from millstream.partition.partition import Partition

ADDS_FROM: Final = 12
"""First version of Produce whose client leaves adding partitions to the broker."""


class ProducerTransaction(NamedTuple):
    """What a Produce request says of its transaction."""

    transactional_id: str
    version: int
    """Of the request."""

    @property
    def adds(self) -> bool:
        """Whether the broker adds the partition to the transaction."""
        return self.version >= ADDS_FROM


class Batch(msgspec.Struct):
    """One batch for a partition of this shard.

    Lifecycle: from ``Admission.submit`` to its outcome.
    """

    partition: Partition
    views: Sequence[memoryview]
    """Belong to the caller."""
    size: int
    """The sum of ``views``."""
    transaction: ProducerTransaction | None = None
    """None: the request names no transaction."""

    def keep(self) -> None:
        """Copy the bytes, so that the batch outlives the caller's views."""
        self.views = (memoryview(b"".join(self.views)),)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What became of one batch at the leader. A refused batch has no offsets."""

    error_code: int
    base_offset: int = -1
    end_offset: int = -1
    """Exclusive. The batch is committed when the high watermark reaches it."""
    log_append_time_ms: int = -1
    """Time in the place of the records' own; -1 at a topic with CreateTime."""


class Blocked(Enum):
    """Why a batch has no outcome yet. Nothing has changed; only ``append.admission`` acts on it."""

    NEEDS_INSPECTION = "its records have to be inspected"
    NEEDS_VERDICT = "the transaction's coordinator has to be asked"
    NEEDS_BUFFERS = "the pools of its event partition have no free buffers"
    NO_MEMORY = "out of memory"


Done = Callable[[Outcome, Refusal | None], None]
"""Gets the outcome of a batch; with a refusal of its records, why."""


class AppendResult(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What the producer of one batch learns. An offset or time that is not known is -1."""

    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1


class AppendCall(Protocol):
    """A request with a slot for each of its batches."""

    results: list[AppendResult]

    def acked(self, slot: SlotIndex) -> None:
        """The slot is settled, with the result that was entered."""
        ...

    def failed(self, slot: SlotIndex, error: ErrorCode) -> None: ...
    def expire(self, now_us: int) -> None: ...
