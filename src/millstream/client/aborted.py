"""Which transactional batches of a fetch are aborted: the rule of a consumer with ``read_committed`` (KIP-98).

A Fetch response lists the aborted transactions of its range, each with its producer and its first offset. A producer's
batches are aborted from that offset on, until its next ABORT marker.
"""

from collections.abc import Iterable

from millstream.wire.records import ABORT


class AbortedProducers:
    """Producers with an open aborted transaction. Batches are asked about in the order of their offsets."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        """``aborted`` are (producer id, first offset), as the response lists them."""
        self._coming = sorted(((first_offset, producer_id) for producer_id, first_offset in aborted), reverse=True)
        self._open: set[int] = set()

    def covers(self, producer_id: int, last_offset: int) -> bool:
        """Whether a transactional batch that ends at ``last_offset`` (inclusive) is aborted."""
        self._advance(last_offset)
        return producer_id in self._open

    def end(self, producer_id: int, last_offset: int, marker: int) -> None:
        """Note a control batch; ``marker`` is ABORT, COMMIT or another number."""
        self._advance(last_offset)
        if marker == ABORT:
            self._open.discard(producer_id)

    def _advance(self, last_offset: int) -> None:
        while self._coming and self._coming[-1][0] <= last_offset:
            self._open.add(self._coming.pop()[1])
