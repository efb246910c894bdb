"""Histories from seeds, for simulations that play one with a function: findings, the hunt for planted bugs, a command.

``play(seed, seen)`` plays the history of a seed, counts in ``seen`` what happened, and gives what it found.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

from sim.engine.planting import planted


class Finding(NamedTuple):
    """What a history found."""

    seed: int
    what: str
    trace: tuple[str, ...]


Play: TypeAlias = Callable[[int, Counter[str]], Finding | None]


class PlantedBug(NamedTuple):
    """One bug: the functions named are others while it is planted; production code knows nothing of it."""

    name: str
    replaced: tuple[tuple[object, str, Any], ...]
    histories: int = 100
    """Within so many it is found."""


class Hunt(NamedTuple):
    """What came of looking for a bug."""

    finding: Finding | None
    histories: int


def hunt(bug: PlantedBug, play: Play) -> Hunt:
    """Play histories with the bug planted until one finds it or the budget is used up."""
    with planted(bug.replaced):
        for seed in range(bug.histories):
            finding = play(seed, Counter())
            if finding is not None:
                return Hunt(finding, seed + 1)
    return Hunt(None, bug.histories)


def main(package: str, about: str | None, play: Play, bugs: Sequence[PlantedBug]) -> int:
    """The command of a simulation: play histories, or hunt the planted bugs. 1 if something was found, or a planted bug
    was not.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {package}", description=about)
    parser.add_argument("--histories", type=int, default=100, help="histories to play (default: 100)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed to begin with (default: 0)")
    parser.add_argument("--planted", action="store_true", help="plant each known bug and show how fast it is found")
    options = parser.parse_args()
    out = sys.stdout.write
    if options.planted:
        missed = 0
        for bug in bugs:
            found = hunt(bug, play)
            missed += found.finding is None
            by = "NOT FOUND" if found.finding is None else found.finding.what.partition(":")[0]
            out(f"{bug.name:60} {by:10} {found.histories:>4} of {bug.histories} histories\n")
            sys.stdout.flush()
        return 1 if missed else 0
    seen: Counter[str] = Counter()
    findings = 0
    for seed in range(options.first_seed, options.first_seed + options.histories):
        finding = play(seed, seen)
        if finding is not None:
            findings += 1
            out(f"seed {seed}: {finding.what}\n" + "\n".join(finding.trace) + "\n")
    out(", ".join(f"{what} {count}" for what, count in seen.most_common()) + f"; {findings} findings\n")
    return 1 if findings else 0
