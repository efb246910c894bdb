"""All pairs, in an order drawn from a seed, by several processes. What is done is noted, so that a run resumes."""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from sim.pairs.history import Pair, every_pair, play
from sim.pairs.kinds import KINDS
from sim.pairs.operations import OF_CLUSTERS, OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sim.engine.histories import Finding

SAMPLE: int = 180
"""Histories of a drawn sample with one broker; those with clusters come beside."""


class Shard(NamedTuple):
    """One of several parts of all pairs, and the seed of their histories."""

    number: int
    of: int
    seed: int

    def pairs(self) -> list[Pair]:
        """Those of the part, in an order of their own."""
        every = every_pair()
        random.Random(f"order/{self.seed}").shuffle(every)
        return every[self.number :: self.of]


def sample(seed: int, count: int = SAMPLE) -> list[Pair]:
    """Pairs in which every kind and every operation occurs, the latter first and second."""
    chance = random.Random(f"sample/{seed}")
    drawn: list[Pair] = []
    single = [name for name, kind in KINDS.items() if not kind.replicas]
    while len(drawn) < count:
        kinds, first, second = (chance.sample(each, len(each)) for each in (single, list(OPERATIONS), list(OPERATIONS)))
        turn = len(drawn)
        for at, (one, other) in enumerate(zip(first, second, strict=True)):
            drawn.append(Pair(kinds[(turn + at) % len(kinds)], one, other))
    return drawn[:count] + _clusters(chance)


def _clusters(chance: random.Random) -> list[Pair]:
    """Pairs with clusters in which every kind and every operation of theirs occurs first and second."""
    kinds = [name for name, kind in KINDS.items() if kind.replicas]
    chance.shuffle(kinds)
    names = list(OF_CLUSTERS)
    firsts = [Pair("", name, chance.choice(list(OPERATIONS))) for name in names]
    seconds = [Pair("", chance.choice(list(OPERATIONS)), name) for name in names]
    return [pair._replace(kind=kinds[at % len(kinds)]) for at, pair in enumerate(firsts + seconds)]


def play_all(pairs: Sequence[Pair], seed: int, seen: Counter[str]) -> Iterator[Finding]:
    """The findings of the histories of a seed."""
    for pair in pairs:
        finding = play(pair, seed, seen)
        if finding is not None:
            yield finding


def run_shard(shard: Shard, path: str, end_s: float) -> None:
    """Play a part, but for what ``path`` says is done; a line for each history: pair, finding, CPU seconds. No history
    begins after ``end_s`` on the monotonic clock.
    """
    done = {tuple(json.loads(line)[0]) for line in _lines(path)}
    with open(path, "a", encoding="utf-8") as out:
        for pair in shard.pairs():
            if tuple(pair) in done:
                continue
            if time.monotonic() >= end_s:
                return
            began, seen = time.process_time(), Counter[str]()
            finding = play(pair, shard.seed, seen)
            what = None if finding is None else f"{finding.what}\n{finding.trace}"
            refused = [name for name in seen if name.startswith("refused")]
            out.write(json.dumps([pair, what, refused, round(time.process_time() - began, 3)]) + "\n")
            out.flush()


def _lines(path: str) -> list[str]:
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as lines:
        return [line for line in lines if line.endswith("]\n")]


def results(paths: Sequence[str]) -> list[tuple[Pair, str | None, list[str], float]]:
    """What the files of all parts say."""
    found = [json.loads(line) for path in paths for line in _lines(path)]
    return [(Pair(*pair), what, refused, cpu_s) for pair, what, refused, cpu_s in found]
