"""Bugs put in on purpose: each breaks the production code in one way, and a run must find it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.core.producer_state import ProducerState
from millstream.core.txn import coordinator
from millstream.core.txn.coordinator import TransactionCoordinator
from millstream.core.txn.messages import Outputs, SendMarkers
from millstream.core.txn.partition_state import PartitionTransactions
from millstream.core.txn.state import PREPARING, TransactionState
from millstream.model.error_code import ErrorCode
from millstream.model.quantities import Offset
from sim.engine import histories
from sim.engine.planting import Hunt, PlantedBug
from sim.transactions.world import play

if TYPE_CHECKING:
    from millstream.core.txn.image import Image

_replace: Any = msgspec.structs.replace
_write = TransactionCoordinator._write  # pyright: ignore[reportPrivateUsage]
_look_at = TransactionCoordinator._look_at  # pyright: ignore[reportPrivateUsage]
_loaded = TransactionCoordinator.loaded
_with_next_epoch, _fenced, _prepared = coordinator.with_next_epoch, coordinator.fenced, coordinator.prepared
_verified = PartitionTransactions.verified
_ended = PartitionTransactions.ended


def _markers_at_once(self: Any, transaction: Any, image: Any, token: Any = None, answer: Any = None) -> None:
    _write(self, transaction, image, token, answer)
    if image is not None and image.state in PREPARING and image.partitions:
        commits = image.state is TransactionState.PREPARE_COMMIT
        places = tuple(sorted(image.partitions))
        name = transaction.transactional_id
        self._out.markers.append(
            SendMarkers(name, image.producer_id, image.producer_epoch, commits, image.client_version, places)
        )


def _forgetful(self: Any, now_us: int, wall_ms: int) -> Outputs:
    out = _loaded(self, now_us, wall_ms)
    out.markers.clear()
    return out


def _no_timeout(self: Any, transaction: Any) -> None:
    if transaction.image is None or transaction.image.state is not TransactionState.ONGOING:
        _look_at(self, transaction)


def _same_epoch(image: Image, timeout_ms: int, wall_ms: int, *, recovers: bool) -> Image:
    made = _with_next_epoch(image, timeout_ms, wall_ms, recovers=recovers)
    return _replace(made, producer_epoch=max(image.producer_epoch, 0))


def _unfenced(image: Image, wall_ms: int) -> Image:
    return _replace(_fenced(image, wall_ms), producer_epoch=image.producer_epoch)


def _no_epoch_for_each(image: Image, client_version: int, next_id: int, wall_ms: int, *, commits: bool) -> Image:
    made = _prepared(image, client_version, next_id, wall_ms, commits=commits)
    return _replace(made, producer_epoch=image.producer_epoch, last_epoch=image.last_epoch)


def _any_answer(self: Any, producer_id: int, producer_epoch: int, question: object) -> bool:
    _ = question
    self._verified[producer_id] = producer_epoch
    return True


def _open_is_enough(self: Any, producer_id: int, producer_epoch: int) -> bool:
    return producer_id in self.open or self._verified.get(producer_id) == producer_epoch


def _true(*_: Any) -> bool:
    return True


def _nothing_aborted(*_: Any) -> list[Any]:
    return []


def _all_stable(*_: Any) -> int:
    return -1


def _anybody(*_: Any) -> ErrorCode:
    return ErrorCode.NONE


def _kept_by_markers(self: Any, producer_id: int, marker_offset: Offset, **more: Any) -> None:
    kept = self._verified.get(producer_id)
    _ended(self, producer_id, marker_offset, **more)
    if kept is not None:
        self._verified[producer_id] = kept


_SEEDS: Final = 150

PLANTED: Final = (
    PlantedBug(
        "markers go before the decision", ((TransactionCoordinator, "_write", _markers_at_once),), _SEEDS, breaks="D5"
    ),
    PlantedBug(
        "a new coordinator forgets what is decided",
        ((TransactionCoordinator, "loaded", _forgetful),),
        _SEEDS,
        breaks="D5",
    ),
    PlantedBug("a timeout ends nothing", ((TransactionCoordinator, "_look_at", _no_timeout),), _SEEDS, breaks="D5"),
    PlantedBug(
        "a new producer fences nobody",
        ((coordinator, "with_next_epoch", _same_epoch), (coordinator, "fenced", _unfenced)),
        _SEEDS,
        breaks="D",
    ),
    PlantedBug("a transaction keeps its epoch", ((coordinator, "prepared", _no_epoch_for_each),), _SEEDS, breaks="D"),
    PlantedBug(
        "an open transaction takes any epoch",
        ((PartitionTransactions, "accepts", _open_is_enough),),
        _SEEDS,
        breaks="D",
    ),
    PlantedBug("nothing is verified", ((PartitionTransactions, "accepts", _true),), _SEEDS, breaks="D"),
    PlantedBug(
        "an answer counts that a marker overtook",
        ((PartitionTransactions, "verified", _any_answer), (PartitionTransactions, "ended", _kept_by_markers)),
        _SEEDS,
        breaks="D",
    ),
    PlantedBug(
        "nothing was aborted", ((PartitionTransactions, "aborted_between", _nothing_aborted),), _SEEDS, breaks="D3"
    ),
    PlantedBug("everything is stable", ((PartitionTransactions, "first_unstable", _all_stable),), _SEEDS, breaks="D3"),
    PlantedBug("markers of an old coordinator count", ((ProducerState, "check_marker", _anybody),), _SEEDS, breaks="D"),
)


def hunt(bug: PlantedBug) -> Hunt:
    """Run seeds with the bug planted until one breaks a promise or the budget is used up."""
    return histories.hunt(bug, play)
