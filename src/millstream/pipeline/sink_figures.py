"""What a sink counts, for people: for the progress bar, a run's summary, its metrics and its status."""

import time

import msgspec

from millstream.spark.stats import ReadStats


class BatchDone(msgspec.Struct, frozen=True, kw_only=True):
    """A micro-batch that has been committed. ``read`` counts the offsets that it went over."""

    number: int
    read: int
    rows: int
    rejected: int
    seconds: float
    repeated: bool
    version: str


class SinkFigures:
    """The counts of one sink. The thread of its batches writes them, any thread may read them.

    ``rows``, ``rejected``, ``bytes`` and ``batches`` count this run, and ``origins`` the records that it read;
    ``total_*`` count since the sink's first batch. ``version`` is the target's after the last batch, ``done`` what that
    batch did, ``done_at`` when (seconds since 1970). ``restarts`` counts those since the last batch: the runner adds to
    it, and a batch sets it to 0.
    """

    def __init__(self) -> None:
        self.batches = self.rows = self.rejected = self.bytes = 0
        self.total_rows = self.total_rejected = self.total_bytes = 0
        self.restarts = 0
        self.origins = ReadStats()
        self.version = ""
        self.done: BatchDone | None = None
        self.done_at: float | None = None

    def add(self, done: BatchDone) -> None:
        """Count a batch that was committed; bytes and totals are counted by the kinds of sinks."""
        self.batches += 1
        self.restarts = 0
        self.rows += done.rows
        self.rejected += done.rejected
        self.version = done.version
        self.done, self.done_at = done, time.time()

    def continue_from(self, before: "SinkFigures") -> None:
        """Take over the counts of a query that another one replaces within a run."""
        self.batches, self.rows, self.rejected, self.bytes = before.batches, before.rows, before.rejected, before.bytes
        self.origins = before.origins

    def set_totals(self, rows: int, rejected: int, size: int) -> None:
        """What the sink has written since its first batch; ``size`` in bytes."""
        self.total_rows, self.total_rejected, self.total_bytes = rows, rejected, size
