"""Bugs put in on purpose: each breaks the production code in one way, and a run must find it.

Those that break a promise are hunted by the judge alone, without the model, which would find each of them at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from millstream.core.share import batches, partition, stored
from millstream.core.share.batches import Batch, RecordState
from millstream.core.share.partition import SharePartition
from millstream.core.share.runs import Run, Runs
from millstream.core.share.stored import Answer, Outputs, Report, StoredStates
from millstream.model.error_code import ErrorCode
from sim.engine import histories
from sim.engine.planting import Hunt, PlantedBug
from sim.share.model import Model
from sim.share.world import play

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_init = SharePartition.__init__
_acknowledge = SharePartition.acknowledge
_written = SharePartition.written
_expire = SharePartition.expire
_ask = StoredStates.ask
_report = StoredStates._report  # pyright: ignore[reportPrivateUsage]
_snapshot = stored._snapshot  # pyright: ignore[reportPrivateUsage]
_append = Runs.append
_replace: Any = msgspec.structs.replace


def _nothing(*_: Any, **__: Any) -> None:
    pass


def _zero(*_: Any) -> int:
    return 0


def _anybody(run: Run, _member: str) -> bool:
    return run.state is RecordState.ACQUIRED and run.pending is None


def _pending_too(run: Run, member: str) -> bool:
    return run.state is RecordState.ACQUIRED and run.member == member


def _answered_at_once(self: Any, member: str, given: Any, _request: Any, now_us: int) -> ErrorCode | None:
    error = _acknowledge(self, member, given, _nothing, now_us)
    return ErrorCode.NONE if error is None else error


def _always_written(self: Any, _error: ErrorCode, now_us: int) -> Any:
    return _written(self, ErrorCode.NONE, now_us)


def _gaps_are_done(self: Any, start: Any, given: Sequence[Batch] = (), **more: Any) -> None:
    filled: list[Batch] = []
    for one in given:
        if filled and filled[-1].last + 1 < one.first:
            filled.append(Batch(filled[-1].last + 1, one.first - 1, RecordState.ARCHIVED, 1))  # type: ignore[arg-type]
        filled.append(one)
    if filled and filled[0].first > start:
        filled.insert(0, Batch(start, filled[0].first - 1, RecordState.ARCHIVED, 1))  # type: ignore[arg-type]
    _init(self, start, filled, **more)


def _no_limit(*_: Any) -> RecordState:
    return RecordState.AVAILABLE


def _of_any(members: set[str]) -> Callable[[Run], bool]:
    return lambda run: run.member in members


def _before(end_us: int) -> Callable[[Run], bool]:
    return lambda run: run.deadline_us <= end_us


def _by_member(self: Any, token: int) -> bool:
    members = {run.member for run in self.runs.all if run.token == token} or {"member-0"}
    return self._release(_of_any(members))


def _early(self: Any, now_us: int) -> bool:
    return self._release(_before(now_us + 1_000_000))


def _release_pending(self: Any, is_over: Any) -> bool:
    for run in self.runs.all:
        if run.pending is not None and is_over(run):
            run.settle_as(RecordState.AVAILABLE)
    return _release(self, is_over)


_release = SharePartition._release  # pyright: ignore[reportPrivateUsage]


def _newest_wins(merged: list[Batch], new: Batch) -> None:
    kept: list[Batch] = []
    for old in merged:
        if old.first < new.first:
            kept.append(Batch(old.first, min(old.last, new.first - 1), old.state, old.count))  # type: ignore[arg-type]
        if old.last > new.last:
            kept.append(Batch(max(old.first, new.last + 1), old.last, old.state, old.count))  # type: ignore[arg-type]
    merged[:] = sorted([*kept, new], key=lambda batch: batch.first)


def _start_may_shrink(self: Any, request: Report, image: Any, wall_ms: int) -> Any:
    change = _report(self, request, image, wall_ms)
    return _replace(change, start=request.start)


def _before_it_is_written(self: Any, request: Any, now_us: int, wall_ms: int) -> Outputs:
    if not isinstance(request, Report):
        return _ask(self, request, now_us, wall_ms)
    out = _ask(self, _replace(request, token=_nothing), now_us, wall_ms)
    if out.writes:
        return Outputs(out.writes, [(request.token, Answer(ErrorCode.NONE))])
    return Outputs(answers=[(request.token, answer) for _, answer in out.answers])


def _empty_snapshot(image: Any, wall_ms: int) -> Any:
    return _replace(_snapshot(image, wall_ms), batches=[])


def _over_pending(self: Any) -> None:
    start = self.start
    for run in self.all:
        if not run.is_done:
            break
        start = run.last + 1
    self.drop_before(start)


def _forgets_what_failed(self: Any, error: ErrorCode, now_us: int) -> Any:
    answers = _written(self, error, now_us)
    for run in self.runs.all:
        run.changed = False
    return answers


_ALONE: Final = tuple((Model, name, _nothing) for name in ("acquire", "take_write", "compare", "agree"))
"""The judge is alone."""

_SEEDS: Final = 150


def _judged(name: str, promise: str, *replaced: tuple[object, str, Any]) -> PlantedBug:
    return PlantedBug(name, (*replaced, *_ALONE), _SEEDS, breaks=promise)


def _modelled(name: str, *replaced: tuple[object, str, Any]) -> PlantedBug:
    return PlantedBug(name, replaced, _SEEDS, breaks="model")


PLANTED: Final = (
    _judged("anybody may acknowledge", "S", (partition, "_is_held", _anybody)),
    _judged(
        "an acknowledgement is answered before it is written", "S", (SharePartition, "acknowledge", _answered_at_once)
    ),
    _judged("a failed write counts as done", "S1", (SharePartition, "written", _always_written)),
    _judged("a deadline releases what waits for its write", "S1", (SharePartition, "_release", _release_pending)),
    _judged("gaps of a stored state are passed over", "S4", (SharePartition, "__init__", _gaps_are_done)),
    _modelled("no delivery is the last one", (SharePartition, "_after_delivery", _no_limit)),
    _judged("the end of an old session releases a member's records", "S2", (SharePartition, "end_session", _by_member)),
    _judged("a new session does not take the records over", "S2", (SharePartition, "replace_session", _nothing)),
    _judged("locks end too early", "S2", (SharePartition, "expire", _early)),
    _judged("the newest report wins", "S1", (batches, "_merge_one", _newest_wins)),
    _judged("a late report moves the start back", "S1", (StoredStates, "_report", _start_may_shrink)),
    _judged("the coordinator answers before it has written", "S1", (StoredStates, "ask", _before_it_is_written)),
    _judged("a snapshot has no batches", "S1", (stored, "_snapshot", _empty_snapshot)),
    _judged("compacted offsets stay available", "", (SharePartition, "_nothing_between", _nothing)),
    _modelled("the start passes what waits for its write", (Runs, "pass_final", _over_pending)),
    _modelled("a record is acknowledged while it waits", (partition, "_is_held", _pending_too)),
    _modelled("poison is not isolated", (partition, "_part", _zero)),
    _modelled("what failed is not written again", (SharePartition, "written", _forgets_what_failed)),
    _modelled("the log start changes nothing", (SharePartition, "move_log_start", _nothing)),
)


def hunt(bug: PlantedBug) -> Hunt:
    """Run seeds with the bug planted until one breaks a promise or the budget is used up."""
    return histories.hunt(bug, play)
