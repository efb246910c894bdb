"""One transactional id of the coordinator: its image, and what is on its way."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millstream.core.txn.image import NO_EPOCH, NO_PRODUCER
from millstream.core.txn.state import COMPLETE, PREPARING, TransactionState

if TYPE_CHECKING:
    from millstream.core.txn.image import Image
    from millstream.core.txn.messages import Request


class Transaction:
    """Invariants: at most one record is in flight; while one is, or markers are, requests wait in ``waiting``."""

    __slots__ = (
        "began",
        "image",
        "markers_written",
        "overdue_us",
        "remind_us",
        "transactional_id",
        "used_us",
        "waiting",
        "writing",
    )

    def __init__(self, transactional_id: str, image: Image | None) -> None:
        self.transactional_id = transactional_id
        self.image = image
        """As the log has it, durably; None before the first record is."""
        self.writing = False
        """A record is in flight to the log."""
        self.markers_written = False
        """Every marker is written, and the record that says so could not be."""
        self.began: tuple[int, int, int] = (NO_PRODUCER, NO_EPOCH, -1)
        """Producer id, epoch and start (ms) of the newest transaction that was open."""
        self.overdue_us = 0
        """Monotonic time at which that transaction is to be aborted."""
        self.used_us = 0
        """Monotonic time of the image's record; of one from before this coordinator, by its age on the wall clock."""
        self.remind_us = 0
        """Time of the coordinator's next look at it; 0 for none."""
        self.waiting: deque[tuple[int, Request]] = deque()
        """Requests that arrived during a change, each with the time (µs) until which it waits."""

    @property
    def is_busy(self) -> bool:
        return self.writing or (self.image is not None and self.image.state in PREPARING)

    @property
    def is_idle(self) -> bool:
        """Whether there is no transaction and nothing in flight."""
        return not self.writing and (
            self.image is None or self.image.state in COMPLETE or self.image.state is TransactionState.EMPTY
        )
