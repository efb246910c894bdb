"""Bugs that are planted into the production code, to prove that the judge of pairs finds what it is for.

Each is of a kind that has been a fault of the product, or of one that no part alone would show. A hunt plays drawn
pairs until one finds it; ``kinds`` and ``operations`` say which pairs can, so that a hunt is short.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from millstream.core.producer_state import ProducerState
from millstream.core.txn.partition_state import PartitionTransactions
from millstream.core.txn.transaction import Image
from millstream.partition import append, list_offsets
from millstream.partition.lifecycle import Lifecycle
from millstream.storage.log.log import Log
from sim.engine.planting import planted
from sim.pairs.history import every_pair, play

if TYPE_CHECKING:
    from sim.pairs.history import Finding


class PlantedBug(NamedTuple):
    """One bug: the attributes named are others while it is planted."""

    name: str
    replaced: tuple[tuple[object, str, Any], ...]
    kinds: str = ".*"
    operations: str = ".*"
    """Both operations of a pair: a regular expression."""
    histories: int = 20
    """Within so many it is found."""

    @property
    def is_quick(self) -> bool:
        """Whether its hunt takes some seconds."""
        return self.histories <= 20


class Hunt(NamedTuple):
    """What came of looking for a bug."""

    finding: Finding | None
    histories: int


def hunt(bug: PlantedBug) -> Hunt:
    """Play pairs in which the bug can be reached, in a fixed order."""
    pairs = [
        pair
        for pair in every_pair()
        if re.fullmatch(bug.kinds, pair.kind) and all(re.fullmatch(bug.operations, one) for one in pair[1:])
    ]
    random.Random(bug.name).shuffle(pairs)
    with planted(bug.replaced):
        for number in range(bug.histories):
            finding = play(pairs[number % len(pairs)], number // len(pairs), Counter())
            if finding is not None:
                return Hunt(finding, number + 1)
    return Hunt(None, bug.histories)


def _always(*_: object, **__: object) -> bool:
    return True


def _nothing(*_: object, **__: object) -> None:
    """What should be done is not."""


_aborted_between = PartitionTransactions.aborted_between
_configure = Lifecycle.configure


def _all_but_the_last(self: PartitionTransactions, *bounds: Any) -> list[tuple[int, int, int]]:
    return _aborted_between(self, *bounds)[:-1]


def _local_maximum(partition: Any, end: Any, found: Any) -> None:
    partition.log.max_timestamp(end, found)


def _local_time(partition: Any, timestamp: Any, start: Any, end: Any, found: Any) -> None:
    _ = start
    partition.log.offset_for_timestamp(timestamp, end, found)


def _trims_nothing(_: Log, offset: Any) -> Any:
    _ = offset
    return _nothing


def _without_archive(self: Lifecycle, name: str, config: Any) -> None:
    """A topic that becomes tiered is archived from the next start on only."""
    archiver, self.archiver = self.archiver, None
    try:
        _configure(self, name, config)
    finally:
        self.archiver = archiver


_TRANSACTIONS: Final = ".*transaction.*|exhaust epochs|produce|stop and start|kill and start"

PLANTED: Final = (
    PlantedBug(
        "a marker is written where no transaction is open",
        ((ProducerState, "takes_marker", _always), (append, "_OUTSIDE", None)),
        "events|tiered events",
        _TRANSACTIONS,
    ),
    PlantedBug(
        "the last aborted transaction is not named to readers",
        ((PartitionTransactions, "aborted_between", _all_but_the_last),),
        "local|tiered",
        _TRANSACTIONS,
    ),
    PlantedBug(
        "epochs never run out", ((Image, "is_exhausted", property(lambda _: False)),), "local", _TRANSACTIONS, 120
    ),
    PlantedBug(
        "MAX_TIMESTAMP is that of the local files",
        ((list_offsets, "_largest", _local_maximum),),
        "tiered|shared",
        "produce.*|delete .*|roll",
    ),
    PlantedBug(
        "a look-up by time searches the local files",
        ((list_offsets, "_find", _local_time),),
        "tiered",
        "produce.*|roll",
    ),
    PlantedBug(
        "local copies of what is archived stay", ((Log, "trim_local", _trims_nothing),), "tiered", "produce.*|roll"
    ),
    PlantedBug(
        "a topic that becomes tiered is not archived before a start",
        ((Lifecycle, "configure", _without_archive),),
        "local|events",
        "alter to tiered|produce.*|roll",
        40,
    ),
)
