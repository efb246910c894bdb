"""The wanted columns and records of a query, as values that travel from the driver to the workers.

This module and its imports are light on purpose: planning runs in short-lived processes, which would spend a second on
imports that only a decoding worker needs.
"""

from typing import Final

import msgspec

COLUMN_NAMES: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""Every column, in the order of ``SELECT *``. ``headers`` only with ``includeHeaders``."""

NEVER_NULL: Final = frozenset({"topic", "partition", "offset", "timestamp", "timestampType"})

ROW_LIMIT: Final = 10_000
BYTE_LIMIT: Final = 1_500_000
"""A batch is closed at the first of the two limits. Measured: smaller batches pay Spark's fixed 100 µs more often,
larger ones leave the processor's caches (at 100 MB per batch, throughput is a third).
"""

NO_LOWER_BOUND: Final = -(1 << 63)
NO_UPPER_BOUND: Final = (1 << 63) - 1


class Column(msgspec.Struct, frozen=True):
    """A wanted column. ``nullable`` is the query's declaration."""

    name: str
    nullable: bool = True


class Wanted(msgspec.Struct, frozen=True):
    """Columns, times (ms, inclusive), batch limits, transactions."""

    columns: tuple[Column, ...]
    from_timestamp: int = NO_LOWER_BOUND
    last_timestamp: int = NO_UPPER_BOUND
    row_limit: int = ROW_LIMIT
    byte_limit: int = BYTE_LIMIT
    read_committed: bool = True


class Predicate(msgspec.Struct, frozen=True):
    """A condition on rows. Offsets are half open, times in ms and inclusive; a set of None allows everything."""

    from_offset: int = 0
    end_offset: int = NO_UPPER_BOUND
    from_timestamp: int = NO_LOWER_BOUND
    last_timestamp: int = NO_UPPER_BOUND
    partitions: frozenset[int] | None = None
    topics: frozenset[str] | None = None
