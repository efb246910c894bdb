"""A history of a pair: a topic of a kind, two operations, some more records, rest, and the judge; then all of it again
after a restart.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from millstream.telemetry.log import Level, Log
from sim.engine.histories import Finding
from sim.engine.objects import Faults
from sim.engine.timeline import SECOND
from sim.engine.violation import Violation
from sim.pairs.judge import judge, no_errors, verify
from sim.pairs.kinds import KINDS
from sim.pairs.operations import fill, is_listed, operations_of, pairs_of
from sim.pairs.resting import rest
from sim.pairs.several import NO_MAJORITY, Several
from sim.pairs.single import Single
from sim.pairs.world import MINUTE, Refused

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Generator

    from sim.pairs.world import World


class Pair(NamedTuple):
    """A kind of topics, and two operations in order."""

    kind: str
    first: str
    second: str


def every_pair() -> list[Pair]:
    """Every kind × every ordered pair of operations."""
    return [Pair(kind, *operations) for kind in KINDS for operations in pairs_of(kind)]


def play(pair: Pair, seed: int, seen: Counter[str]) -> Finding | None:
    """Play the history of a pair and a seed; what it found. ``seen`` counts operations and refusals."""
    errors: list[str] = []
    try:
        with _listening(errors):
            _play(pair, seed, seen, errors)
    except Exception as error:  # noqa: BLE001  # any end of a broker is a finding
        where = "".join(traceback.format_tb(error.__traceback__)[-5:])
        what = str(error) if isinstance(error, AssertionError | Refused) else f"{type(error).__name__}: {error}"
        return Finding(seed, what or repr(error), where, pair)
    return None


def _play(pair: Pair, seed: int, seen: Counter[str], errors: list[str]) -> None:
    kind = KINDS[pair.kind]
    world = (Single if kind.replicas == 0 else Several)(f"{pair.kind}/{pair.first}/{pair.second}/{seed}", kind)
    world.errors = errors
    seen["histories"] += 1
    fill(world, 12)
    pauses = (0, 0, 3 * SECOND, MINUTE)
    world.pause(world.chance.choice(pauses))
    for name in (pair.first, pair.second):
        try:
            operations_of(pair.kind)[name](world)
            seen[name] += 1
        except Refused as refused:
            if not is_listed(pair.kind, name, str(refused)):
                raise Violation(f"{name} is refused: {refused}") from refused
            seen[f"refused: {name}"] += 1
        no_errors(world)
        _look_at_end(world)
        world.pause(world.chance.choice(pauses))
    world.heal()
    if world.waits_for_store:
        world.set_store(Faults())
    fill(world, 5)
    rest(world)
    before = judge(world)
    world.send()
    if world.chance.random() < 0.5:
        world.stop()
    else:
        world.kill(torn=True)
    verify(world)
    world.start()
    world.latest()
    rest(world)
    after = judge(world)
    truths = world.truths.values()
    if not any(truth.compacts or truth.expires for truth in truths):
        for were, are in zip(before, after, strict=True):
            if are[: len(were)] != were:
                raise Violation("a restart changes what is read")


def _look_at_end(world: World) -> None:
    """The end of the log, if it can be known now, has not gone back."""
    try:
        if not world.waits_for_store:
            world.latest()
    except Refused as refused:
        if str(refused) != NO_MAJORITY:
            raise


@contextmanager
def _listening(errors: list[str]) -> Generator[None]:
    """Note the lines of the log that need a person, and write none."""

    def write(self: Log, level: Level, message: str, args: tuple[object, ...], detail: str = "") -> None:
        _ = self
        if level >= Level.ERROR:
            errors.append((message % args if args else message) + detail[-300:])

    replaced: Any = write
    with patch.object(Log, "_write", replaced):
        yield
