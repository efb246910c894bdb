"""A history of a pair: a topic of a kind, two operations, some more records, rest, and the judge; then all of it again
after a restart.
"""

from __future__ import annotations

import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from millstream.telemetry.log import Level, Log
from sim.pairs.judge import judge, no_errors, rest, verify
from sim.pairs.kinds import KINDS
from sim.pairs.operations import OPERATIONS, fill, is_listed
from sim.pairs.truth import Violation
from sim.pairs.world import MINUTE, SECOND, Refused, World

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Generator


class Pair(NamedTuple):
    """A kind of topics, and two operations in order."""

    kind: str
    first: str
    second: str


class Finding(NamedTuple):
    """What a history found."""

    pair: Pair
    seed: int
    what: str
    trace: str


def every_pair() -> list[Pair]:
    """Every kind × every ordered pair of operations."""
    return [Pair(kind, first, second) for kind in KINDS for first in OPERATIONS for second in OPERATIONS]


def play(pair: Pair, seed: int, seen: Counter[str]) -> Finding | None:
    """Play the history of a pair and a seed; what it found. ``seen`` counts operations and refusals."""
    errors: list[str] = []
    try:
        with _listening(errors):
            _play(pair, seed, seen, errors)
    except Exception as error:  # noqa: BLE001  # whatever ends a broker is a finding
        where = "".join(traceback.format_tb(error.__traceback__)[-5:])
        what = str(error) if isinstance(error, AssertionError | Refused) else f"{type(error).__name__}: {error}"
        return Finding(pair, seed, what or repr(error), where)
    return None


def _play(pair: Pair, seed: int, seen: Counter[str], errors: list[str]) -> None:
    world = World(f"{pair.kind}/{pair.first}/{pair.second}/{seed}", KINDS[pair.kind])
    world.errors = errors
    seen["histories"] += 1
    fill(world, 12)
    pauses = (0, 0, 3 * SECOND, 5 * MINUTE)
    world.wait(world.chance.choice(pauses))
    for name in (pair.first, pair.second):
        try:
            OPERATIONS[name](world)
            seen[name] += 1
        except Refused as refused:
            if not is_listed(pair.kind, name, str(refused)):
                raise Violation(f"{name} is refused: {refused}") from refused
            seen[f"refused: {name}"] += 1
        no_errors(world)
        world.latest()
        world.wait(world.chance.choice(pauses))
    fill(world, 5)
    rest(world)
    before = judge(world)
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
    if not any(truth.compacts or truth.expires for truth in truths) and before != after:
        raise Violation("a restart changes what is read")


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
