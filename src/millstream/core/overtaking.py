"""Which batch of an unknown idempotent producer is its first, when batches before it may have been refused.

A producer sends several batches before the first is answered. The broker refuses the first of them retriably, because
it does not have the partition yet, and the partition is opened before the next ones arrive. An unknown producer may
start at any sequence (its state may have expired), so the second batch would be taken for the first one, and the first
one would be out of order when it comes again: librdkafka and Kafka's producer then start a new epoch or give up.

A producer sends refused batches again in order, lowest sequence first. The rule follows from that::

    sequence 0                                   ──► first
    seen for the first time, or after a lower   ──► refuse retriably, remember the lowest
    the lowest comes again                       ──► first: the producer has nothing before it

A producer whose state has really expired is thus refused once. Pure: the caller knows when the rule applies.
"""

from __future__ import annotations

from typing import Final

from millstream.core.producer_state import LAST_SEQUENCE
from millstream.model.quantities import ProducerEpoch, ProducerId, Sequence

GAPS_MS: Final = 30_000
"""As long as Kafka's clients wait for the answer of a broker: by then each has sent again what was refused."""

PRODUCERS_MAX: Final = 1000
"""Producers remembered per partition; with more of them, others are taken at once, as Apache Kafka takes them."""

_BACKWARDS: Final = 1 << 30
"""Sequences wrap: one that is so far ahead is behind."""


class Overtaking:
    """Lowest sequences refused, of the unknown producers of one partition.

    Lifecycle: made by the partition. Times are of the wall clock; one that was set back ends the expectation.
    """

    __slots__ = ("_lowest", "until_ms")

    def __init__(self) -> None:
        self.until_ms = 0
        """Until when batches may come with a gap before them."""
        self._lowest: dict[ProducerId, tuple[ProducerEpoch, Sequence]] = {}

    def expect(self, now_ms: int) -> None:
        """Batches were refused that their producers send again, here or by the leader before. Those that follow them
        may arrive first, and for the second time, so each producer is seen for the first time from here on.
        """
        self.until_ms = now_ms + GAPS_MS
        self._lowest.clear()

    def is_expected(self, now_ms: int) -> bool:
        """Whether batches may come with a gap before them."""
        return 0 < self.until_ms - now_ms <= GAPS_MS

    def refuses(self, producer_id: ProducerId, producer_epoch: ProducerEpoch, base_sequence: Sequence) -> bool:
        """Whether batches before this one may still come. The partition knows nothing of the producer."""
        lowest = self._lowest
        known = lowest.get(producer_id)
        if known is None or known[0] != producer_epoch:
            if base_sequence == 0 or (known is None and len(lowest) >= PRODUCERS_MAX):
                return False
            lowest[producer_id] = (producer_epoch, base_sequence)
            return True
        ahead = (base_sequence - known[1]) & LAST_SEQUENCE
        if 0 < ahead < _BACKWARDS:
            return True
        if ahead and base_sequence:
            lowest[producer_id] = (producer_epoch, base_sequence)
            return True
        del lowest[producer_id]
        return False
