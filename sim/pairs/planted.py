"""Bugs that are planted into the production code, to prove that the judge of pairs finds what it is for.

Each is of a kind that has been a fault of the product, or of one that no part alone would show. A hunt plays drawn
pairs until one finds it, of those that can.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import random
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.app import tiers
from millstream.cluster.take_overs import TakeOvers
from millstream.coordinator.local_groups import LocalGroups
from millstream.core.controller import cutting
from millstream.core.producer_state import ProducerState
from millstream.core.txn.image import Image
from millstream.core.txn.partition_state import PartitionTransactions
from millstream.format.names import partition_directory
from millstream.format.segment_object import SegmentObject
from millstream.partition import lifecycle
from millstream.partition.append import checks, markers
from millstream.partition.lifecycle import Lifecycle
from millstream.partition.read import list_offsets
from millstream.partition.replica import following
from millstream.raft.sole_voter import SoleVoterGroup
from millstream.share import served
from millstream.share.served import ServedPartition
from millstream.storage.log.log import Log
from millstream.tiers import archiver, process
from millstream.tiers.newest import Newest, known_archive
from millstream.tiers.restoring import state_of
from millstream.tiers.shared_filling import SharedObject
from millstream.wire.records import COMMIT
from sim.engine.planting import Hunt, PlantedBug, hunt_with
from sim.pairs import judge
from sim.pairs.history import every_pair, play

if TYPE_CHECKING:
    from collections.abc import Callable

    from millstream.format.epochs import LogState
    from sim.pairs.history import Pair


def _where(kinds: str, operations: str) -> Callable[[list[Pair]], list[Pair]]:
    """The pairs of kinds and operations, both regular expressions, in which a bug can be reached."""

    def reachable(pairs: list[Pair]) -> list[Pair]:
        return [
            pair
            for pair in pairs
            if re.fullmatch(kinds, pair.kind) and all(re.fullmatch(operations, one) for one in pair[1:])
        ]

    return reachable


def hunt(bug: PlantedBug) -> Hunt:
    """Play pairs in which the bug can be reached, in a fixed order."""
    pairs = bug.shape(every_pair())
    random.Random(bug.name).shuffle(pairs)
    return hunt_with(bug, lambda seed: (play(pairs[seed % len(pairs)], seed // len(pairs), Counter()), 1))


def _always(*_: object, **__: object) -> bool:
    return True


def _nothing(*_: object, **__: object) -> None:
    """What should be done is not."""


_aborted_between = PartitionTransactions.aborted_between


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
    made, self.archiver = self.archiver, None
    try:
        _configure(self, name, config)
    finally:
        self.archiver = made


def _plain_directory(data_dir: str, topic_id: bytes, name: str, index: Any, *, events: bool) -> str:
    _ = name, events
    return partition_directory(data_dir, topic_id, index)


def _oldest_last(store: Any) -> Any:
    return _stored_topics(store)[::-1]


def _without_gaps(self: SegmentObject, owner: Any, base_offset: Any, block_bytes: int, *, gaps: bool = False) -> None:
    _ = gaps
    _make_object(self, owner, base_offset, block_bytes)


def _nothing_waits(*_: object) -> dict[int, list[tuple[int, int]]]:
    return {}


def _unknown_time(*_: object) -> int:
    return 0


def _trims_all(self: Log, offset: Any) -> Any:
    """Local files go up to the active segment, archived or not."""
    _ = offset
    return _trim_local(self, self.files.segments.active.base_offset)


def _first_is_archived(self: Lifecycle, name: str, topic_id: bytes, index: int, *more: Any, **rest: Any) -> None:
    made = self.archiver
    self.archiver = None if index else made
    try:
        _open(self, name, topic_id, index, *more, **rest)
    finally:
        self.archiver = made


def _known_state(view: Any, owner: Any, known: LogState, *, shared: bool) -> Newest:
    _ = view, shared
    archive, start = known_archive(known)
    return Newest(state_of(owner, archive, known.epochs, start), None)


def _never_leaves(of: Any, shard: Any, storage: Any, table: Any, place: Any) -> None:
    if place.home == shard.id:
        _change_replicas(of, shard, storage, table, place)


def _without_states(self: ServedPartition, image: Any, start: int) -> None:
    _serve(self, msgspec.structs.replace(image, batches=[]), start)


def _aborted_or_not(spans: Any, aborted: Any) -> list[Any]:
    _ = aborted
    return list(spans)


_serve = ServedPartition._serve
_change_replicas = lifecycle.change_replicas
_configure = Lifecycle.configure
_open = Lifecycle.open
_stored_topics = tiers.stored_topics
_make_object = SegmentObject.__init__
_trim_local = Log.trim_local

_TRANSACTIONS: Final = ".*transaction.*|exhaust epochs|produce|stop and start|kill and start"

PLANTED: Final = (
    PlantedBug(
        "a marker is written where no transaction is open",
        ((ProducerState, "takes_marker", _always), (checks, "_OUTSIDE", None)),
        20,
        _where("events|tiered events", _TRANSACTIONS),
    ),
    PlantedBug(
        "the last aborted transaction is not named to readers",
        ((PartitionTransactions, "aborted_between", _all_but_the_last),),
        20,
        _where("local|tiered", _TRANSACTIONS),
    ),
    PlantedBug(
        "epochs never run out",
        ((Image, "is_exhausted", property(lambda _: False)),),
        120,
        _where("local", _TRANSACTIONS),
    ),
    PlantedBug(
        "MAX_TIMESTAMP is that of the local files",
        ((list_offsets, "_largest", _local_maximum),),
        20,
        _where("tiered|shared", "produce.*|delete .*|roll"),
    ),
    PlantedBug(
        "a look-up by time searches the local files",
        ((list_offsets, "_find", _local_time),),
        20,
        _where("tiered", "produce.*|roll"),
    ),
    PlantedBug(
        "local copies of what is archived stay",
        ((Log, "trim_local", _trims_nothing),),
        20,
        _where("tiered", "produce.*|roll"),
    ),
    PlantedBug(
        "a topic that becomes tiered is not archived before a start",
        ((Lifecycle, "configure", _without_archive),),
        40,
        _where("local|events", "alter to tiered|produce.*|roll"),
    ),
    PlantedBug(
        "the end of a log is believed before the store has it",
        ((SoleVoterGroup, "knows_committed", property(lambda _: True)),),
        20,
        _where("shared, log in store", "produce|kill and start"),
    ),
    PlantedBug(
        "what is archived without times never expires",
        ((archiver, "appended_ms_of", _unknown_time), (archiver, "written_ms", _nothing)),
        20,
        _where("shared", "produce without time|retention by time"),
    ),
    PlantedBug(
        "an event topic comes back from the bucket without its events",
        ((tiers, "log_directory", _plain_directory),),
        20,
        _where("tiered events", "produce|recover from the bucket"),
    ),
    PlantedBug(
        "of topics of one name the oldest comes back",
        ((tiers, "stored_topics", _oldest_last),),
        20,
        _where("shared|tiered", "begin again in the bucket|recover from the bucket"),
    ),
    PlantedBug(
        "a log with gaps is not archived",
        ((SegmentObject, "__init__", _without_gaps),),
        20,
        _where("compacted", "alter to delete|alter to tiered"),
    ),
    PlantedBug(
        "log verify takes for lost what the write-ahead log holds",
        ((judge, "wal_offsets", _nothing_waits),),
        60,
        _where("local", "delete some records|roll|produce huge keys"),
    ),
    PlantedBug(
        "local files go before they are archived",
        ((Log, "trim_local", _trims_all),),
        20,
        _where("tiered", "produce.*|roll|store refuses"),
    ),
    PlantedBug(
        "an abort is marked as a commit",
        ((markers, "ABORT", COMMIT),),
        20,
        _where("local", "abort a transaction|time out a transaction"),
    ),
    PlantedBug(
        "an added partition is not archived",
        ((Lifecycle, "open", _first_is_archived),),
        20,
        _where("tiered|shared", "add a partition|produce"),
    ),
    PlantedBug(
        "offsets of groups stay when their topic is deleted",
        ((LocalGroups, "topic_deleted", _nothing),),
        20,
        _where("local", "commit an offset|delete and create again"),
    ),
    PlantedBug(
        "memory of what is uploaded is not given back",
        ((SharedObject, "release", _nothing),),
        20,
        _where("shared", "produce|delete and create again"),
    ),
    PlantedBug(
        "a follower does not learn of transactions",
        ((following, "record_batches", _nothing),),
        40,
        _where("local, three replicas", "abort a transaction|hand the leadership over|kill the leader"),
    ),
    PlantedBug(
        "a replica that an unclean cut does not name keeps its log",
        ((lifecycle, "begin_empty", _nothing),),
        20,
        _where("local, three replicas", "cut uncleanly|kill .*|produce"),
    ),
    PlantedBug(
        "the term of an unclean cut is not above the known ones",
        ((cutting, "TERM_GAP", 1),),
        20,
        _where("local, three replicas", "cut uncleanly|kill .*|produce"),
    ),
    PlantedBug(
        "an unclean cut does not ask the store what is archived",
        ((process, "newest_state", _known_state),),
        60,
        _where("shared, three replicas", "cut uncleanly|produce.*"),
    ),
    PlantedBug(
        "a replica that has left stays",
        ((lifecycle, "change_replicas", _never_leaves),),
        40,
        _where("local, three replicas", "move replicas|produce"),
    ),
    PlantedBug(
        "nobody takes a dead broker over",
        ((TakeOvers, "carry_out", _nothing),),
        40,
        _where("shared, taken over", "kill the leader|produce"),
    ),
    PlantedBug(
        "a share group forgets what it has finished",
        ((ServedPartition, "_serve", _without_states),),
        20,
        _where("local|tiered", "take records as a share group|kill and start"),
    ),
    PlantedBug(
        "a share group that reads what is committed gets what was aborted",
        ((served, "not_aborted", _aborted_or_not),),
        20,
        _where("local|tiered", "take records as a share group|abort a transaction"),
    ),
)
