"""Enters batches that are in the log already into the state of the partition's producers.

After a start these are the batches after the last snapshot, and on a replica that follows those of the leader. Both
enter what ``append`` and ``markers`` entered when the batch was written.
"""

from collections.abc import Sequence
from typing import Any

from millstream.core.producer_state import ProducerState
from millstream.wire.records import ABORT, COMMIT, CONTROL, TRANSACTIONAL


def enter_batch(producers: ProducerState, header: Sequence[Any], now_ms: int) -> None:
    """``header`` has the 13 fields of a batch's header, and after them what ``marker_of`` gives if it is a control
    batch. ``now_ms`` is the wall clock, from which expiry counts.
    """
    producer_id = header[9]
    if producer_id < 0:
        return
    base_offset, attributes, last_delta, epoch, sequence = header[0], header[5], header[6], header[10], header[11]
    if attributes & CONTROL:
        kind, coordinator_epoch = header[13], header[14]
        if kind in (ABORT, COMMIT):
            committed = kind == COMMIT
            producers.end_transaction(producer_id, epoch, coordinator_epoch, base_offset, now_ms, committed=committed)
        return
    if sequence >= 0:
        producers.record(producer_id, epoch, sequence, last_delta + 1, base_offset, header[8], now_ms)
    elif attributes & TRANSACTIONAL:
        producers.record_epoch(producer_id, epoch, base_offset + last_delta + 1, now_ms)
    if attributes & TRANSACTIONAL:
        producers.transactions.began(producer_id, base_offset)
